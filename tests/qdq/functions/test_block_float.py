"""BFPQuantizeDequantize in a plain onnxruntime, bit for bit against detent.numerics.block_float."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from detent.numerics.blocks import BlockFloat
from detent.qdq.function_body import ROUNDINGS
from tests.qdq.functions.models import OPSETS, both_generations, fixed_at, model_of, run, same_bits, symbolic
from tests.qdq.functions.numbers import SHAPES, blocks_of_all_kinds, spread

BFP, OLD_BFP = both_generations("BFPQuantizeDequantize")

FORMATS = (
    BlockFloat(),
    BlockFloat(11, 16, 2, 1),
    BlockFloat(13, 16, 2, 1),
    BlockFloat(16, 16, 2, 1),
    BlockFloat(12, 5),
    BlockFloat(14, 12, 3, 2),
    BlockFloat(32, 4, 2, 8),
    BlockFloat(10, 1),
)


def attributes(fmt: BlockFloat, axis: int) -> dict[str, int | str]:
    mode = next(number for number, meaning in ROUNDINGS.items() if meaning == fmt.rounding)
    common = {"axis": axis, "bit_width": fmt.bit_width, "block_size": fmt.block_size, "rounding_mode": mode}
    if fmt.sub_block_size is None:
        return {"bfp_method": "to_bfp", **common}
    sub_blocks = {"sub_block_size": fmt.sub_block_size, "sub_block_shift_bits": fmt.sub_block_shift_bits}
    return {"bfp_method": "to_bfp_prime", **common, **sub_blocks}


# The usual formats at every opset, each of the others at one: what a function needs of an opset is the same for all.
@pytest.mark.parametrize(
    ("fmt", "opset"),
    [
        *((fmt, opset) for fmt in FORMATS[:2] for opset in OPSETS),
        *zip(FORMATS[2:], OPSETS * len(FORMATS), strict=False),
    ],
    ids=str,
)
def test_any_shape_and_axis(fmt: BlockFloat, opset: int) -> None:
    for operator, (shape, axis) in zip((BFP, OLD_BFP) * len(SHAPES), SHAPES, strict=False):
        x = spread(shape)
        for known in (symbolic(len(shape)), fixed_at(shape, axis), ir.Shape(shape)):
            model = model_of(operator, known, attributes=attributes(fmt, axis), opset=opset)
            assert same_bits(run(model, x), fmt.snap(x, axis)), (known, axis)


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("mode", ROUNDINGS)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_every_kind_of_block(fmt: BlockFloat, mode: int, optimize: bool) -> None:
    fmt = BlockFloat(fmt.bit_width, fmt.block_size, fmt.sub_block_size, fmt.sub_block_shift_bits, ROUNDINGS[mode])
    x = blocks_of_all_kinds(fmt.block_size)
    model = model_of(BFP, symbolic(2), attributes=attributes(fmt, 1))
    assert same_bits(run(model, x, optimize=optimize), fmt.snap(x, 1))


def test_defaults() -> None:
    x = spread((2, 11, 3))
    assert same_bits(run(model_of(BFP, symbolic(3)), x), BlockFloat(rounding="half_away").snap(x, 1))
    prime = model_of(BFP, symbolic(3), attributes={"bfp_method": "to_bfp_prime", "block_size": 16})
    assert same_bits(run(prime, x), BlockFloat(16, 16, 2, 1, "half_away").snap(x, 1))


def test_known_answers() -> None:
    x = np.array([[1.0, 1 / 64, 1 / 128, 3 / 128, -3 / 128, 0.0, -2 + 2**-10, np.inf]], np.float32)
    expected = np.array([[1.0, 1 / 64, 0.0, 2 / 64, -2 / 64, 0.0, -127 / 64, np.inf]], np.float32)
    model = model_of(BFP, symbolic(2), attributes=attributes(BlockFloat(), 1))
    assert same_bits(run(model, x), expected)


def test_from_bfloat16() -> None:
    x = spread((4, 16))
    model = model_of(BFP, symbolic(2), attributes={**attributes(BlockFloat(), 1), "convert_to_bfloat_before_bfp": 1})
    with np.errstate(over="ignore"):
        narrow = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert same_bits(run(model, x), BlockFloat().snap(narrow, 1))
    assert not np.array_equal(BlockFloat().snap(narrow, 1), BlockFloat().snap(x, 1))
