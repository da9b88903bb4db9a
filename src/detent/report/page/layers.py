"""The layers of a quantized model: their error along the network, and a table of them that opens into pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from detent.plan.layout import Decision
from detent.refine.layers import LayerReport
from detent.report.figures import decibels, extent, step
from detent.report.page.charts import Point, channel_chart, depth_chart, histogram_chart
from detent.report.page.html import Markup, joined, name_of, tag
from detent.report.page.parts import Section, facts
from detent.report.page.table import Cell, Column, Row, number, table, words
from detent.results.quantized import Report
from detent.results.tensors import TensorReport

SQNR = "The power of the float signal over that of its error: 20 dB is an error of 1 %, 10 dB of 10 %; more is better."

COLUMNS = (
    Column("#", "The place in the network.", numeric=True, minor=True),
    Column("Layer", "The node, and below it the tensor that is rounded on its account. Open it for its pictures."),
    Column("Operator", "", minor=True),
    Column("SQNR dB", f"{SQNR} Measured in the quantized network, with the errors of all layers before.", numeric=True),
    Column("Clipped", "The share of values that lie beyond the largest code.", numeric=True),
    Column("Range", "The least and the greatest value that calibration saw.", numeric=True, minor=True),
    Column("Step", "The distance between two codes.", numeric=True, minor=True),
    Column("Type", "The number format of the codes.", minor=True),
)


@dataclass(frozen=True)
class Layer:
    """An activation with its node and, where it is the node's result, the node's constants; or a node left float."""

    place: int
    node: str
    op_type: str
    reason: str
    tensor: TensorReport | None = None
    constants: tuple[TensorReport, ...] = ()

    @property
    def row(self) -> str:
        """What the row is referred to by."""
        return f"layer-{self.place}"

    @property
    def sqnr(self) -> float | None:
        """In dB, where it was measured."""
        return None if self.tensor is None or self.tensor.closeness is None else self.tensor.closeness.sqnr_db


def layers_of(report: Report) -> list[Layer]:
    """In the order of the network. Nodes that are computed at one go with the one before have no row of their own."""
    activations: dict[str, list[TensorReport]] = {}
    constants: dict[str, list[TensorReport]] = {}
    for tensor in report.tensors:
        (activations if tensor.role == "activation" else constants).setdefault(tensor.node, []).append(tensor)
    layers: list[Layer] = []
    for decision in report.nodes:
        own = activations.get(decision.node, [])
        for at, tensor in enumerate(own):
            belonging = tuple(constants.get(decision.node, ())) if at == len(own) - 1 else ()
            layers.append(_layer(len(layers) + 1, decision, tensor, belonging))
        if not own and not decision.quantized:
            layers.append(_layer(len(layers) + 1, decision))
    return layers


def _layer(
    place: int, decision: Decision, tensor: TensorReport | None = None, constants: tuple[TensorReport, ...] = ()
) -> Layer:
    reason = "" if decision.quantized else decision.reason
    return Layer(place, decision.node, decision.op_type, reason, tensor, constants)


def depth_section(layers: Sequence[Layer], outputs: Sequence[str]) -> Section | None:
    """The error of each layer in the order of the network."""
    points = [
        Point(f"{layer.node}: {decibels(layer.sqnr)} dB", layer.sqnr, layer.row, layer.tensor.name in outputs)
        for layer in layers
        if layer.sqnr is not None and layer.tensor is not None
    ]
    if len(points) < 2:
        return None
    meaning = (
        f"SQNR of each layer's result. {SQNR} Errors add up on the way, so a line that falls slowly is normal; "
        "a sudden drop points at the layer to look at. Each dot opens its layer."
    )
    return Section("Error along the network", meaning, depth_chart([points], "SQNR in dB"), folded=False)


def layers_section(report: Report, layers: Sequence[Layer]) -> Section:
    """The table."""
    moved: dict[str, list[str]] = {}
    for move in report.moves:
        moved.setdefault(move.value, []).append(f"{move.before:g} to {move.after:g} ({move.rule})")
    refined = {layer.name: layer for layer in report.refined}
    rows = [Row(_cells(layer), layer.row, _opened(report, layer, moved, refined)) for layer in layers]
    measured = any(layer.sqnr is not None for layer in layers)
    order = (3, True) if measured else (0, True)
    rows.sort(key=lambda row: _sort_key(row.cells[order[0]]))
    fused = sum(node.quantized for node in report.nodes) - len({layer.node for layer in layers if layer.tensor})
    meaning = (
        "Every tensor that is rounded, the worst first. Open a row for its histogram, its weights and its numbers."
    )
    if fused > 0:
        meaning += (
            f" {fused} more nodes are computed at one go with the layer before them, such as a Relu after a Conv."
        )
    return Section("Layers", meaning, table(COLUMNS, rows, "layers", order=order), folded=False, count=str(len(rows)))


def _sort_key(cell: Cell) -> float:
    return cell.key if isinstance(cell.key, float | int) else math.inf


def _cells(layer: Layer) -> list[Cell]:
    tensor = layer.tensor
    below = layer.reason if tensor is None else tensor.name if tensor.name != layer.node else ""
    named = joined(
        (
            tag("button", name_of(layer.node), type="button", class_="open", aria_expanded="false"),
            tag("div", name_of(below) if tensor else below, class_="quiet small") if below else None,
        )
    )
    first = [number(layer.place), words(named, f"{layer.node} {below}"), words(layer.op_type)]
    if tensor is None:
        return [*first, *[number(None)] * 4, words("float")]
    return [
        *first,
        number(layer.sqnr, None if layer.sqnr is None else decibels(layer.sqnr)),
        number(tensor.clipped, percent(tensor.clipped)),
        number(_width(tensor), extent(tensor.minimum, tensor.maximum)),
        number(tensor.scale, step(tensor)),
        words(tensor.dtype),
    ]


def percent(share: float) -> str:
    """A share, with as many digits as tell."""
    return "0 %" if share == 0 else f"{100 * share:.3g} %"


def _width(tensor: TensorReport) -> float | None:
    return None if tensor.minimum is None or tensor.maximum is None else tensor.maximum - tensor.minimum


def _opened(
    report: Report, layer: Layer, moved: Mapping[str, Sequence[str]], refined: Mapping[str, LayerReport]
) -> Markup:
    """What a row opens into."""
    tensor = layer.tensor
    if tensor is None:
        return tag("div", tag("p", f"Left float: {layer.reason}."), class_="opened")
    about = {
        "Tensor": name_of(tensor.name),
        "Codes": _codes(tensor),
        "Same scale as": None if tensor.shares is None else name_of(tensor.shares),
        "Moved by rules": _listed(moved.get(tensor.shares or tensor.name)),
        "PSNR, cosine": None
        if tensor.closeness is None
        else f"{decibels(tensor.closeness.psnr_db)} dB, {tensor.closeness.cosine:.5f}",
    }
    for each in layer.constants:
        about[each.role.capitalize()] = joined(
            (
                name_of(each.name),
                f": {_codes(each)}, {extent(each.minimum, each.maximum)}, {percent(each.clipped)} clipped",
            )
        )
        if each.name in moved:
            about[f"{each.role.capitalize()} moved by rules"] = _listed(moved[each.name])
    if layer.constants and layer.node in refined:
        about["Refined"] = refinement(refined[layer.node])
    return tag("div", tag("div", *_pictures(report, layer, tensor), class_="pictures"), facts(about), class_="opened")


def _pictures(report: Report, layer: Layer, tensor: TensorReport) -> list[Markup]:
    """The histogram of the activation, and the channels of the weights."""
    found = []
    seen = report.pictures.distributions.get(tensor.shares or tensor.name)
    if seen is not None:
        clip = f"{percent(tensor.clipped)} of them clip" if tensor.clipped else "none of them clips"
        label = f"{seen.values:,} values of the activation; {clip}."
        found.append(histogram_chart(seen, label))
    for each in layer.constants:
        sizes = report.pictures.channels.get(each.name)
        if sizes is not None:
            label = f"Largest weight of each of {sizes.channels} channels, before and after equalization: flat is good."
            found.append(channel_chart(sizes, label))
    return found


def _codes(tensor: TensorReport) -> str:
    if tensor.scale is None:
        return tensor.dtype
    many = "" if tensor.channels is None else f", {tensor.channels} scales, the largest"
    zero = f", zero point {tensor.zero_point}" if tensor.zero_point else ""
    return f"{tensor.dtype}{many} step {step(tensor)}{zero}" if tensor.scale != 1.0 or tensor.position else tensor.dtype


def _listed(entries: Sequence[str] | None) -> str | None:
    return None if not entries else "; ".join(entries)


def refinement(layer: LayerReport) -> str:
    """What a refinement did to one layer, in a line."""
    if layer.before is None or layer.after is None:
        return f"{layer.method}{f': {layer.note}' if layer.note else ''}"
    return f"{layer.method}, relative error {layer.before:.3g} to {layer.after:.3g}"
