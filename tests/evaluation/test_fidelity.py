from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import TensorProto, helper

from detent.evaluation.fidelity import NoiseSums, measure_fidelity, shown_parts
from detent.graph.load import load
from detent.graph.session import Runner
from detent.observe.samples import PendingSample
from detent.results.verdict import judge
from detent.tasks import Task
from detent.tasks.purpose import Purpose, purpose_of

floats = st.floats(-1e6, 1e6, width=32)


def closeness(x, y):
    return NoiseSums.of(np.array(x, np.float32), np.array(y, np.float32)).closeness()


def test_by_hand():
    # x = (3, 4), error = (0, 1): signal 25, noise 1, peak 4, mean noise 1/2; y = (3, 3): product 21, norm sqrt(25 * 18)
    found = closeness([3, 4], [3, 3])
    assert found.sqnr_db == pytest.approx(10 * math.log10(25))
    assert found.psnr_db == pytest.approx(10 * math.log10(16 / 0.5))
    assert found.cosine == pytest.approx(21 / math.sqrt(25 * 18))


def test_equal_tensors():
    found = closeness([1, -2], [1, -2])
    assert (found.sqnr_db, found.psnr_db, found.cosine) == (math.inf, math.inf, 1.0)
    assert closeness([0, 0], [0, 0]).cosine == 1.0


def test_nothing_left_or_nothing_there():
    assert closeness([1, 2], [0, 0]).cosine == 0.0
    assert closeness([1, 2], [0, 0]).sqnr_db == 0.0
    assert closeness([0, 0], [1, 0]).sqnr_db == -math.inf


@settings(deadline=None, max_examples=50)
@given(arrays(np.float32, 12, elements=floats), arrays(np.float32, 12, elements=floats), st.integers(0, 12))
def test_sums_of_parts_are_the_sums_of_the_whole(x, y, cut):
    whole = NoiseSums.of(x, y)
    parts = NoiseSums.of(x[:cut], y[:cut]) + NoiseSums.of(x[cut:], y[cut:])
    assert parts.elements == whole.elements
    assert parts.peak == whole.peak
    for name in ("signal", "noise", "other", "distance"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-9, abs=1e-9)
    reference = x.astype(np.float64)
    assert whole.signal == pytest.approx(float(reference @ reference), rel=1e-9)


def test_infinity_and_nan_are_as_far_as_can_be():
    for bad in (math.inf, math.nan):
        found = closeness([1, 2], [1, bad])
        assert found.sqnr_db == found.psnr_db == -math.inf
        assert found.cosine == 0.0


def chain(op):
    """x [N, 4] -> op -> y."""
    return helper.make_model(
        helper.make_graph(
            [helper.make_node(op, ["x"], ["y"], name="op")],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def measured(first, second, arrays, purpose=None, reserve=()):
    pending = [
        PendingSample(index, f"sample {index}", True, lambda array=array: {"x": array}, len(array))
        for index, array in enumerate([*arrays, *reserve])
    ]
    samples, others = pending[: len(arrays)], pending[len(arrays) :]
    return measure_fidelity(Runner(load(first)), load(second), {"y": "y"}, samples, others, purpose=purpose, threads=2)


def test_two_models_on_samples():
    arrays = [np.array([[1, -2, 0, 0.5]], np.float32), np.array([[3, 4, 1, 2], [-1, -2, -3, -4]], np.float32)]
    found = measured(chain("Identity"), chain("Neg"), arrays)
    assert found.samples == 3
    assert found.same_top1 == 0
    assert found.outputs["y"].cosine == pytest.approx(-1.0)
    assert found.outputs["y"].sqnr_db == pytest.approx(10 * math.log10(1 / 4))
    half = measured(chain("Identity"), chain("Abs"), arrays)
    assert half.same_top1 == 1  # only the row without negative numbers keeps its largest


def test_the_reserve_is_run_where_the_verdict_is_unclear():
    sure, torn = np.array([[9, 0, 0, 0]], np.float32), np.array([[-9, 2, 0, 0]], np.float32)
    reserve = [sure] * 60
    assert measured(chain("Identity"), chain("Identity"), [sure] * 32, reserve=reserve).samples == 32  # all are kept
    assert measured(chain("Identity"), chain("Abs"), [torn] * 8, reserve=reserve).samples == 8  # none is
    # As many again are taken, and that is enough: up to 19 % of the answers may change, which costs 2.9 points.
    assert measured(chain("Identity"), chain("Identity"), [sure] * 8, reserve=reserve).samples == 16
    # One of eight is lost, which may be much or little; with one of 68 it is little.
    found = measured(chain("Identity"), chain("Abs"), [torn, *[sure] * 7], reserve=reserve)
    assert (found.samples, found.same_top1) == (68, 67)
    assert judge(measured(chain("Identity"), chain("Abs"), [torn, *[sure] * 7])).level == "unclear"


def test_outputs_that_fall_silent_are_named_with_what_they_were():
    below, above = np.full((1, 4), -2.5e-6, np.float32), np.array([[-1, 2, 0, 0]], np.float32)
    assert measured(chain("Identity"), chain("Relu"), [below]).silent == {"y": pytest.approx(2.5e-6)}
    assert measured(chain("Identity"), chain("Relu"), [below, above]).silent == {}
    assert measured(chain("Relu"), chain("Relu"), [below]).silent == {}  # as silent in float


@pytest.mark.parametrize(("peak", "silent"), [(0.2, ["y"]), (0.3, [])])
def test_a_score_map_in_which_float_finds_nothing_is_silent(peak, silent):
    values = np.array([[0.001, peak, 0.002, 0.0]], np.float32)
    scores = Purpose(Task.SEGMENT, "by test")
    assert [*measured(chain("Identity"), chain("Neg"), [values], purpose=scores).silent] == silent
    assert not measured(chain("Identity"), chain("Neg"), [values]).silent


@pytest.mark.parametrize(("sure", "level"), [(4.0, "broken"), (-4.0, "close")])
def test_numbers_count_where_float_is_sure_of_them(sure, level):
    """The last two of four numbers are wrong; float is as sure of them as `sure` says."""

    def model(op):
        graph = chain(op).graph
        graph.node.add().CopyFrom(helper.make_node("Sigmoid", ["z"], ["s"], name="s"))
        graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 4]))
        graph.output.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, ["N", 4]))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def load_sample():
        return {"x": np.array([[-3, -4, 3, 4]], np.float32), "z": np.array([[4, 4, sure, sure]], np.float32)}

    purpose = purpose_of(load(model("Neg")), "regress")
    sample = PendingSample(0, "sample", True, load_sample, 1)
    found = measure_fidelity(Runner(load(model("Neg"))), load(model("Abs")), {"y": "y"}, [sample], purpose=purpose)
    assert judge(found).level == level


def test_shapes_that_depend_on_data_are_left_out_and_named():
    def picking(op):
        model = chain(op)
        model.graph.node[0].output[0] = "z"
        model.graph.node.append(helper.make_node("NonZero", ["z"], ["indices"], name="n"))
        model.graph.node.append(helper.make_node("Cast", ["indices"], ["y"], name="c", to=TensorProto.FLOAT))
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, None]))
        return model

    found = measured(picking("Abs"), picking("Relu"), [np.array([[1, -1, 2, 3]], np.float32)])
    assert found.resized == ["y"] and found.reshaped == found.samples
    assert found.outputs == {}


def test_only_short_rows_have_columns_of_different_meaning():
    """A sound's first frame may be silent; a box beside its score is not."""
    numbers = Purpose(Task.REGRESS, "by test")
    assert not shown_parts(numbers, {"y": np.array([[1e-4] + [1.0] * 99], np.float32)})
    assert len(shown_parts(numbers, {"y": np.array([[300.0, 200.0, 0.1]], np.float32)})["y"]) == 2


def test_scores_of_minus_infinity_stay_the_lowest():
    """The logarithm of a share that is 0: in the place of it, 0 would be the top class of both models."""
    samples = [np.array([[-3.6, -np.inf, -3.2, -4.0]], np.float32)]
    assert measured(chain("Identity"), chain("Ceil"), samples).same_top1 == 0
    assert measured(chain("Identity"), chain("Identity"), samples).outputs["y"].sqnr_db == np.inf
