from __future__ import annotations

import math

import numpy as np
import pytest

from detent.errors import ModelError
from detent.measure.tensors import compare_models
from tests.models import build, info, node

DATA = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]], np.float32)


def chain(factor, last="y", batch="N"):
    """a = x * factor, b = a + 0, y = b * 1; and a shape, which is no float."""
    return build(
        [node("Mul", "x f", "a"), node("Add", "a zero", "b"), node("Mul", "b one", last), node("Shape", "a", "s")],
        [info(last, [batch, 2])],
        {"f": np.asarray(factor, np.float32), "zero": np.float32(0), "one": np.float32(1)},
        [info("x", [batch, 2])],
    )


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_by_hand(batch):
    found = compare_models(chain(1.0), chain([1.0, 0.5]), DATA, batch=batch)
    assert [tensor.name for tensor in found.tensors] == ["a", "b", "y"]
    assert [tensor.is_output for tensor in found.tensors] == [False, False, True]
    assert found.skipped == ["s"]
    y = found.tensors[-1]
    # (3, 4) against (3, 2); (1, 0) against itself; (0, 2) against (0, 1).
    assert y.values[0] == pytest.approx([10 * math.log10(25 / 4), math.inf, 10 * math.log10(4)])
    assert y.values[1] == pytest.approx([10 * math.log10(16 / 2), math.inf, 10 * math.log10(4 / 0.5)])
    assert y.values[2] == pytest.approx([17 / (5 * math.sqrt(13)), 1, 1])
    assert y.values[3] == pytest.approx([1, 0, 0.5])
    assert y.values[4] == pytest.approx([2, 0, 0.5])
    assert y.mean("l1") == pytest.approx(0.5)
    assert (y.worst("l2"), y.worst("cosine")) == (2, pytest.approx(17 / (5 * math.sqrt(13))))
    assert y.worst_samples(2) == ["array[2]", "array[0]"]


def test_the_worst_come_first():
    one = build(
        [node("Relu", "x", "a"), node("Mul", "x f", "b"), node("Add", "a b", "y")],
        "y",
        {"f": np.float32(1)},
        [info("x", ["N", 2])],
    )
    other = build(
        [node("Relu", "x", "a"), node("Mul", "x f", "b"), node("Add", "a b", "y")],
        "y",
        {"f": np.float32(-1)},
        [info("x", ["N", 2])],
    )
    assert [tensor.name for tensor in compare_models(one, other, DATA).worst_first()] == ["b", "y", "a"]


def test_models_without_a_common_tensor():
    one = build([node("Relu", "x", "y")], "y", {}, [info("x", ["N", 2])])
    other = build([node("Relu", "x", "z")], "z", {}, [info("x", ["N", 2])])
    with pytest.raises(ModelError, match="have no tensor of the same name"):
        compare_models(one, other, DATA)
    fed = build([node("Relu", "u", "y")], "y", {}, [info("u", ["N", 2])])
    with pytest.raises(ModelError, match="has the input 'u'"):
        compare_models(one, fed, DATA)


def test_an_output_of_another_name_is_left_out():
    found = compare_models(chain(1.0), chain(1.0, last="z"), DATA)
    assert [(tensor.name, tensor.is_output) for tensor in found.tensors] == [("a", False), ("b", False)]
