from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

import detent
from detent.plan.select import MASK_REASON, SCORE_REASON, find_masks
from tests.models import as_ir, build, info, node, normal, run
from tests.transformer_models import LOWEST, Style, bert, bert_data

QUERY, KEYS = info("q", (2, 4, 8)), info("k", (2, 8, 4))
GIVEN = info("given", (2, 4), TensorProto.INT64)
CAUSAL = np.where(np.tri(4, dtype=bool), 0.0, -np.inf).astype(np.float32)


def masks(nodes, constants=None, *inputs):
    """The masks between a product of two computed values, `scores`, and the Softmax of `masked`."""
    around = [node("MatMul", "q k", "scores"), *nodes, node("Softmax", "masked", "y")]
    return find_masks(as_ir(build(around, "y", constants, inputs=[QUERY, KEYS, *inputs])).graph)


@pytest.mark.parametrize("number", [-np.inf, LOWEST, -1e4, -100.0])
def test_a_constant_mask(number):
    found = masks([node("Add", "scores m", "masked")], {"m": np.array([0, 0, 0, number], np.float32)})
    assert found.reasons == {"add_masked": SCORE_REASON}
    assert found.masked == {"masked"}


def test_the_mask_may_come_first_and_the_masked_may_be_reshaped():
    nodes = [node("Add", "m scores", "a"), node("Reshape", "a flat", "masked")]
    found = masks(nodes, {"m": CAUSAL, "flat": np.array([8, 4])})
    assert found.reasons == {"add_a": SCORE_REASON, "reshape_masked": SCORE_REASON}
    assert found.masked == {"a", "masked"}


def test_a_mask_that_is_computed_from_an_input():
    nodes = [
        node("Unsqueeze", "given one", "spread"),
        node("Cast", "spread", "number", to=TensorProto.FLOAT),
        node("Sub", "unit number", "ignored"),
        node("Mul", "ignored large", "mask"),
        node("Add", "scores mask", "masked"),
    ]
    constants = {"one": np.array([1]), "unit": np.float32(1), "large": np.float32(-1e4)}
    found = masks(nodes, constants, GIVEN)
    assert found.reasons.pop("add_masked") == SCORE_REASON
    assert found.reasons == dict.fromkeys(["unsqueeze_spread", "cast_number", "sub_ignored", "mul_mask"], MASK_REASON)
    assert found.masked == {"masked"}


def test_two_masks_in_a_row():
    nodes = [node("Add", "scores m", "once"), node("Add", "once given_mask", "masked")]
    found = masks(nodes, {"m": CAUSAL}, info("given_mask", (2, 1, 4)))
    assert found.reasons == {"add_once": SCORE_REASON, "add_masked": SCORE_REASON}
    assert found.masked == {"once", "masked"}


def test_where_picks_between_scores_and_infinity():
    found = masks(
        [node("Where", "flags scores m", "masked")], {"m": CAUSAL[0, 3]}, info("flags", (4,), TensorProto.BOOL)
    )
    assert found.reasons == {"where_masked": SCORE_REASON}


def test_a_factor_and_a_lower_bound_may_follow():
    nodes = [node("Add", "scores m", "a"), node("Max", "a low", "b"), node("Mul", "b f", "masked")]
    found = masks(nodes, {"m": CAUSAL, "low": np.float32(LOWEST), "f": np.float32(0.1)})
    assert found.masked == {"a", "b", "masked"}
    assert not masks([node("Mul", "scores f", "masked")], {"f": np.float32(0.1)}).masked


@pytest.mark.parametrize(
    ("nodes", "constants", "inputs"),
    [
        ([node("Add", "scores b", "masked")], {"b": normal(4) * 10}, ()),
        ([node("Mul", "scores b", "masked")], {"b": normal(4) * 1000}, ()),
        ([node("Add", "scores scores", "masked")], {}, ()),
        (
            [node("Gather", "b given", "t"), node("Add", "scores t", "masked")],
            {"b": normal(9)},
            (info("given", (4,), TensorProto.INT64),),
        ),
        ([node("MatMul", "scores w", "t"), node("Add", "scores t", "masked")], {"w": normal(4, 4) * 1000}, ()),
    ],
)
def test_what_masks_nothing(nodes, constants, inputs):
    found = masks(nodes, constants, *inputs)
    assert not found.reasons
    assert not found.masked


def test_the_scores_of_a_model_may_be_an_input():
    proto = build([node("Add", "x m", "a"), node("Softmax", "a", "y")], "y", {"m": np.full(8, -1e4, np.float32)})
    assert find_masks(as_ir(proto).graph).masked == {"a"}
    proto = build([node("Add", "x b", "a"), node("Softmax", "a", "y")], "y", {"b": normal(8)})
    assert not find_masks(as_ir(proto).graph).masked


def test_how_a_mask_is_written_does_not_matter():
    """All forms of a mask are the same function, and the same quantized function."""
    answers = []
    for number in (-1e4, LOWEST, -np.inf):
        report = detent.quantize(bert(Style(mask=number), layers=1), calibration=bert_data(4), recipe="A8W8")
        reasons = {each.reason for each in report.nodes if each.op_type == "Add" and not each.quantized}
        assert reasons == {SCORE_REASON}
        answers.append([run(report.model, sample)["logits"] for sample in bert_data(3, seed=2)])
    assert np.isfinite(answers).all()
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(answers[2], answers[0], rtol=1e-5, atol=1e-6)


def test_a_row_that_is_masked_throughout():
    nodes = [
        node("MatMul", "x k", "scores"),
        node("Where", "flags scores low", "masked"),
        node("Softmax", "masked", "s"),
        node("IsNaN", "s", "lost"),
        node("Where", "lost zero s", "p"),
        node("MatMul", "p w", "y"),
    ]
    constants = {"k": normal(8, 4), "low": np.float32(-np.inf), "zero": np.float32(0), "w": normal(4, 4, seed=1)}
    inputs = [info("x", (1, 4, 8)), info("flags", (4, 4), TensorProto.BOOL)]
    proto = build(nodes, "y", constants, inputs=inputs)
    flags = np.tri(4, dtype=bool)
    flags[1] = False
    feeds = [{"x": normal(1, 4, 8, seed=index), "flags": flags} for index in range(4)]
    report = detent.quantize(proto, calibration=feeds, recipe="A8W8")
    want, got = run(proto, feeds[0])["y"], run(report.model, feeds[0])["y"]
    assert not want[0, 1].any()
    assert not got[0, 1].any()
    np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max())
