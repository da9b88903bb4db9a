"""Distribution: a scale that gives the values the spread of a float8 format's own numbers.

    same:   scale = std(x) / std(f)                               f: all finite numbers of the format
    p3:     scale = (std(cbrt(x)) / std(cbrt(f)))^3               for numbers that lie like the cubes of normal ones

Both scale with the data: twice the values, twice the scale. (onnxruntime's "p3" divides the deviation of the cube roots
by that of the numbers themselves, which does not.)
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from detent.errors import UsageError, nearest
from detent.methods import Scenario
from detent.numerics.formats import LEAST_SCALE
from detent.observe.methods.points import FloatArray, Points

FLOAT8_BITS = {"float8_e4m3": (4, 3), "float8_e5m2": (5, 2)}
"""The float8 types, with the number of bits of their exponents and mantissas."""


@lru_cache
def float8_numbers(dtype: str) -> FloatArray:
    """All finite numbers of a float8 type, both zeros among them."""
    if dtype not in FLOAT8_BITS:
        raise UsageError(f"'{dtype}' is no float8 type.{nearest(dtype, FLOAT8_BITS)} Known: {', '.join(FLOAT8_BITS)}.")
    exponent_bits, mantissa_bits = FLOAT8_BITS[dtype]
    codes = np.arange(128)
    exponent, mantissa = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    numbers = np.ldexp(fraction, np.maximum(exponent, 1) - bias)
    # E4M3FN spends only its last code on NaN; E5M2 has infinities and NaNs like the larger floats.
    finite = numbers[:-1] if dtype == "float8_e4m3" else numbers[exponent < (1 << exponent_bits) - 1]
    return np.concatenate((-finite[::-1], finite))


def float8_scale(points: Points, dtype: str, scenario: Scenario) -> float:
    """The scale for a float8 type; 1 where the values do not vary."""
    numbers = float8_numbers(dtype)
    if not points.counts.size:
        return 1.0
    if scenario == "same":
        within = (points.upper - points.lower) ** 2 / 12.0
        deviation = _deviation(points.centres, points.counts, within)
        scale = deviation / float(numbers.std())
    else:
        deviation = _deviation(np.cbrt(points.centres), points.counts, np.zeros_like(points.counts))
        scale = (deviation / float(np.cbrt(numbers).std())) ** 3
    return float(np.float32(max(scale, LEAST_SCALE))) if scale else 1.0


def _deviation(values: FloatArray, counts: FloatArray, within: FloatArray) -> float:
    """The standard deviation of weighted values that vary by `within` (a variance) each."""
    total = counts.sum()
    mean = float(counts @ values) / total
    apart = values - mean
    return float(np.sqrt((counts @ (apart * apart + within)) / total))
