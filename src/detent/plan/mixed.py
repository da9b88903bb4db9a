"""Which format each site has: the recipe's, or that of an override (mixed precision by hand).

Formats belong to nodes. A value has the activation format of the node that computes it, and where there is none (an
input of the model, the result of a node that stays float) that of its first reader. Every other reader that computes in
another format reads a copy of the value, behind an Identity that stands for the conversion: the copy is a site of its
own, so it is calibrated, planned and emitted like any other value, and the Identity itself is not emitted.

A device may round activations halfway between two codes otherwise than to the even one. The DPU computes
(X + 2^(cut-1)) >> cut: ties go upwards. Inputs of the model, and results of nodes that stay float, are quantized by the
host, which rounds half to even.

Single activations may get 16 bits in a plan of 8 bits. A normalization layer divides by what it measures, so training
does not keep the channels before it, nor the sums around it, alike: in trained transformers a few channels of the
residual stream are 10 to 1000 times as large as the others, and one 8-bit step for all of them leaves the others
nothing. No factor can be folded away there, because the sum and the normalization read the same value. With 16 bits the
step is 1/256 of that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from detent.errors import UsageError, nearest
from detent.graph.values import Names, is_constant, values_of
from detent.numerics.codec import DeviceRounding, Rounding
from detent.numerics.formats import IntegerFormat, is_integer, is_product_bias
from detent.numerics.interface import NumberFormat
from detent.plan.layout import Layout, Role, lay_out, site_inputs
from detent.plan.postprocessing import Postprocessing
from detent.plan.select import NOTHING, Became, Selection, names_matching, nodes_of
from detent.recipe import Override, Recipe

ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Where")


NodeFormats = Mapping[str, NumberFormat | None]  # of what one node reads and writes, by role


def arrange(
    model: ir.Model,
    selection: Selection,
    recipe: Recipe,
    became: Became = NOTHING,
    tail: Postprocessing | None = None,
) -> Layout:
    """Lay the model out with the formats of the recipe. Conversions between these are inserted into the graph."""
    layout = lay_out(model, selection, recipe, became, tail)
    # Conversions are nodes of their own, so the layout has to be made again.
    if convert_at_borders(model, layout, recipe, became):
        layout = lay_out(model, selection, recipe, became, tail)
    return assign_formats(model, layout, recipe, became)


def convert_at_borders(model: ir.Model, layout: Layout, recipe: Recipe, became: Became = NOTHING) -> int:
    """Insert an Identity wherever a value is read in another format than it has; return how many.

    The layout is of the model before, and has to be made again after.
    """
    formats = _formats_of_nodes(model, layout, recipe, became)
    names = Names(model)
    inserted = 0
    for value in [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]:
        site = layout.sites.get(str(value.name))
        if site is None or site.role is not Role.ACTIVATION:
            continue
        own = _format_of_value(value, layout, formats)
        readers: dict[NumberFormat, list[tuple[ir.Node, int]]] = {}
        for node, index in tuple(value.uses()):
            wanted = formats[str(node.name)]["activations"] if _reads_as_data(node, index, layout) else own
            if wanted is not None and wanted != own:
                readers.setdefault(wanted, []).append((node, index))
        for uses in readers.values():
            _insert_identity(model, value, uses, names)
            inserted += 1
    return inserted


def assign_formats(model: ir.Model, layout: Layout, recipe: Recipe, became: Became = NOTHING) -> Layout:
    """Return the layout with a format for every site, without the roles that stay float."""
    formats = _formats_of_nodes(model, layout, recipe, became)
    values = {str(value.name): value for value in values_of(model.graph)}
    found: dict[str, NumberFormat] = {}
    for name, site in layout.sites.items():
        chosen = formats[site.node][site.role.plural]
        if site.role is Role.ACTIVATION:
            chosen = _format_of_value(values[name], layout, formats)
        elif recipe.constants_as_activations and _is_operand(values[name], site.role):
            chosen = formats[site.node]["activations"]
        if chosen is not None:
            found[name] = chosen
    layout = _override_tensors(_with_formats(layout, found), recipe.overrides)
    apart = {name: fmt for name, fmt in layout.formats.items() if not _is_lone(values[name], fmt)}
    layout = _with_formats(layout, apart)
    _check_ranges(layout)
    _check_biases(model, layout)
    if not layout.sites:
        raise UsageError(f"Recipe {recipe.name} leaves activations, weights and biases float: there is nothing to do.")
    return replace(layout, ties=ties_on_device(model, layout, recipe.rounding))


def _with_formats(layout: Layout, formats: Mapping[str, NumberFormat]) -> Layout:
    """Return the layout with the sites that have a format.

    Only these share parameters, and not blocks: they lie along an axis of each value's own.
    """
    sites = {name: site for name, site in layout.sites.items() if name in formats}
    leaders = {
        name: leader
        for name, leader in layout.leaders.items()
        if {name, leader} <= sites.keys() and not formats[name].in_blocks
    }
    return replace(layout, sites=sites, leaders=leaders, formats=dict(formats))


def _is_lone(value: ir.Value, fmt: NumberFormat) -> bool:
    """Return whether a value is a scalar in a block format: without neighbours to share with, it stays float."""
    return fmt.in_blocks and value.shape is not None and len(value.shape) == 0


def _formats_of_nodes(model: ir.Model, layout: Layout, recipe: Recipe, became: Became) -> dict[str, NodeFormats]:
    """Return the formats of every node. A fused activation function has those of its layer, a Pad those of its pool."""
    # What is quantized while the model runs has no parameters to plan, and its layers add their biases in float.
    dynamic = {"activations": None, "weights": recipe.weights, "biases": None}
    everywhere: NodeFormats = dynamic if recipe.dynamic else recipe.formats
    formats = {str(node.name): everywhere for node in model.graph}
    if recipe.dynamic and is_integer(recipe.weights):
        # The entries of a table are read one by one: no operator minds a scale for each, and rare words need it.
        table = {**dynamic, "weights": recipe.weights.replace(symmetric=True, granularity="per_channel")}
        formats |= {str(node.name): table for node in model.graph if node.op_type == "Gather"}
    for override in recipe.overrides:
        if not override.leave_float:
            part = nodes_of(override, model.graph, became)
            _refuse_fused_only(model, layout, override, part)
            for name in part:
                formats[name] = {**formats[name], **override.formats}
    for node in model.graph:
        layer = layout.layer_of(node)
        if layer.op_type == "Pad":
            formats[str(layer.name)] = formats[str(node.name)]
        else:
            formats[str(node.name)] = formats[str(layer.name)]
    return formats


def _refuse_fused_only(model: ir.Model, layout: Layout, override: Override, part: Collection[str]) -> None:
    """Refuse an override of nothing but fused activation functions: these have no formats of their own."""
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
        return formats[str(producer.name)]["activations"]
    for node, index in value.uses():
        if _reads_as_data(node, index, layout):
            return formats[str(node.name)]["activations"]
    return None


def _reads_as_data(node: ir.Node, index: int, layout: Layout) -> bool:
    return layout.quantizes(node) and index in site_inputs(node)


def _is_operand(value: ir.Value, role: Role) -> bool:
    """Return whether a constant meets activations as one of them, and not as the weight of a layer."""
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


def _override_tensors(layout: Layout, overrides: Sequence[Override]) -> Layout:
    for override in overrides:
        for pattern in override.tensors:
            matches = names_matching(pattern, layout.sites)
            if not matches and override.optional:
                continue
            if not matches:
                raise UsageError(
                    f"The override of the tensor '{pattern}' matches none that is quantized."
                    f"{nearest(pattern, layout.sites)} `detent quantize --dry-run --json` lists the nodes."
                )
            changed = layout
            for name in matches:
                changed = _override_tensor(changed, name, override)
            if changed is layout:
                raise UsageError(
                    f"The override of the tensor '{pattern}' says nothing about it: '{matches[0]}' is one of the "
                    f"{layout.sites[matches[0]].role.plural}. Give these a format, or a range."
                )
            layout = changed
    return layout


def _override_tensor(layout: Layout, name: str, override: Override) -> Layout:
    """Give a tensor and all that share with it what the override says; the same layout if it says nothing."""
    leader = layout.leader(name)
    given = override.formats.get(layout.sites[leader].role.plural)
    if given is not None:
        sharing = [site for site in layout.sites if layout.leader(site) == leader]
        layout = replace(layout, formats={**layout.formats, **dict.fromkeys(sharing, given)})
    if override.range is not None:
        layout = replace(layout, ranges={**layout.ranges, leader: override.range})
    return layout


def _check_ranges(layout: Layout) -> None:
    for name in layout.ranges:
        fmt = layout.formats[name]
        if not is_integer(fmt) or (layout.sites[name].role is Role.BIAS and is_product_bias(fmt)):
            raise UsageError(
                f"The override of the tensor '{name}' gives a range, and it is {fmt.label}, whose scale does not "
                "follow from one. Leave the range out, or give the tensor an integer format with a scale of its own."
            )


def _check_biases(model: ir.Model, layout: Layout) -> None:
    """Refuse a bias that is counted in the unit of its layer's products if one of these is not an integer."""
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


def ties_on_device(model: ir.Model, layout: Layout, rounding: DeviceRounding) -> dict[str, Rounding]:
    """Return the rounding of every activation site, unless it is half to even."""
    if rounding == "half-even":
        return {}
    sites = {site.value for site in layout.of_role(Role.ACTIVATION)}
    # What the host quantizes is rounded half to even on every device.
    return {
        str(value.name): "half_up"
        for value in values_of(model.graph)
        if str(value.name) in sites and (producer := value.producer()) is not None and layout.quantizes(producer)
    }


# Layers that normalize each sample anew; a BatchNorm is a fixed factor.
NORMALIZATIONS = frozenset(
    (
        *("LayerNormalization", "RMSNormalization", "GroupNormalization", "SimplifiedLayerNormalization"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization"),
    )
)


def where_width_may_pay(graph: ir.Graph) -> set[str]:
    """Return the values that 8 bits may be too few for.

    In a network with normalization layers, all: a few channels may be far larger than the others. In another one, what
    attention multiplies, as devices leave that to the CPU: a share of 1 among hundreds of small ones is a wide range.
    """
    every = any(node.op_type in NORMALIZATIONS for node in graph)
    around = (
        (*node.inputs, *node.outputs)
        for node in graph
        if every or (node.op_type in ("MatMul", "Einsum") and not any(map(is_constant, node.inputs)))
    )
    return {value.name for values in around for value in values if value is not None and value.name}


def wide_format(fmt: NumberFormat | None) -> IntegerFormat | None:
    """Return an 8-bit format of float scales with 16 bits; None for any other, which would not gain or cannot."""
    if fmt is None or not is_integer(fmt) or fmt.bits != 8 or fmt.scale != "float":
        return None
    return fmt.replace(dtype=fmt.dtype.replace("8", "16"))


def wide_candidates(model: ir.Model, layout: Layout) -> list[tuple[str, ...]]:
    """Group the activations that may get 16 bits, in graph order.

    Those of a group share their codes, so all of them do or none. A group is a leader with all values that share its
    parameters, and whatever Concats join with it.
    """
    groups = {
        site.value: {site.value}
        for site in layout.of_role(Role.ACTIVATION)
        if layout.leader(site.value) == site.value and wide_format(layout.formats[site.value]) is not None
    }
    for node in model.graph:
        if node.op_type == "Concat" and layout.quantizes(node):
            joined = {layout.leader(site) for site in layout.sites_around(node)}
            # Constants, and values of other formats, have no group.
            together = set[str]().union(*(groups[leader] for leader in joined if leader in groups))
            groups.update(dict.fromkeys(together, together))
    found: dict[int, tuple[str, ...]] = {}
    for group in groups.values():
        sharing = (name for name in layout.sites if layout.leader(name) in group)
        found.setdefault(id(group), tuple(sharing))
    return list(found.values())


def with_wide(layout: Layout, values: Collection[str]) -> Layout:
    """Return the layout with 16 bits for these activations."""
    wide = {name: wide_format(layout.formats[name]) for name in values}
    formats = {**layout.formats, **{name: fmt for name, fmt in wide.items() if fmt is not None}}
    return replace(layout, formats=formats, wide=layout.wide | frozenset(values))
