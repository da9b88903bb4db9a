"""Block floating point: integers that share the exponent of the largest of their block.

BFP16 (no sub blocks), of `bit_width` = 9 + m bits, that is, an 8-bit shared exponent, a sign and m mantissa bits:

    E = the largest exponent, floor(log2|x|), of the finite elements; -127 where all are zero or subnormal
    step = 2^(E - m + 1)         y = step * clip(round(x / step), -(2^m - 1), 2^m - 1)

Infinities and NaN stay as they are, and the others of their block do not notice them.

MX4, MX6 and MX9 are two-level: a sub block of neighbours that are all small has a finer step. Its shift of
`sub_block_shift_bits` bits says how much finer:

    shift = min(E - E_sub, 2^sub_block_shift_bits - 1)         step = 2^(E - shift - m + 1)

In this variant subnormals are zero, and an infinity or NaN has no code: it makes its whole block NaN.
The sign of a result of zero carries no meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError
from detent.numerics.blocks import (
    EXPONENT_BIAS,
    NOT_FINITE,
    Blocks,
    biased_exponents,
    by_blocks,
    powers_of_two,
)
from detent.numerics.checks import check_within
from detent.numerics.rounding import Rounding, check_rounding, round_by

OVERHEAD_BITS = 9
"""Of the bit width, the shared exponent and the sign."""

LEAST_BITS, MOST_BITS = OVERHEAD_BITS + 1, OVERHEAD_BITS + 23
"""With more mantissa bits than float32 has, a step could fall below the least float32."""

MOST_SHIFT_BITS = 8
"""A shift past 255 could not occur: exponents have 8 bits."""

_KNOWN = {
    (16, 8, None, 1): "BFP16",
    (11, 16, 2, 1): "MX4",
    (13, 16, 2, 1): "MX6",
    (16, 16, 2, 1): "MX9",
}


@dataclass(frozen=True)
class BlockFloat:
    """Blocks of `block_size` elements with one exponent; with `sub_block_size`, two-level ones (see the module)."""

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

    def __str__(self) -> str:
        return self.label

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
        """`values` moved to the numbers that the format can hold, with blocks along `axis`."""
        return by_blocks(
            values, axis, self.block_size, self._one_level if self.sub_block_size is None else self._two_levels
        )

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
        """The multiples nearest to `values` of the steps that belong to the exponents."""
        step = powers_of_two(biased - (EXPONENT_BIAS + self.mantissa_bits - 1))
        largest = np.float32((1 << self.mantissa_bits) - 1)
        multiples: Blocks = np.clip(round_by(values / step, self.rounding), -largest, largest) * step
        return multiples
