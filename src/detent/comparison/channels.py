"""Channels that the second of two models scales by factors of its own: found in the values, and undone.

An equalized model computes the same as its original, but on the way y[c] = a[c] * x[c] for each channel c. No file says
by which factors, so they are fitted to the first few samples by least squares,

    a[c] = sum x*y / sum x*x,      sum (x - y/a)^2 = sum x^2 - 2/a sum x*y + 1/a^2 sum y^2,

and hold for all samples. They count only where they explain the difference: where they are not all about 1, and the
noise without them is less than half of that with them. A factor fits a single value whatever it is, and two or three
rather well: with fewer than four values of a channel none are fitted, and with n of them the noise that remains is
taken as n / (n - 1) of what was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.evaluation.noise import ChannelLayout, ChannelScales, channel_sums

FITTED_SAMPLES = 4
"""Those that the factors are fitted to, in the order of the data: with thousands of elements each, a few settle it."""

LEAST_VALUES = 4  # of a channel
LEAST_VARIATION = 1.05
LEAST_GAIN_DB = 3.0

Doubles = npt.NDArray[np.float64]


def channel_axes(rank: int, lanes: int) -> tuple[int, ...]:
    """Where a tensor may have its channels: behind the samples as convolutions, or last as matrix products."""
    return () if rank < 2 else (1,) if rank == 2 or lanes > 1 else (1, -1)


@dataclass(frozen=True, eq=False)
class ChannelSums:
    """sum x*x, sum x*y and sum y*y of each channel, a row for each, and how many values a channel has."""

    axis: int
    sums: Doubles
    elements: int

    @classmethod
    def of(cls, x: npt.NDArray[Any], y: npt.NDArray[Any], axis: int, lanes: int) -> ChannelSums:
        """Those of two tensors of one shape."""
        layout = ChannelLayout.along(axis, x.shape, lanes)
        one, other = (np.ascontiguousarray(array, np.float32).reshape(-1) for array in (x, y))
        return cls(axis, channel_sums(one, other, *layout), x.size // layout.channels)


def fit_scales(axes: Sequence[Sequence[ChannelSums]]) -> ChannelScales | None:
    """The factors that explain a difference best; None where none do. For each axis, the sums of all samples."""
    fitted = [found for samples in axes if (found := _fit(samples)) is not None]
    return max(fitted, key=lambda found: found[0])[1] if fitted else None


def _fit(samples: Sequence[ChannelSums]) -> tuple[float, ChannelScales] | None:
    """The factors along one axis, and how many times less noise there is without them."""
    elements = sum(each.elements for each in samples)
    if len({each.sums.shape for each in samples}) != 1 or elements < LEAST_VALUES:
        return None
    xx, xy, yy = sums = np.sum([each.sums for each in samples], axis=0)
    known = (xx > 0) & (xy > 0)  # all others keep their scale
    if not known.any() or not np.isfinite(sums).all():
        return None
    factors = np.divide(xy, xx, out=np.ones_like(xx), where=known)
    common = xy[known].sum() / xx[known].sum()
    varied = factors[known].max() > LEAST_VARIATION * factors[known].min() or abs(common - 1) > LEAST_VARIATION - 1
    before = float((xx - 2 * xy + yy).sum())
    after = float(np.maximum(xx - 2 * xy / factors + yy / factors**2, 0).sum()) * elements / (elements - 1)
    if not varied or before <= after * 10 ** (LEAST_GAIN_DB / 10):
        return None
    return before / after if after else math.inf, ChannelScales(samples[0].axis, 1 / factors)
