"""MXQuantizeDequantize in a plain onnxruntime, bit for bit against detent.numerics.microscaling."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from detent.numerics.blocks import ELEMENTS, Element, Microscaling
from detent.qdq.function_body import ROUNDINGS
from tests.qdq.functions.models import OPSETS, both_generations, fixed_at, model_of, run, same_bits, symbolic
from tests.qdq.functions.numbers import SHAPES, blocks_of_all_kinds, spread

MX, OLD_MX = both_generations("MXQuantizeDequantize")


def attributes(element: Element, axis: int, block_size: int = 32) -> dict[str, int | str]:
    return {"element_dtype": element, "axis": axis, "block_size": block_size, "rounding_mode": 2}


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_any_shape_and_axis(element: Element, opset: int) -> None:
    for operator, (shape, axis) in zip((MX, OLD_MX) * len(SHAPES), SHAPES, strict=False):
        x = spread(shape)
        for known in (symbolic(len(shape)), fixed_at(shape, axis), ir.Shape(shape)):
            model = model_of(operator, known, attributes=attributes(element, axis, 4), opset=opset)
            assert same_bits(run(model, x), Microscaling(element, 4).snap(x, axis)), (known, axis)


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("block_size", [1, 7, 32])
@pytest.mark.parametrize("element", ELEMENTS)
def test_every_kind_of_block(element: Element, block_size: int, optimize: bool) -> None:
    x = blocks_of_all_kinds(block_size)
    model = model_of(MX, symbolic(2), attributes=attributes(element, 1, block_size))
    assert same_bits(run(model, x, optimize=optimize), Microscaling(element, block_size).snap(x, 1))


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_rounding_modes_are_those_of_int8(mode: int) -> None:
    x = blocks_of_all_kinds(8)
    model = model_of(MX, symbolic(2), attributes={"block_size": 8, "rounding_mode": mode})
    assert same_bits(run(model, x), Microscaling("int8", 8, ROUNDINGS[mode]).snap(x, 1))
    floats = model_of(MX, symbolic(2), attributes={"element_dtype": "fp4_e2m1", "block_size": 8, "rounding_mode": mode})
    assert same_bits(run(floats, x), Microscaling("fp4_e2m1", 8).snap(x, 1))


def test_known_answers() -> None:
    x = np.array([[4.0, 5.0, -2.5, 0.25, 0.75, 7.9, -0.1, np.nan]], np.float32)
    expected = np.array([[4.0, 4.0, -2.0, 0.0, 1.0, 6.0, 0.0, np.nan]], np.float32)
    model = model_of(MX, symbolic(2), attributes=attributes("fp4_e2m1", 1, 8))
    assert same_bits(run(model, x), expected)
