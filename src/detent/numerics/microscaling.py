"""Microscaling (the OCP MX formats): small floats or integers that share a power-of-two scale.

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
saturates at the largest. Infinities and NaN stay as they are, and the others of their block do not notice them. The
sign of a result of zero carries no meaning.

The scale is stored as an 8-bit exponent, so none is below 2^-127. AMD Quark's operator goes lower (a block whose
largest magnitude is below 2^(emax - 127) keeps more digits there than the format has), and turns finite int8 elements
below -255/128 * 2^127 into minus infinity, where the result here is the -127/64 * 2^127 that float32 can hold. For all
else the two agree to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError
from detent.numerics.blocks import (
    EXPONENT_BIAS,
    EXPONENT_BITS,
    NOT_FINITE,
    Blocks,
    biased_exponents,
    by_blocks,
    powers_of_two,
)
from detent.numerics.checks import check_known, check_within
from detent.numerics.rounding import Rounding, check_rounding, round_by

Element = Literal["int8", "fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1"]
ELEMENTS: tuple[Element, ...] = get_args(Element)

LEAST_SCALE_EXPONENT = -127
GREATEST_EXPONENT = 127
INT8_FRACTION_BITS = 6
BLOCK_SIZE = 32
"""The block size of the OCP formats."""


class FloatElement(NamedTuple):
    """A type of small floats, as in the table above."""

    largest: float
    greatest_exponent: int
    least_exponent: int
    mantissa_bits: int

    def snap(self, values: Blocks) -> Blocks:
        """The nearest elements, ties to even, saturating."""
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
class Microscaling:
    """Blocks of `block_size` elements of the type `element` with one scale. `rounding` is that of int8 elements."""

    element: Element
    block_size: int = BLOCK_SIZE
    rounding: Rounding = "half_even"

    def __post_init__(self) -> None:
        check_known("microscaling element", self.element, ELEMENTS)
        check_within("block_size", self.block_size, 1)
        check_rounding(self.rounding)
        if self.element != "int8" and self.rounding != "half_even":
            raise UsageError(f"rounding {self.rounding!r} is for int8 elements: {self.element} is always half_even.")

    def __str__(self) -> str:
        return self.label

    @property
    def label(self) -> str:
        """A short name: "MXINT8", "MXFP8E4M3"; with the parameters where they are unusual: "MXINT8 block 16"."""
        name = "MX" + self.element.replace("_", "").upper()
        if self.block_size != BLOCK_SIZE:
            name += f" block {self.block_size}"
        return name if self.rounding == "half_even" else f"{name} {self.rounding}"

    def snap(self, values: npt.ArrayLike, axis: int) -> npt.NDArray[np.float32]:
        """`values` moved to the numbers that the format can hold, with blocks along `axis`."""
        return by_blocks(values, axis, self.block_size, self._snap_blocks)

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
