"""Translate a script's specifications of layers into formats of the tensors that they read and write.

In a recipe a node has a format, and an input in another format is converted: rounded to 8 bits, then to 16. In Quark
the tensors have formats. `input_tensors` with 16 bits have them for all of their readers, nothing is rounded twice, and
the output of the layer has the format of the rest of the model unless `output_tensors` says otherwise.

The unit of an int32 bias is the product of two scales of integers, so a bias beside floats or blocks has their format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from detent.compat.option_rows import note
from detent.errors import UsageError, nearest
from detent.graph.values import is_constant
from detent.numerics.formats import is_integer, is_product_bias
from detent.numerics.interface import NumberFormat
from detent.plan.select import nodes_of
from detent.recipe import Override, Recipe
from detent.recipe.recipe import LAYERS


@dataclass(frozen=True)
class LayerFormats:
    """One specification: `part` names layers, `formats` are of what they read, by role, and `written` of the rest.

    Names of nodes that begin with ^ and have .* are regular expressions, as in Quark.
    """

    part: Override
    formats: Mapping[str, NumberFormat]
    written: NumberFormat | None = None

    @property
    def every_format(self) -> tuple[NumberFormat, ...]:
        """The formats that it gives."""
        return (*self.formats.values(), *(() if self.written is None else (self.written,)))


def is_regex(name: str) -> bool:
    """Return whether Quark takes this for a regular expression, not for a name, which may hold a dot."""
    if not (name.startswith("^") and ".*" in name):
        return False
    try:
        re.compile(name)
    except re.error as error:
        raise UsageError(f"'{name}' names nodes, and is not a regular expression: {error}.") from None
    return True


def overrides_of(
    layers: Sequence[LayerFormats], recipe: Recipe, graph: ir.Graph, *, dual: bool
) -> tuple[Override, ...]:
    """Return the specifications as overrides, to be put before those of the recipe.

    With `dual` a tensor between two formats has both, so these are overrides of nodes, otherwise of tensors.
    """
    parts: list[Override] = []
    tensors: dict[str, NumberFormat] = {}
    alone = {name: fmt for each in recipe.overrides for name in each.tensors for fmt in each.formats.values()}
    beside: dict[str, NumberFormat] = {}  # formats that have no unit of products, by node
    for layer in layers:
        nodes = _named(layer.part.nodes, graph)
        chosen = nodes_of(replace(layer.part, nodes=nodes or layer.part.nodes), graph)
        given = layer.formats
        for node in (node for node in graph if node.name in chosen):
            if "activations" in given and not dual:
                tensors |= dict.fromkeys(_data(node), given["activations"])
            if layer.written is not None:
                tensors |= {str(value.name): layer.written for value in node.outputs}
            fmt = next((each for each in given.values() if not is_integer(each)), None)
            beside |= {} if fmt is None else {str(node.name): fmt}
        rest = given if dual else {role: fmt for role, fmt in given.items() if role != "activations"}
        if chosen and rest:
            parts.append(replace(layer.part, nodes=nodes, leave_float=False, **rest))  # type: ignore[arg-type]
    for node in (node for node in graph if node.op_type in LAYERS):
        read = [tensors.get(name) for name in _data(node)] + [alone.get(str(v.name)) for v in node.inputs if v]
        fmt = next((fmt for fmt in read if fmt is not None and not is_integer(fmt)), None)
        beside |= {} if fmt is None else {str(node.name): fmt}
    return (
        *(
            Override(nodes=(name,), biases=fmt, optional=True)
            for name, fmt in beside.items()
            if is_product_bias(recipe.biases)
        ),
        *parts,
        *(Override(tensors=(name,), activations=fmt, optional=True) for name, fmt in tensors.items()),
    )


def _named(patterns: Iterable[str], graph: ir.Graph) -> tuple[str, ...]:
    """Return names with regular expressions replaced by what they match."""
    names = [str(node.name) for node in graph]
    found: list[str] = []
    for given in patterns:
        hits = [name for name in names if re.match(given, name)] if is_regex(given) else [given]
        if not hits:
            note(f"'{given}' matches no node, so the layers that the script means are as all others.")
        found += hits
    return tuple(found)


def _data(node: ir.Node) -> list[str]:
    return [str(value.name) for value in node.inputs if value is not None and not is_constant(value)]


def note_what_is_missing(overrides: Iterable[Override], graph: ir.Graph) -> None:
    """Name the nodes, operators and tensors of overrides that the model does not have."""
    nodes = list(graph.all_nodes())
    values = {str(value.name) for node in nodes for value in (*node.inputs, *node.outputs) if value is not None}
    known = {
        "nodes": {str(node.name) for node in nodes},
        "op_types": {node.op_type for node in nodes},
        "tensors": values,
    }
    for override in (each for each in overrides if each.optional):
        for field, present in known.items():
            for name in (each for each in getattr(override, field) if each not in present and not is_regex(each)):
                note(f"The model has no '{name}', for which the script has a format.{nearest(name, present)}")
