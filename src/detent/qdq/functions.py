"""Give a model the functions that define, in standard operators, its nodes of foreign domains.

    add_functions(model)        # com.amd.quark::BFPQuantizeDequantize now runs in any onnxruntime

A compiler for an NPU sees the node that it knows; any other runtime executes the function of the same name.

A body is written for what the model contains: the type of the codes, the attributes of a block format, and, where the
shape is known, the axis and the remainder of its blocks. The batch and every other unknown dimension may have any size
but 0.

If the nodes of one operator need different bodies, a more general and slower one serves them all, as long as the format
is the same. If it is not, the others can become overloads of the function, which nodes name in their field `overload`
(since version 10 of ONNX's file format, to which such a model is raised). That has to be permitted, because onnxruntime
1.20 to 1.23 run any one of the overloads for all nodes, without a warning (1.31 honours them).

Extended(De)QuantizeLinear and FixNeuron have a scale and a zero point, for more types than QuantizeLinear has:

    integers     code = saturate(round_half_even(x / scale) + zero_point)       x = (code - zero_point) * scale
    floats       code = cast(x / scale + zero_point), ties to even              x = (code - zero_point) * scale

x / scale is a division of float32 numbers. The sum with the zero point is exact: in float32 if codes have 8 or 16
bits (a quotient past 2^24, where float32 is no longer exact, saturates whatever the zero point), and in float64 if
they have 32. What a NaN becomes among integers is not defined.

If the standard operators hold the type they are the whole body, so that onnxruntime finds its fused kernels.
Otherwise a scale per channel is reshaped to lie along `axis`, which costs nothing when shapes are static: it is folded
when the model is loaded. So are a zero point of 0 and a scale of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent.errors import ModelError, nearest
from detent.graph.values import all_nodes, input_at
from detent.qdq import families
from detent.qdq.block_functions import read_block_float, read_microscaling
from detent.qdq.function_body import LABEL, Body, Definition, described, ref, string_attribute

AXIS = ir.AttrInt64("axis", 1)
_INPUTS = ("x", "scale", "zero_point")

_WIDE = frozenset({ir.DataType.INT32, ir.DataType.UINT32})
_FLOATS = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_NARROW = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16})
_CODE_TYPES = _NARROW | _WIDE | _FLOATS


def _standard(op_type: str, fallback: Definition | None = None) -> Definition:
    """Define an operator as QuantizeLinear or DequantizeLinear, for all types that they have, scalar or per channel."""

    def write(body: Body) -> ir.Value:
        return body(op_type, *body.inputs, axis=ref("axis", "axis"))

    return Definition("standard", write, (AXIS,), _INPUTS, fallback)


def _quantize(dtype: ir.DataType, *, per_axis: bool) -> Definition:
    """Define numbers to codes of one type, operation by operation."""
    wide = ir.DataType.DOUBLE if dtype in _WIDE else ir.DataType.FLOAT

    def write(body: Body) -> ir.Value:
        x, scale, zero_point = _along_axis(body, per_axis)
        quotient = body("Div", x, scale)
        if dtype not in _FLOATS:
            quotient = body("Round", quotient)
        if wide is ir.DataType.DOUBLE:
            quotient = body.cast(quotient, wide)
        codes = body("Add", quotient, body.cast(zero_point, wide))
        if dtype not in _FLOATS:
            limits = np.iinfo(dtype.numpy())
            codes = body("Clip", codes, wide.numpy().type(limits.min), wide.numpy().type(limits.max))
        return body.cast(codes, dtype)

    fallback = None if per_axis else _quantize(dtype, per_axis=True)
    return Definition(dtype.name.lower() + "_per_axis" * per_axis, write, (AXIS,), _INPUTS, fallback)


def _dequantize(*, exact: bool, per_axis: bool) -> Definition:
    """Define codes to numbers, operation by operation; `exact` subtracts 32-bit zero points in float64."""
    wide = ir.DataType.DOUBLE if exact else ir.DataType.FLOAT

    def write(body: Body) -> ir.Value:
        x, scale, zero_point = _along_axis(body, per_axis)
        difference = body("Sub", body.cast(x, wide), body.cast(zero_point, wide))
        if exact:
            difference = body.cast(difference, ir.DataType.FLOAT)
        return body("Mul", difference, scale)

    fallback = None if exact and per_axis else _dequantize(exact=True, per_axis=True)
    label = ("32_bits" if exact else "16_bits") + "_per_axis" * per_axis
    return Definition(label, write, (AXIS,), _INPUTS, fallback)


def _fix_neuron(bits: int) -> Definition:
    """Define rounding to signed codes and back; the scale and the zero point are scalars."""

    def write(body: Body) -> ir.Value:
        x, scale, zero_point = body.inputs
        if bits == 8:  # the bits of its zero point
            return body("DequantizeLinear", body("QuantizeLinear", x, scale, zero_point), scale, zero_point)
        offset = body.cast(zero_point, ir.DataType.FLOAT)
        half = 1 << (bits - 1)
        codes = body("Add", body("Round", body("Div", x, scale)), offset)
        codes = body("Clip", codes, np.float32(-half), np.float32(half - 1))
        return body("Mul", body("Sub", codes, offset), scale)

    attributes = [ir.Attr(name, ir.AttributeType.STRING, None) for name in ("bit_width", "pos")]
    return Definition(f"{bits}_bits", write, attributes, _INPUTS)


def read_quantize(node: ir.Node, opset: int) -> Definition:
    """Read what an ExtendedQuantizeLinear of a model has to do."""
    dtype = _code_type(node, _input(node, 2, "zero point"))
    if _is_standard(dtype, opset):
        return _standard("QuantizeLinear")
    return _quantize(dtype, per_axis=_is_per_axis(node))


def read_dequantize(node: ir.Node, opset: int) -> Definition:
    """Read what an ExtendedDequantizeLinear of a model has to do."""
    dtype = _code_type(node, _input(node, 2, "zero point"))
    if _is_standard(dtype, opset):
        return _standard("DequantizeLinear", _dequantize(exact=True, per_axis=True))
    return _dequantize(exact=dtype in _WIDE, per_axis=_is_per_axis(node))


def read_fix_neuron(node: ir.Node, _opset: int) -> Definition:
    _input(node, 2, "zero point")
    width = string_attribute(node, "bit_width")
    if not width.isdecimal() or not 2 <= int(width) <= 16:
        raise ModelError(f"{described(node)} has bit_width '{width}': it must be a number from 2 to 16.")
    return _fix_neuron(int(width))


def _is_standard(dtype: ir.DataType, opset: int) -> bool:
    """Return whether the standard operators are the whole definition."""
    return families.native_family(dtype.name.lower(), opset, quantizes=True) is families.STANDARD


def _input(node: ir.Node, index: int, what: str) -> ir.Value:
    value = input_at(node, index)
    if value is None:
        raise ModelError(
            f"{described(node)} has no {what}: give it one, which may be 0; its type is that of the codes."
        )
    return value


def _code_type(node: ir.Node, zero_point: ir.Value) -> ir.DataType:
    dtype = zero_point.dtype
    if dtype not in _CODE_TYPES or dtype is None:
        found = "of unknown type" if dtype is None else dtype.name.lower()
        known = ", ".join(sorted(known.name.lower() for known in _CODE_TYPES))
        raise ModelError(f"The zero point of {described(node)} is {found}. Known are: {known}.")
    return dtype


def _is_per_axis(node: ir.Node) -> bool:
    shape = _input(node, 1, "scale").shape
    return shape is None or any(size != 1 for size in shape)


def _along_axis(body: Body, per_axis: bool) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the inputs of a body; a scale and zero point per channel get a dimension of 1 for each axis behind it."""
    x, scale, zero_point = body.inputs
    if not per_axis:
        return x, scale, zero_point
    behind = body("Sub", body("Shape", body("Shape", x, start=ref("start", "axis"))), np.array([1]))
    behind = body("Max", behind, np.array([0]))  # a scalar may come with an axis that x does not have
    shape = body("Concat", np.array([-1]), body("Expand", np.array([1]), behind), axis=0)
    return x, body("Reshape", scale, shape), body("Reshape", zero_point, shape)


Reader = Callable[[ir.Node, int], Definition]  # from a node and the opset of its model to the definition that it needs

_DOMAIN_VERSION = 1
_IR_VERSION_OF_DEFAULTS = 9  # the IR version with which attributes of functions got defaults
_IR_VERSION_OF_OVERLOADS = 10  # the one with which functions got overloads


def _readers(family: families.Family) -> dict[families.OperatorName, Reader]:
    by_name: dict[str, Reader] = {
        family.quantize: read_quantize,
        family.dequantize: read_dequantize,
        family.fix_neuron: read_fix_neuron,
        family.block_float: read_block_float,
        family.microscaling: read_microscaling,
    }
    return {families.OperatorName(family.domain, name): reader for name, reader in by_name.items() if name}


# Every operator that can get a function.
READERS: Mapping[families.OperatorName, Reader] = MappingProxyType(
    _readers(families.FIX_NEURON) | _readers(families.EXTENDED) | _readers(families.VITIS)
)


def add_functions(model: ir.Model, *, overloads: bool = False) -> list[families.OperatorName]:
    """Add a function for every node of a foreign domain that has none yet, and the opset imports. In place, idempotent.

    Functions that the model brought along, and their nodes, are left alone. `overloads` permits several bodies for one
    operator if no general one serves all nodes (see above); the operators that have several are returned.

    Raises:
        ModelError: A node whose operator, attributes or types have no definition, or that needs a second body without
            `overloads`.
    """
    calls: dict[families.OperatorName, list[tuple[ir.Node, Definition]]] = {}
    for node in all_nodes(model):
        present = model.functions.get(node.op_identifier())
        if node.domain in families.FOREIGN_DOMAINS and (present is None or LABEL in present.metadata_props):
            definition = _definition(node, model.graph.opset_imports[""])
            calls.setdefault(families.OperatorName.of(node), []).append((node, definition))
    for operator, pairs in calls.items():
        # Functions from an earlier call are written anew: the nodes may have changed since.
        for function in _functions_of(model, operator):
            if LABEL in function.metadata_props:
                del model.functions[function.identifier()]
        for node, definition in _unified(operator, pairs, overloads):
            node.overload = _overload(model, operator, definition)
            needed = _IR_VERSION_OF_OVERLOADS if node.overload else _IR_VERSION_OF_DEFAULTS
            model.ir_version = max(model.ir_version, needed)
        model.graph.opset_imports.setdefault(operator.domain, _DOMAIN_VERSION)
    return [operator for operator, pairs in calls.items() if len({node.overload for node, _ in pairs}) > 1]


def _unified(
    operator: families.OperatorName, pairs: list[tuple[ir.Node, Definition]], overloads: bool
) -> list[tuple[ir.Node, Definition]]:
    """Return the same nodes with one definition that serves them all, or with `overloads` one for each format."""
    if len({definition.label for _, definition in pairs}) == 1:
        return pairs
    general = [(node, definition.general) for node, definition in pairs]
    first, first_definition = general[0]
    for node, definition in general:
        if definition.label != first_definition.label and not overloads:
            raise ModelError(
                f"Nodes '{first.name}' ({first_definition.label}) and '{node.name}' ({definition.label}) are both of "
                f"{operator}, which can have one body in a model. Use one format for both, or permit overloads."
            )
    return general


def _functions_of(model: ir.Model, operator: families.OperatorName) -> list[ir.Function]:
    return [each for each in model.functions.values() if families.OperatorName(each.domain, each.name) == operator]


def _definition(node: ir.Node, opset: int) -> Definition:
    operator = families.OperatorName.of(node)
    reader = READERS.get(operator)
    if reader is None:
        known = [str(known) for known in READERS]
        raise ModelError(
            f"{described(node)} is of an operator that has no definition here.{nearest(str(operator), known)} "
            f"Known are: {', '.join(known)}."
        )
    definition = reader(node, opset)
    attributes = {attribute.name for attribute in definition.attributes}
    for name in node.attributes:
        if name not in attributes:
            raise ModelError(f"{described(node)} has no attribute '{name}'.{nearest(name, attributes)} Remove it.")
    return definition


def _overload(model: ir.Model, operator: families.OperatorName, definition: Definition) -> str:
    """Return the overload of the function that is written from `definition`; add it if it is missing."""
    functions = _functions_of(model, operator)
    for function in functions:
        if function.metadata_props.get(LABEL) == definition.label:
            return function.overload
    overload = definition.label if functions else ""
    body = Body(definition.inputs, model.graph.opset_imports[""])
    function = body.function(operator, overload, definition.write(body), definition)
    model.functions[function.identifier()] = function
    return overload


def settle_domains(model: ir.Model) -> None:
    """Import the quantization domains that nodes use, and only those; define what is used, drop what is not."""
    add_functions(model)
    common_passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    used = {node.domain for node in all_nodes(model)}
    for domain in (*families.FOREIGN_DOMAINS, families.MICROSOFT.domain):
        if domain in used:
            model.opset_imports.setdefault(domain, 1)
        else:
            model.opset_imports.pop(domain, None)


def take_out_functions(model: ir.Model) -> None:
    """Remove the functions of quantizing operators, whose nodes stay."""
    for key, function in tuple(model.functions.items()):
        if function.domain in families.FOREIGN_DOMAINS:
            del model.functions[key]
