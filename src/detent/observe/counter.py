"""One worker's share of calibration: a sample goes through the float model, and every site of it is counted."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from detent.errors import DataError
from detent.graph.session import DEFAULT_PROVIDERS, Runner
from detent.graph.taps import Taps, open_taps
from detent.observe.histogram import NonFiniteError
from detent.observe.samples import Sample
from detent.observe.statistics import Statistics, TensorStatistics, Vote


def taps_of(model: ir.Model, sites: Sequence[str], providers: Sequence[str] = DEFAULT_PROVIDERS) -> Taps:
    """The model, ready to give its outputs and then every site that is neither output nor input.

    Count with the unordered runner of the two, and compare tensors with the ordered one.
    """
    return open_taps(model, fetched(model, sites), providers)


def fetched(model: ir.Model, sites: Sequence[str]) -> list[str]:
    """The model's outputs, and then every site that is neither output nor input."""
    inputs, outputs = ([str(value.name) for value in values] for values in (model.graph.inputs, model.graph.outputs))
    return outputs + [name for name in sites if name not in inputs and name not in outputs]


class SiteCounter:
    """Counts the values of `sites`, sample after sample. For one thread; several may share the `runner`.

    The values of the runner may be in any order: see `taps_of`.
    """

    def __init__(self, runner: Runner, sites: Sequence[str], vote: Vote | None = None) -> None:
        self.statistics: Statistics = {name: TensorStatistics() for name in sites}
        self._runner = runner
        self._fetched = [name for name in sites if name in runner.outputs]
        self._vote = vote

    def count(self, sample: Sample) -> None:
        """Run one sample and count every site. Raises DataError where one holds NaN or infinity."""
        results = self._runner(sample.feeds, sample.origin, self._fetched) if self._fetched else []
        arrays = {**sample.feeds, **dict(zip(self._fetched, results, strict=True))}
        for name, statistics in self.statistics.items():
            try:
                statistics.add(arrays[name], self._vote)
            except NonFiniteError:
                raise DataError(
                    f"On {sample.origin} the float model itself computes NaN or infinity in tensor '{name}'. "
                    "Check the sample and its preprocessing, or leave the nodes that compute and read it float "
                    "with --exclude."
                ) from None
