"""Integer formats, and the parameters that tie one to real numbers.

An `IntegerFormat` says which codes there are and how freely they may be spread over the real numbers. `QuantParams` is
one such choice: a scale and a zero point, for the whole tensor or for each channel of it.

    code = clip(round_half_even(x / scale) + zero_point, low, high)        x = (code - zero_point) * scale

Fitting a range l..h (widened to hold zero, which must have a code of its own):

    symmetric:    scale = 2 max(-l, h) / (high - low)         zero_point = the middle code
    asymmetric:   scale = (h - l) / (high - low)              zero_point = round(low - l / scale)

A power-of-two scale is the next one above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.numerics.integer import IntegerGrid

LEAST_SCALE = float(np.finfo(np.float32).tiny)
"""Scales are stored as float32, and a denormal one may be flushed to zero by the runtime."""


def power_of_two_above(scale: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The least powers of two that are no smaller than the (positive) scales."""
    mantissa, exponent = np.frexp(np.asarray(scale, np.float64))
    above: npt.NDArray[np.float64] = np.ldexp(1.0, exponent - (mantissa == 0.5))
    return above


@dataclass(frozen=True)
class IntegerFormat:
    """Integers of type `dtype` ("int8", "uint16", "int4"), and what their scales may be.

    `symmetric` fixes the zero point: 0 for signed types, whose lowest code is then left unused so that a number and
    its negative are both on the grid; the middle code for unsigned ones. `power_of_two` restricts the scale, and
    `per_channel` gives each output channel of a weight a scale of its own.
    """

    dtype: str
    symmetric: bool = True
    power_of_two: bool = False
    per_channel: bool = False

    @property
    def bits(self) -> int:
        """The number of bits of a code."""
        return int(self.dtype.removeprefix("u").removeprefix("int"))

    @property
    def signed(self) -> bool:
        """Whether codes may be negative."""
        return not self.dtype.startswith("u")

    @property
    def low(self) -> int:
        """The lowest code."""
        return -(1 << (self.bits - 1)) + self.symmetric if self.signed else 0

    @property
    def high(self) -> int:
        """The highest code."""
        return (1 << (self.bits - self.signed)) - 1

    @property
    def middle(self) -> int:
        """The zero point of a symmetric format."""
        return 0 if self.signed else 1 << (self.bits - 1)

    def grid(self, zero_point: int) -> IntegerGrid:
        """The codes, around a zero point."""
        return IntegerGrid(self.dtype, self.low, self.high, zero_point)

    def fit(self, low: float, high: float) -> QuantParams:
        """The parameters that spread the codes over low..high; scale 1 where the range is empty."""
        low, high = min(low, 0.0), max(high, 0.0)
        steps = self.high - self.low
        # Not (high - low) / steps: both may be near the largest float.
        scale = 2.0 * (max(-low, high) / steps) if self.symmetric else high / steps - low / steps
        if scale == 0.0:
            return QuantParams.of(self, 1.0, self.middle if self.symmetric else min(max(0, self.low), self.high))
        scale = float(np.float32(max(scale, LEAST_SCALE)))
        if self.power_of_two:
            return QuantParams.of(self, float(power_of_two_above(scale)), self.middle)
        zero_point = self.middle if self.symmetric else round(self.low - low / scale)
        return QuantParams.of(self, scale, min(max(zero_point, self.low), self.high))


@dataclass(frozen=True, eq=False)
class QuantParams:
    """A format with its scale and zero point: scalars, or one of each per index along `axis`."""

    format: IntegerFormat
    scale: npt.NDArray[np.float64]
    zero_point: npt.NDArray[np.int64]
    axis: int | None = None

    @classmethod
    def of(cls, fmt: IntegerFormat, scale: float, zero_point: int) -> QuantParams:
        """Parameters for a whole tensor."""
        return cls(fmt, np.array(scale, np.float64), np.array(zero_point, np.int64))

    @classmethod
    def at(cls, fmt: IntegerFormat, position: int) -> QuantParams:
        """Parameters with the power-of-two scale 2^-position, for a whole tensor."""
        return cls.of(fmt, math.ldexp(1.0, -position), fmt.middle)

    @classmethod
    def stack(cls, channels: list[QuantParams], axis: int) -> QuantParams:
        """Parameters per channel from those of each channel."""
        scales = np.array([channel.scale for channel in channels], np.float64)
        zero_points = np.array([channel.zero_point for channel in channels], np.int64)
        return cls(channels[0].format, scales, zero_points, axis)

    @property
    def position(self) -> int:
        """The p of a power-of-two scale 2^-p."""
        mantissa, exponent = math.frexp(float(self.scale))
        assert mantissa == 0.5, f"the scale {float(self.scale)} is not a power of two"
        return 1 - exponent

    @property
    def span(self) -> tuple[float, float]:
        """The least and the greatest real number that has a code, over all channels."""
        low = (self.format.low - self.zero_point) * self.scale
        high = (self.format.high - self.zero_point) * self.scale
        return float(low.min()), float(high.max())

    def encode(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The codes nearest to `values`."""
        array = np.asarray(values, np.float64)
        scale, zero_point = self._broadcast(array.ndim)
        levels: npt.NDArray[np.float64] = np.rint(array / scale) + zero_point
        return levels.clip(self.format.low, self.format.high).astype(np.int64)

    def decode(self, codes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The real numbers that `codes` stand for."""
        array = np.asarray(codes, np.float64)
        scale, zero_point = self._broadcast(array.ndim)
        decoded: npt.NDArray[np.float64] = (array - zero_point) * scale
        return decoded

    def snap(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Encode and decode: `values` moved to the numbers that the format can hold."""
        return self.decode(self.encode(values))

    def clipped(self, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which of `values` saturate."""
        array = np.asarray(values, np.float64)
        scale, zero_point = self._broadcast(array.ndim)
        codes: npt.NDArray[np.float64] = np.rint(array / scale) + zero_point
        return (codes < self.format.low) | (codes > self.format.high)

    def _broadcast(self, ndim: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        if self.axis is None:
            return self.scale, self.zero_point
        shape = [1] * ndim
        shape[self.axis] = -1
        return self.scale.reshape(shape), self.zero_point.reshape(shape)
