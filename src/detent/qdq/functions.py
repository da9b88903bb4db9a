"""Give a model the functions that define, in standard operators, its nodes of foreign domains.

    add_functions(model)        # com.amd.quark::BFPQuantizeDequantize now runs in any onnxruntime

A compiler for an NPU sees the node that it knows; any other runtime executes the function of the same name.

A body is written for what the model contains: for the type of the codes, for the attributes of a block format, for the
axis and the remainder of its blocks where the shape is known. The batch, and whatever else is not known, may have any
size but 0.

Where the nodes of one operator would want several bodies, a more general and slower one serves them all, as long as the
format is the same. Or else, if permitted, the others are overloads of the function, which nodes name in their field
`overload` (since version 10 of ONNX's file format, to which such a model is raised). That is not the default, since
onnxruntime 1.20 to 1.23 run any one of the overloads for all nodes, without a warning (1.31 honours them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType

import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent.errors import ModelError, nearest
from detent.qdq.block_functions import read_block_float, read_microscaling
from detent.qdq.families import (
    EXTENDED,
    FIX_NEURON,
    FOREIGN_DOMAINS,
    MICROSOFT,
    VITIS,
    Family,
    OperatorName,
)
from detent.qdq.function_body import LABEL, Body, Definition, described
from detent.qdq.linear_functions import read_dequantize, read_fix_neuron, read_quantize

Reader = Callable[[ir.Node, int], Definition]
"""From a node and the opset of its model to the definition that it needs."""

_DOMAIN_VERSION = 1
_IR_VERSION_OF_DEFAULTS = 9
_IR_VERSION_OF_OVERLOADS = 10


def _readers(family: Family) -> dict[OperatorName, Reader]:
    by_name: dict[str, Reader] = {
        family.quantize: read_quantize,
        family.dequantize: read_dequantize,
        family.fix_neuron: read_fix_neuron,
        family.block_float: read_block_float,
        family.microscaling: read_microscaling,
    }
    return {OperatorName(family.domain, name): reader for name, reader in by_name.items() if name}


READERS: Mapping[OperatorName, Reader] = MappingProxyType(_readers(FIX_NEURON) | _readers(EXTENDED) | _readers(VITIS))
"""Every operator that can get a function."""


def add_functions(model: ir.Model, *, overloads: bool = False) -> list[OperatorName]:
    """Add a function for every node of these domains that has none yet, and the opset imports. In place, idempotent.

    A function that the model brought along, not written by this module, is left alone and so are its nodes. `overloads`
    permits several bodies for one operator where no general one serves (see above); the operators that have several are
    returned. ModelError names a node whose operator, attributes or types have no definition, or would need a body of
    its own without `overloads`.
    """
    calls: dict[OperatorName, list[tuple[ir.Node, Definition]]] = {}
    for node in _nodes(model):
        present = model.functions.get(node.op_identifier())
        if node.domain in FOREIGN_DOMAINS and (present is None or LABEL in present.metadata_props):
            definition = _definition(node, model.graph.opset_imports[""])
            calls.setdefault(OperatorName.of(node), []).append((node, definition))
    for operator, pairs in calls.items():
        _drop_functions(model, operator)
        for node, definition in _unified(operator, pairs, overloads):
            node.overload = _overload(model, operator, definition)
            needed = _IR_VERSION_OF_OVERLOADS if node.overload else _IR_VERSION_OF_DEFAULTS
            model.ir_version = max(model.ir_version, needed)
        model.graph.opset_imports.setdefault(operator.domain, _DOMAIN_VERSION)
    return [operator for operator, pairs in calls.items() if len({node.overload for node, _ in pairs}) > 1]


def _unified(
    operator: OperatorName, pairs: list[tuple[ir.Node, Definition]], overloads: bool
) -> list[tuple[ir.Node, Definition]]:
    """Return the same nodes with one definition that serves them all, or with overloads one for each format."""
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


def _drop_functions(model: ir.Model, operator: OperatorName) -> None:
    """Remove what an earlier call wrote for an operator: its nodes may have changed since."""
    for identifier, function in list(model.functions.items()):
        if OperatorName(function.domain, function.name) == operator and LABEL in function.metadata_props:
            del model.functions[identifier]


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    return chain(model.graph.all_nodes(), *(function.all_nodes() for function in model.functions.values()))


def _definition(node: ir.Node, opset: int) -> Definition:
    operator = OperatorName.of(node)
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


def _overload(model: ir.Model, operator: OperatorName, definition: Definition) -> str:
    """Return the overload of the function that is written from `definition`; add it if it is missing."""
    functions = [
        function for function in model.functions.values() if OperatorName(function.domain, function.name) == operator
    ]
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
    used = {node.domain for node in _nodes(model)}
    for domain in (*FOREIGN_DOMAINS, MICROSOFT.domain):
        if domain in used:
            model.opset_imports.setdefault(domain, 1)
        else:
            model.opset_imports.pop(domain, None)


def take_out_functions(model: ir.Model) -> None:
    """Remove the functions of quantizing operators, whose nodes stay."""
    for key, function in tuple(model.functions.items()):
        if function.domain in FOREIGN_DOMAINS:
            del model.functions[key]
