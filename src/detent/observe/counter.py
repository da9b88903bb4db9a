"""One worker's share of calibration: a sample goes through the float model, and every site of it is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from detent.errors import DataError
from detent.graph.session import DEFAULT_PROVIDERS, Runner
from detent.graph.taps import Taps, open_taps
from detent.methods.method import Vote
from detent.observe.bank import HistogramBank, NonFiniteTensorError
from detent.observe.histogram import Histogram
from detent.observe.samples import Sample
from detent.observe.statistics import Statistics


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
        self._sites = list(sites)
        self._runner = runner
        self._fetched = [name for name in sites if name in runner.outputs]
        self._bank = HistogramBank(len(self._sites))
        self._vote = vote
        self._votes: dict[str, Counter[int]] = {name: Counter() for name in sites}

    @property
    def statistics(self) -> Statistics:
        """What was counted. It belongs to the caller: count with another one from now on."""
        named = dict(zip(self._sites, self._bank.statistics(), strict=True))
        for name, votes in self._votes.items():
            named[name].votes.update(votes)
        return named

    def count(self, sample: Sample) -> None:
        """Run one sample and count every site. Raises DataError where one holds NaN or infinity."""
        results = self._runner(sample.feeds, sample.origin, self._fetched) if self._fetched else []
        arrays = {**sample.feeds, **dict(zip(self._fetched, results, strict=True))}
        try:
            self._bank.add([arrays[name] for name in self._sites])
        except NonFiniteTensorError as error:
            raise DataError(
                f"On {sample.origin} the float model itself computes NaN or infinity in tensor "
                f"'{self._sites[error.number]}'. Check the sample and its preprocessing, or leave the nodes that "
                "compute and read it float with --exclude."
            ) from None
        if self._vote is not None:
            self._ask(self._vote, arrays)

    def _ask(self, vote: Vote, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Each tensor of the sample alone votes."""
        for name, votes in self._votes.items():
            alone = Histogram()
            if alone.add(arrays[name]) is not None:
                votes[vote(alone)] += 1
