"""Compare the quantized model with the float one on the same samples: its outputs, their parts, and every site inside.

The sums of an output run over all samples, those of inner values over the first few. Parts of an
output are those that the graph tells (tasks/parts.py), or else those that the values of the first sample show.

Every figure of a difference follows from sums over the two tensors. With x the float value, y the quantized one and e =
x - y:

    SQNR   = 10 log10(sum x^2 / sum e^2)             signal against quantization noise, in dB
    PSNR   = 10 log10(max |x|^2 / mean e^2)          the same against the peak
    cosine = sum x*y / sqrt(sum x^2 * sum y^2)       1 for the same direction

The product needs no sum of its own: 2 * sum x*y = sum x^2 + sum y^2 - sum e^2.

All sums are taken in one compiled pass while the tensors are in the cache, in double precision and without the GIL. If
channels have factors, a tensor lies in memory as [groups, positions, lanes]: its channels come in groups of `lanes`,
which lie beside each other at each position. In plain order a group is one channel; in onnxruntime's blocked layout it
is 4, 8 or 16. The loops run over pieces of many positions, so that the processor works on many numbers at once
whatever the lanes, with what belongs to a channel repeated along the piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.emulator import EmulatedValues
from detent.errors import ModelError, listed
from detent.evaluation.sample_answers import SampleAnswer, without_common_infinities
from detent.evaluation.task_agreement import compare_answers, summarize_answers
from detent.execute.inference import map_in_order
from detent.graph.session import Runner
from detent.graph.values import all_finite, constant, input_at, is_standard
from detent.numerics.codec import DeviceRounding
from detent.numerics.compiled import compiled, compiled_sums
from detent.observe.samples import PendingSample, Sample
from detent.progress import Progress, silent
from detent.qdq.families import is_native_dequantize
from detent.results.tensors import Closeness, Fidelity, PartCloseness
from detent.results.verdict import UNSURE_SCORE, judge
from detent.tasks import Task
from detent.tasks.parts import OutputPart, parts_by_size
from detent.tasks.purpose import Purpose, where_sure

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

PIECE = 1024  # elements: both tensors and the factors stay in the first cache for the second loop
SUMMED_APART = 128  # elements of a piece with sums of their own, so that additions do not wait for each other
LONG_ROW = 64  # numbers: rows of columns that mean different things are shorter
MAGNITUDE = np.uint32(0x7FFFFFFF)  # a float's bits without its sign


@compiled_sums
def error_sums(
    original: Floats, quantized: Floats, factors: Doubles, positions: int, lanes: int
) -> tuple[float, float, float, float, np.uint32]:
    """Return sum x^2, sum (x-y)^2, sum y^2, sum |x-y|, and the bits of max |x| (see `largest_magnitude`).

    y is the quantized value times the factor of its channel.
    """
    signal = noise = other = distance = 0.0
    peak = np.uint32(0)
    bits = original.view(np.uint32)
    group = max(1, positions * lanes)
    step = min(group, lanes * max(1, PIECE // lanes))
    repeated = np.empty(step, np.float64)
    channel = 0
    for first in range(0, original.size, group):
        for lane in range(lanes):
            for i in range(lane, step, lanes):
                repeated[i] = factors[channel + lane]
        for start in range(first, first + group, step):
            end = min(start + step, first + group)
            sums = _piece_sums(original[start:end], quantized[start:end], repeated)
            signal += sums[0]
            noise += sums[1]
            other += sums[2]
            distance += sums[3]
            peak = max(peak, largest_magnitude(bits[start:end]))
        channel = (channel + lanes) % factors.size
    return signal, noise, other, distance, peak


@compiled_sums
def _piece_sums(original: Floats, quantized: Floats, factors: Doubles) -> tuple[float, float, float, float]:
    signal = noise = other = distance = 0.0
    for i in range(original.size):
        x = np.float64(original[i])
        y = np.float64(quantized[i]) * factors[i]
        signal += x * x
        noise += (x - y) * (x - y)
        other += y * y
        distance += abs(x - y)
    return signal, noise, other, distance


@compiled_sums
def channel_sums(original: Floats, quantized: Floats, channels: int, positions: int, lanes: int) -> Doubles:
    """Return sum x*x, sum x*y and sum y*y of each channel: a row for each sum."""
    totals = np.zeros((3, channels), np.float64)
    group = max(1, positions * lanes)
    step = min(group, lanes * max(1, SUMMED_APART // lanes))
    apart = np.empty((3, step), np.float64)
    channel = 0
    for first in range(0, original.size, group):
        apart[:] = 0.0
        for start in range(first, first + group, step):
            end = min(start + step, first + group)
            _add_products(original[start:end], quantized[start:end], apart[0], apart[1], apart[2])
        for row in range(3):
            for lane in range(lanes):
                for i in range(lane, step, lanes):
                    totals[row, channel + lane] += apart[row, i]
        channel = (channel + lanes) % channels
    return totals


@compiled_sums
def _add_products(original: Floats, quantized: Floats, signal: Doubles, product: Doubles, other: Doubles) -> None:
    for i in range(original.size):
        x = np.float64(original[i])
        y = np.float64(quantized[i])
        signal[i] += x * x
        product[i] += x * y
        other[i] += y * y


@compiled
def largest_magnitude(bits: npt.NDArray[np.uint32]) -> np.uint32:
    """Return the bits of the largest |x|, with NaN above all: floats without a sign sort like their bits.

    Integers are compared many at a time; the rules for NaN prevent that for floats.
    """
    peak = np.uint32(0)
    for i in range(bits.size):
        peak = max(peak, bits[i] & MAGNITUDE)
    return peak


class ChannelLayout(NamedTuple):
    """How channels lie in memory: in groups of `lanes`, which lie beside each other at each position."""

    channels: int
    positions: int
    lanes: int

    @classmethod
    def along(cls, axis: int, shape: Sequence[int], lanes: int = 1) -> ChannelLayout:
        """Return the layout of channels along axis 1, in groups of `lanes`, or along the last axis (-1)."""
        if axis == -1:
            return cls(shape[-1], math.prod(shape[1:-1]), shape[-1])
        positions = math.prod(shape[2:])
        return cls(shape[1], positions, shape[1] if positions == 1 else lanes)


@dataclass(frozen=True, eq=False)
class ChannelScales:
    """The factors that turn each channel of the second model into that of the first."""

    axis: int
    undoing: Doubles

    def fits(self, shape: Sequence[int]) -> bool:
        """Tell whether a tensor of this shape has as many channels."""
        return len(shape) > 1 and shape[self.axis] == self.undoing.size


ONE = np.ones(1)


@dataclass(frozen=True)
class NoiseSums:
    """The sums behind a Closeness. Sums of two samples add up."""

    signal: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    distance: float = 0.0
    peak: float = 0.0
    elements: int = 0

    @classmethod
    def of(
        cls,
        original: npt.NDArray[Any],
        quantized: npt.NDArray[Any],
        scales: ChannelScales | None = None,
        lanes: int = 1,
    ) -> NoiseSums:
        """Return the sums of two arrays of one shape, with the `scales` of channels in groups of `lanes` undone."""
        x = np.ascontiguousarray(original, np.float32).reshape(-1)
        y = np.ascontiguousarray(quantized, np.float32).reshape(-1)
        if scales is None:
            factors, layout = ONE, ChannelLayout(1, x.size, 1)
        else:
            factors, layout = scales.undoing, ChannelLayout.along(scales.axis, original.shape, lanes)
        signal, noise, other, distance, peak_bits = error_sums(x, y, factors, layout.positions, layout.lanes)
        return cls(signal, noise, other, distance, float(np.uint32(peak_bits).view(np.float32)), x.size)

    def __add__(self, more: NoiseSums) -> NoiseSums:
        return NoiseSums(
            self.signal + more.signal,
            self.noise + more.noise,
            self.other + more.other,
            self.distance + more.distance,
            max(self.peak, more.peak),
            self.elements + more.elements,
        )

    def closeness(self) -> Closeness:
        """Return the figures that follow from the sums."""
        norm = math.sqrt(self.signal * self.other)
        product = (self.signal + self.other - self.noise) / 2
        same = self.noise == 0.0
        return Closeness(
            sqnr_db=_decibels(self.signal, self.noise),
            psnr_db=_decibels(self.peak**2, self.noise / max(self.elements, 1)),
            cosine=1.0 if same else product / norm if norm and math.isfinite(norm) else 0.0,
        )


def _decibels(signal: float, noise: float) -> float:
    if noise == 0.0:
        return math.inf
    if not math.isfinite(noise):
        return -math.inf  # NaN or infinity in the quantized model: nothing is worse
    return 10 * math.log10(signal / noise) if signal else -math.inf


STAGE = "measure"

Answering = Callable[[PendingSample], Mapping[str, npt.NDArray[Any]]]  # the outputs of a model

# Samples on which every tensor is compared: with thousands of elements each, a few tell which are the worst.
DETAILED_SAMPLES = 4


# Not scores and embeddings: their columns belong together, however their sizes differ.
DIVIDED_BY_SIZE = (Task.DETECT, Task.REGRESS, Task.IMAGE)


@dataclass(frozen=True, eq=False)
class PartSums:
    """The sums of one part, and the ends of its values in both models. Those of two samples add up."""

    sums: NoiseSums
    spans: tuple[float, float, float, float]

    @classmethod
    def of(cls, original: npt.NDArray[Any], quantized: npt.NDArray[Any]) -> PartSums:
        """Return the sums of two arrays of one shape."""
        ends = [float(each) for array in (original, quantized) for each in (array.min(), array.max())]
        return cls(NoiseSums.of(original, quantized), (ends[0], ends[1], ends[2], ends[3]))

    def __add__(self, more: PartSums) -> PartSums:
        one, other = self.spans, more.spans
        spans = (min(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), max(one[3], other[3]))
        return PartSums(self.sums + more.sums, spans)

    def closeness_of(self, part: OutputPart) -> PartCloseness:
        low, high, other_low, other_high = self.spans
        constant = other_low == other_high and low != high
        peak = max(abs(low), abs(high))
        close = self.sums.closeness()
        return PartCloseness(part.label, part.axis, part.start, part.stop, close, peak, constant, part.node)


@dataclass(frozen=True, eq=False)
class _Looked:
    """What one inference showed: the sums of each tensor and part, tensors of another shape, and answers."""

    sums: Mapping[str, NoiseSums]
    resized: Sequence[str]
    parts: Mapping[tuple[str, OutputPart], PartSums] = field(default_factory=dict)
    answers: Sequence[SampleAnswer] = ()
    samples: int = 0


def measure_fidelity(
    reference: Runner,
    quantized_model: ir.Model,
    sites: Mapping[str, str],
    samples: Sequence[PendingSample],
    reserve: Sequence[PendingSample] = (),
    *,
    original: Answering | None = None,
    quantized: Answering | None = None,
    emulate: DeviceRounding | None = None,
    purpose: Purpose | None = None,
    parts: Mapping[str, Sequence[OutputPart]] | None = None,
    threads: int = 0,
    progress: Progress = silent,
) -> Fidelity:
    """Run both models on `samples`: the outputs on all of them, every site on the first few.

    While the verdict is unclear, take as many again from the `reserve`.

    `reference` is the float model and fetches its outputs first, then the sites; `sites` maps the name of each value in
    the float model to its name in the quantized one. `original`, if given, computes the outputs to compare with: those
    of the model before its channels were rescaled; and `quantized` those of the quantized model. With `emulate` that is
    computed in integers, with that rounding. `purpose` says how to read answers (by default by the first output),
    `parts` what outputs are of.
    """
    outputs = [str(value.name) for value in quantized_model.graph.outputs]
    purpose = purpose or _purpose_by_shape(quantized_model.graph.outputs[0])
    # The float model also gives what stayed float after it was observed.
    renamed = {
        name: name if name in outputs else sites[name] for name in reference.outputs if name in {*outputs, *sites}
    }
    coded = _codes_of(quantized_model, renamed) if emulate is None else {}
    renamed |= {name: codes.name for name, codes in coded.items()}
    tapped = _open(quantized_model, list(renamed.values()), emulate)
    shown = _shown_by(reference, purpose, outputs, samples[0].load()) if samples else {}
    divided = {**shown, **(parts or {})}  # those of the graph are certain
    compare = _Comparison(quantized_model, purpose, outputs, divided, coded)
    one_at_a_time = Lock()  # all values of two models at once are the most memory that is ever used

    def look(work: Work) -> _Looked:
        at, pending = work
        # The original may be closed by now, and is not opened again for the reserve: rescaled, it answers the same, but
        # for a moved Clip that cuts what equalization did not see.
        known = original(pending) if original is not None and at < len(samples) else {}
        if at >= DETAILED_SAMPLES and quantized is not None:
            return compare(pending, _expected(reference, pending, known, outputs), quantized(pending))
        names = list(renamed) if at < DETAILED_SAMPLES else outputs
        with one_at_a_time if at < DETAILED_SAMPLES else nullcontext():
            sample = pending.load()
            found = tapped(sample.feeds, sample.origin, [renamed[name] for name in names])
            return compare(pending, _expected(reference, pending, known, names), dict(zip(names, found, strict=True)))

    works = list(enumerate([*samples, *reserve]))
    looked, end = list[_Looked](), len(samples)
    while True:
        looked += _look_at(works[len(looked) : end], look, threads, progress)
        found = _fidelity(looked, outputs, list(sites), purpose, emulate)
        if end >= len(works) or judge(found).level != "unclear":
            return found
        end = max(1, 2 * end)


Work = tuple[int, PendingSample]  # a sample with its number


def _look_at(works: Sequence[Work], look: Callable[[Work], _Looked], threads: int, progress: Progress) -> list[_Looked]:
    """Return what each sample shows, in their order: floating-point sums must not depend on timing."""
    looked: dict[int, _Looked] = {}
    progress(STAGE, 0, len(works))
    for done, ((at, _), each) in enumerate(map_in_order(look, _interleaved(works), threads), 1):
        looked[at] = each
        progress(STAGE, done, len(works))
    return [looked[at] for at, _ in works]


def _interleaved(works: Sequence[Work]) -> list[Work]:
    """Return the samples with others between those that have to wait for each other."""
    detailed, others = works[:DETAILED_SAMPLES], works[DETAILED_SAMPLES:]
    mixed = [each for pair in zip(detailed, others, strict=False) for each in pair]
    return [*mixed, *detailed[len(others) :], *others[len(detailed) :]]


_CODE_TYPES = (np.int8, np.uint8, np.int16, np.uint16)


class _Codes(NamedTuple):
    """The codes that a value is computed from, which take a quarter of its memory."""

    name: str
    scale: np.float32
    zero_point: np.float32

    def decode(self, codes: npt.NDArray[Any]) -> Floats:
        """Return the value."""
        return np.asarray((codes.astype(np.float32) - self.zero_point) * self.scale)


def _codes_of(model: ir.Model, renamed: Mapping[str, str]) -> dict[str, _Codes]:
    """Return the codes of those values that are dequantized with one scale, by the first of their two names."""
    makers = {str(node.outputs[0].name): node for node in model.graph if is_native_dequantize(node)}
    found = {}
    for name, rounded in renamed.items():
        node = makers.get(rounded)
        scale, zero = (None, None) if node is None else (constant(input_at(node, 1)), constant(input_at(node, 2)))
        if node is None or scale is None or zero is None or scale.size > 1 or scale.dtype != np.float32:
            continue
        codes = node.inputs[0]
        if codes is not None and codes.producer() is not None and zero.dtype in _CODE_TYPES and name != rounded:
            found[name] = _Codes(str(codes.name), np.float32(scale.reshape(())), np.float32(zero.reshape(())))
    return found


@dataclass(frozen=True, eq=False)
class _Comparison:
    """Compares what two models make of a sample."""

    quantized_model: ir.Model
    purpose: Purpose
    outputs: Sequence[str]
    parts: Mapping[str, Sequence[OutputPart]]
    coded: Mapping[str, _Codes]  # by the names in the float model

    def __call__(
        self, pending: PendingSample, expected: Mapping[str, npt.NDArray[Any]], found: Mapping[str, npt.NDArray[Any]]
    ) -> _Looked:
        """Return the sums of each value and part, and the answers."""
        before, after = _answers(self.purpose, set(self.outputs), expected, found)
        answers = compare_answers(self.purpose, before, after, pending.size)
        expected, found = where_sure(self.purpose, *without_common_infinities(expected, found))
        pairs = {name: (x, found[name]) for name, x in expected.items() if x.shape == found[name].shape}
        floats = _float_pairs(pairs, self.quantized_model, pending.origin)
        return _Looked(
            {
                name: NoiseSums.of(x, self.coded[name].decode(y) if y.dtype.kind in "iu" else y)
                for name, (x, y) in floats.items()
            },
            [name for name in expected if name not in pairs],
            {
                (name, part): PartSums.of(part.of(x), part.of(y))
                for name, (x, y) in floats.items()
                if name in self.outputs and x.size
                for part in self.parts.get(name, ())
            },
            answers,
            pending.size,
        )


def _expected(
    reference: Runner, pending: PendingSample, known: Mapping[str, npt.NDArray[Any]], names: Sequence[str]
) -> dict[str, npt.NDArray[Any]]:
    """Return the values of the float model; those that are not known are computed."""
    asked = [name for name in names if name not in known]
    computed: dict[str, npt.NDArray[Any]] = {}
    if asked:
        sample = pending.load()
        computed = dict(zip(asked, reference(sample.feeds, sample.origin, asked), strict=True))
    return {name: known[name] if name in known else computed[name] for name in names}


def _float_pairs(
    pairs: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]], model: ir.Model, origin: str
) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Return the pairs of float tensors. Raise ModelError if an output is not finite and the float model's is, or if
    it holds NaN and the float model's does not."""
    floats = {name: pair for name, pair in pairs.items() if pair[0].dtype.kind == "f"}
    for name in (str(value.name) for value in model.graph.outputs if value.name in floats):
        before, after = floats[name]
        # Where the float model has infinities, the logarithm of a number near 0 may be another one.
        if not all_finite(after) and (all_finite(before) or np.isnan(before).any() < np.isnan(after).any()):
            suspects = [f"'{node.name}'" for node in model.graph if is_standard(node, *_TO_INFINITY)]
            cause = (
                f"what a node divides by, or takes the logarithm of, was rounded to 0 ({listed(suspects, 3)})"
                if suspects
                else "two infinities meet there, or a number too large for the format"
            )
            raise ModelError(
                f"Quantized, output '{name}' holds {'NaN' if np.isnan(after).any() else 'infinity'} on {origin}, and "
                f"the float model's does not: {cause}. Leave it float (--exclude NODE), or choose a recipe with finer "
                "activations, such as A16W8."
            )
    return floats


_TO_INFINITY = ("Div", "Reciprocal", "Log", "Pow", "Exp", "Softmax", "LpNormalization")


def _shown_by(
    reference: Runner, purpose: Purpose, outputs: Sequence[str], sample: Sample
) -> dict[str, Sequence[OutputPart]]:
    if purpose.task not in DIVIDED_BY_SIZE:
        return {}
    return shown_parts(purpose, dict(zip(outputs, reference(sample.feeds, sample.origin, outputs), strict=True)))


def shown_parts(purpose: Purpose, outputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, Sequence[OutputPart]]:
    """Return the parts that the sizes of the columns of outputs show, if their task divides them so."""
    if purpose.task not in DIVIDED_BY_SIZE:
        return {}
    # One number is hardly a size: of a long row, as of the frames of a sound, any may be near 0.
    several = {name: array for name, array in outputs.items() if array.ndim > 2 or array.size <= LONG_ROW}
    return {name: shown for name, array in several.items() if (shown := parts_by_size([array]))}


def _fidelity(
    looked: Sequence[_Looked],
    outputs: Sequence[str],
    sites: Sequence[str],
    purpose: Purpose,
    emulate: DeviceRounding | None,
) -> Fidelity:
    """Sum up what all inferences showed."""
    totals: dict[str, NoiseSums] = {}
    parts: dict[tuple[str, OutputPart], PartSums] = {}
    for each in looked:
        totals |= {name: totals.get(name, NoiseSums()) + more for name, more in each.sums.items()}
        parts |= {key: parts[key] + more if key in parts else more for key, more in each.parts.items()}
    answers = [answer for each in looked for answer in each.answers]
    samples = sum(each.samples for each in looked)
    agreement = summarize_answers(purpose, answers) if len(answers) == samples else None
    same = None
    if agreement is not None and purpose.task is Task.CLASSIFY:
        # A count that was averaged per batch is whole again after summing, but for float noise.
        same = round(sum(answer.numbers["same"] for answer in answers))
    measured = {name: sums.closeness() for name, sums in totals.items() if sums.elements}
    return Fidelity(
        outputs={name: measured[name] for name in outputs if name in measured},
        tensors={name: closeness for name, closeness in measured.items() if name in sites},
        # Batches count as many samples as they hold.
        samples=samples,
        same_top1=same,
        resized=sorted({name for each in looked for name in each.resized}),
        reshaped=sum(each.samples for each in looked if not set(outputs).isdisjoint(each.resized)),
        silent={
            name: totals[name].peak
            for name in outputs
            if name in totals and totals[name].signal and (not totals[name].other or _is_unsure(totals[name], purpose))
        },
        emulated=emulate,
        parts={
            name: [sums.closeness_of(part) for (output, part), sums in parts.items() if output == name]
            for name in dict.fromkeys(output for output, _ in parts)
        },
        agreement=agreement,
        beside=[] if agreement is None else [name for name in outputs if name in measured and purpose.is_beside(name)],
        numbers=[] if agreement is None else [name for name in purpose.numbers if name in measured],
    )


def _is_unsure(sums: NoiseSums, purpose: Purpose) -> bool:
    """Tell whether float itself finds nothing in a map of scores: then quantization has nothing to lose there."""
    return purpose.task in (Task.DETECT, Task.SEGMENT) and sums.peak < UNSURE_SCORE


def _answers(
    purpose: Purpose, outputs: Set[str], *models: Mapping[str, npt.NDArray[Any]]
) -> list[dict[str, npt.NDArray[Any]]]:
    """Return the outputs of each model by name. Lists of detections may differ in length, other outputs may not."""
    one, other = models
    alike = [name for name in one if one[name].shape == other[name].shape]
    kept = outputs & set(one if purpose.task is Task.DETECT else alike)
    return [{name: values[name] for name in one if name in kept} for values in models]


def _open(model: ir.Model, fetched: Sequence[str], emulate: DeviceRounding | None) -> Runner | EmulatedValues:
    # Not onnxruntime's integer kernels: without VNNI they saturate sums of two products at 16 bits.
    return Runner(model, fetched, exact=True) if emulate is None else EmulatedValues(model, emulate)


def _purpose_by_shape(output: ir.Value) -> Purpose:
    return Purpose(Task.CLASSIFY if looks_like_scores(output) else Task.REGRESS, "by its shape")


def looks_like_scores(output: ir.Value) -> bool:
    """Tell whether an output is declared as a row of class scores per sample: [batch, classes], two or more."""
    shape = output.shape
    if shape is None or len(shape) != 2 or output.dtype != ir.DataType.FLOAT:
        return False
    classes = shape[1]
    return isinstance(classes, int) and classes >= 2
