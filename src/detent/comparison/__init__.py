"""Compare two models tensor by tensor on the same samples: the outputs, and every value of the same name in both.

With x the value in the first model, y in the second and e their difference, for each sample:

    cosine = sum x*y / sqrt(sum x^2 * sum y^2)      L1 = mean |e|      L2 = mean e^2
    SQNR   = 10 log10(sum x^2 / sum e^2)            PSNR = 10 log10(max |x|^2 / L2)

Five numbers are kept for each sample and tensor, never the tensors.

An equalized model computes the same as its original, but inside it y[c] = a[c] * x[c] for each channel c. Such factors
are undone before tensors are compared, but not in outputs: there they are an error. No file says what the factors are,
so they are fitted to the first few samples by least squares,

    a[c] = sum x*y / sum x*x,      sum (x - y/a)^2 = sum x^2 - 2/a sum x*y + 1/a^2 sum y^2,

and used for all samples. They count only if they explain the difference: if they are not all about 1, and undoing them
leaves less than half of the noise. A factor fits a single value exactly, and two or three rather well: with fewer than
four values of a channel none are fitted, and with n of them the remaining noise is taken as n / (n - 1) of what was
found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import ModelError
from detent.evaluation.candidate import AnyModel, Candidate, model_name
from detent.evaluation.dataset import Dataset, open_dataset
from detent.evaluation.fidelity import ChannelLayout, ChannelScales, Doubles, NoiseSums, channel_sums
from detent.execute.inference import Batch, map_in_order
from detent.graph.load import read
from detent.graph.session import DEFAULT_PROVIDERS
from detent.graph.taps import open_alike
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import Array
from detent.observe.sources import input_specs
from detent.prepare import prepare
from detent.prepare.shapes import InferShapes
from detent.progress import Progress, silent
from detent.recipe.recipe import FUSED_ACTIVATIONS
from detent.results.compared import ModelComparison, TensorDifference
from detent.tasks.parts import OutputPart, output_parts, parts_by_size

STAGE = "compare"

# The first samples of the data, to which factors are fitted: with thousands of elements each, a few are enough.
FITTED_SAMPLES = 4

LEAST_VALUES = 4  # of a channel
LEAST_VARIATION = 1.05  # factors of channels that vary less are taken as none
LEAST_GAIN_DB = 3.0  # undoing factors must halve the noise, or they were not there


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
    """Run both models on all samples. Raises a DetentError if their inputs or outputs differ.

    `inner` adds the values between layers and their activation functions, which are seldom of interest and take as long
    as all others.
    """
    graphs = [model if isinstance(model, ir.Model) else read(model) for model in (before, after)]
    models = [model_name(model) for model in (before, after)]
    shared = _shared(graphs[0], graphs[1], inner=inner)
    pair = open_pair(graphs, models, shared, providers)
    if not shared:
        raise ModelError(f"{models[0]} and {models[1]} have no tensor of the same name: nothing can be compared.")
    outputs = [{str(value.name) for value in graph.graph.outputs} for graph in graphs]
    dataset = open_dataset(data, input_specs(graphs[0]), labels=None, preprocess=preprocess, limit=limit, batch=batch)
    fitting = fitting_batches(dataset)
    pair = pair.divided(graphs[0], fitting[0]) if fitting else pair
    shared = [each for name in shared for each in (name, *(part.name_in(name) for part in pair.parts.get(name, ())))]
    steps = len(fitting) + dataset.batches
    progress(STAGE, 0, steps)
    scales = pair.fit(fitting, threads)
    progress(STAGE, len(fitting), steps)
    names: list[str] = []
    found: dict[str, list[Array | None]] = {name: [] for name in shared}
    look = partial(pair.differences, scales=scales)
    for done, (item, differences) in enumerate(map_in_order(look, dataset, threads), len(fitting) + 1):
        names += item.names
        for name, values in differences.items():
            found[name].append(values)
        progress(STAGE, done, steps)
    both = outputs[0] & outputs[1]
    compared = both | {part.name_in(name) for name in both for part in pair.parts.get(name, ())}
    measured = {name: _of_all_samples(values) for name, values in found.items()}
    tensors = [
        TensorDifference(name, name in compared, names, values, name in scales)
        for name, values in measured.items()
        if values is not None
    ]
    skipped = [name for name, values in measured.items() if values is None]
    return ModelComparison(models[0], models[1], dataset.described, dataset.note, tensors, skipped)


def _of_all_samples(values: Sequence[Array | None]) -> Array | None:
    """Join the measures of all batches; None if the tensor could not be compared in one of them."""
    known = [each for each in values if each is not None]
    return np.concatenate(known, 1) if len(known) == len(values) else None


def _shared(one: ir.Model, other: ir.Model, *, inner: bool) -> list[str]:
    """Return the tensors that nodes of both models compute under the same name, in the order of the first."""
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
    """Return whether only one activation function reads a value: devices and runtimes fuse the two."""
    readers = value.consumers()
    return len(readers) == 1 and readers[0].op_type in FUSED_ACTIVATIONS and not value.is_graph_output()


@dataclass(frozen=True)
class ModelPair:
    """Two models that run on the same samples, and lay out values of the same name alike (graph/taps.py).

    `lanes`: how many channels lie together in values of a blocked layout. `outputs` keep the scales of their channels:
    there, another scale is an error. `parts` of outputs are compared apart, under names of their own.
    """

    first: Candidate
    second: Candidate
    lanes: Mapping[str, int]
    outputs: Set[str]
    parts: Mapping[str, Sequence[OutputPart]] = field(default_factory=dict)

    def divided(self, model: ir.Model, batch: Batch) -> ModelPair:
        """Return the pair with the parts of its outputs: those that the graph tells, or the values of a sample show."""
        prepare(model, [InferShapes()])
        declared = output_parts(model.graph)
        values = self.first(batch.pending.load())
        shown = {
            name: parts_by_size([array]) for name, array in values.items() if name in self.outputs and array.ndim >= 3
        }
        parts = {name: found for name, found in {**shown, **declared}.items() if found and name in values}
        named = {part.name_in(name) for name, found in parts.items() for part in found}
        return replace(self, parts=parts, outputs=self.outputs | named)

    def fit(self, batches: Sequence[Batch], threads: int) -> dict[str, ChannelScales]:
        """Return the scales of channels that differ in the second model, fitted to the first few samples."""
        limits = [FITTED_SAMPLES - sum(len(batch.names) for batch in batches[:at]) for at in range(len(batches))]
        found: dict[str, dict[int, list[ChannelProducts]]] = {}
        for _, sums in map_in_order(self._channel_sums, zip(batches, limits, strict=True), threads):
            for name, each in sums:
                found.setdefault(name, {}).setdefault(each.axis, []).append(each)
        fitted = {name: fit_scales([*axes.values()]) for name, axes in found.items()}
        return {name: scales for name, scales in fitted.items() if scales is not None}

    def _channel_sums(self, work: tuple[Batch, int]) -> list[tuple[str, ChannelProducts]]:
        """Return the sums of each tensor and axis, over at most so many of the batch's samples."""
        batch, limit = work
        size = len(batch.names)
        found: list[tuple[str, ChannelProducts]] = []
        for name, pair in self._pairs(batch):
            if pair is None or name in self.outputs:
                continue
            x, y = pair if size == 1 else (array[:limit] for array in pair)
            lanes = self.lanes.get(name, 1)
            found += [(name, ChannelProducts.of(x, y, axis, lanes)) for axis in channel_axes(x.ndim, lanes)]
        return found

    def differences(self, batch: Batch, scales: Mapping[str, ChannelScales]) -> dict[str, Array | None]:
        """Return the measures of each tensor with a column for each sample; None if it cannot be compared."""
        size = len(batch.names)
        result: dict[str, Array | None] = {}
        for name, pair in self._pairs(batch):
            scale = scales.get(name)
            if pair is None or (scale is not None and not scale.fits(pair[0].shape)):
                result[name] = None
                continue
            x, y = pair
            rows = [(x, y)] if size == 1 else [(x[at : at + 1], y[at : at + 1]) for at in range(size)]
            sums = [NoiseSums.of(one, other, scale, self.lanes.get(name, 1)) for one, other in rows]
            result[name] = np.array([_measures(each) for each in sums], np.float64).T
        return result

    def _pairs(self, batch: Batch) -> Iterator[tuple[str, tuple[Array, Array] | None]]:
        """Yield each tensor of both models; None if it cannot be compared."""
        sample = batch.pending.load()
        expected, found = self.first(sample), self.second(sample)
        size = len(batch.names)
        for name, x in expected.items():
            y = found[name]
            comparable = x.shape == y.shape and x.size > 0 and x.dtype.kind == y.dtype.kind == "f"
            pair = (x, y) if comparable and (size == 1 or x.shape[:1] == (size,)) else None
            yield name, pair
            for part in self.parts.get(name, ()):
                yield part.name_in(name), None if pair is None else (part.of(x), part.of(y))


def open_pair(
    graphs: Sequence[ir.Model], names: Sequence[str], tensors: Sequence[str], providers: Sequence[str]
) -> ModelPair:
    """Load two models, or one as both, to fetch `tensors`. Raise ModelError if inputs or outputs differ."""
    one_model = graphs[0] is graphs[1]
    runners, lanes = open_alike(graphs[:1] if one_model else graphs, names, tensors, providers)
    first, second = (
        Candidate(graph, name=name, runner=runner)
        for graph, name, runner in zip(graphs, names, runners * (1 + one_model), strict=True)
    )
    second.check_like(first)
    return ModelPair(first, second, lanes, {str(value.name) for graph in graphs for value in graph.graph.outputs})


def fitting_batches(dataset: Dataset) -> list[Batch]:
    """Return the batches with the first few samples."""
    found: list[Batch] = []
    samples = 0
    for item in dataset:
        if samples >= FITTED_SAMPLES:
            break
        found.append(item)
        samples += len(item.names)
    return found


def _measures(sums: NoiseSums) -> tuple[float, ...]:
    """Return the figures in the order of MEASURES."""
    closeness = sums.closeness()
    l1, l2 = sums.distance / sums.elements, sums.noise / sums.elements
    return closeness.sqnr_db, closeness.psnr_db, closeness.cosine, l1, l2


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
