"""Two models that run side by side on the same samples, and what one sample says about each of their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from detent.graph.taps import open_alike
from detent.measure.candidate import Candidate
from detent.measure.channels import FITTED_SAMPLES, ChannelScales, ChannelSums, channel_axes, fit_scales
from detent.measure.dataset import Batch, Dataset
from detent.measure.fidelity import Sums
from detent.measure.in_order import in_order
from detent.observe.samples import Array


@dataclass(frozen=True)
class SideBySide:
    """Two models whose values of one name are in one order (graph/taps.py).

    `lanes`: how many channels lie together in those that are in blocks. `as_they_are`: tensors whose channels keep
    their scales, whatever they are.
    """

    first: Candidate
    second: Candidate
    lanes: Mapping[str, int]
    as_they_are: Set[str]

    def fit(self, items: Sequence[Batch], threads: int) -> dict[str, ChannelScales]:
        """The tensors that have channels in other scales in the second model, on the first few samples in `items`."""
        limits = [FITTED_SAMPLES - sum(len(item.names) for item in items[:at]) for at in range(len(items))]
        found: dict[str, dict[int, list[ChannelSums]]] = {}
        for _, sums in in_order(self._channel_sums, zip(items, limits, strict=True), threads):
            for name, each in sums:
                found.setdefault(name, {}).setdefault(each.axis, []).append(each)
        fitted = {name: fit_scales([*axes.values()]) for name, axes in found.items()}
        return {name: scales for name, scales in fitted.items() if scales is not None}

    def _channel_sums(self, work: tuple[Batch, int]) -> list[tuple[str, ChannelSums]]:
        """Those of each tensor and axis, over no more than so many of the batch's samples."""
        item, limit = work
        size = len(item.names)
        found: list[tuple[str, ChannelSums]] = []
        for name, pair in self._pairs(item):
            if pair is None or name in self.as_they_are:
                continue
            x, y = pair if size == 1 else (array[:limit] for array in pair)
            lanes = self.lanes.get(name, 1)
            found += [(name, ChannelSums.of(x, y, axis, lanes)) for axis in channel_axes(x.ndim, lanes)]
        return found

    def differences(self, item: Batch, scales: Mapping[str, ChannelScales]) -> dict[str, Array | None]:
        """The measures of each tensor, a column for each sample; None where there is nothing to compare."""
        size = len(item.names)
        result: dict[str, Array | None] = {}
        for name, pair in self._pairs(item):
            scale = scales.get(name)
            if pair is None or (scale is not None and not scale.fits(pair[0].shape)):
                result[name] = None
                continue
            x, y = pair
            rows = [(x, y)] if size == 1 else [(x[at : at + 1], y[at : at + 1]) for at in range(size)]
            sums = [Sums.of(one, other, scale, self.lanes.get(name, 1)) for one, other in rows]
            result[name] = np.array([_measures(each) for each in sums], np.float64).T
        return result

    def _pairs(self, item: Batch) -> Iterator[tuple[str, tuple[Array, Array] | None]]:
        """Each tensor in both models; None where there is nothing to compare."""
        sample = item.pending.load()
        expected, found = self.first(sample), self.second(sample)
        size = len(item.names)
        for name, x in expected.items():
            y = found[name]
            comparable = x.shape == y.shape and x.size > 0 and x.dtype.kind == y.dtype.kind == "f"
            yield name, (x, y) if comparable and (size == 1 or x.shape[:1] == (size,)) else None


def open_side_by_side(
    graphs: Sequence[ir.Model], names: Sequence[str], tensors: Sequence[str], providers: Sequence[str]
) -> SideBySide:
    """Load two models, or one as both, to look at `tensors`. ModelError where they do not take or give the same."""
    one_model = graphs[0] is graphs[1]
    runners, lanes = open_alike(graphs[:1] if one_model else graphs, names, tensors, providers)
    first, second = (
        Candidate(graph, name=name, runner=runner)
        for graph, name, runner in zip(graphs, names, runners * (1 + one_model), strict=True)
    )
    second.check_like(first)
    return SideBySide(first, second, lanes, {str(value.name) for graph in graphs for value in graph.graph.outputs})


def fitting_batches(dataset: Dataset) -> list[Batch]:
    """The batches with the first few samples."""
    found: list[Batch] = []
    samples = 0
    for item in dataset:
        if samples >= FITTED_SAMPLES:
            break
        found.append(item)
        samples += len(item.names)
    return found


def _measures(sums: Sums) -> tuple[float, ...]:
    """In the order of MEASURES (measure/tensors.py)."""
    closeness = sums.closeness()
    l1, l2 = sums.distance / sums.elements, sums.noise / sums.elements
    return closeness.sqnr_db, closeness.psnr_db, closeness.cosine, l1, l2
