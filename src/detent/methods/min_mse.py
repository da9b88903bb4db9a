"""MinMSE: the scale with the least sum of squared errors.

On power-of-two scales, the best of five positions around the base one is taken. The squared error is that of all values
("All"), or of the values within a percentage, the others being dropped, not clipped ("Percentile"); or each sample
votes for its own best position and the most common one is taken ("MostCommon", on ties the larger scale).

On float scales the range is searched. The error is not smooth in its ends (values cross rounding thresholds), so:

1. Candidates over the whole plane. Symmetric: thresholds t, in even steps from the largest magnitude A down to A / 2
   and by a constant ratio from there down to A / 2^13. Asymmetric: the pair of such ends that is best under the smooth
   approximation `noise s^2 / 12 + clipped tails`, and windows of 50 to 100 percent of the range. In both cases also
   the ranges of some percentiles.
2. From the best of them, a pattern of neighbours whose spacing shrinks each time.

Every candidate is judged by its true error, so the result is never worse than any of them.

The error of a grid is computed from running sums over weighted points. With S0, S1 and S2 the sums of counts, of values
and of their squares, the values that round to n s have the error

    sum (x - n s)^2 = S2 - 2 n s S1 + (n s)^2 S0

so a grid costs one look-up for each code in reach, however many points there are. The sums up to a threshold inside a
point follow from its even spread. If the steps are far finer than the points are wide, the rounding noise is s^2 / 12
for each value inside, and only the clipped tails and the points without width need a look-up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError
from detent.methods.method import (
    Counts,
    FloatArray,
    Method,
    ObservedTensor,
    Points,
    Range,
    Vote,
    alternatives,
    check_choice,
    check_percentage,
    fit,
    squared_error,
)
from detent.methods.percentile import percentile_range, percentile_ranges
from detent.numerics import formats
from detent.numerics.compiled import compiled

GUESSES = 1 << 14  # entries of the index by which a place among the points is found


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


MinMSEMode = Literal["All", "MostCommon", "Percentile"]

PERCENTILES = (99.9, 99.99, 99.999, 99.9999)
EVEN_STEPS = 64
OCTAVES = 12  # how far below the largest value a range may end
STEPS_PER_OCTAVE = 6
ROUNDS = 9  # of ever closer neighbours around the best start

# A format for compiled code: its lowest, highest and middle code, and whether it is symmetric.
Codes = tuple[float, float, float, bool]

# With up to this many bits a step is wider than a histogram's bin, whose values all round like its centre.
BITS_WITHIN_BINS = 8


@dataclass(frozen=True)
class MinMSE(Method):
    """The scale with the least sum of squared errors.

    `mode`: "All" searches over all values, "Percentile" over the values within `percentile` percent; "MostCommon", for
    power-of-two scales only, over each sample apart and takes the position that won most often.
    """

    mode: MinMSEMode = "All"
    percentile: float = 99.999

    def __post_init__(self) -> None:
        check_choice("The mode of MinMSE", self.mode, get_args(MinMSEMode))
        check_percentage("The percentile of MinMSE", self.percentile)

    def check(self, fmt: formats.IntegerFormat) -> None:
        """Raise UsageError for mode MostCommon on float scales."""
        if self.mode == "MostCommon" and not fmt.power_of_two:
            raise UsageError(
                f"{self.name} with mode MostCommon takes the most common power-of-two scale, and this {fmt.dtype} has "
                f"float scales. Choose mode All or Percentile, or one of {alternatives(fmt)}."
            )

    def choose(self, points: Points, fmt: formats.IntegerFormat, tensor: str) -> formats.QuantParams:
        """Return the parameters with the least squared error over points."""
        if self.mode == "Percentile":
            points = points.within(*percentile_range(points, self.percentile, fmt.symmetric))
            if fmt.power_of_two:
                return formats.QuantParams.at(fmt, min_mse_of_points(points, fmt))
        return fit(fmt, min_mse_range(points, fmt))

    def choose_observed(self, observed: ObservedTensor, fmt: formats.IntegerFormat, tensor: str) -> formats.QuantParams:
        """Return the parameters of an activation; with power-of-two scales the bins are searched themselves."""
        if not fmt.power_of_two or self.mode == "Percentile":
            return super().choose_observed(observed, fmt, tensor)
        if self.mode == "MostCommon" and observed.samples:
            return formats.QuantParams.at(fmt, _most_common(observed, tensor))
        return formats.QuantParams.at(fmt, min_mse_of_histogram(observed.histogram, fmt))

    def choose_values(
        self,
        values: npt.NDArray[np.float32],
        fmt: formats.IntegerFormat,
        tensor: str,
        points_of: Callable[[Any], Points],
    ) -> formats.QuantParams:
        """Return the parameters of a constant; with power-of-two scales its elements are searched themselves."""
        if fmt.power_of_two and self.mode != "Percentile":
            return formats.QuantParams.at(fmt, formats.min_mse_position_of(values, fmt))
        return super().choose_values(values, fmt, tensor, points_of)

    def vote(self, fmt: formats.IntegerFormat) -> Vote | None:
        """Ask each sample for its own best position in mode MostCommon."""
        if self.mode != "MostCommon" or not fmt.power_of_two:
            return None
        return partial(min_mse_of_histogram, fmt=fmt)  # picklable: it may be asked on another machine


def min_mse_of_histogram(histogram: Counts, fmt: formats.IntegerFormat) -> int:
    """Return the position with the least squared error over all values."""
    if fmt.bits > BITS_WITHIN_BINS:
        return min_mse_of_points(Points.of_histogram(histogram), fmt)
    if not histogram.total:
        return min_mse_of_points(Points.of_values(()), fmt)
    bins = np.flatnonzero(histogram.counts)
    centres = (bins.astype(np.float64) - histogram.counts.size // 2 + 0.5) * histogram.width
    counts = histogram.counts[bins].astype(np.float64)
    return min_mse_of_points(Points(centres, centres, counts, histogram.minimum, histogram.maximum), fmt)


def min_mse_of_points(points: Points, fmt: formats.IntegerFormat) -> int:
    """Return the position with the least squared error over points."""
    low, high = map(float, fmt.levels)

    def error(position: int) -> float:
        return squared_error(points.lower, points.upper, points.counts, formats.scale_of(position), low, high)

    return formats.min_mse_position(points.largest, fmt, error)


def _most_common(observed: ObservedTensor, tensor: str) -> int:
    if not observed.votes:
        raise UsageError(
            f"MinMSE with mode MostCommon needs each sample's own best position, and these statistics have none for "
            f"'{tensor}': they were collected for another method. Calibrate again with this method, or choose mode All."
        )
    most = max(observed.votes.values())
    return min(position for position, votes in observed.votes.items() if votes == most)


def min_mse_range(points: Points, fmt: formats.IntegerFormat) -> Range:
    """Return the range with the least squared error on the codes of `fmt`."""
    if points.largest == 0.0:
        return Range(0.0, 0.0)
    bound_low, bound_high = min(points.minimum, 0.0), max(points.maximum, 0.0)
    table = error_table(points)
    codes = (float(fmt.low), float(fmt.high), float(fmt.middle), fmt.symmetric)
    candidates = percentile_ranges(points, PERCENTILES, fmt.symmetric)
    if fmt.symmetric:
        # Unsigned codes reach half a step less far above the middle one: the bound is where the highest is the largest.
        bound_high = points.largest * (fmt.high - fmt.low) / (2.0 * (fmt.high - fmt.middle))
        bound_low = -bound_high
        thresholds = [chosen.largest for chosen in candidates] + (bound_high * _shares()).tolist()
        starts = [Range(-threshold, threshold) for threshold in thresholds]
    else:
        ends = _best_ends(table, -bound_low * _shares(), bound_high * _shares(), fmt.high - fmt.low)
        windows = np.linspace(0.5, 1.0, EVEN_STEPS // 2 + 1)
        starts = [*candidates, Range(-ends[0], ends[1])]
        starts += [Range(bound_low * share, bound_high * share) for share in windows.tolist()]
    low, high = _search(table, np.array(starts, np.float64), bound_low, bound_high, codes)
    return Range(float(low), float(high))


def _shares() -> FloatArray:
    """Return candidates for a threshold, as shares of the largest magnitude, from the largest down."""
    even = np.linspace(1.0, 0.5, EVEN_STEPS, endpoint=False)
    return np.concatenate((even, np.exp2(-1.0 - np.arange(OCTAVES * STEPS_PER_OCTAVE + 1) / STEPS_PER_OCTAVE)))


@compiled
def fitted(low: float, high: float, codes: Codes) -> tuple[float, float, float]:
    """`IntegerFormat.fit` in compiled code: the scale, and the levels of the lowest and the highest code."""
    lowest, highest, middle, symmetric = codes
    low, high = min(low, 0.0), max(high, 0.0)
    steps = highest - lowest
    scale = 2.0 * (max(-low, high) / steps) if symmetric else high / steps - low / steps
    if scale == 0.0:
        zero_point = middle if symmetric else min(max(0.0, lowest), highest)
        return 1.0, lowest - zero_point, highest - zero_point
    scale = np.float64(np.float32(max(scale, formats.LEAST_SCALE)))
    zero_point = middle if symmetric else min(max(np.rint(lowest - low / scale), lowest), highest)
    return scale, lowest - zero_point, highest - zero_point


@compiled
def _range_error(table: ErrorTable, low: float, high: float, codes: Codes, limit: float) -> float:
    scale, low_level, high_level = fitted(low, high, codes)
    return grid_error(table, scale, low_level, high_level, limit)


@compiled
def _best_ends(table: ErrorTable, lows: FloatArray, highs: FloatArray, steps: int) -> tuple[float, float]:
    """Return the pair of magnitudes -low..high with the least noise and tails, by the smooth approximation."""
    tails = np.empty((lows.size, 2))
    for i in range(lows.size):
        tails[i, 0], tails[i, 1] = tail_errors(table, -lows[i], highs[i])
    least, best = np.inf, (lows[0], highs[0])
    for i in range(lows.size):
        for j in range(highs.size):
            scale = (highs[j] + lows[i]) / steps
            error = tails[i, 0] + tails[j, 1] + table.sums[0] * scale * scale / 12.0
            if error < least:
                least, best = error, (lows[i], highs[j])
    return best


@compiled
def _search(
    table: ErrorTable, starts: FloatArray, bound_low: float, bound_high: float, codes: Codes
) -> tuple[float, float]:
    """Return the best of the starts, then of ever closer neighbours, within the bounds."""
    low, high, least = bound_low, bound_high, _range_error(table, bound_low, bound_high, codes, np.inf)
    for i in range(starts.shape[0]):
        error = _range_error(table, starts[i, 0], starts[i, 1], codes, least)
        if error < least:
            low, high, least = starts[i, 0], starts[i, 1], error
    step = (high - low) / 24.0
    for _ in range(ROUNDS):
        centre_low, centre_high = low, high
        for neighbour in range(9):
            i, j = neighbour // 3 - 1, neighbour % 3 - 1
            if codes[3]:
                near_high = min(centre_high + (neighbour - 4) * step / 4.0, bound_high)
                near_low = -near_high
            else:
                near_low = min(max(centre_low + i * step, bound_low), 0.0)
                near_high = min(max(centre_high + j * step, 0.0), bound_high)
            if near_low < near_high:
                error = _range_error(table, near_low, near_high, codes, least)
                if error < least:
                    low, high, least = near_low, near_high, error
        step *= 0.6
    return low, high
