"""The squared error of any grid in a few hundred steps, from running sums over weighted points.

With S0, S1 and S2 the sums of counts, of values and of their squares, the values that round to n s have the error

    sum (x - n s)^2 = S2 - 2 n s S1 + (n s)^2 S0

so a grid costs as many look-ups as it has codes in reach, however many points there are. The sums up to a threshold
inside a point follow from its even spread. Where the steps are far finer than the points' width, the rounding noise
is s^2 / 12 for each value inside, and only the clipped tails and the values without width need a look-up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detent.methods.points import FloatArray, Points, squared_error
from detent.numerics.compiled import compiled

GUESSES = 1 << 14


class ErrorTable(NamedTuple):
    """Running sums over points, and an index to find a place in them fast.

    `rows[i]` holds the ends of point i, its count per unit of width, and S0, S1 and S2 of the points before it.
    """

    lower: FloatArray
    upper: FloatArray
    counts: FloatArray
    rows: FloatArray
    sums: tuple[float, float, float]
    guesses: npt.NDArray[np.int32]
    guesses_per_unit: float
    sharp: npt.NDArray[np.int64]
    fine_step: float


def error_table(points: Points) -> ErrorTable:
    """Return the table for some points, at least one."""
    lower, upper, counts = points.lower, points.upper, points.counts
    widths = upper - lower
    centres = points.centres
    sharp = np.flatnonzero(widths == 0.0)
    rows = np.zeros((counts.size + 1, 6))
    rows[:-1, 0], rows[:-1, 1] = lower, upper
    np.divide(counts, widths, out=rows[:-1, 2], where=widths > 0.0)
    np.cumsum(counts, out=rows[1:, 3])
    np.cumsum(counts * centres, out=rows[1:, 4])
    np.cumsum(counts * (centres * centres + widths * widths / 12.0), out=rows[1:, 5])
    reach = float(upper[-1] - lower[0])
    per_unit = GUESSES / reach if reach else 0.0
    # Beyond a third of a bin the noise is no longer even inside it. Raw values have no bins at all.
    fine_step = float(widths.max()) / 3.0 if sharp.size < 8 else 0.0
    sums = (float(rows[-1, 3]), float(rows[-1, 4]), float(rows[-1, 5]))
    return ErrorTable(lower, upper, counts, rows, sums, _guesses(upper, lower[0], reach), per_unit, sharp, fine_step)


@compiled
def _guesses(upper: FloatArray, start: float, reach: float) -> npt.NDArray[np.int32]:
    """Return, for each of many evenly spaced places, the first point that does not end before it."""
    found = np.empty(GUESSES + 1, np.int32)
    i = 0
    for guess in range(GUESSES + 1):
        # A hair before the place: the division that leads to it may have been rounded up.
        while i < upper.size - 1 and upper[i] < start + reach * ((guess - 1e-6) / GUESSES):
            i += 1
        found[guess] = i
    return found


@compiled
def grid_error(table: ErrorTable, scale: float, low: float, high: float, limit: float) -> float:
    """Return the sum of squared errors on the grid of low*scale .. high*scale; infinity once it passes `limit`."""
    tails = tail_errors(table, low * scale, high * scale)
    if tails[0] + tails[1] > limit:
        return np.inf
    if scale <= table.fine_step:
        return _fine_error(table, scale, low, high, tails[0] + tails[1])
    first = min(max(np.rint(table.lower[0] / scale), low), high)
    last = min(max(np.rint(table.upper[-1] / scale), low), high)
    if table.counts.size <= 4.0 * (last - first):
        return squared_error(table.lower, table.upper, table.counts, scale, low, high)
    total = 0.0
    before = (0.0, 0.0, 0.0)
    for code in range(int(first), int(last) + 1):
        after = table.sums if code == last else sums_below(table, (code + 0.5) * scale)
        value = code * scale
        total += (after[2] - before[2]) - 2.0 * value * (after[1] - before[1]) + value * value * (after[0] - before[0])
        before = after
        if total > limit:
            return np.inf
    return max(total, 0.0)


@compiled
def tail_errors(table: ErrorTable, bottom: float, top: float) -> tuple[float, float]:
    """Return the squared errors of moving all that is below `bottom` to it, and all that is above `top`."""
    below = sums_below(table, bottom)
    until = sums_below(table, top)
    above = (table.sums[0] - until[0], table.sums[1] - until[1], table.sums[2] - until[2])
    left = below[2] - 2.0 * bottom * below[1] + bottom * bottom * below[0]
    right = above[2] - 2.0 * top * above[1] + top * top * above[0]
    return max(left, 0.0), max(right, 0.0)


@compiled
def _fine_error(table: ErrorTable, scale: float, low: float, high: float, tails: float) -> float:
    """Return the error where a step is much less than a point's width: noise inside, and the tails."""
    bottom, top = low * scale, high * scale
    noise = scale * scale / 12.0
    total = tails + noise * (sums_below(table, top)[0] - sums_below(table, bottom)[0])
    for i in table.sharp:
        value = table.lower[i]
        if bottom <= value < top:
            difference = value - np.rint(value / scale) * scale
            total += table.counts[i] * (difference * difference - noise)
    return max(total, 0.0)


@compiled
def sums_below(table: ErrorTable, x: float) -> tuple[float, float, float]:
    """Return the sums over the values less than x."""
    rows = table.rows
    if x <= rows[0, 0]:
        return 0.0, 0.0, 0.0
    if x > table.upper[-1]:
        return table.sums
    i = table.guesses[min(int((x - rows[0, 0]) * table.guesses_per_unit), GUESSES)]
    while rows[i, 1] < x:
        i += 1
    s0, s1, s2 = rows[i, 3], rows[i, 4], rows[i, 5]
    start = rows[i, 0]
    if start < x:
        part = rows[i, 2] * (x - start)
        s0 += part
        s1 += part * (start + x) * 0.5
        s2 += part * (start * start + start * x + x * x) * (1.0 / 3.0)
    return s0, s1, s2
