"""Statistics of two models on the same samples: pure functions, in fractions and counts.

An accuracy of k right answers out of n has Wilson's interval, which is honest near 0 and 1 too:

    (k + z^2/2 ± z sqrt(k (n - k) / n + z^2/4)) / (n + z^2)          z: the quantile of the normal distribution

Two models that are asked the same are compared sample by sample. Only the b samples that became wrong and the c that
became right tell them apart. If neither model were better, b would be as often above c as below, as heads in b + c
tosses of a coin; McNemar's exact test is the chance of being at least as uneven:

    p = min(1, 2 P(heads <= min(b, c)))

The loss (b - c) / n has the interval of Bonett and Price, which adds one sample to each of b and c before it takes
the usual one, and so keeps its width where b or c is 0:

    p = (b + 1) / (n + 2)     q = (c + 1) / (n + 2)     p - q ± z sqrt((p + q - (p - q)^2) / (n + 2))

Means of differences have Student's interval. The distribution with a whole number v of degrees of freedom is a finite
sum of powers of cos(a), with a = atan(t / sqrt(v)).
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Interval = tuple[float, float]
Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
NORMAL_QUANTILE = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)

RESAMPLES = 500  # draws of the samples, with replacement
# Degrees of freedom beyond which two terms of Student's quantile about the normal one are exact to six digits.
_NEARLY_NORMAL = 200


def interval_text(ends: Interval | None, form: str = ".2f") -> str:
    return "-" if ends is None else f"{ends[0]:{form}} .. {ends[1]:{form}}"


def in_percent(interval: Interval) -> Interval:
    """Return both ends of a fraction's interval in percent."""
    return 100 * interval[0], 100 * interval[1]


def wilson_interval(right: int, samples: int) -> Interval:
    """Return where a fraction lies with 95 % confidence, after `right` of `samples`."""
    if not 0 <= right <= samples or samples == 0:
        raise ValueError(f"{right} of {samples} is not a fraction")
    z2 = NORMAL_QUANTILE**2
    centre = right + z2 / 2
    half = NORMAL_QUANTILE * math.sqrt(right * (samples - right) / samples + z2 / 4)
    low, high = (centre - half) / (samples + z2), (centre + half) / (samples + z2)
    # Rounding must not leave 0.9999999999999999 where the bound is 1.
    return (0.0 if right == 0 else low, 1.0 if right == samples else high)


def mcnemar_exact(became_wrong: int, became_right: int) -> float:
    """Return the two-sided p-value of these counts of changes, if neither model were better."""
    tosses, fewer = became_wrong + became_right, min(became_wrong, became_right)
    ways = term = 1
    for heads in range(1, fewer + 1):
        term = term * (tosses - heads + 1) // heads
        ways += term
    # Whole numbers divide exactly however large they are; floats would be out of range from 1,024 tosses on.
    return min(1.0, 2 * ways / (1 << tosses))


def paired_loss_interval(became_wrong: int, became_right: int, samples: int) -> Interval:
    """Return where the loss (as a fraction of all samples, positive is worse) lies with 95 % confidence."""
    size = samples + 2
    worse, better = (became_wrong + 1) / size, (became_right + 1) / size
    centre = worse - better
    half = NORMAL_QUANTILE * math.sqrt((worse + better - centre**2) / size)
    return max(-1.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Floats) -> Interval | None:
    """Return where the mean of what these values are drawn from lies with 95 % confidence; None for fewer than two."""
    if len(values) < 2:
        return None
    half = student_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return mean - half, mean + half


def mean_ratio(parts: Floats, wholes: Floats) -> tuple[float, Interval | None]:
    """Return the mean over the columns of sum(parts) / sum(wholes), and where it lies with 95 % confidence.

    Rows are samples. To first order a ratio r is off by the mean of (part - r whole) / mean(whole). A ratio of nothing
    to nothing is 0, of something to nothing infinite; if one is not finite, there is no interval.
    """
    noise, signal = parts.sum(0), wholes.sum(0)
    ratios = np.where(noise == 0.0, 0.0, np.divide(noise, signal, out=np.full_like(noise, np.inf), where=signal > 0.0))
    ratio = float(ratios.mean()) if ratios.size else 0.0
    if not math.isfinite(ratio):
        return math.inf, None
    scale = np.divide(len(wholes), signal, out=np.zeros_like(signal), where=signal > 0.0)
    spread = mean_interval(((parts - ratios * wholes) * scale).sum(1) / max(ratios.size, 1))
    return ratio, None if spread is None else (max(0.0, ratio + spread[0]), ratio + spread[1])


def resampled(parts: Floats, wholes: Floats | None = None) -> Floats:
    """Return mean(parts), or sum(parts) / sum(wholes), on draws of the samples with replacement.

    The draws are the same for all models on the same samples, so what two models got on them can be compared in pairs.
    """
    weights = np.ones_like(parts) if wholes is None else wholes
    rng = np.random.default_rng(0)
    drawn = np.zeros(RESAMPLES)
    for at in range(RESAMPLES):  # one by one: all draws of a hundred thousand samples would take a gigabyte
        chosen = rng.integers(0, len(parts), len(parts))
        if (total := float(weights[chosen].sum())) > 0.0:
            drawn[at] = parts[chosen].sum() / total
    return drawn


def spread_around(value: float, drawn: Floats) -> Interval:
    """Return the 95 % interval of a value, from the spread of the same on draws."""
    known = drawn[np.isfinite(drawn)]
    if not len(known):
        return value, value
    tail = (1 - CONFIDENCE) / 2
    low, middle, high = np.quantile(known, [tail, 0.5, 1 - tail])
    return value + float(low - middle), value + float(high - middle)


def student_quantile(degrees: int) -> float:
    """Return t such that a variable of Student's distribution is in -t..t with 95 % probability."""
    z = NORMAL_QUANTILE
    if degrees > _NEARLY_NORMAL:
        return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    low, high = 0.0, 20.0  # 12.7 for one degree of freedom, and less for more
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _student_within(middle, degrees) < CONFIDENCE else (low, middle)
    return high


def _student_within(t: float, degrees: int) -> float:
    """Return the probability of -t..t."""
    angle = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(1 + odd, degrees, 2):
        total += term
        term *= power / (power + 1) * math.cos(angle) ** 2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
