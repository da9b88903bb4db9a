"""Integer formats, and the parameters that tie one to real numbers.

An `IntegerFormat` says which codes there are and how freely they may be spread over the real numbers. `QuantParams` is
one such choice: a scale and a zero point, for the whole tensor or for each channel of it.

    code = clip(round_half_even(x / scale) + zero_point, low, high)        x = (code - zero_point) * scale

Fitting a range l..h (widened to hold zero, which must have a code of its own):

    symmetric:    scale = 2 max(-l, h) / (high - low)         zero_point = the middle code
    asymmetric:   scale = (h - l) / (high - low)              zero_point = round(low - l / scale)

A power-of-two scale is the next one above; an int16 scale is the nearest M / 2^N with M of 16 bits and N at most 16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError, nearest
from detent.numerics.integer import IntegerGrid
from detent.numerics.scales import nearest_int16_scale

INTEGER_TYPES = ("int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32")
Scale = Literal["float", "power_of_two", "int16"]
PER_GROUP = "per_group:"

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
    its negative are both on the grid; the middle code for unsigned ones. `scale` is any float, a power of two, or a
    16-bit integer over a power of two ("int16"). `granularity` is "per_tensor", or for weights "per_channel" (each
    output channel has a scale of its own) or "per_group:N" (each N weights of a channel that follow each other have).
    """

    dtype: str
    symmetric: bool = True
    scale: Scale = "float"
    granularity: str = "per_tensor"

    def __post_init__(self) -> None:
        if self.dtype not in INTEGER_TYPES:
            listed = ", ".join(INTEGER_TYPES)
            raise UsageError(
                f"There is no type '{self.dtype}'.{nearest(self.dtype, INTEGER_TYPES)} Choose from {listed}."
            )
        if self.scale not in get_args(Scale):
            raise UsageError(f"scale is '{self.scale}'. Choose from {', '.join(get_args(Scale))}.")
        if self.granularity not in ("per_tensor", "per_channel") and not self.group_size:
            raise UsageError(
                f"granularity is '{self.granularity}'. Choose per_tensor, per_channel or per_group:N, such as "
                "per_group:128."
            )

    @property
    def label(self) -> str:
        """A short name."""
        return self.dtype

    @property
    def power_of_two(self) -> bool:
        """Whether scales are powers of two."""
        return self.scale == "power_of_two"

    @property
    def per_channel(self) -> bool:
        """Whether each output channel of a weight has a scale."""
        return self.granularity == "per_channel"

    @property
    def group_size(self) -> int:
        """The number of weights that share a scale; 0 where it is not per group."""
        size = self.granularity.removeprefix(PER_GROUP)
        return int(size) if self.granularity.startswith(PER_GROUP) and size.isdecimal() else 0

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
        if self.scale == "int16":
            scale = float(nearest_int16_scale(scale))
        zero_point = self.middle if self.symmetric else round(self.low - low / scale)
        return QuantParams.of(self, scale, min(max(zero_point, self.low), self.high))


@dataclass(frozen=True, eq=False)
class QuantParams:
    """A format with its scale and zero point: scalars, or one of each per index along `axis`.

    With a `block`, each run of so many elements along `axis` has one of each: then scale and zero point have the shape
    of the tensor but for that axis, as ONNX's blocked quantization has them.
    """

    format: IntegerFormat
    scale: npt.NDArray[np.float64]
    zero_point: npt.NDArray[np.int64]
    axis: int | None = None
    block: int = 0

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
        levels = self._levels(values)
        return np.clip(levels, self.format.low, self.format.high, out=levels).astype(np.int64)

    def decode(self, codes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The real numbers that `codes` stand for."""
        array = np.asarray(codes, np.float64)
        scale, zero_point = self.broadcast(array.shape)
        decoded: npt.NDArray[np.float64] = (array - zero_point) * scale
        return decoded

    def snap(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Encode and decode: `values` moved to the numbers that the format can hold."""
        return self.decode(self.encode(values))

    def clipped(self, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which of `values` saturate."""
        levels = self._levels(values)
        return (levels < self.format.low) | (levels > self.format.high)

    def _levels(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """What the codes would be without an end of the format. One array, however large the weight is."""
        array = np.asarray(values)
        scale, zero_point = self.broadcast(array.shape)
        levels = np.asarray(np.divide(array, scale, dtype=np.float64))
        np.rint(levels, out=levels)
        levels += zero_point
        return levels

    def broadcast(self, shape: tuple[int, ...]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Scale and zero point in a shape that fits arrays of `shape`."""
        if self.axis is None:
            return self.scale, self.zero_point
        if self.block:
            inside = (slice(None),) * (self.axis % len(shape)) + (slice(shape[self.axis]),)
            scale = np.repeat(self.scale, self.block, self.axis)[inside]
            return scale, np.repeat(self.zero_point, self.block, self.axis)[inside]
        along = [1] * len(shape)
        along[self.axis] = -1
        return self.scale.reshape(along), self.zero_point.reshape(along)
