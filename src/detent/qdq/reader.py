"""Read what a quantizing node of any family computes with, and compute it bit for bit like onnxruntime's kernels.

    encode(x) = saturate(round_half_even(x / scale) + zero_point)     in float32
    decode(q) = float32(q - zero_point) * scale

Codes of a float type (bfloat16, float16, float8) are not rounded to integers: encode(x) = cast(x / scale + zero_point).
A scale is one number, one for each index along `axis`, or with `block_size` one for each block of indices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import ModelError
from detent.graph.values import constant, input_at, tensor_of
from detent.numerics import codec
from detent.numerics.formats import position_of
from detent.qdq.families import dequantize_family, is_fix_neuron, quantize_family

Array = npt.NDArray[Any]

# The type of codes for each value of the attribute bit_width, which is a string.
_FIX_NEURON_CODES = {"8": np.int8, "16": np.int16, "32": np.int32}


@dataclass(frozen=True, eq=False)
class LinearParams:
    """A scale and a zero point as a file holds them; the type of the zero point is that of the codes."""

    scale: Array
    zero_point: Array
    axis: int = 1
    block_size: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.zero_point.dtype

    @property
    def per_tensor(self) -> bool:
        """Whether there is one scale for the whole tensor."""
        return self.scale.size == 1

    @property
    def position(self) -> int | None:
        """The p of the one power-of-two scale 2^-p; None for any other scale."""
        return position_of(float(self.scale.reshape(-1)[0])) if self.per_tensor else None

    def same_as(self, other: LinearParams) -> bool:
        """Return whether quantizing with one and dequantizing with the other changes a value by rounding alone."""
        if self.dtype != other.dtype or not np.array_equal(self.scale.reshape(-1), other.scale.reshape(-1)):
            return False
        if not np.array_equal(self.zero_point.reshape(-1), other.zero_point.reshape(-1)):
            return False
        return self.per_tensor or (self.axis, self.block_size) == (other.axis, other.block_size)

    def encode(self, values: npt.ArrayLike) -> Array:
        """Return the codes of float numbers."""
        array = np.asarray(values, np.float32)
        scale, zero_point = self._spread(array.shape)
        if is_integer(self.dtype):
            # Nodes divide in float32, whatever the width of their codes.
            low, high = code_range(self.dtype)
            whole = zero_point.astype(np.int64)
            return codec.encode(array, scale, whole, low, high, codec.FLOAT32_BITS, self.dtype)
        shifted = array / scale.astype(np.float32) + zero_point.astype(np.float32)
        if self.dtype.itemsize == 1:  # float8 saturates
            largest = largest_of(self.dtype)
            shifted = shifted.clip(-largest, largest)
        return shifted.astype(self.dtype)

    def decode(self, codes: Array) -> Array:
        """Return the float numbers that codes stand for, in the type of the scale."""
        scale, zero_point = self._spread(codes.shape)
        if is_integer(self.dtype):
            return codec.decode(codes, scale, zero_point).astype(self.scale.dtype)
        levels = codes.astype(np.float32) - zero_point.astype(np.float32)
        return (levels * scale.astype(np.float32)).astype(self.scale.dtype)

    def _spread(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return the scale and the zero point in shapes that broadcast to `shape`."""
        if self.per_tensor:
            return self.scale.reshape(()), self.zero_point.reshape(())
        axis = self.axis % len(shape)
        scale, zero_point = (codec.spread(each, shape, axis, self.block_size) for each in (self.scale, self.zero_point))
        return scale, zero_point


@dataclass(frozen=True, eq=False)
class Dequantized:
    """What a dequantizing node reads: codes, and the node that wrote them if one did.

    `params` is None if the scale or the zero point is computed while the model runs.
    """

    node: ir.Node
    codes: ir.Value
    quantize: ir.Node | None
    params: LinearParams | None

    @cached_property
    def stored(self) -> Array | None:
        """The codes of a constant; None for an activation."""
        return constant(self.codes)

    @property
    def source(self) -> ir.Value | None:
        """The float value that was quantized; None for codes of another origin."""
        return None if self.quantize is None else self.quantize.inputs[0]

    @property
    def tensor(self) -> ir.Value:
        """The tensor that the codes stand for, as a user knows it: the float value, or stored codes."""
        return self.codes if self.source is None else self.source

    @cached_property
    def only_rounds(self) -> bool:
        """Whether a value is quantized and dequantized with the same parameters."""
        written = None if self.quantize is None else params_of(self.quantize)
        return written is not None and self.params is not None and self.params.same_as(written)


def dequantized(node: ir.Node | None) -> Dequantized | None:
    """Read a dequantizing node of any family; None for any other node."""
    if node is None or dequantize_family(node) is None or node.inputs[0] is None:
        return None
    codes = node.inputs[0]
    producer = codes.producer()
    return Dequantized(node, codes, producer if quantize_family(producer) else None, params_of(node))


def params_of(node: ir.Node) -> LinearParams | None:
    """Return the parameters of a linear quantizing node; None if the scale or the zero point is not constant.

    Raises:
        ModelError: Parameters of shapes that do not fit each other or the tensor, which onnxruntime refuses too; a
            FixNeuron with parameters that are computed, or a bit_width that has no type.
    """
    scale, zero_point = constant(input_at(node, 1)), constant(input_at(node, 2))
    if is_fix_neuron(node):
        return _fix_neuron_params(node, scale, zero_point)
    if scale is None or (zero_point is None and input_at(node, 2) is not None):
        return None
    if zero_point is None:
        # Without a zero point the operator means zero, and the type of the codes is found elsewhere.
        zero_point = np.zeros(scale.shape, _default_type(node))
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    stored = tensor_of(node.inputs[0])
    fits = stored is None or scale.size == 1 or _fits(scale.shape, tuple(stored.shape.numpy()), axis, block)
    if scale.size != zero_point.size or not fits:
        of_tensor = "" if stored is None else f" of a tensor of shape {list(stored.shape.numpy())}"
        raise ModelError(
            f"Node '{node.name}' ({node.op_type}) has a scale of shape {list(scale.shape)} and a zero point of shape "
            f"{list(zero_point.shape)} for axis {axis}{of_tensor}, which do not fit. Export the model again."
        )
    return LinearParams(scale, zero_point, axis, block)


def _fits(scale: tuple[int, ...], shape: tuple[int, ...], axis: int, block: int) -> bool:
    """Return whether there is a scale for each index along the axis, or for each block of them."""
    if not -len(shape) <= axis < len(shape):
        return False
    if block <= 0:
        return scale == (shape[axis],)
    blocks = list(shape)
    blocks[axis] = -(-shape[axis] // block)
    return scale == tuple(blocks)


def _fix_neuron_params(node: ir.Node, scale: Array | None, zero_point: Array | None) -> LinearParams:
    attribute = node.attributes.get("bit_width")
    width = "8" if attribute is None else str(attribute.value)
    if scale is None or zero_point is None or width not in _FIX_NEURON_CODES:
        raise ModelError(
            f"FixNeuron '{node.name}' needs a constant scale and zero point and a bit_width of "
            f"{', '.join(_FIX_NEURON_CODES)}; it has bit_width {width}. Fold constants first."
        )
    return LinearParams(scale, zero_point.astype(_FIX_NEURON_CODES[width]))


def _default_type(node: ir.Node) -> np.dtype[Any]:
    """Return the type of the codes of a node without a zero point."""
    # Since opset 21 an attribute may name the type; before, only the codes themselves have it.
    named = ir.DataType(node.attributes.get_int("output_dtype", 0))
    if named != ir.DataType.UNDEFINED:
        return named.numpy()
    codes = node.inputs[0] if dequantize_family(node) else node.outputs[0]
    tensor = tensor_of(codes)
    known = tensor.dtype if tensor is not None else None if codes is None else codes.dtype
    # ONNX prescribes uint8 if nothing else is given.
    return ir.DataType.UINT8.numpy() if known is None else known.numpy()


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Return whether codes of a type are integers, those narrower than a byte included."""
    return np.issubdtype(dtype, np.integer) or dtype.name in ("int4", "uint4", "int2", "uint2")


def code_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the greatest code of an integer type."""
    limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(limits.min), int(limits.max)


def largest_of(dtype: np.dtype[Any]) -> float:
    """Return the greatest finite number of a float type."""
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
