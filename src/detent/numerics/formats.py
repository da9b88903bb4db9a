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

Activations are encoded by compiled loops: the arithmetic of `codec` in float32 throughout, saturating at the bounds of
the integer type, since QuantizeLinear has no others. Devices may round ties differently.

The *position* p of a power-of-two scale is its number of fractional bits: the scale is 2^-p. Three ways to choose p for
data whose largest magnitude is A, for a format with the codes low..high:

- `base_position`: the scale A / ((high - low) / 2) rounded to the nearest power of two. It may clip by up to sqrt(2).
- `non_overflow_position`: the largest p at which no value saturates: round(A / 2^-p) has a code.
- `min_mse_position`: of the five positions base-1 .. base+3, the one with the least sum of squared errors. On equal
  errors the first wins, that is, the larger scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeGuard, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

from detent.errors import UsageError, nearest
from detent.numerics import codec
from detent.numerics.codec import Rounding
from detent.numerics.compiled import compiled
from detent.numerics.interface import NumberFormat, Params

INTEGER_TYPES = ("int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32")
Scale = Literal["float", "power_of_two", "int16"]
PER_GROUP = "per_group:"

ACCUMULATOR_BITS = 32  # A bias of this width is added to the products of its layer, and so counts in their unit

MOST_SHIFT = 16
LARGEST_MULTIPLIER = 32767

# Scales are stored as float32, and a denormal one may be flushed to zero by the runtime.
LEAST_SCALE = float(np.finfo(np.float32).tiny)

_SMALL_TYPES: dict[str, type[Any]] = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}


def power_of_two_above(scale: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Round (positive) scales up to powers of two."""
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
    16-bit integer over a power of two ("int16"). `granularity` is "per_tensor", or for weights "per_channel" (one
    scale for each output channel) or "per_group:N" (one for each run of N weights within a channel).
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
        return np.dtype(_SMALL_TYPES.get(self.dtype, self.dtype))

    @property
    def power_of_two(self) -> bool:
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
        return int(self.dtype.removeprefix("u").removeprefix("int"))

    @property
    def signed(self) -> bool:
        """Whether codes may be negative."""
        return not self.dtype.startswith("u")

    @property
    def low(self) -> int:
        return -(1 << (self.bits - 1)) + self.symmetric if self.signed else 0

    @property
    def high(self) -> int:
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
        return QuantParams(self, *self.fit_each(low, high))

    def fit_each(
        self, low: npt.ArrayLike, high: npt.ArrayLike
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return scale and zero point for each of several ranges."""
        low, high = np.minimum(low, 0.0, dtype=np.float64), np.maximum(high, 0.0, dtype=np.float64)
        steps = self.high - self.low
        # Not (high - low) / steps: both may be near the largest float.
        wanted = 2.0 * (np.maximum(-low, high) / steps) if self.symmetric else high / steps - low / steps
        empty = wanted == 0.0
        scale = np.maximum(wanted, LEAST_SCALE).astype(np.float32).astype(np.float64)
        if self.power_of_two:
            scale = power_of_two_above(scale)
        elif self.scale == "int16":
            scale = nearest_int16_scale(scale)
        scale = np.where(empty, 1.0, scale)
        if self.symmetric:
            return scale, np.full(scale.shape, self.middle, np.int64)
        zero_point = np.full(scale.shape, self.middle) if self.power_of_two else np.rint(self.low - low / scale)
        zero_point = np.where(empty, 0, zero_point)
        return scale, np.clip(zero_point, self.low, self.high).astype(np.int64)


@dataclass(frozen=True, eq=False)
class QuantParams(Params):
    """A format with its scale and zero point: scalars, or one of each per index along `axis`.

    With a `block`, each run of `block` elements along `axis` has one of each. Scale and zero point then have the shape
    of the tensor except along `axis`, as in ONNX's blocked quantization.
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
        return cls.of(fmt, scale_of(position), fmt.middle)

    @classmethod
    def stack(cls, channels: list[QuantParams], axis: int) -> QuantParams:
        """Return parameters per channel from those of each channel."""
        scales = np.array([channel.scale for channel in channels], np.float64)
        zero_points = np.array([channel.zero_point for channel in channels], np.int64)
        return cls(channels[0].format, scales, zero_points, axis)

    @property
    def position(self) -> int:
        """The p of a power-of-two scale 2^-p."""
        position = position_of(float(self.scale))
        assert position is not None, f"the scale {float(self.scale)} is not a power of two"
        return position

    @property
    def span(self) -> tuple[float, float]:
        """The least and the greatest real number that has a code, over all channels."""
        low = (self.format.low - self.zero_point) * self.scale
        high = (self.format.high - self.zero_point) * self.scale
        return float(low.min()), float(high.max())

    def encode(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        return self._encode(values, np.int64)

    def _encode(self, values: npt.ArrayLike, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        fmt = self.format
        return codec.encode(values, *self.broadcast(np.shape(values)), fmt.low, fmt.high, fmt.bits, dtype)

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
        return self._encode(values, self.format.storage)

    def stored(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return what DequantizeLinear makes of a constant's codes."""
        codes = self.codes(values)
        return codec.decode(codes, *self.broadcast(codes.shape)).reshape(codes.shape)

    def rounded(self, values: npt.NDArray[Any], ties: Rounding = "half_even") -> npt.NDArray[np.float32]:
        """Quantize and dequantize an activation as the file, or a device with other `ties`, does."""
        return decode_activation(encode_activation(values, self, ties), self)

    def clipped(self, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        array = np.asarray(values)
        # The extremes of each channel usually show that nothing saturates, without a look at every number.
        if array.size and not self.block:
            others = tuple(axis for axis in range(array.ndim) if self.axis is None or axis != self.axis % array.ndim)
            extremes = np.stack([array.min(axis=others, keepdims=True), array.max(axis=others, keepdims=True)])
            if np.isfinite(extremes).all() and not any(self._beyond(each).any() for each in extremes):
                return np.zeros(array.shape, np.bool_)
        return self._beyond(array)

    def _beyond(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        found = codec.levels(values, *self.broadcast(values.shape), self.format.bits)
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


Array = npt.NDArray[Any]


def encode_activation(values: Array, params: QuantParams, ties: Rounding = "half_even") -> Array:
    """Return the codes of an activation, in the format's type; `ties` says how to round numbers halfway between two."""
    codes = np.empty(values.shape, params.format.dtype)
    limits = np.iinfo(codes.dtype)
    zero_point = int(params.zero_point)
    source = np.ascontiguousarray(values, np.float32).reshape(-1)
    low, high = np.float32(limits.min - zero_point), np.float32(limits.max - zero_point)
    scale, flat = np.float32(params.scale), codes.reshape(-1)
    if ties == "half_even":
        _encode(source, scale, low, high, zero_point, flat)
    else:
        _encode_outwards(source, scale, low, high, zero_point, ties == "half_away", flat)
    return codes


def decode_activation(codes: Array, params: QuantParams) -> npt.NDArray[np.float32]:
    values = np.empty(codes.shape, np.float32)
    _decode(codes.reshape(-1), np.float32(params.scale), np.float32(params.zero_point), values.reshape(-1))
    return values


@compiled
def _encode(
    values: npt.NDArray[np.float32],
    scale: np.float32,
    low: np.float32,
    high: np.float32,
    zero_point: int,
    codes: npt.NDArray[Any],
) -> None:
    middle = np.int32(zero_point)
    for i in range(values.size):
        # The casts keep Numba from widening to 64 bits, so that a vector holds eight values.
        codes[i] = np.int32(np.int32(np.rint(min(max(values[i] / scale, low), high))) + middle)


@compiled
def _encode_outwards(
    values: npt.NDArray[np.float32],
    scale: np.float32,
    low: np.float32,
    high: np.float32,
    zero_point: int,
    away: bool,
    codes: npt.NDArray[Any],
) -> None:
    """Encode with ties upwards, or `away` from zero."""
    # Not floor(x + 0.5): that sum is rounded, the difference here is exact.
    middle, half = np.int32(zero_point), np.float32(0.5)
    for i in range(values.size):
        value = min(max(values[i] / scale, low), high)
        nearest = np.rint(value)
        step = np.int32(nearest)
        if away and value < 0:
            step -= np.int32(nearest - value == half)
        else:
            step += np.int32(value - nearest == half)
        codes[i] = np.int32(step + middle)


@compiled
def _decode(
    codes: npt.NDArray[Any], scale: np.float32, zero_point: np.float32, values: npt.NDArray[np.float32]
) -> None:
    for i in range(codes.size):
        values[i] = (np.float32(codes[i]) - zero_point) * scale


@compiled
def snap_error(values: npt.NDArray[np.float32], scale: float, low: float, high: float) -> float:
    """Return the sum of (v - s * clip(round_half_even(v / s), low, high))^2, in double precision."""
    total = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        level = min(max(np.rint(value / scale), low), high)
        difference = value - level * scale
        total += difference * difference
    return total


LOWEST_POSITION, HIGHEST_POSITION = -127, 127
CANDIDATE_OFFSETS = (-1, 0, 1, 2, 3)


def scale_of(position: int) -> float:
    """Return 2^-position, exactly."""
    return math.ldexp(1.0, -position)


def position_of(scale: float) -> int | None:
    """Return p if the scale is exactly 2^-p, else None."""
    if scale <= 0 or not math.isfinite(scale):
        return None
    mantissa, exponent = math.frexp(scale)
    return 1 - exponent if mantissa == 0.5 else None


def base_position(largest: float, fmt: IntegerFormat) -> int:
    """Return the position whose scale is nearest (in log2) to what spreads ±largest over the codes; 0 for none."""
    scale = 2.0 * largest / (fmt.high - fmt.low)
    if scale == 0.0:
        return 0
    return int(np.clip(np.rint(-np.log2(scale)), LOWEST_POSITION, HIGHEST_POSITION))


def non_overflow_position(minimum: float, maximum: float, fmt: IntegerFormat) -> int:
    """Return the largest position at which neither end of minimum..maximum saturates after rounding; 0 for no range.

    A value fits when it rounds to a code, so up to half a step past the last level does not overflow.
    """
    if minimum == 0.0 and maximum == 0.0:
        return 0

    low, high = fmt.levels

    def fits(position: int) -> bool:
        scale = scale_of(position)
        return bool(np.rint(minimum / scale) >= low and np.rint(maximum / scale) <= high)

    # The base position is off by less than one either way; the walk makes it exact, ties at half a step included.
    position = min(base_position(max(-minimum, maximum), fmt) + 2, HIGHEST_POSITION)
    while position > LOWEST_POSITION and not fits(position):
        position -= 1
    return position


def min_mse_position(largest: float, fmt: IntegerFormat, squared_error: Callable[[int], float]) -> int:
    """Return the candidate with the least `squared_error(position)`; on ties the first, with the largest scale."""
    base = base_position(largest, fmt)
    candidates = [base + offset for offset in CANDIDATE_OFFSETS if base + offset <= HIGHEST_POSITION]
    return min(candidates, key=squared_error)


def min_mse_position_of(values: npt.ArrayLike, fmt: IntegerFormat) -> int:
    """Return the `min_mse_position` of an array, searched on its elements themselves."""
    data = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    largest = max(float(data.max(initial=0.0)), -float(data.min(initial=0.0)))
    low, high = map(float, fmt.levels)
    return min_mse_position(largest, fmt, lambda position: snap_error(data, scale_of(position), low, high))
