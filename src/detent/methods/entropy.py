"""Entropy: the window of the distribution that loses the least information when it is rounded.

The values are counted in `bins` bins over ±A, A being the largest magnitude. For a window of them, P is the
distribution with all that is outside added to the window's first and last bin. Q rounds the window: its bins form
groups of equal size (to one bin), and the values of a group are spread evenly over those of its bins that P occupies.

    KL(P, Q) = sum P log(P / Q)                              the window with the least wins, on ties the smallest

Windows are ±i bins, from one bin per group up to all bins; an asymmetric format cuts each to the observed range. If
there are many windows, only every few bins are tried, and then each one next to the best. With running sums of counts,
of occupied bins and of count * log(count), one window costs one logarithm per group. A group without values of its own,
to which outliers are added, counts as 1e-4 of a value: that rules out no window, and still makes it cost something.

Exact zeros are left out: every format represents zero, so no window loses any of them. If they counted, the spike that
a Relu leaves at zero would make the narrowest window win, the only one in which no neighbour shares its group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from detent.errors import UsageError
from detent.methods.method import FloatArray, Method, Points, Range, alternatives, fit
from detent.numerics.compiled import compiled
from detent.numerics.formats import IntegerFormat, QuantParams

EMPTY_GROUP = 1e-4  # a group that rounds to nothing would have an infinite divergence
LOGARITHMS = 1 << 16  # about a millisecond


@dataclass(frozen=True)
class Entropy(Method):
    """The range whose rounded distribution differs least from the original one, in Kullback-Leibler divergence.

    The distribution is taken over `bins` bins of equal width, and rounded to `quantized_bins` groups of them; 0 means
    one group for each code of the format, at most one for each bin.

    With 128 and 128, as in other tools, the only window with a bin for each group is the whole range: MinMax with more
    work. 2048 bins leave windows to choose from, and with one group per code the rounding that is compared is the one
    that will happen. (16-bit formats have more codes than bins: no loss is visible, and the whole range wins.)
    """

    bins: int = 2048
    quantized_bins: int = 0

    def __post_init__(self) -> None:
        if self.bins < 2 or self.bins % 2:
            raise UsageError(f"Entropy needs an even number of bins, at least 2; not {self.bins}.")
        if not 0 <= self.quantized_bins <= self.bins or self.quantized_bins == 1:
            raise UsageError(
                f"Entropy's quantized_bins is {self.quantized_bins}: it must be 2 to {self.bins} (the number of bins), "
                "or 0 for one per code."
            )

    def check(self, fmt: IntegerFormat) -> None:
        """Raise UsageError for a format with power-of-two scales."""
        if fmt.power_of_two:
            raise UsageError(
                f"{self.name} chooses a float scale, and this {fmt.dtype} has power-of-two scales: rounding its answer "
                f"to one would undo it. Choose {alternatives(fmt)}."
            )

    def choose(self, points: Points, fmt: IntegerFormat, tensor: str) -> QuantParams:
        """Return the parameters of the window with the least divergence."""
        return fit(fmt, entropy_range(points, self, fmt))


def entropy_range(points: Points, method: Entropy, fmt: IntegerFormat) -> Range:
    """Return the range with the least divergence."""
    if points.largest == 0.0:
        return Range(0.0, 0.0)
    bins = method.bins
    groups = method.quantized_bins or min(fmt.high - fmt.low + 1, bins)
    counts = rebinned(points, bins)
    first, last = 0, bins
    if not fmt.symmetric:
        occupied = np.flatnonzero(counts)
        first, last = min(int(occupied[0]), bins // 2), max(int(occupied[-1]) + 1, bins // 2)
    start, stop = _best_window(counts, first, last, groups)
    width = points.largest / (bins // 2)
    low, high = (start - bins // 2) * width, (stop - bins // 2) * width
    return Range(max(low, points.minimum), min(high, points.maximum))


def rebinned(points: Points, bins: int) -> FloatArray:
    """Return counts in equal bins over ±largest, without the exact zeros."""
    largest = points.largest
    edges = np.linspace(-largest, largest, bins + 1)
    spread = points.upper > points.lower
    lower, upper, counts = points.lower[spread], points.upper[spread], points.counts[spread]
    knots = np.stack((lower, upper), axis=1).reshape(-1)
    sums = np.cumsum(counts)
    below = np.stack((sums - counts, sums), axis=1).reshape(-1)
    binned = np.diff(np.interp(edges, knots, below)) if counts.size else np.zeros(bins)
    sharp = ~spread & (points.lower != 0.0)
    places = np.searchsorted(edges, points.lower[sharp], side="right") - 1
    np.add.at(binned, np.minimum(places, bins - 1), points.counts[sharp])
    return np.asarray(binned, np.float64)


@compiled
def _best_window(counts: FloatArray, first: int, last: int, groups: int) -> tuple[int, int]:
    """Return the window of bins, within first..last and around the middle, with the least divergence."""
    sums = np.zeros((counts.size + 1, 3))
    for i in range(counts.size):
        sums[i + 1, 0] = sums[i, 0] + counts[i]
        sums[i + 1, 1] = sums[i, 1] + (counts[i] > 0.0)
        sums[i + 1, 2] = sums[i, 2] + _x_log_x(counts[i])
    middle = counts.size // 2
    narrowest = middle
    while narrowest > 1 and min(middle + narrowest - 1, last) - max(middle - narrowest + 1, first) >= groups:
        narrowest -= 1
    stride = -(-(middle - narrowest + 1) * groups // LOGARITHMS)
    coarse, divergence = _best_half(counts, sums, (first, last), range(middle, narrowest - 1, -stride), groups)
    near = range(min(coarse + stride - 1, middle), max(coarse - stride, narrowest - 1), -1)
    fine, lower = _best_half(counts, sums, (first, last), near, groups)
    half = fine if lower <= divergence else coarse
    return max(middle - half, first), min(middle + half, last)


@compiled
def _best_half(
    counts: FloatArray, sums: FloatArray, bounds: tuple[int, int], halves: range, groups: int
) -> tuple[int, float]:
    """Return the half width with the least divergence, and that divergence; on ties the last, since they descend."""
    middle = counts.size // 2
    least, best = np.inf, middle
    for half in halves:
        divergence = _divergence(counts, sums, max(middle - half, bounds[0]), min(middle + half, bounds[1]), groups)
        if divergence <= least:
            least, best = divergence, half
    return best, least


@compiled
def _divergence(counts: FloatArray, sums: FloatArray, start: int, stop: int, groups: int) -> float:
    """Return KL(P, Q) of one window; infinity where it holds no value at all."""
    total = sums[-1, 0]
    inside = sums[stop, 0] - sums[start, 0]
    if inside <= 0.0:
        return np.inf
    left, right = sums[start, 0], total - sums[stop, 0]
    a, b = counts[start], counts[stop - 1]
    result = sums[stop, 2] - sums[start, 2]
    result += _x_log_x(a + left) - _x_log_x(a) + _x_log_x(b + right) - _x_log_x(b)
    size = stop - start
    border = start
    for group in range(groups):
        end = start + (group + 1) * size // groups
        rounded = sums[end, 0] - sums[border, 0]
        occupied = sums[end, 1] - sums[border, 1]
        original = rounded
        if group == 0:
            original += left
            occupied += (a == 0.0) and (left > 0.0)
        if group == groups - 1:
            original += right
            occupied += (b == 0.0) and (right > 0.0)
        border = end
        if original > 0.0:
            result -= original * math.log(max(rounded, EMPTY_GROUP) / occupied)
    return float(result / total + math.log(inside / total))


@compiled
def _x_log_x(x: float) -> float:
    return x * math.log(x) if x > 0.0 else 0.0
