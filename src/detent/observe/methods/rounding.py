"""The error of rounding weighted points to a grid, as compiled loops.

A point that is spread over a..b may reach over several codes (16-bit grids are finer than the bins of a histogram), so
its error is the mean over a..b and not that of its centre. With n(x) = clip(round(x / s), low, high), the integral of
the error from 0 to x has a closed form, whose first term counts the whole steps:

    squared:    n s^3 / 12 + (x - n s)^3 / 3              absolute:   n s^2 / 4 + (x - n s) |x - n s| / 2

Over many steps the squared error is the familiar s^2 / 12 for each value.
"""

from __future__ import annotations

import numpy as np

from detent.numerics.compiled import compiled
from detent.observe.methods.points import FloatArray


@compiled
def squared_error(
    lower: FloatArray, upper: FloatArray, counts: FloatArray, scale: float, low: float, high: float
) -> float:
    """The sum of squared errors on the grid of low*scale .. high*scale."""
    total = 0.0
    for i in range(counts.size):
        first = min(max(np.rint(lower[i] / scale), low), high)
        last = min(max(np.rint(upper[i] / scale), low), high)
        a = lower[i] - first * scale
        b = upper[i] - last * scale
        if lower[i] == upper[i]:
            total += counts[i] * (a * a)
        elif first == last:
            total += counts[i] * (a * a + a * b + b * b) / 3.0
        else:
            integral = (last - first) * scale * scale * scale / 12.0 + (b * b * b - a * a * a) / 3.0
            total += counts[i] * integral / (upper[i] - lower[i])
    return total


@compiled
def absolute_error(
    lower: FloatArray, upper: FloatArray, counts: FloatArray, scale: float, low: float, high: float
) -> float:
    """The sum of absolute errors on the grid of low*scale .. high*scale."""
    total = 0.0
    for i in range(counts.size):
        first = min(max(np.rint(lower[i] / scale), low), high)
        last = min(max(np.rint(upper[i] / scale), low), high)
        a = lower[i] - first * scale
        b = upper[i] - last * scale
        if first == last and a * b >= 0.0:
            total += counts[i] * abs(a + b) * 0.5
        else:
            integral = (last - first) * scale * scale / 4.0 + (b * abs(b) - a * abs(a)) / 2.0
            total += counts[i] * integral / (upper[i] - lower[i])
    return total
