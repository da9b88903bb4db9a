"""Integer grids: the codes that a quantized tensor may hold, and the real numbers they stand for.

A code q stands for the real number (q - zero_point) * scale. Encoding rounds to the nearest code, ties to the even
one, exactly as ONNX's QuantizeLinear does, and saturates at the ends of the grid:

    encode(x) = clip(round_half_even(x / scale) + zero_point, low, high)
    decode(q) = (q - zero_point) * scale
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class IntegerGrid:
    """The codes low..high around zero_point, stored as `dtype` (a numpy name)."""

    dtype: str
    low: int
    high: int
    zero_point: int

    @property
    def low_level(self) -> int:
        """The lowest code as a multiple of the scale: what real number it stands for when the scale is 1."""
        return self.low - self.zero_point

    @property
    def high_level(self) -> int:
        """The highest code as a multiple of the scale."""
        return self.high - self.zero_point

    def encode(self, values: npt.ArrayLike, scale: float) -> npt.NDArray[np.integer[Any]]:
        """The codes nearest to `values`."""
        levels = np.rint(np.asarray(values, dtype=np.float64) / scale)
        codes = np.clip(levels, self.low_level, self.high_level) + self.zero_point
        return codes.astype(self.dtype)

    def decode(self, codes: npt.ArrayLike, scale: float) -> npt.NDArray[np.float64]:
        """The real numbers that `codes` stand for."""
        return (np.asarray(codes, dtype=np.float64) - self.zero_point) * scale

    def snap(self, values: npt.ArrayLike, scale: float) -> npt.NDArray[np.float64]:
        """Encode and decode: `values` moved to the numbers that the grid can hold."""
        levels = np.rint(np.asarray(values, dtype=np.float64) / scale)
        return np.clip(levels, self.low_level, self.high_level) * scale


INT8 = IntegerGrid("int8", -127, 127, 0)
"""Symmetric int8: -128 is left unused, so that a weight and its negative are both on the grid."""

UINT8_ZERO_128 = IntegerGrid("uint8", 0, 255, 128)
"""The same numbers as int8 (and -128), shifted into unsigned codes: what NPU compilers know as symmetric uint8."""
