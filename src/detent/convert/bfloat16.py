"""bfloat16: the upper half of a float32, in three forms.

cast         Casts to bfloat16 and back stand behind every float value, and weights are stored in bfloat16 behind a
             Cast: every operator computes in float32 on numbers that bfloat16 holds. Half the size.
simulated    a float32 model whose weights are rounded to bfloat16. For compilers that convert the rest themselves.
pure         bfloat16 throughout, at opset 22 or newer, with Casts at inputs and outputs.

onnxruntime (1.31, CPU) runs these operators in bfloat16: Cast, CastLike, Concat, Constant, Flatten, Gather,
GatherElements, GatherND, Identity, Reshape, ScatterElements, ScatterND, Shape, Sign, Slice, Split, Squeeze, Transpose,
Unsqueeze, and If, Loop and Scan around them. All others it refuses to load; in the pure form they compute in float32
between Casts of their own, so that the file runs everywhere. Devices that compute in bfloat16 fuse those Casts away.

bfloat16-clip puts a Clip to the finite numbers before each rounding: a float32 number above 3.3895e38 rounds to
infinity in bfloat16, which turns into NaN at the next subtraction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.convert.float_types import Retyping, has_float, is_fixed_input, narrow, prepare_types, retype
from detent.convert.step import ConversionNotes, ConversionStep, cast_node
from detent.errors import ModelError, UsageError
from detent.graph.opset import raise_opset
from detent.graph.values import Names, add_initializer, constant, is_standard
from detent.prepare.base import main_opset
from detent.qdq.families import quantize_family
from detent.qdq.reader import largest_of, params_of
from detent.recipe.recipe import BFLOAT16_OPSET

_BFLOAT16 = ir.DataType.BFLOAT16
FORMS = ("cast", "simulated", "pure")
_RUNS_IN_BFLOAT16 = (
    *("Cast", "CastLike", "Concat", "Constant", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "If"),
    *("Loop", "Reshape", "Scan", "ScatterElements", "ScatterND", "Shape", "Sign", "Slice", "Split", "Squeeze"),
    *("Transpose", "Unsqueeze"),
)
_CAST_OPSET = 13
"""The opset with which Cast got bfloat16."""

_CLIP_OPSET = 11
"""The opset with which the bounds of Clip became inputs."""


@dataclass(frozen=True)
class ToBfloat16(ConversionStep):
    """Round to bfloat16, in one of three forms. `keep_io` is for the pure one, whose interface may be bfloat16 too."""

    form: str = "cast"
    keep_io: bool = True
    clip: bool = False
    nothing: ClassVar[str] = "it has no float32 values that are not rounded to bfloat16 already."

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise UsageError(f"bfloat16 has no form '{self.form}'. Choose from {', '.join(FORMS)}.")
        if not self.keep_io and self.form != "pure":
            raise UsageError(f"bfloat16: keep_io=false needs form=pure; with form={self.form} all values are float32.")

    def apply(self, model: ir.Model, notes: ConversionNotes) -> ir.Model:
        """Convert all graphs of the model."""
        if self.form == "cast":
            model = raise_opset(model, _CAST_OPSET, "the model")
        if self.form == "pure":
            model = raise_opset(model, BFLOAT16_OPSET, "the model")
        prepare_types(model, notes)
        if self.form == "simulated":
            round_weights(model, notes, clip=self.clip)
        elif self.form == "cast":
            add_cast_pairs(model, notes, clip=self.clip)
        elif has_float(model):
            target = Retyping(_BFLOAT16, self.keep_io, self.clip, stays=_has_no_kernel)
            retype(model, target, notes)
        return model


def to_pure_bfloat16(model: ir.Model, constants: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Make a model of opset 22 or newer bfloat16 throughout, in place, with other numbers in some of its constants."""
    for name, array in constants.items():
        model.graph.initializers[name].const_value = ir.tensor(array, name=name)
    ToBfloat16(form="pure").apply(model, ConversionNotes("bfloat16"))


def _has_no_kernel(node: ir.Node) -> bool:
    """Return whether onnxruntime cannot run the node in bfloat16."""
    return not is_standard(node, *_RUNS_IN_BFLOAT16)


def round_weights(model: ir.Model, notes: ConversionNotes, *, clip: bool) -> None:
    """Round every float32 initializer that is read as data to bfloat16, and store it as float32."""
    opset = main_opset(model)
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype != ir.DataType.FLOAT or not _data_uses(value, opset):
                continue
            old = tensor.numpy()
            new = narrow(str(value.name), old, _BFLOAT16, clip=clip).astype(np.float32)
            if not np.array_equal(old, new, equal_nan=True):
                value.const_value = ir.Tensor(new, name=tensor.name)
                notes.changed(value, "rounded to bfloat16")


def add_cast_pairs(model: ir.Model, notes: ConversionNotes, *, clip: bool) -> None:
    """Store weights as bfloat16 behind a Cast, and put a pair of Casts behind every other float32 value."""
    work = _CastPairs(model, notes)
    for graph in tuple(model.graphs()):
        first = next(iter(graph), None)
        outputs = [value for node in graph for value in node.outputs if not _is_rounded(node)]
        for value in tuple(graph.initializers.values()):
            if first is not None and value.dtype == ir.DataType.FLOAT and not value.is_graph_input():
                work.weight(graph, first, value, clip=clip)
        sources = graph.inputs if graph is model.graph else ()
        for value in (*sources, *outputs):
            if first is not None and value.dtype == ir.DataType.FLOAT and value.name:
                work.activation(graph, first, value)


class _CastPairs:
    def __init__(self, model: ir.Model, notes: ConversionNotes) -> None:
        self._opset = main_opset(model)
        self._names = Names(model)
        self._notes = notes

    def weight(self, graph: ir.Graph, first: ir.Node, value: ir.Value, *, clip: bool) -> None:
        """Store a constant as bfloat16 behind a Cast; inputs whose type is fixed keep the float32 one."""
        uses, tensor = _data_uses(value, self._opset), value.const_value
        if not uses or tensor is None:
            return
        name = str(value.name)
        array = narrow(name, tensor.numpy(), _BFLOAT16, clip=clip)
        narrowed = add_initializer(graph, self._names.fresh(f"{name}_bfloat16"), array)
        cast = cast_node(self._names, narrowed, ir.DataType.FLOAT, f"{name}_float")
        graph.insert_before(first, [cast])
        for node, index in uses:
            node.replace_input_with(index, cast.outputs[0])
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
        self._notes.changed(value, "constant stored as bfloat16, behind a Cast")

    def activation(self, graph: ir.Graph, first: ir.Node, value: ir.Value) -> None:
        """Put a pair of Casts behind a value; the name of a graph output goes to what the pair makes."""
        uses = _data_uses(value, self._opset)
        is_output = value.is_graph_output() and not value.is_graph_input()
        if not uses and not is_output:
            return
        name = str(value.name)
        down = cast_node(self._names, value, _BFLOAT16, f"{name}_bfloat16")
        up = cast_node(self._names, down.outputs[0], ir.DataType.FLOAT, f"{name}_rounded")
        for node, index in uses:
            node.replace_input_with(index, up.outputs[0])
        producer = value.producer()
        if producer is None:
            graph.insert_before(first, [down, up])
        else:
            graph.insert_after(producer, [down, up])
        if is_output:
            assert value.graph is not None
            outputs = value.graph.outputs
            outputs[list(outputs).index(value)] = up.outputs[0]
            value.name, up.outputs[0].name = up.outputs[0].name, name
        self._notes.changed(name, "rounded to bfloat16 by a pair of Casts")


def _data_uses(value: ir.Value, opset: int) -> list[tuple[ir.Node, int]]:
    """Return where a value is read as data: not where it has to be float32, nor where it is cast to bfloat16 anyway."""
    return [
        (use.node, use.idx)
        for use in value.uses()
        if not is_fixed_input(use.node, use.idx, opset) and not _casts_down(use.node)
    ]


def _casts_down(node: ir.Node) -> bool:
    return node.op_type == "Cast" and node.attributes.get_int("to", 0) == _BFLOAT16


def _is_rounded(node: ir.Node) -> bool:
    """Return whether a node is a Cast from bfloat16: what it makes is rounded already."""
    source = node.inputs[0] if node.op_type == "Cast" and node.inputs else None
    return source is not None and source.dtype == _BFLOAT16


@dataclass(frozen=True)
class Bfloat16Clip(ConversionStep):
    """Insert Clip before Cast to bfloat16 and before QuantizeLinear with bfloat16 codes; not behind constants."""

    nothing: ClassVar[str] = "no activation is cast or quantized to bfloat16 without a Clip before it."

    def apply(self, model: ir.Model, notes: ConversionNotes) -> ir.Model:
        """Look at all graphs of the model."""
        if main_opset(model) < _CLIP_OPSET:
            raise ModelError(f"bfloat16-clip needs opset 11 or newer; the model has {main_opset(model)}.")
        names = Names(model)
        largest = np.float32(largest_of(_BFLOAT16.numpy()))
        bounds: list[ir.Value] = []
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                source = node.inputs[0] if _rounds(node) else None
                if source is None or constant(source) is not None or _is_clip(source):
                    continue
                if not bounds:
                    bounds = [
                        add_initializer(model.graph, names.fresh(f"bfloat16_{name}"), np.array(bound, np.float32))
                        for name, bound in (("lowest", -largest), ("largest", largest))
                    ]
                clip = ir.node("Clip", [source, *bounds], name=names.fresh(f"{source.name}_Clip"))
                result = clip.outputs[0]
                result.name = names.fresh(f"{source.name}_clipped")
                result.type, result.shape = source.type, source.shape
                graph.insert_before(node, [clip])
                node.replace_input_with(0, result)
                notes.changed(source, "clipped to the finite bfloat16 numbers before it is rounded")
        return model


def _rounds(node: ir.Node) -> bool:
    """Return whether the node makes bfloat16 of float32."""
    if is_standard(node, "Cast"):
        source = node.inputs[0]
        to_bfloat16 = node.attributes.get_int("to", 0) == _BFLOAT16
        return to_bfloat16 and source is not None and source.dtype in (None, ir.DataType.FLOAT)
    params = params_of(node) if quantize_family(node) else None
    return params is not None and params.dtype == _BFLOAT16.numpy()


def _is_clip(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and is_standard(producer, "Clip")
