"""Which format each site has: the recipe's, or that of an override (mixed precision by hand).

Formats belong to nodes. A value has the activation format of the node that computes it, and where there is none (an
input of the model, the result of a node that stays float) that of its first reader. Every other reader that computes in
another format reads a copy of the value, behind an Identity that stands for the conversion: the copy is a site of its
own, so it is calibrated, planned and emitted like any other value, and the Identity itself is not emitted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from detent.errors import UsageError, nearest
from detent.graph.names import Names
from detent.graph.values import values_of
from detent.numerics.formats import is_integer, is_product_bias
from detent.numerics.interface import NumberFormat
from detent.plan.layout import Layout, Role, lay_out, site_inputs
from detent.plan.parts import nodes_of
from detent.plan.select import Selection, names_matching
from detent.plan.ties import ties_on_device
from detent.recipe import Override, Recipe

ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Where")


@dataclass(frozen=True)
class NodeFormats:
    """The formats of what one node reads and writes."""

    activations: NumberFormat | None
    weights: NumberFormat | None
    biases: NumberFormat | None

    def with_override(self, override: Override) -> NodeFormats:
        """These formats, with those that the override gives in their place."""
        return NodeFormats(
            override.activations or self.activations,
            override.weights or self.weights,
            override.biases or self.biases,
        )


def arrange(model: ir.Model, selection: Selection, recipe: Recipe, folded: Collection[str] = ()) -> Layout:
    """Lay the model out with the formats of the recipe. Conversions between these are inserted into the graph."""
    layout = lay_out(model, selection, recipe, folded)
    if convert_at_borders(model, layout, recipe):
        layout = lay_out(model, selection, recipe, folded)
    assign_formats(model, layout, recipe)
    return layout


def convert_at_borders(model: ir.Model, layout: Layout, recipe: Recipe) -> int:
    """Insert an Identity wherever a value is read in another format than it has; the number of these.

    The layout is of the model before, and has to be made again after.
    """
    formats = _formats_of_nodes(model, layout, recipe)
    names = Names(model)
    inserted = 0
    for value in [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]:
        site = layout.sites.get(str(value.name))
        if site is None or site.role is not Role.ACTIVATION:
            continue
        own = _format_of_value(value, layout, formats)
        readers: dict[NumberFormat, list[tuple[ir.Node, int]]] = {}
        for node, index in tuple(value.uses()):
            wanted = formats[str(node.name)].activations if _reads_as_data(node, index, layout) else own
            if wanted is not None and wanted != own:
                readers.setdefault(wanted, []).append((node, index))
        for uses in readers.values():
            _insert_identity(model, value, uses, names)
            inserted += 1
    return inserted


def assign_formats(model: ir.Model, layout: Layout, recipe: Recipe) -> None:
    """Give every site its format, and activations their rounding; roles that stay float are taken out of the layout."""
    formats = _formats_of_nodes(model, layout, recipe)
    values = {str(value.name): value for value in values_of(model.graph)}
    for name, site in list(layout.sites.items()):
        of_node = formats[site.node]
        if site.role is Role.ACTIVATION:
            chosen = _format_of_value(values[name], layout, formats)
        else:
            chosen = of_node.weights if site.role is Role.WEIGHT else of_node.biases
            if recipe.constants_as_activations and _is_operand(values[name], site.role):
                chosen = of_node.activations
        if chosen is None:
            del layout.sites[name]
        else:
            layout.formats[name] = chosen
    _keep_leaders(layout)
    _override_tensors(layout, recipe.overrides)
    for name in [name for name, fmt in layout.formats.items() if _is_lone(values[name], fmt)]:
        del layout.sites[name], layout.formats[name]
    _keep_leaders(layout)
    _check_ranges(layout)
    _check_biases(model, layout)
    layout.ties = ties_on_device(model, layout, recipe.rounding)
    if not layout.sites:
        raise UsageError(f"Recipe {recipe.name} leaves activations, weights and biases float: there is nothing to do.")


def _keep_leaders(layout: Layout) -> None:
    """Only sites that are there share parameters, and not blocks: these lie along an axis of each value's own."""
    layout.leaders = {
        name: leader
        for name, leader in layout.leaders.items()
        if {name, leader} <= layout.sites.keys() and not layout.formats[name].in_blocks
    }


def _is_lone(value: ir.Value, fmt: NumberFormat) -> bool:
    """Whether a value would share an exponent with its neighbours, and is a scalar, which has none: it stays float."""
    return fmt.in_blocks and value.shape is not None and len(value.shape) == 0


def _formats_of_nodes(model: ir.Model, layout: Layout, recipe: Recipe) -> dict[str, NodeFormats]:
    """The formats of every node; a fused activation function computes in those of its layer, a Pad in its pool's."""
    # What is quantized while the model runs has no parameters to plan, and its layers add their biases in float.
    roles = (None, recipe.weights, None) if recipe.dynamic else (recipe.activations, recipe.weights, recipe.biases)
    everywhere = NodeFormats(*roles)
    formats = {str(node.name): everywhere for node in model.graph}
    for override in recipe.overrides:
        if not override.leave_float:
            part = nodes_of(override, model.graph)
            _refuse_fused_only(model, layout, override, part)
            for name in part:
                formats[name] = formats[name].with_override(override)
    for node in model.graph:
        layer = layout.layer_of(node)
        if layer.op_type == "Pad":
            formats[str(layer.name)] = formats[str(node.name)]
        else:
            formats[str(node.name)] = formats[str(layer.name)]
    return formats


def _refuse_fused_only(model: ir.Model, layout: Layout, override: Override, part: Collection[str]) -> None:
    """An override of nothing but fused activation functions would say nothing: these have no formats of their own."""
    layers = {str(node.name): layout.layer_of(node) for node in model.graph if node.name in part}
    fused = [layer for name, layer in layers.items() if layer.name != name and layer.op_type != "Pad"]
    if fused and len(fused) == len(layers):
        raise UsageError(
            f"The override of {override.part}: what it names is computed together with the layer before it, in one "
            f"format. Name that layer ('{fused[0].name}'), or take the activation function out of 'fuse'."
        )


def _format_of_value(value: ir.Value, layout: Layout, formats: Mapping[str, NodeFormats]) -> NumberFormat | None:
    producer = value.producer()
    if producer is not None and layout.quantizes(producer):
        return formats[str(producer.name)].activations
    for node, index in value.uses():
        if _reads_as_data(node, index, layout):
            return formats[str(node.name)].activations
    return None


def _reads_as_data(node: ir.Node, index: int, layout: Layout) -> bool:
    return layout.quantizes(node) and index in site_inputs(node)


def _is_operand(value: ir.Value, role: Role) -> bool:
    """Whether a constant meets activations as one of them, and not as the weight of a layer."""
    return role is Role.WEIGHT and any(node.op_type in ELEMENTWISE for node, _ in value.uses())


def _insert_identity(model: ir.Model, value: ir.Value, uses: Sequence[tuple[ir.Node, int]], names: Names) -> None:
    node = ir.node("Identity", [value], name=names.fresh(f"{value.name}/convert"))
    copy = node.outputs[0]
    copy.name, copy.type, copy.shape = names.fresh(f"{value.name}/converted"), value.type, value.shape
    producer = value.producer()
    if producer is None:
        model.graph.insert_before(next(iter(model.graph)), [node])
    else:
        model.graph.insert_after(producer, [node])
    for reader, index in uses:
        reader.replace_input_with(index, copy)


def _override_tensors(layout: Layout, overrides: Sequence[Override]) -> None:
    for override in overrides:
        for pattern in override.tensors:
            matches = names_matching(pattern, layout.sites)
            if not matches:
                raise UsageError(
                    f"The override of the tensor '{pattern}' matches none that is quantized."
                    f"{nearest(pattern, layout.sites)} `detent quantize --dry-run --json` lists the nodes."
                )
            # A sum, not any(): every match is overridden.
            if not sum(_override_tensor(layout, name, override) for name in matches):
                raise UsageError(
                    f"The override of the tensor '{pattern}' says nothing about it: '{matches[0]}' is one of the "
                    f"{_FIELDS[layout.sites[matches[0]].role]}. Give these a format, or a range."
                )


_FIELDS = {Role.ACTIVATION: "activations", Role.WEIGHT: "weights", Role.BIAS: "biases"}


def _override_tensor(layout: Layout, name: str, override: Override) -> bool:
    """Give a tensor and all that share with it what the override says; whether it says anything."""
    leader = layout.leader(name)
    given = getattr(override, _FIELDS[layout.sites[leader].role])
    if given is not None:
        for site in layout.sites:
            if layout.leader(site) == leader:
                layout.formats[site] = given
    if override.range is not None:
        layout.ranges[leader] = override.range
    return given is not None or override.range is not None


def _check_ranges(layout: Layout) -> None:
    for name in layout.ranges:
        fmt = layout.formats[name]
        if not is_integer(fmt) or (layout.sites[name].role is Role.BIAS and is_product_bias(fmt)):
            raise UsageError(
                f"The override of the tensor '{name}' gives a range, and it is {fmt.label}, whose scale does not "
                "follow from one. Leave the range out, or give the tensor an integer format with a scale of its own."
            )


def _check_biases(model: ir.Model, layout: Layout) -> None:
    """A bias that is counted in the unit of its layer's products needs integers on both sides of them."""
    for node in model.graph:
        for bias in (value for value in node.inputs[2:3] if value is not None and layout.quantizes(node)):
            fmt, site = layout.formats.get(str(bias.name)), layout.sites.get(str(bias.name))
            if site is None or site.role is not Role.BIAS or not is_product_bias(fmt):
                continue
            for value in node.inputs[:2]:
                other = layout.formats.get(str(value.name)) if value is not None else None
                if not is_integer(other) or other.group_size:
                    what = "float" if other is None else other.label
                    what += f" {other.granularity}" if is_integer(other) else ""
                    raise UsageError(
                        f"The bias '{bias.name}' of {node.op_type} '{node.name}' is int32, counted in the unit of the "
                        f"layer's products, and '{value.name if value else ''}' is {what}. Give the biases "
                        'another format, or "float".'
                    )
