from __future__ import annotations

import numpy as np
import pytest

from detent.errors import ModelError, UsageError
from tests.convert.forms import converted, ops, same
from tests.models import build, node

PARAMETERS = {"s": np.float32(0.1), "z": np.int8(0)}


def rounded(name: str, result: str) -> list:
    return [node("QuantizeLinear", f"{name} s z", f"{name}_q"), node("DequantizeLinear", f"{name}_q s z", result)]


def test_only_the_edge_that_is_named():
    proto = build(
        [*rounded("x", "a"), node("Neg", "a", "n"), *rounded("n", "b"), node("Relu", "b", "r"), *rounded("r", "y")],
        "y",
        PARAMETERS,
    )
    expected = build(
        [*rounded("x", "a"), node("Neg", "a", "n"), node("Relu", "n", "r"), *rounded("r", "y")], "y", PARAMETERS
    )
    result, done = converted(proto, "without-qdq-between:pairs=Mul/Add+Neg/Relu")
    assert ops(result) == ops(expected)
    same(expected, result)
    assert [change.node for change in done.changes] == ["n"]


def test_another_reader_still_reads_the_rounded_value():
    proto = build(
        [
            node("Neg", "x", "n"),
            *rounded("n", "b"),
            node("Relu", "b", "r"),
            node("Abs", "b", "c"),
            node("Add", "r c", "y"),
        ],
        "y",
        PARAMETERS,
    )
    expected = build(
        [
            node("Neg", "x", "n"),
            *rounded("n", "b"),
            node("Relu", "n", "r"),
            node("Abs", "b", "c"),
            node("Add", "r c", "y"),
        ],
        "y",
        PARAMETERS,
    )
    result, _ = converted(proto, "without-qdq-between:pairs=Neg/Relu")
    assert sorted(ops(result)) == sorted(ops(expected))
    same(expected, result)


@pytest.mark.parametrize("pairs", ["", "Conv", "Conv/", "/Relu", "Conv/Relu/Add"])
def test_bad_pairs(pairs):
    proto = build([node("Neg", "x", "y")], "y")
    with pytest.raises(UsageError, match="pair"):
        converted(proto, f"without-qdq-between:pairs={pairs}")


def test_nothing_between():
    proto = build([*rounded("x", "a"), node("Relu", "a", "y")], "y", PARAMETERS)
    with pytest.raises(ModelError, match="no Q/DQ stands between"):
        converted(proto, "without-qdq-between:pairs=Conv/Relu")
