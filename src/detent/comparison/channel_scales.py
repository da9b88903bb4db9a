"""Find channels that the second of two models scales by factors of its own, so that the factors can be undone.

An equalized model computes the same as its original, but inside it y[c] = a[c] * x[c] for each channel c. No file says
by which factors, so they are fitted to the first few samples by least squares,

    a[c] = sum x*y / sum x*x,      sum (x - y/a)^2 = sum x^2 - 2/a sum x*y + 1/a^2 sum y^2,

and used for all samples. They count only if they explain the difference: if they are not all about 1, and undoing them
leaves less than half of the noise. A factor fits a single value exactly, and two or three rather well: with fewer than
four values of a channel none are fitted, and with n of them the remaining noise is taken as n / (n - 1) of what was
found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.evaluation.tensor_noise import ChannelLayout, ChannelScales, channel_sums

FITTED_SAMPLES = 4
"""The first samples of the data, to which factors are fitted: with thousands of elements each, a few are enough."""

LEAST_VALUES = 4  # of a channel
LEAST_VARIATION = 1.05
LEAST_GAIN_DB = 3.0

Doubles = npt.NDArray[np.float64]


def channel_axes(rank: int, lanes: int) -> tuple[int, ...]:
    """Return the axes that may hold channels: after the samples as in convolutions, or last as in matrix products."""
    return () if rank < 2 else (1,) if rank == 2 or lanes > 1 else (1, -1)


@dataclass(frozen=True, eq=False)
class ChannelProducts:
    """Rows with sum x*x, sum x*y and sum y*y of each channel, and how many values a channel has."""

    axis: int
    sums: Doubles
    elements: int

    @classmethod
    def of(cls, x: npt.NDArray[Any], y: npt.NDArray[Any], axis: int, lanes: int) -> ChannelProducts:
        """Return the sums of two tensors of one shape."""
        layout = ChannelLayout.along(axis, x.shape, lanes)
        one, other = (np.ascontiguousarray(array, np.float32).reshape(-1) for array in (x, y))
        return cls(axis, channel_sums(one, other, *layout), x.size // layout.channels)


def fit_scales(axes: Sequence[Sequence[ChannelProducts]]) -> ChannelScales | None:
    """Return the factors that explain a difference best, or None. `axes` has the sums of all samples for each axis."""
    fitted = [found for samples in axes if (found := _fit(samples)) is not None]
    return max(fitted, key=lambda found: found[0])[1] if fitted else None


def _fit(samples: Sequence[ChannelProducts]) -> tuple[float, ChannelScales] | None:
    """Return the factors along one axis, and how many times less noise is left when they are undone."""
    elements = sum(each.elements for each in samples)
    if len({each.sums.shape for each in samples}) != 1 or elements < LEAST_VALUES:
        return None
    xx, xy, yy = sums = np.sum([each.sums for each in samples], axis=0)
    known = (xx > 0) & (xy > 0)  # channels of zeros, or that turn negative, keep their scale
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
