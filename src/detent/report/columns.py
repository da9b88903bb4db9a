"""A histogram with few columns: groups of bins, aligned to zero, whose number is a power of two."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from detent.observe.counting import BINS, HALF
from detent.observe.histogram import Histogram

Column = tuple[float, float, int]
"""Where a column begins and ends, and how many values are in it."""


def columns_of(histogram: Histogram, low: float, high: float, most: int) -> Iterator[Column]:
    """The columns between low and high that are not empty, so wide that half of `most` to `most` fill the range."""
    shown = (high - low) / histogram.width
    group = 1 << min(max(0, math.ceil(math.log2(shown / most))), HALF.bit_length() - 1)
    grouped = histogram.counts.reshape(BINS // group, group).sum(axis=1)
    for at in np.flatnonzero(grouped):
        left = (int(at) * group - HALF) * histogram.width
        yield max(left, low), min(left + group * histogram.width, high), int(grouped[at])
