"""Two models on the same samples, tensor against tensor: the outputs, and every value that has the same name in both.

With x the value in the first model, y in the second and e their difference, for each sample:

    cosine = sum x*y / sqrt(sum x^2 * sum y^2)      L1 = mean |e|      L2 = mean e^2
    SQNR   = 10 log10(sum x^2 / sum e^2)            PSNR = 10 log10(max |x|^2 / L2)

What is kept are five numbers for each sample and tensor, never the tensors. Where the second model has a tensor's
channels in scales of its own, these are undone before (measure/channels.py), but never in an output: there they are an
error. For that, the first few samples are run twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from detent.comparison.channels import FITTED_SAMPLES, ChannelSums, channel_axes, fit_scales
from detent.errors import ModelError
from detent.evaluation.candidate import AnyModel, Candidate, model_name
from detent.evaluation.dataset import Dataset, open_dataset
from detent.evaluation.noise import ChannelScales, NoiseSums
from detent.execute.inference import Batch, map_in_order
from detent.graph.load import read
from detent.graph.session import DEFAULT_PROVIDERS
from detent.graph.taps import open_alike
from detent.observe.inputs import input_specs
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import Array
from detent.progress import Progress, silent
from detent.recipe import FUSED_ACTIVATIONS

STAGE = "compare"
MEASURES = ("sqnr_db", "psnr_db", "cosine", "l1", "l2")
HIGHER_IS_BETTER = ("sqnr_db", "psnr_db", "cosine")


@dataclass(frozen=True, eq=False)
class TensorDifference:
    """One tensor on all samples: `values` has a row for each measure (see MEASURES) and a column for each sample.

    `rescaled`: the second model has its channels in other scales, which were undone.
    """

    name: str
    is_output: bool
    samples: Sequence[str]
    values: np.ndarray[Any, np.dtype[np.float64]]
    rescaled: bool = False

    def mean(self, measure: str) -> float:
        """The mean over the samples; infinite decibels (equal tensors) make it infinite."""
        return float(self.values[MEASURES.index(measure)].mean())

    def worst(self, measure: str) -> float:
        """The value of the sample on which it is worst."""
        values = self.values[MEASURES.index(measure)]
        return float(values.min() if measure in HIGHER_IS_BETTER else values.max())

    def worst_samples(self, count: int = 3) -> list[str]:
        """The samples of the least SQNR, the worst first."""
        order = np.argsort(self.values[MEASURES.index("sqnr_db")], kind="stable")
        return [self.samples[at] for at in order[:count].tolist()]


@dataclass(frozen=True)
class ModelComparison:
    """All tensors of one name in both models, in the order of the first. `skipped` have other shapes or types."""

    before: str
    after: str
    data: str
    note: str
    tensors: Sequence[TensorDifference]
    skipped: Sequence[str]

    def worst_first(self) -> list[TensorDifference]:
        """The tensors by their mean SQNR."""
        return sorted(self.tensors, key=lambda tensor: tensor.mean("sqnr_db"))

    @property
    def rescaling(self) -> str:
        """A sentence on the tensors that were rescaled; empty where none were."""
        count = sum(tensor.rescaled for tensor in self.tensors)
        if not count:
            return ""
        were, their = ("tensor was", "its") if count == 1 else ("tensors were", "their")
        return f"{count} inner {were} compared with the scales of {their} channels undone."

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return {
            "before": self.before,
            "after": self.after,
            "data": self.data,
            "tensors": [
                {
                    "name": tensor.name,
                    "is_output": tensor.is_output,
                    "rescaled": tensor.rescaled,
                    **{name: {"mean": tensor.mean(name), "worst": tensor.worst(name)} for name in MEASURES},
                    "worst_samples": tensor.worst_samples(),
                }
                for tensor in self.tensors
            ],
            "skipped": list(self.skipped),
        }


def compare_models(
    before: AnyModel,
    after: AnyModel,
    data: Any,
    *,
    preprocess: PreprocessOptions | None = None,
    limit: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    providers: Sequence[str] = DEFAULT_PROVIDERS,
    inner: bool = False,
    progress: Progress = silent,
) -> ModelComparison:
    """Run both models on all samples. Raises a DetentError where they do not take or give the same.

    `inner`: also what a layer gives to the activation function behind it, which is seldom asked for and takes as long
    as all the rest.
    """
    graphs = [model if isinstance(model, ir.Model) else read(model) for model in (before, after)]
    models = [model_name(model) for model in (before, after)]
    shared = _shared(graphs[0], graphs[1], inner=inner)
    both = open_side_by_side(graphs, models, shared, providers)
    if not shared:
        raise ModelError(f"{models[0]} and {models[1]} have no tensor of the same name: nothing can be compared.")
    outputs = [{str(value.name) for value in graph.graph.outputs} for graph in graphs]
    dataset = open_dataset(data, input_specs(graphs[0]), labels=None, preprocess=preprocess, limit=limit, batch=batch)
    fitting = fitting_batches(dataset)
    steps = len(fitting) + dataset.batches
    progress(STAGE, 0, steps)
    scales = both.fit(fitting, threads)
    progress(STAGE, len(fitting), steps)
    names: list[str] = []
    found: dict[str, list[Array]] = {name: [] for name in shared}
    skipped: set[str] = set()
    look = partial(both.differences, scales=scales)
    for done, (item, differences) in enumerate(map_in_order(look, dataset, threads), len(fitting) + 1):
        names += item.names
        for name, values in differences.items():
            if values is None:
                skipped.add(name)
            else:
                found[name].append(values)
        progress(STAGE, done, steps)
    tensors = [
        TensorDifference(name, name in outputs[0] & outputs[1], names, np.concatenate(parts, 1), name in scales)
        for name, parts in found.items()
        if name not in skipped
    ]
    return ModelComparison(
        models[0], models[1], dataset.described, dataset.note, tensors, [name for name in shared if name in skipped]
    )


def _shared(one: ir.Model, other: ir.Model, *, inner: bool) -> list[str]:
    """The tensors that nodes of both models give under one name, in the order of the first."""
    theirs = {value.name: value for node in other.graph for value in node.outputs}
    return [
        str(value.name)
        for node in one.graph
        for value in node.outputs
        if value.name
        and value.name in theirs
        and not isinstance(value.type, (ir.SequenceType, ir.OptionalType))
        and (inner or not (_is_inside(value) and _is_inside(theirs[value.name])))
    ]


def _is_inside(value: ir.Value) -> bool:
    """Whether nothing but one activation function reads it: devices and runtimes compute both at one go."""
    readers = value.consumers()
    return len(readers) == 1 and readers[0].op_type in FUSED_ACTIVATIONS and not value.is_graph_output()


# FUSED Two models that run side by side on the same samples, and what one sample says about each of their tensors.


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
        for _, sums in map_in_order(self._channel_sums, zip(items, limits, strict=True), threads):
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
            sums = [NoiseSums.of(one, other, scale, self.lanes.get(name, 1)) for one, other in rows]
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


def _measures(sums: NoiseSums) -> tuple[float, ...]:
    """In the order of MEASURES (measure/tensors.py)."""
    closeness = sums.closeness()
    l1, l2 = sums.distance / sums.elements, sums.noise / sums.elements
    return closeness.sqnr_db, closeness.psnr_db, closeness.cosine, l1, l2
