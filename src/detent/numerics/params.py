"""The parameters of every number format behind one interface.

Whatever the format, parameters can `snap` values to the numbers that it holds, tell the `span` of these, and which
values are `clipped` because they lie outside of it. Integers have a scale and a zero point (`QuantParams`), small
floats at most a scale, and block formats share an exponent among neighbours along an axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.numerics.block_float import BlockFloat
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.numerics.microscaling import Microscaling

BlockFormat = BlockFloat | Microscaling
NumberFormat = IntegerFormat | FloatFormat | BlockFloat | Microscaling


@dataclass(frozen=True, eq=False)
class FloatParams:
    """A small float format, with the scale by which values are divided before they are rounded."""

    format: FloatFormat
    scale: float = 1.0

    @property
    def span(self) -> tuple[float, float]:
        """The least and the greatest finite number."""
        return -self.format.largest * self.scale, self.format.largest * self.scale

    def snap(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """`values` moved to the numbers that the format can hold."""
        return self.format.snap(np.asarray(values, np.float32), self.scale)

    def clipped(self, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which of `values` are beyond the greatest finite number."""
        outside: npt.NDArray[np.bool_] = np.abs(np.asarray(values, np.float64)) > self.span[1]
        return outside


@dataclass(frozen=True, eq=False)
class BlockParams:
    """A block format, and the axis along which neighbours share an exponent."""

    format: BlockFormat
    axis: int

    @property
    def span(self) -> tuple[float, float]:
        """Everything: the shared exponent follows the values."""
        return -math.inf, math.inf

    def snap(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """`values` moved to the numbers that their blocks can hold."""
        array = np.asarray(values, np.float32)
        return self.format.snap(array.reshape(array.shape or (1,)), self.axis).reshape(array.shape)

    def clipped(self, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """None of `values`."""
        return np.zeros(np.shape(values), np.bool_)


Params = QuantParams | FloatParams | BlockParams
