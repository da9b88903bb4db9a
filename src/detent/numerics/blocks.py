"""Block formats: neighbours along an axis that share an exponent.

A tensor is cut along one axis into blocks of a fixed number of elements; the last one is filled up with zeros, which
never raise an exponent and are dropped afterwards. A block of zeros is a block like any other.

# Block floating point

Integers that share the exponent of the largest of their block.

BFP16 (no sub blocks), of `bit_width` = 9 + m bits, that is, an 8-bit shared exponent, a sign and m mantissa bits:

    E = the largest exponent, floor(log2|x|), of the finite elements; -127 where all are zero or subnormal
    step = 2^(E - m + 1)         y = step * clip(round(x / step), -(2^m - 1), 2^m - 1)

Infinities and NaN stay as they are and do not affect the rest of their block.

MX4, MX6 and MX9 have two levels: a sub block whose elements are all small has a finer step. Its shift, a number of
`sub_block_shift_bits` bits, says how much finer:

    shift = min(E - E_sub, 2^sub_block_shift_bits - 1)         step = 2^(E - shift - m + 1)

In this variant subnormals become zero, and an infinity or NaN has no code: it makes its whole block NaN.
The sign of a zero result carries no meaning.

# Microscaling (the OCP MX formats)

Small floats or integers that share a power-of-two scale.

    E = the largest exponent, floor(log2|x|), of the finite elements of a block
    scale = 2^max(E - emax, -127)         y = scale * element(x / scale)

    element       largest     emax    least exponent    mantissa bits
    fp8_e5m2        57344       15               -14                2
    fp8_e4m3          448        8                -6                3
    fp6_e3m2           28        4                -2                2
    fp6_e2m3          7.5        2                 0                3
    fp4_e2m1            6        2                 0                1
    int8           127/64        0    (the multiples of 1/64 from -128/64)

A float element is rounded half to even to its mantissa bits, to the spacing of the least exponent below that one, and
saturates at the largest. Infinities and NaN stay as they are and do not affect the rest of their block. The sign of a
zero result carries no meaning.

The scale is stored as an 8-bit exponent, so none is below 2^-127. AMD Quark's operator goes lower (a block whose
largest magnitude is below 2^(emax - 127) keeps more digits there than the format has), and turns finite int8 elements
below -255/128 * 2^127 into minus infinity, where the result here is the -127/64 * 2^127 that float32 can hold. For all
else the two agree to the bit.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias, TypeGuard, get_args

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError, check_known, check_within
from detent.numerics.codec import Rounding, check_rounding, round_by
from detent.numerics.interface import NumberFormat, Params

Blocks: TypeAlias = npt.NDArray[np.float32]

EXPONENT_BITS = 0x7F800000
EXPONENT_BIAS = 127  # of float32
NOT_FINITE = 255  # the biased exponent of infinities and NaN

# How the operators name a rounding.
ROUNDING_MODES: dict[Rounding, int] = {"half_away": 0, "half_up": 1, "half_even": 2}

_CHUNK = 1 << 16  # elements handled at a time: their temporaries stay in the processor's cache


def by_blocks(values: npt.ArrayLike, axis: int, block_size: int, snap: Callable[[Blocks], Blocks]) -> Blocks:
    """Apply `snap`, which works on rows that are one block each, to blocks of `values` along `axis`."""
    with np.errstate(over="ignore", invalid="ignore"):  # float64 past the range of float32 is infinite, and NaN is NaN
        array = np.asarray(values, np.float32)
    if not -array.ndim <= axis < array.ndim:
        raise UsageError(f"axis is {axis}, of an array of {array.ndim} dimensions: it cannot be cut into blocks there.")
    rows = np.moveaxis(array, axis, -1)
    length = rows.shape[-1]
    missing = -length % block_size
    if missing:
        rows = np.concatenate([rows, np.zeros((*rows.shape[:-1], missing), np.float32)], axis=-1)
    blocks = np.ascontiguousarray(rows).reshape(-1, block_size)
    snapped = np.empty_like(blocks)
    step = max(1, _CHUNK // block_size)
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        for start in range(0, len(blocks), step):
            snapped[start : start + step] = snap(blocks[start : start + step])
    return np.ascontiguousarray(np.moveaxis(snapped.reshape(rows.shape)[..., :length], -1, axis))


def biased_exponents(values: Blocks) -> npt.NDArray[np.int32]:
    """Return the stored exponents: floor(log2|x|) + 127; 0 for zero and subnormals, 255 for inf and NaN."""
    return (values.view(np.int32) & EXPONENT_BITS) >> 23


def powers_of_two(exponents: npt.NDArray[np.int32]) -> Blocks:
    """Return 2^exponents, which may be subnormal."""
    return np.ldexp(np.float32(1.0), exponents)


class BlockFormat(NumberFormat):
    """Blocks of `block_size` elements along one axis. A file holds them as float32, before a node that rounds them."""

    in_blocks: ClassVar[bool] = True
    op_type: ClassVar[str]
    """The operator of AMD Quark's domain that rounds to the format."""

    dtype = "float32"
    block_size: int
    rounding: Rounding

    def __str__(self) -> str:
        return self.label

    @property
    def unit(self) -> int:
        """What a block size must be a multiple of."""
        return 1

    @abstractmethod
    def attributes(self, axis: int) -> dict[str, int | str]:
        """Return the attributes of the operator `op_type` that rounds to the format."""

    @abstractmethod
    def snap(self, values: npt.ArrayLike, axis: int) -> npt.NDArray[np.float32]:
        """Move `values` to the numbers that the format holds, with blocks along `axis`."""

    def fit(self, low: float, high: float) -> BlockParams:  # noqa: ARG002  (the shared exponent follows the values)
        """Return parameters with blocks along the last axis, whatever the range."""
        return self.along(-1)

    def along(self, axis: int) -> BlockParams:
        return BlockParams(self, axis)


@dataclass(frozen=True, eq=False)
class BlockParams(Params):
    """A block format, and the axis along which neighbours share an exponent."""

    format: BlockFormat
    axis: int

    @property
    def span(self) -> tuple[float, float]:
        """Everything: the shared exponent follows the values."""
        return -math.inf, math.inf

    def snap(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Move `values` to the numbers that their blocks hold."""
        array = np.asarray(values, np.float32)
        return self.format.snap(array.reshape(array.shape or (1,)), self.axis).reshape(array.shape)

    def codes(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return the constant as it is: rounding twice is not the same as once, and a node behind it rounds."""
        return np.asarray(values, np.float32)

    def clipped(self, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Tell that none of `values` saturates."""
        return np.zeros(np.shape(values), np.bool_)


def _attributes(fmt: BlockFormat, axis: int) -> dict[str, int | str]:
    return {"axis": axis, "block_size": fmt.block_size, "rounding_mode": ROUNDING_MODES[fmt.rounding]}


def is_block(fmt: NumberFormat | None) -> TypeGuard[BlockFormat]:
    """Tell whether neighbours share an exponent."""
    return fmt is not None and fmt.in_blocks


OVERHEAD_BITS = 9  # of the bit width, the shared exponent and the sign

# With more mantissa bits than float32 has, a step could fall below the least float32.
LEAST_BITS, MOST_BITS = OVERHEAD_BITS + 1, OVERHEAD_BITS + 23

MOST_SHIFT_BITS = 8  # A shift past 255 could not occur: exponents have 8 bits

_KNOWN = {
    (16, 8, None, 1): "BFP16",
    (11, 16, 2, 1): "MX4",
    (13, 16, 2, 1): "MX6",
    (16, 16, 2, 1): "MX9",
}


@dataclass(frozen=True)
class BlockFloat(BlockFormat):
    """Blocks of `block_size` elements with one exponent; with `sub_block_size`, two-level ones (see the module)."""

    kind: ClassVar[Literal["block_float"]] = "block_float"
    op_type: ClassVar[str] = "BFPQuantizeDequantize"

    bit_width: int = 16
    block_size: int = 8
    sub_block_size: int | None = None
    sub_block_shift_bits: int = 1
    rounding: Rounding = "half_even"

    def __post_init__(self) -> None:
        check_rounding(self.rounding)
        check_within("block_size", self.block_size, 1)
        check_within("bit_width (which counts the shared exponent and the sign)", self.bit_width, LEAST_BITS, MOST_BITS)
        check_within("sub_block_shift_bits", self.sub_block_shift_bits, 1, MOST_SHIFT_BITS)
        if self.sub_block_size is not None:
            check_within("sub_block_size", self.sub_block_size, 1)
            if self.block_size % self.sub_block_size:
                raise UsageError(
                    f"Blocks of {self.block_size} cannot be cut into sub blocks of {self.sub_block_size}: "
                    "choose a sub_block_size that divides block_size."
                )

    @property
    def bits(self) -> int:
        """The bits of an element, counting the shared exponent as if each element had its own."""
        return self.bit_width

    @property
    def unit(self) -> int:
        """Sub blocks must divide a block."""
        return self.sub_block_size or 1

    @property
    def mantissa_bits(self) -> int:
        """The bits of an element's magnitude."""
        return self.bit_width - OVERHEAD_BITS

    @property
    def label(self) -> str:
        """A short name: "BFP16", "MX6"; with the parameters where they are unusual: "BFP13 block 16"."""
        known = _KNOWN.get((self.bit_width, self.block_size, self.sub_block_size, self.sub_block_shift_bits))
        name = known or f"BFP{self.bit_width} block {self.block_size}"
        if known is None and self.sub_block_size is not None:
            name += f" sub {self.sub_block_size} shift {self.sub_block_shift_bits}"
        return name if self.rounding == "half_even" else f"{name} {self.rounding}"

    def snap(self, values: npt.ArrayLike, axis: int) -> npt.NDArray[np.float32]:
        return by_blocks(
            values, axis, self.block_size, self._one_level if self.sub_block_size is None else self._two_levels
        )

    def attributes(self, axis: int) -> dict[str, int | str]:
        """Return the attributes of the operator that rounds to the format."""
        one_level = {"bfp_method": "to_bfp", "bit_width": self.bit_width, **_attributes(self, axis)}
        if self.sub_block_size is None:
            return one_level
        shared = {"sub_block_size": self.sub_block_size, "sub_block_shift_bits": self.sub_block_shift_bits}
        return {**one_level, "bfp_method": "to_bfp_prime", **shared}

    def _one_level(self, blocks: Blocks) -> Blocks:
        exponents = biased_exponents(blocks)
        exponents[exponents == NOT_FINITE] = 0
        snapped = self._to_multiples(blocks, exponents.max(axis=1, keepdims=True))
        np.copyto(snapped, blocks, where=~np.isfinite(blocks))
        return snapped

    def _two_levels(self, blocks: Blocks) -> Blocks:
        sub_blocks = blocks.reshape(len(blocks), -1, self.sub_block_size or 1)
        exponents = biased_exponents(sub_blocks)
        of_sub_block = exponents.max(axis=2, keepdims=True)
        of_block = of_sub_block.max(axis=1, keepdims=True)
        shift = np.minimum(of_block - of_sub_block, (1 << self.sub_block_shift_bits) - 1)
        normal = np.where(exponents == 0, np.float32(0.0), sub_blocks)
        snapped = self._to_multiples(normal, of_block - shift)
        np.copyto(snapped, np.float32(np.nan), where=of_block == NOT_FINITE)
        return snapped.reshape(blocks.shape)

    def _to_multiples(self, values: Blocks, biased: npt.NDArray[np.int32]) -> Blocks:
        """Return the multiples nearest to `values` of the steps that belong to the exponents."""
        step = powers_of_two(biased - (EXPONENT_BIAS + self.mantissa_bits - 1))
        largest = np.float32((1 << self.mantissa_bits) - 1)
        multiples: Blocks = np.clip(round_by(values / step, self.rounding), -largest, largest) * step
        return multiples


Element = Literal["int8", "fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1"]
ELEMENTS: tuple[Element, ...] = get_args(Element)

LEAST_SCALE_EXPONENT = -127  # of a scale that is stored as an 8-bit exponent
GREATEST_EXPONENT = 127
INT8_FRACTION_BITS = 6
BLOCK_SIZE = 32  # the block size of the OCP formats


class FloatElement(NamedTuple):
    """A type of small floats, as in the table above."""

    largest: float
    greatest_exponent: int
    least_exponent: int
    mantissa_bits: int

    def snap(self, values: Blocks) -> Blocks:
        """Return the nearest elements, ties to even, saturating."""
        magnitude = np.maximum(np.abs(values), np.float32(2.0**self.least_exponent))
        leading_power = (magnitude.view(np.int32) & EXPONENT_BITS).view(np.float32)
        step = leading_power * np.float32(2.0**-self.mantissa_bits)
        limit = np.float32(self.largest)
        elements: Blocks = np.clip(np.rint(values / step) * step, -limit, limit)
        return elements


FLOAT_ELEMENTS: dict[str, FloatElement] = {
    "fp8_e5m2": FloatElement(57344.0, 15, -14, 2),
    "fp8_e4m3": FloatElement(448.0, 8, -6, 3),
    "fp6_e3m2": FloatElement(28.0, 4, -2, 2),
    "fp6_e2m3": FloatElement(7.5, 2, 0, 3),
    "fp4_e2m1": FloatElement(6.0, 2, 0, 1),
}


@dataclass(frozen=True)
class Microscaling(BlockFormat):
    """Blocks of `block_size` elements of type `element` with one scale. `rounding` applies to int8 elements only."""

    kind: ClassVar[Literal["microscaling"]] = "microscaling"
    op_type: ClassVar[str] = "MXQuantizeDequantize"

    element: Element
    block_size: int = BLOCK_SIZE
    rounding: Rounding = "half_even"

    def __post_init__(self) -> None:
        check_known("microscaling element", self.element, ELEMENTS)
        check_within("block_size", self.block_size, 1)
        check_rounding(self.rounding)
        if self.element != "int8" and self.rounding != "half_even":
            raise UsageError(f"rounding {self.rounding!r} is for int8 elements: {self.element} is always half_even.")

    @property
    def bits(self) -> int:
        return int(self.element.removeprefix("int").removeprefix("fp")[0])

    @property
    def label(self) -> str:
        """A short name: "MXINT8", "MXFP8E4M3"; with the parameters where they are unusual: "MXINT8 block 16"."""
        name = "MX" + self.element.replace("_", "").upper()
        if self.block_size != BLOCK_SIZE:
            name += f" block {self.block_size}"
        return name if self.rounding == "half_even" else f"{name} {self.rounding}"

    def snap(self, values: npt.ArrayLike, axis: int) -> npt.NDArray[np.float32]:
        return by_blocks(values, axis, self.block_size, self._snap_blocks)

    def attributes(self, axis: int) -> dict[str, int | str]:
        return {"element_dtype": self.element, **_attributes(self, axis)}

    def _snap_blocks(self, blocks: Blocks) -> Blocks:
        exponents = biased_exponents(blocks)
        exponents[exponents == NOT_FINITE] = 0
        largest = exponents.max(axis=1, keepdims=True) - EXPONENT_BIAS
        element = FLOAT_ELEMENTS.get(self.element)
        if element is None:
            snapped = self._snap_integers(blocks, largest)
        else:
            scale = powers_of_two(np.maximum(largest - element.greatest_exponent, LEAST_SCALE_EXPONENT))
            snapped = element.snap(blocks / scale) * scale
        np.copyto(snapped, blocks, where=~np.isfinite(blocks))
        return snapped

    def _snap_integers(self, blocks: Blocks, exponent: npt.NDArray[np.int32]) -> Blocks:
        step = powers_of_two(exponent - INT8_FRACTION_BITS)
        # -128 * 2^(127 - 6) is past the range of float32.
        low = np.where(exponent == GREATEST_EXPONENT, np.float32(-127), np.float32(-128))
        multiples: Blocks = np.clip(round_by(blocks / step, self.rounding), low, np.float32(127)) * step
        return multiples
