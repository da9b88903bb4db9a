from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.devices.catalog import OPTIONAL, check_steps, leavable_steps
from detent.devices.rewrites import ClipToRelu, WholeClip
from detent.errors import UsageError
from detent.plan.layout import Layout
from detent.recipe.recipe import PRESETS
from tests.models import IMAGE, as_ir, build, conv_relu_conv, find, node, normal, pools, run

XINT8 = PRESETS["XINT8"]
SAMPLES = np.stack([normal(*IMAGE[1:], seed=seed) for seed in range(4)])


def clip(low=None, high=None, nodes=()):
    constants = {
        name: np.array(bound, np.float32) for name, bound in (("low", low), ("high", high)) if bound is not None
    }
    names = f"x {'low' if low is not None else '_'} {'high' if high is not None else ''}".rstrip(" _")
    return build([*nodes, node("Clip", names, "y")], "y", constants)


def rewritten(proto, step):
    model = as_ir(proto)
    done = step()
    done(model)
    return model, done


@pytest.mark.parametrize("high", [None, 6.0, 3.5])
def test_a_clip_from_zero_becomes_a_relu(high):
    model, done = rewritten(clip(0.0, high), ClipToRelu)
    assert find(model, "clip_y").op_type == "Relu"
    assert len(find(model, "clip_y").inputs) == 1 and not model.graph.initializers
    x = normal(*IMAGE) * 9
    np.testing.assert_array_equal(run(model, {"x": x})["y"], np.maximum(x, 0))
    assert len(done.changes) == 1 and not done.declined


@pytest.mark.parametrize(("low", "high"), [(None, 6.0), (-1.0, 6.0), (0.5, None)])
def test_other_clips_stay(low, high):
    model, done = rewritten(clip(low, high), ClipToRelu)
    assert find(model, "clip_y").op_type == "Clip"
    assert not done.changes and "lower bound" in done.declined[0].what


@pytest.mark.parametrize(
    ("bounds", "whole"),
    [
        ((-1.4, 2.6), (-1, 3)),
        ((0.5, 1.5), (0, 2)),
        ((None, 6.0), (-128, 6)),
        ((0.0, None), (0, 127)),
        ((None, None), (-128, 127)),
        ((-1000.0, 1000.0), (-128, 127)),
        ((0.0, 6.0), (0, 6)),
    ],
)
def test_whole_bounds(bounds, whole):
    model, done = rewritten(clip(*bounds), WholeClip)
    x = normal(*IMAGE) * 100
    np.testing.assert_array_equal(run(model, {"x": x})["y"], np.clip(x, *whole))
    assert bool(done.changes) == (bounds != whole)
    rewritten_again = WholeClip()
    rewritten_again(model)
    assert not rewritten_again.changes


def test_bounds_that_are_computed_stay_both():
    nodes = [node("ReduceMax", "x", "top", keepdims=0), node("Clip", "x low top", "y")]
    proto = build(nodes, "y", {"low": np.array(-1.5, np.float32)})
    model, done = rewritten(proto, WholeClip)
    assert not done.changes and len(done.declined) == 1
    assert find(model, "clip_y").inputs[1].const_value.numpy() == -1.5


def test_nodes_that_are_not_quantized_are_left_alone():
    model = as_ir(clip(0.0, 6.0))
    ClipToRelu(Layout())(model)  # nothing is quantized
    assert find(model, "clip_y").op_type == "Clip"


def test_the_steps_that_can_be_left_out():
    steps = leavable_steps()
    assert len(steps) == len(set(steps))
    assert {"fold_batch_norm", "split_to_slice", "sigmoid_to_hard_sigmoid", "scale_pools", "shift_cut"} <= set(steps)
    assert set(OPTIONAL) == {"silu_to_two_gates", "clip_to_relu", "whole_clip"}
    assert set(steps) & set(OPTIONAL) == {"silu_to_two_gates"}, "the one that is made unasked"
    check_steps(XINT8.replace(without=tuple(steps), also=tuple(set(OPTIONAL) - set(steps))))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"without": ("shift_ct",)}, ("'without'", "XINT8", "'shift_ct'", "'shift_cut'")),
        ({"also": ("whole_clips",)}, ("'also'", "'whole_clips'", "'whole_clip'")),
        ({"without": ("clip_to_relu",)}, ("'without'", "'clip_to_relu'")),
    ],
)
def test_steps_that_there_are_not(fields, words):
    with pytest.raises(UsageError) as caught:
        check_steps(XINT8.replace(**fields))
    for word in words:
        assert word in str(caught.value)


def test_rules_can_be_left_out():
    rules = ("shift_cut", "shift_bias", "shift_read", "shift_write", "align_concat", "align_pool")
    plain = detent.quantize(pools(), None, SAMPLES, XINT8.replace(without=("pool_positions",)))
    free = detent.quantize(pools(), None, SAMPLES, XINT8.replace(without=rules))
    assert any(move.rule == "align" for move in plain.moves)
    assert not free.moves and not any("rule" in warning for warning in free.warnings)


def test_rewrites_can_be_left_out_and_asked_for():
    proto = build(
        [node("Conv", "x w", "c"), node("Clip", "c low high", "k"), node("Sigmoid", "k", "y")],
        "y",
        {"w": normal(4, 3, 3, 3), "low": np.array(0, np.float32), "high": np.array(4.5, np.float32)},
    )

    def operators(**fields):
        report = detent.quantize(proto, None, SAMPLES, XINT8.replace(**fields))
        return {one.op_type for one in report.model.graph.node}

    assert {"Clip", "HardSigmoid"} <= operators()
    assert {"Clip", "Sigmoid"} <= operators(without=("sigmoid_to_hard_sigmoid",))
    assert {"Relu", "HardSigmoid"} <= operators(also=("clip_to_relu",))


def test_preparations_can_be_left_out():
    report = detent.quantize(conv_relu_conv(), None, SAMPLES, XINT8.replace(without=tuple(leavable_steps())))
    assert report.fidelity.outputs["y"].sqnr_db > 15
