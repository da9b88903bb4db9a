"""Run a model and many variants of it, each changed in a few places, side by side in one walk through the graph.

A variant has other numbers than the model in some constants, or rounds some activations differently. Before its first
change it is identical to the model, and after its last change it is the model with other inputs. So

- before its first change a variant is not computed at all;
- a section of the graph in which it changes something is computed segment by segment, as for the model itself;
- a section in which only its inputs differ is run as a whole, which is faster in onnxruntime. If reading the weights
  takes most of the time, several variants are stacked as a batch.

On average half of the model is computed for each variant. All copies of a value are held until its last reader ran.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import DataError
from detent.execute.quantized_walk import Program, Segment, count_readers, cut_segments, needed_segments, read_last
from detent.graph.save import tensor_bytes
from detent.graph.session import HUGE_MODEL
from detent.graph.values import constant, is_constant
from detent.numerics.interface import Params
from detent.observe.samples import Sample
from detent.plan.layout import Layout, site_inputs

Array = npt.NDArray[Any]
# For each value, the copies of the model (ITSELF) and of the variants that differ from it, by the variant's name.
Copies = dict[str, dict[str, Any]]

ITSELF = ""

STACKED = 16  # copies that are computed at once if reading the weights takes most of the time

HEAVY = 24  # a section is heavy if its weights have more than this many times the bytes of its inputs


@dataclass(frozen=True, eq=False)
class Variant:
    """Differences from the model: constants that quantized nodes read, and how activations are rounded.

    None in `rounding` leaves an activation in float that the model rounds.
    """

    name: str
    constants: Mapping[str, Array] = field(default_factory=dict)
    rounding: Mapping[str, Params | None] = field(default_factory=dict)


UNCHANGED = Variant(ITSELF)


class Probe:
    """A model that is cut into segments, to be run on one sample after another, in any number of threads."""

    def __init__(self, model: ir.Model, layout: Layout, base: Variant = UNCHANGED) -> None:
        """Cut `model` into segments. `base` is what is quantized in it before any variant changes it."""
        self._model, self._layout, self._base = model, layout, base
        computed = {str(value.name) for node in model.graph for value in node.outputs}
        self.outputs = [str(value.name) for value in model.graph.outputs if value.name in computed]
        segments = needed_segments(cut_segments(model, {*layout.sites, *self.outputs}), self.outputs)
        # Activations are rounded between segments, so if the model rounds any, each segment is a section.
        together = 1 if base.rounding else max(1, math.isqrt(len(segments)))
        cuts = range(0, len(segments), together)
        self._readers = count_readers(segments)
        self._readers.update(self.outputs)
        self._sections = [_Section(segments[cut : cut + together], self._readers, layout) for cut in cuts]
        self._wholes = {section.whole for section in self._sections if len(section.segments) > 1}
        self._programs: dict[tuple[Segment, tuple[int, ...]], Program] = {}
        # Each section is loaded twice, as a whole and in segments. Most of the time goes into the wholes.
        self._copies = tensor_bytes(model) < HUGE_MODEL
        self._open_batch = all(_is_open(value) for value in model.graph.inputs)
        self._lock = threading.RLock()

    def __call__(
        self, sample: Sample, variants: Sequence[Variant] = (), watch: Callable[[Copies], None] | None = None
    ) -> dict[str, list[Array]]:
        """Return the outputs by the names of the variants and ITSELF. `watch` is called with all copies held."""
        readers, held = self._readers.copy(), dict[str, dict[str, Any]]()
        for value in self._model.graph.inputs:
            default = None if value.const_value is None else value.const_value.numpy()
            self._put(held, str(value.name), {ITSELF: sample.feeds.get(str(value.name), default)}, variants)
        for section in self._sections:
            changing = [variant for variant in variants if section.changed_by(variant)]
            results = self._run_whole(section, held, [each for each in variants if each not in changing], sample.origin)
            for segment in section.segments:
                self._advance(segment, held, [UNCHANGED, *changing], sample.origin)
                if watch is not None:
                    watch(held)
                for name in read_last(segment, readers):
                    held.pop(name, None)
            for name, copies in results.items():
                held[name] |= copies
        names = (ITSELF, *(variant.name for variant in variants))
        return {name: [_copy(held[output], name) for output in self.outputs] for name in names}

    def footprint(self, sample: Sample) -> int:
        """Return the most bytes that the model alone holds at a time for a sample."""
        most = 0

        def weigh(held: Copies) -> None:
            nonlocal most
            arrays = (copies[ITSELF] for copies in held.values())
            most = max(most, sum(array.nbytes for array in arrays if isinstance(array, np.ndarray)))

        self(sample, watch=weigh)
        return most

    def _run_whole(
        self, section: _Section, held: Copies, variants: Sequence[Variant], origin: str
    ) -> dict[str, dict[str, Any]]:
        """Run a section for the variants that change nothing in it but have other inputs."""
        results: Copies = {name: {} for name in section.whole.made}
        differing = [each for each in variants if any(each.name in held[name] for name in section.whole.read)]
        if differing and self._stacks(section, held, origin):
            for start in range(0, len(differing), STACKED):
                self._compute_stacked(section.whole, held, differing[start : start + STACKED], origin, results)
        else:
            for variant in differing:
                self._compute(section.whole, held, variant, origin, results)
        usual = self._base.rounding
        return {
            name: {variant: self._round(name, copy, usual.get(name)) for variant, copy in copies.items()}
            for name, copies in results.items()
        }

    def _advance(self, segment: Segment, held: Copies, variants: Sequence[Variant], origin: str) -> None:
        """Run one segment for the model, and for the variants that differ in it or before it."""
        constants = _constants_of(segment, self._layout)
        results: Copies = {name: {} for name in segment.made}
        for variant in variants:
            differs = any(name in variant.constants for name in constants)
            if variant is UNCHANGED or differs or any(variant.name in held[name] for name in segment.read):
                self._compute(segment, held, variant, origin, results)
        for name, copies in results.items():
            self._put(held, name, copies, variants)

    def _compute(self, segment: Segment, held: Copies, variant: Variant, origin: str, results: Copies) -> None:
        feeds = {name: _copy(held[name], variant.name) for name in segment.read}
        program = self._program(segment, feeds, variant)
        for name, result in zip(results, program(feeds, origin), strict=True):
            results[name][variant.name] = result

    def _compute_stacked(
        self, segment: Segment, held: Copies, variants: Sequence[Variant], origin: str, results: Copies
    ) -> None:
        """Run a segment for several variants at once, always filled up to the same number.

        Kernels may sum in another order for another batch size; then results would depend on the other variants.
        """
        filled = [*variants, *[variants[-1]] * (STACKED - len(variants))]
        feeds = {name: np.concatenate([_copy(held[name], variant.name) for variant in filled]) for name in segment.read}
        outputs = self._program(segment, feeds, UNCHANGED)(feeds, origin)
        for name, output in zip(results, outputs, strict=True):
            for variant, part in zip(variants, np.split(output, STACKED), strict=False):
                results[name][variant.name] = part

    def _stacks(self, section: _Section, held: Copies, origin: str) -> bool:
        """Tell whether copies can be stacked along the first axis and run faster that way; tried once per section."""
        with self._lock:
            if section.stacks is None:
                copies = {name: held[name][ITSELF] for name in section.whole.read}
                worth = self._open_batch and section.is_heavy(copies)
                section.stacks = worth and self._keeps_rows_apart(section.whole, copies, origin)
            return section.stacks

    def _keeps_rows_apart(self, segment: Segment, copies: Mapping[str, Array], origin: str) -> bool:
        """Tell whether rows are independent: no node reads across the first axis or fixes it."""
        program = self._program(segment, copies, UNCHANGED)
        stacked = {name: np.concatenate([array, *[array / 2] * (STACKED - 1)]) for name, array in copies.items()}
        try:
            alone, among = program(copies, origin), program(stacked, origin)
        except DataError:
            return False
        return all(
            isinstance(one, np.ndarray)
            and one.ndim > 0
            and len(several) == STACKED * len(one)
            and np.allclose(several[: len(one)], one, rtol=1e-3, atol=1e-4 * np.abs(one).max(initial=0.0))
            for one, several in zip(alone, among, strict=True)
        )

    def _put(self, held: Copies, name: str, copies: Mapping[str, Any], variants: Sequence[Variant]) -> None:
        """Round the copies of a value, each as its variant does. A variant that first differs here gets a copy."""
        usual = self._base.rounding.get(name)
        held[name] = {ITSELF: self._round(name, copies[ITSELF], usual)}
        for variant in variants:
            if variant.name in copies or name in variant.rounding:
                params = variant.rounding.get(name, usual)
                held[name][variant.name] = self._round(name, _copy(copies, variant.name), params)

    def _round(self, name: str, values: Array, params: Params | None) -> Array:
        return values if params is None else params.rounded(values, self._layout.ties_of(name))

    def _program(self, segment: Segment, feeds: Mapping[str, Any], variant: Variant) -> Program:
        """Return the segment with the constants of a variant, compiled once for each set of numbers."""
        numbers = {**self._base.constants, **variant.constants}
        key = segment, tuple(id(numbers.get(name)) for name in _constants_of(segment, self._layout))
        with self._lock:
            if key not in self._programs:
                self._programs[key] = Program(
                    self._model,
                    segment.nodes,
                    segment.outputs,
                    feeds,
                    lambda node, index: self._read(node, index, numbers),
                    copies=self._copies or segment in self._wholes,
                )
            return self._programs[key]

    def _read(self, node: ir.Node, index: int, numbers: Mapping[str, Array]) -> Array | None:
        value = node.inputs[index]
        if value is not None and self._layout.quantizes(node) and index in site_inputs(node):
            found = numbers.get(str(value.name))
            if found is not None:
                return found
        return constant(value)


class _Section:
    """Consecutive segments, and all of them as one."""

    def __init__(self, segments: Sequence[Segment], readers: Mapping[str, int], layout: Layout) -> None:
        self.segments = segments
        self.whole = segments[0] if len(segments) == 1 else _joined(segments, readers)
        self.stacks: bool | None = None  # not known yet
        read = (value for node in self.whole.nodes for value in node.inputs if value is not None)
        self._weights = sum(value.const_value.nbytes for value in read if value.const_value is not None)
        self._changeable = {name for segment in segments for name in (*segment.made, *_constants_of(segment, layout))}

    def is_heavy(self, copies: Mapping[str, Any]) -> bool:
        """Tell whether reading its weights takes much longer than reading its inputs, so that stacking pays."""
        arrays = [
            each for each in copies.values() if isinstance(each, np.ndarray) and each.ndim and each.dtype.kind == "f"
        ]
        same_rows = len({len(each) for each in arrays}) == 1
        return len(arrays) == len(copies) and same_rows and self._weights > HEAVY * sum(each.nbytes for each in arrays)

    def changed_by(self, variant: Variant) -> bool:
        """Tell whether a variant changes something in it."""
        return not (self._changeable.isdisjoint(variant.constants) and self._changeable.isdisjoint(variant.rounding))


def _joined(segments: Sequence[Segment], readers: Mapping[str, int]) -> Segment:
    """Return consecutive segments as one; its outputs are the values that something after them reads."""
    made = [value for segment in segments for value in segment.outputs]
    read = dict.fromkeys(value for segment in segments for value in segment.inputs)
    inside = count_readers(segments)
    return Segment(
        [node for segment in segments for node in segment.nodes],
        [value for value in read if value not in set(made)],
        [value for value in made if readers[str(value.name)] > inside[str(value.name)]],
    )


def _is_open(value: ir.Value) -> bool:
    """Tell whether the first axis is of any size."""
    return value.shape is not None and len(value.shape) > 0 and not isinstance(value.shape[0], int)


def _copy(copies: Mapping[str, Any], variant: str) -> Any:
    return copies[variant] if variant in copies else copies[ITSELF]


def _constants_of(segment: Segment, layout: Layout) -> list[str]:
    """Return the constants that quantized nodes of a segment read."""
    return [
        str(value.name)
        for node in segment.nodes
        if layout.quantizes(node)
        for value in node.inputs
        if value is not None and is_constant(value)
    ]
