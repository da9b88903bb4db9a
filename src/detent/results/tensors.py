"""What is reported about each tensor of a quantized model: closeness to float, scale, range and pictures; its network.

Pictures are drawn from few numbers, however large the model or the data. Of an activation: a histogram of at most 64
columns, and the ends of the numbers that have a code. Of a layer's weight: the largest magnitude of its output
channels, largest channel first, before and after channels were rescaled; of more than 64 channels, 64 that are evenly
spaced in that order. Rounding to one step for all channels is fair to all of them if that curve is flat.

Statistics of a tensor are summarized in its range, how sparse it is, its outliers, and what each method would choose.
The outlier ratio is the largest magnitude over the one that 99.9 % of the values stay within. Near 1, all of the range
is in use; at 10, a method that keeps everything leaves nine tenths of the codes to one value in a thousand. A histogram
tells values apart down to its bin width w, at most 1/4096 of the largest magnitude: "near zero" is the share of values
with |x| < w, and exact zeros are at most the share of 0 <= x < w.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import UsageError, nearest
from detent.graph.values import constant, read_values
from detent.methods.method import Points
from detent.numerics.codec import DeviceRounding
from detent.numerics.formats import IntegerFormat, holds_integers
from detent.numerics.interface import Params
from detent.observe.counting import BINS, HALF
from detent.observe.statistics import Histogram, TensorStatistics
from detent.observe.statistics_file import StatisticsFile
from detent.plan.layout import Layout, Role, Site
from detent.plan.plan import Plan, method_choices
from detent.plan.select import names_matching
from detent.results import Result
from detent.tasks.parts import LabelledRange

COLUMNS = 64  # of a histogram: what a picture in a table can show
CURVE = 64

Magnitudes = npt.NDArray[np.float64]


Column = tuple[float, float, int]  # where a column begins and ends, and how many values are in it


@dataclass(frozen=True)
class Closeness:
    """How close one tensor is to its float original. Decibels are infinite if they are equal."""

    sqnr_db: float
    psnr_db: float
    cosine: float


@dataclass(frozen=True)
class PartCloseness(LabelledRange):
    """One part of an output: a range along an axis, and how close it is to float.

    `peak` is the largest magnitude in float. `constant`: all values are the same in the quantized model, and differ in
    float. `node` computes what the part is from, if that is known.
    """

    closeness: Closeness
    peak: float
    constant: bool = False
    node: str = ""


LOSS_UNITS = {
    "classify": "points of accuracy that are expected to be lost",
    "tag": "points of F1 that are expected to be lost",
    "sequence": "percent of the classes of sequences that are expected to be lost",
    "detect": "points of average precision that are expected to be lost",
    "segment": "points of overlap, or percent of peaks, that are expected to be lost",
    "embed": "percent of the ranking of similarities that is lost",
}


@dataclass(frozen=True)
class TaskAgreement:
    """The answers of the quantized model against those of the float one, as the task reads them.

    `loss` is the estimated share of right answers that are lost, with its 95 % `interval`; None if the task has no such
    figure. `figures` are those of the task, `summary` a clause that tells them. `why` is how the task was recognised.
    """

    task: str
    why: str
    samples: int
    loss: float | None
    interval: tuple[float, float] | None
    figures: Mapping[str, float]
    summary: str

    @property
    def loss_unit(self) -> str:
        """What the loss counts, as a percentage."""
        return LOSS_UNITS[self.task]


@dataclass(frozen=True)
class Fidelity:
    """The outputs and sites of a quantized model against the float one.

    `same_top1` counts samples with the same largest class, if the first output looks like class scores. `resized`
    are tensors whose shape depends on the data and differed, so that they cannot be compared. `silent` are outputs that
    are 0 throughout in the quantized model and not in float, and maps of scores in which float itself finds nothing,
    with the largest absolute value that they have there.
    `emulated` is the rounding with which the quantized model was computed in integers; None if onnxruntime computed
    it in float. `parts` are those of outputs that join several things; `agreement` is None if nothing is known of what
    the outputs are for; `beside` are other outputs than its answers, `numbers` those of them that are a number for each
    sample. `counted` of the samples were not held out: they took part in the ranges, and in nothing else. In `reshaped`
    of the samples an output has another shape than float's.
    """

    outputs: Mapping[str, Closeness]
    tensors: Mapping[str, Closeness]
    samples: int
    same_top1: int | None
    resized: Sequence[str] = ()
    silent: Mapping[str, float] = field(default_factory=dict)
    emulated: DeviceRounding | None = None
    parts: Mapping[str, Sequence[PartCloseness]] = field(default_factory=dict)
    agreement: TaskAgreement | None = None
    counted: int = 0
    beside: Sequence[str] = ()
    numbers: Sequence[str] = ()
    reshaped: int = 0


def kind_of_samples(fidelity: Fidelity, *, in_sample: bool) -> str:
    """Say what the samples are that a model was measured on."""
    samples = "sample" if fidelity.samples == 1 else "samples"
    if in_sample:
        return f"{fidelity.samples} calibration {samples}"
    if fidelity.counted:
        held_out = fidelity.samples - fidelity.counted
        return f"{fidelity.samples} samples ({held_out} held out, {fidelity.counted} that only gave ranges)"
    return f"{fidelity.samples} held-out {samples}"


def in_integers(emulated: DeviceRounding | None) -> str:
    """Say that the quantized model was computed in integers, if it was."""
    return "" if emulated is None else f", in integers, with the rounding {emulated}"


@dataclass(frozen=True)
class TensorReport:
    """One quantized tensor.

    `dtype` is the short name of its format. `position` is that of a power-of-two scale. Where each of `channels` (or
    groups) has its own scale, `scale` is the largest; blocks have none. `minimum` and `maximum` were observed (of a
    weight: are its own), and are None if the format did not need it. `clipped` is the fraction of values beyond the
    ends of the grid, `shares` names the tensor whose position this one has, `closeness` compares it with float.
    """

    name: str
    role: str
    node: str
    dtype: str
    position: int | None
    scale: float | None
    zero_point: int
    channels: int | None
    minimum: float | None
    maximum: float | None
    clipped: float
    shares: str | None = None
    closeness: Closeness | None = None

    @property
    def span(self) -> float | None:
        """How far its values reach, from the least to the greatest."""
        return None if self.minimum is None or self.maximum is None else self.maximum - self.minimum


@dataclass(frozen=True)
class ActivationHistogram:
    """The columns of an activation's histogram. `span` are the ends of the codes; None if blocks follow the values.

    `values` were counted.
    """

    columns: tuple[Column, ...]
    span: tuple[float, float] | None
    values: int


@dataclass(frozen=True)
class ChannelSizes:
    """The largest magnitudes of a weight's channels, the largest first: of all or of 64, before and after rescaling.

    The spread is the largest channel over the middle one.
    """

    channels: int
    before: tuple[float, ...]
    after: tuple[float, ...]
    spread_before: float
    spread_after: float


@dataclass(frozen=True)
class NetworkNode:
    """A node, an input or an output of a network. `sources` are the places of the nodes that it reads.

    `shape` is that of its first result, as it is written, or empty if it is not known.
    """

    name: str
    op_type: str
    sources: tuple[int, ...]
    shape: str = ""
    kind: Literal["node", "input", "output"] = "node"


@dataclass(frozen=True)
class Pictures:
    """By the names of tensors. Activations that share another's scale are not in it, weights only if rescaled.

    `network` are the nodes with what each of them reads; empty if it is not known.
    """

    distributions: Mapping[str, ActivationHistogram] = field(default_factory=dict)
    channels: Mapping[str, ChannelSizes] = field(default_factory=dict)
    network: Sequence[NetworkNode] = ()


def network_of(model: ir.Model) -> tuple[NetworkNode, ...]:
    """Return the nodes of a model's main graph, each after what it reads. Constants are not among them."""
    graph = model.graph
    found: list[NetworkNode] = []
    place: dict[ir.Value, int] = {}

    def add(name: object, op_type: str, read: Sequence[ir.Value], made: Sequence[ir.Value], **more: str) -> None:
        sources = tuple(dict.fromkeys(place[value] for value in read if value in place))
        shape = next((_shape(value) for value in (*made, *read) if value.shape is not None), "")
        place.update(dict.fromkeys(made, len(found)))
        found.append(NetworkNode(str(name), op_type, sources, shape, **more))  # type: ignore[arg-type]  # its kind

    for value in graph.inputs:
        if not value.is_initializer():
            add(value.name, "Input", (), (value,), kind="input")
    for node in graph:
        if node.op_type != "Constant":
            add(node.name, node.op_type, read_values(node), node.outputs)
    for value in graph.outputs:
        add(value.name, "Output", (value,), (), kind="output")
    return tuple(found)


def _shape(value: ir.Value) -> str:
    return "×".join("?" if not isinstance(size, int) else str(size) for size in value.shape or ())


def distributions_of(plan: Plan, statistics: Mapping[str, TensorStatistics]) -> dict[str, ActivationHistogram]:
    """Return the histogram of every activation that was counted, with the span of its final parameters."""
    return {
        name: distribution(seen.histogram, plan.of(name).span)
        for name, seen in statistics.items()
        if seen.histogram.total and name in plan.layout.sites
    }


def distribution(histogram: Histogram, span: tuple[float, float]) -> ActivationHistogram:
    """Reduce a histogram to a few columns; values may all be the same."""
    low, high = min(histogram.minimum, 0.0), max(histogram.maximum, 0.0)
    margin = (high - low) / COLUMNS or histogram.width  # what sits at an extreme, as behind a Clip, has a column too
    columns = columns_of(histogram, low - margin, high + margin, COLUMNS)
    return ActivationHistogram(tuple(columns), span if all(map(math.isfinite, span)) else None, histogram.total)


def channel_magnitudes(model: ir.Model, layout: Layout) -> dict[str, Magnitudes]:
    """Return the largest magnitude of each output channel of every layer's weight."""
    found = {}
    for site in layout.of_role(Role.WEIGHT):
        array = constant(model.graph.initializers[site.value])
        if array is None or site.axis is None or array.ndim < 2 or not array.size:
            continue
        others = tuple(axis for axis in range(array.ndim) if axis != site.axis % array.ndim)
        found[site.value] = np.maximum(array.max(axis=others), -array.min(axis=others)).astype(np.float64)
    return found


def channel_sizes(before: Mapping[str, Magnitudes], after: Mapping[str, Magnitudes]) -> dict[str, ChannelSizes]:
    """Return both curves of every weight whose channels were rescaled."""
    return {
        name: ChannelSizes(was.size, _curve(was), _curve(after[name]), _spread(was), _spread(after[name]))
        for name, was in before.items()
        if name in after and not np.array_equal(was, after[name])
    }


def _curve(magnitudes: Magnitudes) -> tuple[float, ...]:
    ordered = np.sort(magnitudes)[::-1]
    chosen = np.linspace(0, ordered.size - 1, min(CURVE, ordered.size)).round().astype(int)
    return tuple(ordered[chosen].tolist())


def _spread(magnitudes: Magnitudes) -> float:
    middle = float(np.median(magnitudes))
    return float(magnitudes.max()) / middle if middle else math.inf


def describe_constants(model: ir.Model, plan: Plan) -> list[TensorReport]:
    """Describe weights and biases: their own range, and what of them saturates at the final position."""
    described = []
    for site in plan.layout.sites.values():
        if site.role is Role.ACTIVATION:
            continue
        array = constant(model.graph.initializers[site.value])
        values = plan.refined.get(site.value, np.zeros(0) if array is None else array)
        clipped = float(plan.of(site.value).clipped(values).mean()) if values.size else 0.0
        described.append(_entry(site, plan, float(values.min(initial=0.0)), float(values.max(initial=0.0)), clipped))
    return described


def describe_activations(
    plan: Plan, statistics: Mapping[str, TensorStatistics], measured: Mapping[str, Closeness]
) -> list[TensorReport]:
    """Describe activations: the observed range (of the tensor whose scale is shared), and the closeness to float."""
    described = []
    for site in plan.layout.of_role(Role.ACTIVATION):
        leader = plan.layout.leader(site.value)
        shares = leader if leader != site.value else None
        closeness = measured.get(site.value)
        if leader not in statistics:
            described.append(_entry(site, plan, None, None, 0.0, shares, closeness))
            continue
        seen = statistics[leader].histogram
        clipped = _clipped_fraction(Points.of_histogram(seen), plan.of(leader))
        described.append(_entry(site, plan, seen.minimum, seen.maximum, clipped, shares, closeness))
    return described


def _clipped_fraction(points: Points, params: Params) -> float:
    total = points.counts.sum()
    return float(points.counts[params.clipped(points.centres)].sum() / total) if total else 0.0


def _entry(
    site: Site,
    plan: Plan,
    minimum: float | None,
    maximum: float | None,
    clipped: float,
    shares: str | None = None,
    closeness: Closeness | None = None,
) -> TensorReport:
    params = plan.of(site.value)
    integers = params if holds_integers(params) else None
    one_scale = integers is not None and integers.axis is None
    return TensorReport(
        name=site.value,
        role=site.role.value,
        node=site.node,
        dtype=params.format.label,
        position=integers.position if integers and one_scale and integers.format.power_of_two else None,
        scale=None if params.scale is None else float(np.max(params.scale)),
        zero_point=int(integers.zero_point.flat[0]) if integers else 0,
        channels=integers.scale.size if integers and not one_scale else None,
        minimum=minimum,
        maximum=maximum,
        clipped=clipped,
        shares=shares,
        closeness=closeness,
    )


def columns_of(histogram: Histogram, low: float, high: float, most: int) -> Iterator[Column]:
    """Yield the columns between low and high that are not empty.

    A column is a group of bins. Groups are aligned to zero, and so wide that half of `most` to `most` fill the range.
    """
    shown = (high - low) / histogram.width
    group = 1 << min(max(0, math.ceil(math.log2(shown / most))), HALF.bit_length() - 1)
    grouped = histogram.counts.reshape(BINS // group, group).sum(axis=1)
    for at in np.flatnonzero(grouped):
        left = (int(at) * group - HALF) * histogram.width
        yield max(left, low), min(left + group * histogram.width, high), int(grouped[at])


OUTLIER_PERCENTILE = 99.9

Choices = Mapping[str, tuple[float, float]]  # the range that each method chooses, by the name of the method

Choose = Callable[[TensorStatistics, str], Choices]  # the choices for the statistics of a tensor and its name

Order = Literal["graph", "outliers"]


@dataclass(frozen=True)
class TensorSummary:
    """One tensor. `number` is its place in the graph; `minimum` and `maximum` are None if nothing was counted.

    `near_zero` and `zeros_at_most` are fractions of all values.
    """

    number: int
    name: str
    samples: int
    values: int
    minimum: float | None
    maximum: float | None
    bin_width: float
    near_zero: float
    zeros_at_most: float
    outlier_ratio: float
    choices: Choices = field(default_factory=dict)


@dataclass(frozen=True)
class StatisticsView(Result):
    """The summaries of the tensors that were asked for, and what the statistics are of."""

    description: str
    samples: int
    detent_version: str
    model: str
    data: str | None
    tensors: Sequence[TensorSummary]
    of: int
    """How many tensors there are in all."""


def choices_of(statistics: TensorStatistics, name: str) -> Choices:
    """Return what each method would choose for 8 bits: with float scales and any zero point, or with powers of two."""
    return method_choices(
        statistics, IntegerFormat("uint8", symmetric=False), IntegerFormat("uint8", scale="power_of_two"), name
    )


def view_statistics(
    file: StatisticsFile, choose: Choose | None = None, *, patterns: Sequence[str] = (), order: Order = "graph"
) -> StatisticsView:
    """Summarize the tensors that match a pattern (`*` and `?` stand for other characters), or of all.

    In the order of the graph, or by outlier ratio, the largest first.
    """
    wanted = selected(file, patterns)
    tensors = [
        summarise(number, name, statistics, choose)
        for number, (name, statistics) in enumerate(file.statistics.items())
        if name in wanted
    ]
    if order == "outliers":
        tensors.sort(key=lambda tensor: -tensor.outlier_ratio)
    return StatisticsView(
        file.description, file.samples, file.detent_version, file.model, file.data, tensors, len(file.statistics)
    )


def selected(file: StatisticsFile, patterns: Sequence[str]) -> set[str]:
    """Return the names that match any pattern, or all. Raise UsageError if a pattern matches none."""
    names = list(file.statistics)
    wanted = set() if patterns else set(names)
    for pattern in patterns:
        hits = names_matching(pattern, names)
        if not hits:
            raise UsageError(f"--tensor '{pattern}' matches no tensor of the statistics.{nearest(pattern, names)}")
        wanted.update(hits)
    return wanted


def summarise(number: int, name: str, statistics: TensorStatistics, choose: Choose | None = None) -> TensorSummary:
    histogram = statistics.histogram
    total = histogram.total
    below, above = (int(histogram.counts[bin_]) for bin_ in (HALF - 1, HALF))
    return TensorSummary(
        number=number,
        name=name,
        samples=statistics.samples,
        values=total,
        minimum=histogram.minimum if total else None,
        maximum=histogram.maximum if total else None,
        bin_width=histogram.width,
        near_zero=(below + above) / max(total, 1),
        zeros_at_most=above / max(total, 1),
        outlier_ratio=outlier_ratio(histogram),
        choices={} if choose is None or not total else dict(choose(statistics, name)),
    )


def outlier_ratio(histogram: Histogram) -> float:
    """Return the largest magnitude over the upper edge of the bin that reaches the percentile; 1 if all is zero."""
    largest = histogram.largest
    if largest == 0.0:
        return 1.0
    magnitudes = histogram.counts[HALF:] + histogram.counts[HALF - 1 :: -1]
    within = np.searchsorted(np.cumsum(magnitudes), OUTLIER_PERCENTILE / 100 * histogram.total)
    return largest / min(largest, float(within + 1) * histogram.width)
