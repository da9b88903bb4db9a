"""float16, bfloat16 and float32: the whole model in another precision.

float16: the same computation with every number rounded to 11 bits. For operators without a float16 kernel onnxruntime
computes in float32 by itself. float32 undoes it: each half-precision number is exactly a float32 number. bfloat16 is
the upper half of a float32, in three forms:

    cast         Casts to bfloat16 and back stand behind every float value, and weights are stored in bfloat16 before a
                 Cast: every operator computes in float32 on bfloat16 numbers. Half the size.
    simulated    a float32 model whose weights are rounded to bfloat16, for compilers that convert the rest themselves.
    pure         bfloat16 throughout, at opset 22 or newer, with Casts at inputs and outputs.

**Retyping** (float16, and bfloat16 in its pure form). All float32 values become the other type, in bodies of If and
Loop too. Then each node that stays in float32, and each input that has to be float32, gets a Cast back before it (one
for all readers in a graph), and a Cast to the other type goes behind each float32 result. So every reader finds the
type that it expects.

The operator's schema says what may change. An input or output is fixed if the schema names tensor(float) itself, as for
the scales of Resize. A whole node stays in float32 if one of its type parameters does not allow the other type, if its
operator is not a standard one, or if its attributes rather than its inputs decide the type of its result.

onnxruntime (1.31, CPU) runs few operators in bfloat16 (`_RUNS_IN_BFLOAT16`, with If, Loop and Scan around them) and
refuses to load the others. In the pure form these compute in float32 between Casts of their own, so that the file runs
everywhere. Devices that compute in bfloat16 fuse those Casts away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent.convert.step import ConversionNotes, ConversionStep, cast_node, casts_to
from detent.errors import ModelError, UsageError, check_known
from detent.graph.load import operator_schema, raise_opset
from detent.graph.values import (
    Names,
    add_initializer,
    bypass,
    constant,
    drop_if_unused,
    is_standard,
    made_by,
    values_of,
)
from detent.prepare.base import main_opset
from detent.prepare.plain_forms import HalfToFloat, InlineFunctions
from detent.prepare.shapes import infer
from detent.qdq.families import is_quantizing, quantize_family
from detent.qdq.reader import largest_of, params_of
from detent.recipe.recipe import BFLOAT16_OPSET

_FLOAT, _BFLOAT16 = ir.DataType.FLOAT, ir.DataType.BFLOAT16
_FORMS = ("cast", "simulated", "pure")
_CAST_OPSET = 13  # the opset with which Cast got bfloat16
_CLIP_OPSET = 11  # the opset with which the bounds of Clip became inputs
_TYPE_ATTRIBUTES = ("to", "dtype")
_CARRIERS = ("If", "Loop", "Scan")  # operators that take any type: the graphs inside decide
# Operators whose attributes decide the type of their results.
_MAKERS = (
    *("Bernoulli", "BlackmanWindow", "EyeLike", "HammingWindow", "HannWindow", "MelWeightMatrix", "Multinomial"),
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
)
_RUNS_IN_BFLOAT16 = (
    *("Cast", "CastLike", "Concat", "Constant", "Flatten", "Gather", "GatherElements", "GatherND", "Identity"),
    *("Reshape", "ScatterElements", "ScatterND", "Shape", "Sign", "Slice", "Split", "Squeeze", "Transpose"),
    *("Unsqueeze", *_CARRIERS),
)


@dataclass(frozen=True)
class ToFloat16(ConversionStep):
    """All float32 values to float16; with `keep_io`, inputs and outputs stay float32.

    A weight beyond 65504 is an error, or with `clip` becomes 65504.
    """

    keep_io: bool = True
    clip: bool = False
    nothing: ClassVar[str] = "it has no float32 values."
    retypes: ClassVar[bool] = True

    def _convert(self, model: ir.Model, notes: ConversionNotes) -> None:
        _prepare_types(model, notes)
        _Retyping(model, notes, ir.DataType.FLOAT16, self.keep_io, self.clip).run()


@dataclass(frozen=True)
class ToFloat32(ConversionStep):
    """All float16 and bfloat16 values to float32, inputs and outputs too; Casts that no longer do anything go."""

    nothing: ClassVar[str] = "it has no float16 or bfloat16 values."

    def _convert(self, model: ir.Model, notes: ConversionNotes) -> None:
        notes.run(HalfToFloat(), model)
        for graph in tuple(model.graphs()) if notes.changes else ():
            for node in tuple(graph):
                source = node.inputs[0] if casts_to(node, _FLOAT) else None
                if source is not None and source.dtype == _FLOAT and bypass(graph, node) is None:
                    notes.changed(node, "Cast from float32 to float32 removed")


@dataclass(frozen=True)
class ToBfloat16(ConversionStep):
    """Round to bfloat16, in one of three forms. `keep_io` is for the pure one, whose interface may be bfloat16 too."""

    form: str = "cast"
    keep_io: bool = True
    clip: bool = False
    nothing: ClassVar[str] = "it has no float32 values that are not rounded to bfloat16 already."
    retypes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_known("form of bfloat16", self.form, _FORMS)
        if not self.keep_io and self.form != "pure":
            raise UsageError(f"bfloat16: keep_io=false needs form=pure; with form={self.form} all values are float32.")

    def _convert(self, model: ir.Model, notes: ConversionNotes) -> ir.Model:
        if self.form != "simulated":
            model = raise_opset(model, _CAST_OPSET if self.form == "cast" else BFLOAT16_OPSET, "the model")
        _prepare_types(model, notes)
        if self.form == "simulated":
            _round_weights(model, notes, self.clip)
        elif self.form == "cast":
            _CastPairs(model, notes, self.clip).run()
        else:
            stays = [node for node in model.graph.all_nodes() if not is_standard(node, *_RUNS_IN_BFLOAT16)]
            _Retyping(model, notes, _BFLOAT16, self.keep_io, self.clip, stays).run()
        return model


def to_pure_bfloat16(model: ir.Model, constants: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Make a model of opset 22 or newer bfloat16 throughout, in place, with other numbers in some of its constants."""
    for name, array in constants.items():
        model.graph.initializers[name].const_value = ir.tensor(array, name=name)
    ToBfloat16(form="pure").apply(model, ConversionNotes("bfloat16"))


def _prepare_types(model: ir.Model, notes: ConversionNotes) -> None:
    """Inline functions, make initializers of Constant nodes, infer types.

    Raises:
        ModelError: The model is quantized, or the type of a value stays unknown or is not a tensor.
    """
    for node in model.graph.all_nodes():
        if is_quantizing(node):
            raise ModelError(
                f"The model is quantized: node '{node.name}' is {node.op_type}. Convert it to float first: --to float."
            )
    inline = InlineFunctions()
    inline(model)
    notes.declined += inline.declined
    # So that weights come in one form only.
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    reason = infer(model)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.name and value.dtype is None:
                raise ModelError(
                    f"The type of '{value.name}' ({node.op_type} '{node.name}') cannot be inferred"
                    + (f": {reason}" if reason else ". Only tensors and operators of ONNX can be converted.")
                )


# -- retyping ----------------------------------------------------------------------------------------------------------


class _Retyping:
    """Make the float32 values of a model another type. `stays` are further nodes that have to compute in float32."""

    def __init__(
        self,
        model: ir.Model,
        notes: ConversionNotes,
        dtype: ir.DataType,
        keep_io: bool,
        clip: bool,
        stays: Collection[ir.Node] = (),
    ) -> None:
        self._graph, self._graphs = model.graph, tuple(model.graphs())
        self._opset, self._names, self._notes = main_opset(model), Names(model), notes
        self._dtype, self._keep_io, self._clip, self._stays = dtype, keep_io, clip, stays
        self._casts: dict[tuple[ir.Graph, ir.Value], ir.Value] = {}
        self._originals: dict[ir.Value, ir.TensorProtocol] = {}

    def run(self) -> None:
        """Convert the model in place. Types have to be known: see `_prepare_types`."""
        if not any(value.dtype == _FLOAT for graph in self._graphs for value in values_of(graph)[len(graph.inputs) :]):
            return
        nodes = [(graph, node) for graph in self._graphs for node in graph]
        staying = {*self._stays, *(node for _, node in nodes if _stays_float(node, self._opset, self._dtype))}

        # Listed before types change, because they are found by type.
        def stays(node: ir.Node, side: str, index: int, value: ir.Value | None) -> bool:
            is_float = value is not None and bool(value.name) and value.dtype == _FLOAT
            return is_float and (node in staying or is_fixed(node, side, index, self._opset))

        read = [
            (graph, node, index)
            for graph, node in nodes
            for index, value in enumerate(node.inputs)
            if stays(node, "inputs", index, value)
        ]
        made = [
            (graph, node, value)
            for graph, node in nodes
            for index, value in enumerate(node.outputs)
            if stays(node, "outputs", index, value)
        ]
        self._change_types(staying)
        for graph, node, index in read:
            self._read_float(graph, node, index, keep_constant=node not in staying)
        for graph, node, value in made:
            self._write_float(graph, node, value)
        if self._keep_io:
            self._keep_interface(self._graph)
        for node in sorted(staying, key=lambda node: str(node.name)):
            if any(value.dtype == _FLOAT for value in (*node.inputs, *node.outputs) if value is not None):
                self._notes.decline(node, f"{node.op_type} computes in float32, between Casts")

    def _change_types(self, staying: set[ir.Node]) -> None:
        """Convert constants, the types of values, and attributes that name or hold a type."""
        constants = zeros = 0
        for graph in self._graphs:
            for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
                if value.dtype == _FLOAT and not value.is_initializer():
                    value.type = ir.TensorType(self._dtype)
            for value in graph.initializers.values():
                tensor = value.const_value
                if tensor is not None and tensor.dtype == _FLOAT:
                    self._originals[value] = tensor
                    value.const_value = self._narrow(str(value.name), tensor)
                    value.type = ir.TensorType(self._dtype)
                    constants += 1
                    zeros += int(np.count_nonzero(tensor.numpy())) - int(np.count_nonzero(value.const_value.numpy()))
            for node in graph:
                if node not in staying:
                    self._change_attributes(node)
        lost = f", {zeros} elements became 0" if zeros else ""
        self._notes.changed("model", f"all float32 values became {self._dtype.name} ({constants} constants{lost})")

    def _narrow(self, name: str, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return ir.Tensor(_narrow(name, tensor.numpy(), self._dtype, self._clip), name=tensor.name)

    def _change_attributes(self, node: ir.Node) -> None:
        for name, attribute in tuple(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == _FLOAT:
                tensor = self._narrow(str(node.outputs[0].name), attribute.as_tensor())
                node.attributes[name] = ir.AttrTensor(name, tensor)
            elif name in _TYPE_ATTRIBUTES and attribute.value == _FLOAT:
                node.attributes[name] = ir.AttrInt64(name, int(self._dtype))
        # Without a value it makes float32 zeros, whatever the type of the rest of the model.
        if node.op_type == "ConstantOfShape" and "value" not in node.attributes:
            zero = ir.Tensor(np.zeros(1, self._dtype.numpy()))
            node.attributes["value"] = ir.AttrTensor("value", zero)

    def _read_float(self, graph: ir.Graph, node: ir.Node, index: int, *, keep_constant: bool) -> None:
        """Let an input read float32: with `keep_constant` the original of a constant, anything else through a Cast."""
        value = node.inputs[index]
        assert value is not None
        key = (graph, value)
        if key not in self._casts:
            if keep_constant and value in self._originals:
                name = self._names.fresh(f"{value.name}_float")
                self._casts[key] = add_initializer(graph, name, self._originals[value].numpy())
            else:
                cast = cast_node(self._names, value, _FLOAT, f"{value.name}_float")
                graph.insert_before(node, [cast])
                self._casts[key] = cast.outputs[0]
        node.replace_input_with(index, self._casts[key])
        drop_if_unused(value)

    def _write_float(self, graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
        """Put a Cast behind an output that is made in float32; the cast value takes the name."""
        name = str(value.name)
        cast = cast_node(self._names, value, self._dtype, name)
        result = cast.outputs[0]
        value.replace_all_uses_with(result, replace_graph_outputs=True)
        cast.replace_input_with(0, value)  # the Cast was among the uses
        graph.insert_after(node, [cast])
        value.type, value.name = ir.TensorType(_FLOAT), self._names.fresh(f"{name}_float")
        result.name = name

    def _keep_interface(self, graph: ir.Graph) -> None:
        """Make graph inputs and outputs float32 again, under their names, with Casts behind and before them."""
        kind = self._dtype.name.lower()
        for value in graph.inputs:
            if value.dtype != self._dtype or value.is_initializer():
                continue
            value.type = ir.TensorType(_FLOAT)
            if value.uses():
                cast = cast_node(self._names, value, self._dtype, f"{value.name}_{kind}")
                value.replace_all_uses_with(cast.outputs[0])
                cast.replace_input_with(0, value)  # the Cast was among the uses
                graph.insert_before(next(iter(graph)), [cast])
        for index, value in enumerate(tuple(graph.outputs)):
            if value.dtype == self._dtype and not value.is_graph_input():
                name = str(value.name)
                cast = cast_node(self._names, value, _FLOAT, name)
                graph.append(cast)
                graph.outputs[index] = cast.outputs[0]
                value.name, cast.outputs[0].name = self._names.fresh(f"{name}_{kind}"), name


def _stays_float(node: ir.Node, opset: int, target: ir.DataType) -> bool:
    if node.domain != "" or node.op_type in _MAKERS:
        return True
    if node.op_type in _CARRIERS:
        return False
    if node.op_type == "Constant":
        return "value" not in node.attributes
    schema: Any = operator_schema(node.op_type, opset)
    if schema is None:
        return True
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    name = f"tensor({target.name.lower()})"
    kinds = [
        _formal(schema, side, index)
        for side, values in (("inputs", node.inputs), ("outputs", node.outputs))
        for index, value in enumerate(values)
        if value is not None and value.dtype == _FLOAT
    ]
    return any(kind in allowed and name not in allowed[kind] for kind in kinds)


def is_fixed(node: ir.Node, side: str, index: int, opset: int) -> bool:
    """Return whether one of the "inputs" or "outputs" of a node has to be float32."""
    if node.domain != "" or node.op_type in _CARRIERS:
        return False
    schema = operator_schema(node.op_type, opset)
    return schema is not None and _formal(schema, side, index) == "tensor(float)"


def _formal(schema: Any, side: str, index: int) -> str:
    """Return the type of a formal parameter; the last one may be variadic."""
    formals = getattr(schema, side)
    return str(formals[min(index, len(formals) - 1)].type_str)


def _narrow(name: str, array: npt.NDArray[Any], target: ir.DataType, clip: bool) -> npt.NDArray[Any]:
    """Round an array half to even to another type. A number that would become infinite is clipped, or an error."""
    dtype = target.numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # NaN stays that
        narrowed: npt.NDArray[Any] = array.astype(dtype)
    lost = np.isfinite(array) & ~np.isfinite(narrowed.astype(np.float32))
    if not lost.any():
        return narrowed
    largest = largest_of(dtype)
    if not clip:
        raise ModelError(
            f"'{name}' holds {float(array[lost][0]):g}, and {target.name.lower()} ends at {largest:g}. Convert with "
            "clip=true to use the largest number instead, or keep the model in float32 or bfloat16."
        )
    return array.clip(-largest, largest).astype(dtype)


# -- the other forms of bfloat16 ---------------------------------------------------------------------------------------


def _round_weights(model: ir.Model, notes: ConversionNotes, clip: bool) -> None:
    """Round every float32 initializer that is read as data to bfloat16, and store it as float32."""
    opset = main_opset(model)
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype != _FLOAT or not _data_uses(value, opset):
                continue
            old = tensor.numpy()
            new = _narrow(str(value.name), old, _BFLOAT16, clip).astype(np.float32)
            if not np.array_equal(old, new, equal_nan=True):
                value.const_value = ir.Tensor(new, name=tensor.name)
                notes.changed(value, "rounded to bfloat16")


class _CastPairs:
    """Store weights as bfloat16 behind a Cast, and put a pair of Casts behind every other float32 value."""

    def __init__(self, model: ir.Model, notes: ConversionNotes, clip: bool) -> None:
        self._model, self._opset, self._names = model, main_opset(model), Names(model)
        self._notes, self._clip = notes, clip

    def run(self) -> None:
        for graph in tuple(self._model.graphs()):
            first = next(iter(graph), None)
            if first is None:
                continue
            outputs = [value for node in graph for value in node.outputs if not _is_rounded(node)]
            for value in tuple(graph.initializers.values()):
                if value.dtype == _FLOAT and not value.is_graph_input():
                    self._weight(graph, first, value)
            for value in (*(graph.inputs if graph is self._model.graph else ()), *outputs):
                # A sequence of tensors has the dtype of its elements, and cannot be cast.
                if value.dtype == _FLOAT and value.name and isinstance(value.type, ir.TensorType):
                    self._activation(graph, first, value)

    def _weight(self, graph: ir.Graph, first: ir.Node, value: ir.Value) -> None:
        """Store a constant as bfloat16 behind a Cast; inputs whose type is fixed keep the float32 one."""
        uses, tensor = _data_uses(value, self._opset), value.const_value
        if not uses or tensor is None:
            return
        name = str(value.name)
        array = _narrow(name, tensor.numpy(), _BFLOAT16, self._clip)
        narrowed = add_initializer(graph, self._names.fresh(f"{name}_bfloat16"), array)
        cast = cast_node(self._names, narrowed, _FLOAT, f"{name}_float")
        graph.insert_before(first, [cast])
        for node, index in uses:
            node.replace_input_with(index, cast.outputs[0])
        drop_if_unused(value)
        self._notes.changed(value, "constant stored as bfloat16, behind a Cast")

    def _activation(self, graph: ir.Graph, first: ir.Node, value: ir.Value) -> None:
        """Put a pair of Casts behind a value; the name of a graph output goes to the result of the pair."""
        uses = _data_uses(value, self._opset)
        is_output = value.is_graph_output() and not value.is_graph_input()
        if not uses and not is_output:
            return
        name = str(value.name)
        down = cast_node(self._names, value, _BFLOAT16, f"{name}_bfloat16")
        up = cast_node(self._names, down.outputs[0], _FLOAT, f"{name}_rounded")
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
    """Return the uses of a value, except those that need float32 and those that cast it to bfloat16 anyway."""
    return [
        (use.node, use.idx)
        for use in value.uses()
        if not is_fixed(use.node, "inputs", use.idx, opset) and not casts_to(use.node, _BFLOAT16)
    ]


def _is_rounded(node: ir.Node) -> bool:
    """Return whether a node is a Cast from bfloat16, whose result is rounded already."""
    source = node.inputs[0] if node.op_type == "Cast" and node.inputs else None
    return source is not None and source.dtype == _BFLOAT16


@dataclass(frozen=True)
class Bfloat16Clip(ConversionStep):
    """Insert Clip before Cast to bfloat16 and before QuantizeLinear with bfloat16 codes; not behind constants.

    A float32 number above 3.3895e38 rounds to infinity in bfloat16, which turns into NaN at the next subtraction.
    """

    nothing: ClassVar[str] = "no activation is cast or quantized to bfloat16 without a Clip before it."

    def _convert(self, model: ir.Model, notes: ConversionNotes) -> None:
        if main_opset(model) < _CLIP_OPSET:
            raise ModelError(f"bfloat16-clip needs opset 11 or newer; the model has {main_opset(model)}.")
        names = Names(model)
        largest = np.float32(largest_of(_BFLOAT16.numpy()))
        bounds: list[ir.Value] = []
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                source = node.inputs[0] if _rounds(node) else None
                if source is None or constant(source) is not None or made_by(source, "Clip"):
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


def _rounds(node: ir.Node) -> bool:
    if casts_to(node, _BFLOAT16):
        return node.inputs[0] is not None and node.inputs[0].dtype in (None, _FLOAT)
    params = params_of(node) if quantize_family(node) else None
    return params is not None and params.dtype == _BFLOAT16.numpy()
