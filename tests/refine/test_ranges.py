"""Range search: scales by what they do to the output, within the rules of the device."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import detent
from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.devices.catalog import find_device
from detent.devices.constraints import SHIFTS
from detent.devices.device import Rules
from detent.execute.quantized_walk import QuantizedWalk
from detent.observe.samples import PendingSample
from detent.plan.plan import Plan
from detent.refine.ranges import RULE, _Continuation, is_better, relative_error, search_ranges
from detent.refinements import Rounding
from tests.models import IMAGE, XINT8, build, node, normal, planned

SAMPLES = 8


def samples(seed: int = 50):
    feeds = [{"x": normal(*IMAGE, seed=seed + index)} for index in range(SAMPLES)]
    return [
        PendingSample(index, f"sample {index}", False, lambda feed=feed: feed, 1) for index, feed in enumerate(feeds)
    ]


def two_readers(small: float):
    """A value whose largest channel is all but ignored by what follows: clipping it is better than coarse steps."""
    rng = np.random.default_rng(1)
    first = rng.standard_normal((4, 3, 1, 1)).astype(np.float32)
    first[0] *= 16
    second = rng.standard_normal((4, 4, 1, 1)).astype(np.float32)
    second[:, 0] *= small
    constants = {"w1": first, "b1": normal(4, seed=2) / 8, "w2": second, "b2": normal(4, seed=3) / 8}
    return build([node("Conv", "x w1 b1", "c"), node("Relu", "c", "r"), node("Conv", "r w2 b2", "y")], "y", constants)


def searched(proto, start: int | None = None) -> tuple[ir.Model, Plan]:
    model, plan = planned(proto)
    rules = Rules(find_device("npu-cnn"), model.clone())
    if start is not None:
        plan = rules(plan.with_position("r", start, "given", ""))
    reference = model.clone()
    plan = search_ranges(model, reference, plan, rules, samples())
    return model, plan


def test_what_the_output_ignores_is_clipped():
    _, kept = searched(two_readers(1.0))
    _, clipped = searched(two_readers(1e-4))
    assert clipped.position("r") > kept.position("r")
    assert any(move.rule == RULE and move.value == "r" for move in clipped.moves)


@pytest.mark.parametrize(("rounding", "code"), [("half-even", 0), ("dpu", 1)])
def test_a_candidate_is_rounded_as_the_device_does(rounding, code):
    """Every element is half a step: the rest of the network gets 0 or a whole one."""
    model, plan = planned(two_readers(1.0), recipe=XINT8.replace(rounding=rounding))
    params = plan.of("r")
    step = np.full((1, 4, 8, 8), params.scale, np.float32)
    rest = list(model.graph)[2:]
    weight, bias = (model.graph.initializers[name].const_value.numpy() for name in ("w2", "b2"))
    wanted = np.einsum("ocij,nchw->nohw", weight, step * code) + bias.reshape(1, 4, 1, 1)
    walk = QuantizedWalk(model, plan, ["the sample"], 1)
    errors = _Continuation(walk, "r", {"r": [step / 2]}, rest, [{"y": wanted}]).errors(params)
    assert errors == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("start", [0, 8])
def test_a_bad_start_is_improved(start):
    proto = two_readers(1.0)
    _, fair = planned(proto)
    _, plan = searched(proto, start)
    assert abs(plan.position("r") - fair.position("r")) < abs(start - fair.position("r"))


@pytest.mark.parametrize("small", [1.0, 1e-4])
def test_the_rules_of_the_device_hold_afterwards(small):
    model, plan = searched(two_readers(small))
    assert SHIFTS.violations(model, plan) == []


def test_a_gain_that_could_be_chance_is_none():
    present = np.array([1.0, 1.0, 1.0, 1.0])
    assert is_better(np.array([0.9, 0.9, 0.9, 0.8]), present)
    assert not is_better(np.array([0.1, 1.2, 1.1, 1.2]), present)  # better on average, by one sample
    assert not is_better(present, present)
    assert not is_better(np.array([0.5]), np.array([1.0]))  # one sample tells nothing


def test_relative_error():
    assert relative_error(np.array([3.0, 4.0], np.float32), np.array([3.0, 3.0], np.float32)) == pytest.approx(1 / 18)
    assert relative_error(np.array([1.0], np.float32), np.array([0.0], np.float32)) == 1.0
    assert relative_error(np.array([7]), np.array([3])) == 0.0


@pytest.mark.parametrize(
    ("recipe", "refinement"), [("XINT8", Rounding(samples=8, rows=16)), ("A8W8", None), ("U8S8_AAWS", None)]
)
def test_the_whole_way(recipe, refinement):
    settings = detent.find_recipe(recipe).replace(search_ranges=True, refinement=refinement)
    report = detent.quantize(MODEL, None, CALIBRATION, settings, preprocess=PREPROCESS, limit=32)
    assert report.fidelity is not None
    assert min(each.sqnr_db for each in report.fidelity.outputs.values()) > 15
    again = detent.quantize(MODEL, None, CALIBRATION, settings, preprocess=PREPROCESS, limit=32)
    assert report.model.SerializeToString() == again.model.SerializeToString()


def test_wide_activations_are_left_alone():
    settings = detent.find_recipe("A16W8").replace(search_ranges=True, refinement=None)
    report = detent.quantize(MODEL, None, CALIBRATION, settings, preprocess=PREPROCESS, limit=16)
    assert not any(move.rule == RULE for move in report.moves)
