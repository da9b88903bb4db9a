"""Percentiles as Quark counts them, for `detent run --as-quark`.

Quark counts magnitudes in 2,048 bins between the smallest and the largest of the first sample. Later samples add bins
of that width where theirs are larger, and what is smaller than the first edge is not counted. The threshold is the
lower edge of the bin in which the percentage is reached: up to a bin less than the exact one, which Detent takes
otherwise, and of another number of values. Edges are float32, as there, so that the bins are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.graph.session import Feeds
from detent.numerics.formats import is_integer
from detent.pipeline.job import Job
from detent.pipeline.run import Run
from detent.recipe.recipe import Override


class GrowingHistogram:
    """The magnitudes of a tensor, sample by sample; the `first` one is divided into `bins`."""

    def __init__(self, first: npt.NDArray[Any], bins: int) -> None:
        sizes = np.abs(first)
        self._counts, edges = np.histogram(sizes, bins)
        self._edges = edges.astype(sizes.dtype)
        self._ends = first.min(), first.max()

    def add(self, values: npt.NDArray[Any]) -> None:
        """Count the values of one more sample."""
        sizes, last = np.abs(values), self._edges[-1]
        width, largest = self._edges[1] - self._edges[0], sizes.max()
        if largest > last:
            self._edges = np.append(self._edges, np.arange(last + width, largest + width, width)).astype(sizes.dtype)
        counts, _ = np.histogram(sizes, self._edges)
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        self._ends = min(self._ends[0], values.min()), max(self._ends[1], values.max())

    def range_of(self, percentile: float) -> tuple[float, float]:
        """Return the range that holds the percentage, no wider than what was seen."""
        reached = np.searchsorted(np.cumsum(self._counts / self._counts.sum()), percentile / 100.0)
        end = float(self._edges[reached])
        return max(-end, float(self._ends[0])), min(end, float(self._ends[1]))


def counted_ranges(job: Job, samples: Sequence[Feeds], bins: int, percentile: float) -> tuple[Override, ...]:
    """Return the ranges of all activations on these samples, in the model as `job` prepares and equalizes it."""
    observed = Run(job).observed
    runner, formats = observed.observation.runner, observed.prepared.layout.formats
    assert runner is not None, "there is data"
    sites = [name for name in observed.prepared.sites if is_integer(formats[name])]  # others have no scale
    histograms: dict[str, GrowingHistogram] = {}
    for feeds in samples:
        computed = [name for name in sites if name not in feeds]
        values = {**feeds, **dict(zip(computed, runner(feeds, outputs=computed), strict=True))}
        for name in sites:
            if name in histograms:
                histograms[name].add(values[name])
            else:
                histograms[name] = GrowingHistogram(values[name], bins)
    ranges = {name: histogram.range_of(percentile) for name, histogram in histograms.items()}
    return tuple(
        Override(tensors=(name,), range=ends, optional=True) for name, ends in ranges.items() if ends[0] < ends[1]
    )
