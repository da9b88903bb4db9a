"""Integer formats, and the parameters that tie one to real numbers.

An `IntegerFormat` says which codes there are and how freely they may be spread over the real numbers. `QuantParams` is
one such choice: a scale and a zero point, for the whole tensor, for each channel of it or for each block.

    code = clip(round_half_even(x / scale) + zero_point, low, high)        x = (code - zero_point) * scale

Fitting a range l..h (widened to hold zero, which must have a code of its own):

    symmetric:    scale = 2 max(-l, h) / (high - low)         zero_point = the middle code
    asymmetric:   scale = (h - l) / (high - low)              zero_point = round(low - l / scale)

A power-of-two scale is the next one above. An int16 scale is the nearest M / 2^N with N in 0..16 and M in 1..32767: a
multiplier of 16 bits and a shift can replace the multiplication by a float. M = 0 is left out, since it would turn
every number into zero; scales below 2^-16 become 2^-16, and those above 32767 become 32767.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeGuard, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

from detent.errors import UsageError, nearest
from detent.numerics import codec
from detent.numerics.interface import NumberFormat, Params
from detent.numerics.ties import Rounding

INTEGER_TYPES = ("int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32")
Scale = Literal["float", "power_of_two", "int16"]
PER_GROUP = "per_group:"

ACCUMULATOR_BITS = 32
"""A bias of this width is added to the products of its layer, and so counts in their unit."""

MOST_SHIFT = 16
LARGEST_MULTIPLIER = 32767

LEAST_SCALE = float(np.finfo(np.float32).tiny)
"""Scales are stored as float32, and a denormal one may be flushed to zero by the runtime."""

_SMALL_TYPES: dict[str, type[Any]] = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}


def power_of_two_above(scale: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the least powers of two that are no smaller than the (positive) scales."""
    mantissa, exponent = np.frexp(np.asarray(scale, np.float64))
    above: npt.NDArray[np.float64] = np.ldexp(1.0, exponent - (mantissa == 0.5))
    return above


def nearest_int16_scale(scale: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the numbers M / 2^N nearest to the (positive) scales; of equally near ones the least N, then M."""
    wanted = np.asarray(scale, np.float64)
    if not (np.isfinite(wanted) & (wanted > 0.0)).all():
        raise UsageError("A scale that is not a positive number has no M / 2^N near it: check the range of the tensor.")
    best = np.zeros_like(wanted)
    least_error = np.full_like(wanted, np.inf)
    for shift in range(MOST_SHIFT + 1):
        below = np.floor(np.ldexp(wanted, shift))
        for multiplier in (below, below + 1.0):
            candidate = np.ldexp(np.clip(multiplier, 1.0, LARGEST_MULTIPLIER), -shift)
            error = np.abs(candidate - wanted)
            better = error < least_error
            best = np.where(better, candidate, best)
            least_error = np.where(better, error, least_error)
    return best


@dataclass(frozen=True)
class IntegerFormat(NumberFormat):
    """Integers of type `dtype` ("int8", "uint16", "int4"), and what their scales may be.

    `symmetric` fixes the zero point: 0 for signed types, whose lowest code is then left unused so that a number and
    its negative are both on the grid; the middle code for unsigned ones. `scale` is any float, a power of two, or a
    16-bit integer over a power of two ("int16"). `granularity` is "per_tensor", or for weights "per_channel" (each
    output channel has a scale of its own) or "per_group:N" (each N weights of a channel that follow each other have).
    """

    kind: ClassVar[Literal["integer"]] = "integer"

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
        """The type: which codes there are."""
        return self.dtype

    @property
    def description(self) -> str:
        """The type, and what is unusual about the scales: `int8 2^n`."""
        scale = {"power_of_two": " 2^n", "int16": " M/2^N", "float": ""}[self.scale]
        granularity = "" if self.granularity == "per_tensor" else f" {self.granularity}"
        return self.dtype + ("" if self.symmetric else " asym") + scale + granularity

    @property
    def needs_data(self) -> bool:
        """Every scale is chosen from data."""
        return True

    @property
    def counts_products(self) -> bool:
        """Whether a bias of this format counts in the unit of its layer's products."""
        return self.bits == ACCUMULATOR_BITS

    @property
    def least_opset(self) -> int:
        """Blocked quantization, and codes of 4 and 16 bits, came with operator set 21."""
        return 21 if self.group_size or self.bits in (4, 16) else 0

    @property
    def has_twin(self) -> bool:
        """Whether com.microsoft holds the format below `least_opset`: not in blocks."""
        return self.bits in (4, 16) and not self.group_size

    @property
    def storage(self) -> np.dtype[Any]:
        """The numpy type of the codes."""
        return np.dtype(_SMALL_TYPES.get(self.dtype, self.dtype))

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
        """The number of weights that share a scale; 0 unless the granularity is per group."""
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

    @property
    def levels(self) -> tuple[int, int]:
        """The lowest and the highest code as multiples of the scale, with the middle code as zero point."""
        return self.low - self.middle, self.high - self.middle

    def fit(self, low: float, high: float) -> QuantParams:
        """Return parameters that spread the codes over low..high; scale 1 for an empty range."""
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
class QuantParams(Params):
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
        """Return parameters for a whole tensor."""
        return cls(fmt, np.array(scale, np.float64), np.array(zero_point, np.int64))

    @classmethod
    def at(cls, fmt: IntegerFormat, position: int) -> QuantParams:
        """Return parameters for a whole tensor with the power-of-two scale 2^-position."""
        return cls.of(fmt, math.ldexp(1.0, -position), fmt.middle)

    @classmethod
    def stack(cls, channels: list[QuantParams], axis: int) -> QuantParams:
        """Return parameters per channel from those of each channel."""
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
        """Return the codes nearest to `values`."""
        fmt = self.format
        return codec.encode(values, *self.broadcast(np.shape(values)), fmt.low, fmt.high, fmt.bits)

    def decode(self, codes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the real numbers that `codes` stand for, exactly."""
        array = np.asarray(codes, np.float64)
        scale, zero_point = self.broadcast(array.shape)
        decoded: npt.NDArray[np.float64] = (array - zero_point) * scale
        return decoded

    def snap(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Move `values` to the numbers that the format holds, exactly."""
        return self.decode(self.encode(values))

    def codes(self, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return what a file stores of a constant."""
        return self.encode(values).astype(self.format.storage)

    def stored(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return what DequantizeLinear makes of a constant's codes."""
        codes = self.encode(values)
        return codec.decode(codes, *self.broadcast(codes.shape)).reshape(codes.shape)

    def rounded(self, values: npt.NDArray[Any], ties: Rounding = "half_even") -> npt.NDArray[np.float32]:
        """Quantize and dequantize an activation as the file, or a device with other `ties`, does."""
        from detent.numerics import loops  # compiled: not before an activation is rounded

        return loops.decode_activation(loops.encode_activation(values, self, ties), self)

    def clipped(self, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Tell which of `values` saturate."""
        found = codec.levels(values, *self.broadcast(np.shape(values)), self.format.bits)
        return (found < self.format.low) | (found > self.format.high)

    def broadcast(self, shape: tuple[int, ...]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return scale and zero point in a shape that fits arrays of `shape`."""
        scale, zero_point = (codec.spread(each, shape, self.axis, self.block) for each in (self.scale, self.zero_point))
        return scale, zero_point  # type: ignore[return-value]  # a generator loses the types


def is_integer(fmt: NumberFormat | None) -> TypeGuard[IntegerFormat]:
    """Tell whether numbers are stored as integers; a role without a format stays float."""
    return fmt is not None and fmt.kind == "integer"


def holds_integers(params: Params | None) -> TypeGuard[QuantParams]:
    """Tell whether parameters are a scale and a zero point of integers."""
    return params is not None and params.format.kind == "integer"


def has_power_of_two_scale(fmt: NumberFormat | None) -> bool:
    """Tell whether a format is of integers whose scales are powers of two."""
    return fmt is not None and fmt.power_of_two


def is_product_bias(fmt: NumberFormat | None) -> bool:
    """Tell whether a bias of this format counts in the unit of its layer's products."""
    return fmt is not None and fmt.counts_products
