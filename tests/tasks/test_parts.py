"""Outputs are divided where a final Concat joined them, or where columns differ in size."""

from __future__ import annotations

import numpy as np

from detent.tasks.parts import OutputPart, output_parts, parts_by_size
from tests.models import as_ir, build, node, normal

WEIGHTS = {"w4": normal(4, 3, 1, 1), "w10": normal(10, 3, 1, 1), "w1": normal(1, 3, 1, 1)}


def spans(parts: tuple[OutputPart, ...]) -> list[tuple[str, int, int, int]]:
    return [(part.label, part.axis, part.start, part.stop) for part in parts]


def test_operands_of_a_final_concat_are_parts() -> None:
    nodes = [
        node("Conv", "x w4", "b"),
        node("Mul", "b stride", "boxes"),
        node("Conv", "x w10", "c"),
        node("Sigmoid", "c", "s"),
        node("Concat", "boxes s", "joined", axis=1),
        node("Reshape", "joined rows", "flat"),
        node("Transpose", "flat", "y", perm=[0, 2, 1]),
    ]
    constants = WEIGHTS | {"stride": np.float32(8.0), "rows": np.array([1, 14, 64], np.int64)}
    parts = output_parts(as_ir(build(nodes, "y", constants)).graph)
    assert spans(parts["y"]) == [("boxes", 2, 0, 4), ("scores", 2, 4, 14)]
    assert [part.node for part in parts["y"]] == ["mul_boxes", "sigmoid_s"]


def test_an_operand_without_columns_is_no_part() -> None:
    cut = {name: np.array([end], np.int64) for name, end in (("zero", 0), ("channels", 1))}
    nodes = [
        node("Conv", "x w1", "a"),
        node("Conv", "x w4", "b"),
        node("Slice", "b zero zero channels", "none"),
        node("Concat", "a none b", "y", axis=1),
    ]
    parts = output_parts(as_ir(build(nodes, "y", WEIGHTS | cut)).graph)
    assert spans(parts["y"]) == [("a", 1, 0, 1), ("b", 1, 1, 5)]
    alone = output_parts(as_ir(build([*nodes[:3], node("Concat", "a none", "y", axis=1)], "y", WEIGHTS | cut)).graph)
    assert alone == {}


def test_nested_and_parallel_concats_are_one_list() -> None:
    nodes = [
        node("Conv", "x w1", "a"),
        node("Conv", "x w4", "b"),
        node("Conv", "x w10", "c"),
        node("Concat", "a b", "ab", axis=1),
        node("Concat", "ab c", "one", axis=1),
        node("Concat", "a b c", "two", axis=1),
        node("Concat", "one two", "wide", axis=3),
        node("Mul", "wide half", "y"),
    ]
    parts = output_parts(as_ir(build(nodes, "y", WEIGHTS | {"half": np.float32(0.5)})).graph)
    assert spans(parts["y"]) == [("a", 1, 0, 1), ("b", 1, 1, 5), ("c", 1, 5, 15)]


def test_a_slice_cuts_parts() -> None:
    nodes = [
        node("Conv", "x w4", "a"),
        node("Conv", "x w10", "b"),
        node("Concat", "a b", "ab", axis=1),
        node("Slice", "ab low high axis", "y"),
    ]
    bounds = {"low": np.array([2]), "high": np.array([8]), "axis": np.array([1])}
    parts = output_parts(as_ir(build(nodes, "y", WEIGHTS | bounds)).graph)
    assert spans(parts["y"]) == [("a", 1, 0, 2), ("b", 1, 2, 6)]


def test_arithmetic_makes_operands_one() -> None:
    nodes = [
        node("Conv", "x w4", "a"),
        node("Conv", "x w1", "b"),
        node("Concat", "a b", "ab", axis=1),
        node("Mul", "ab half", "scaled"),
        node("Conv", "x w10", "c"),
        node("Concat", "scaled c", "y", axis=1),
    ]
    parts = output_parts(as_ir(build(nodes, "y", WEIGHTS | {"half": np.float32(0.5)})).graph)
    assert spans(parts["y"]) == [("scaled", 1, 0, 5), ("c", 1, 5, 15)]


def test_a_plain_output_has_no_parts() -> None:
    assert output_parts(as_ir(build([node("Conv", "x w4", "y")], "y", WEIGHTS)).graph) == {}


def test_columns_of_other_sizes_are_parts() -> None:
    values = normal(2, 100, 6)
    values[..., :4] *= 500.0
    parts = parts_by_size([values])
    assert spans(parts) == [("columns 0..4", 2, 0, 4), ("columns 4..6", 2, 4, 6)]
    np.testing.assert_array_equal(parts[0].of(values), values[..., :4])
    assert parts_by_size([normal(2, 100, 6)]) == ()
    assert parts_by_size([np.zeros((2, 8), np.float32)]) == ()
    assert parts_by_size([]) == ()
