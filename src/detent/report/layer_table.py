"""The layers of a quantized network: the error along it as a chart, and a row for each tensor that is rounded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from detent.plan.layout import Decision
from detent.refine.layers import LayerReport
from detent.report import document as doc
from detent.report.charts import ChannelChart, DepthChart, HistogramChart, Point
from detent.report.figures import SQNR, decibels, extent, in_decibels, percent, step
from detent.results.quantized import Report
from detent.results.tensors import TensorReport

WORST = 3  # tensors that a short answer lists


LIMITS = {20.0: "20 dB: an error of 1 %", 10.0: "10 dB: an error of 10 %"}


@dataclass(frozen=True)
class LayerRow:
    """An activation with its node and, if it is the node's result, the node's constants; or a node left float."""

    place: int
    node: str
    op_type: str
    reason: str
    tensor: TensorReport | None = None
    constants: tuple[TensorReport, ...] = ()

    @property
    def id(self) -> str:
        """What charts refer to the row by."""
        return f"layer-{self.place}"

    @property
    def sqnr(self) -> float | None:
        """In dB, if it was measured."""
        return None if self.tensor is None or self.tensor.closeness is None else self.tensor.closeness.sqnr_db

    @property
    def dtype(self) -> str:
        """The number format of the tensor; float for a node that was left so."""
        return "float" if self.tensor is None else self.tensor.dtype


def layers_of(report: Report) -> list[LayerRow]:
    """Return the layers in the order of the network. Nodes that are fused with the one before have no row."""
    activations: dict[str, list[TensorReport]] = {}
    constants: dict[str, list[TensorReport]] = {}
    for tensor in report.tensors:
        (activations if tensor.role == "activation" else constants).setdefault(tensor.node, []).append(tensor)
    layers: list[LayerRow] = []

    def add(decision: Decision, tensor: TensorReport | None = None, own: tuple[TensorReport, ...] = ()) -> None:
        reason = "" if decision.quantized else decision.reason
        layers.append(LayerRow(len(layers) + 1, decision.node, decision.op_type, reason, tensor, own))

    for decision in report.nodes:
        results = activations.get(decision.node, [])
        for at, tensor in enumerate(results):
            add(decision, tensor, tuple(constants.get(decision.node, ())) if at == len(results) - 1 else ())
        if not results and not decision.quantized:
            add(decision)
    return layers


def error_along(layers: Sequence[LayerRow], outputs: Sequence[str]) -> doc.Section | None:
    """Draw the SQNR of each layer's result; None if fewer than two were measured."""
    points = [
        Point(
            f"{layer.node}: {in_decibels(layer.sqnr)}", layer.sqnr, layer.id, layer.tensor.name in outputs, layer.node
        )
        for layer in layers
        if layer.sqnr is not None and layer.tensor is not None
    ]
    if len(points) < 2:
        return None
    meaning = (
        f"SQNR of each layer's result. {SQNR} Errors add up on the way, so a line that falls slowly is normal; "
        "a sudden drop points at the layer to look at. Each dot opens its layer."
    )
    chart = DepthChart([points], "SQNR in dB", limits=LIMITS)
    return doc.Section("Error along the network", meaning, [doc.Figure(chart)], folded=False, on="page")


def layer_section(report: Report, layers: Sequence[LayerRow]) -> doc.Section:
    """List every layer, the worst first if they were measured."""
    measured = any(layer.sqnr is not None for layer in layers)
    if measured:
        layers = sorted(layers, key=lambda layer: math.inf if layer.sqnr is None else layer.sqnr)
    moved: dict[str, list[str]] = {}
    for move in report.moves:
        moved.setdefault(move.value, []).append(f"{move.before:g} to {move.after:g} ({move.rule})")
    refined = {layer.name: layer for layer in report.refined}
    fused = sum(node.quantized for node in report.nodes) - len({layer.node for layer in layers if layer.tensor})
    meaning = (
        "Every tensor that is rounded, the worst first. Open a row for its histogram, its weights and its numbers."
    )
    if fused > 0:
        meaning += f" {fused} more nodes are fused with the layer before them, such as a Relu after a Conv."
    drawn = doc.table("layers", _LAYER_COLUMNS, layers, order=(3 if measured else 0, True), shown=WORST)
    rows = [
        replace(row, id=layer.id, opens=_opened(report, layer, moved, refined))
        for row, layer in zip(drawn.rows, layers, strict=True)
    ]
    worst = replace(drawn, rows=rows, title="worst tensors", on="both" if measured else "page")
    return doc.Section("Layers", meaning, [worst], folded=False, count=str(len(rows)))


def _layer_cell(layer: LayerRow) -> doc.Cell:
    tensor = layer.tensor
    below = layer.reason if tensor is None else tensor.name if tensor.name != layer.node else ""
    short = None if tensor is None else tensor.name
    key = f"{layer.node} {below}"
    return doc.Cell(layer.node, key, name=True, below=below, below_is_name=tensor is not None, short=short)


def _step_cell(layer: LayerRow) -> doc.Cell:
    return doc.number(None) if layer.tensor is None else doc.Cell(step(layer.tensor), layer.tensor.scale)


_MEASURED = f"{SQNR} Measured in the quantized network, with the errors of all layers before."
_LAYER_COLUMNS = (
    doc.figure("#", "place", ",", "The place in the network.", minor=True, on="page"),
    doc.Column(
        "Layer",
        "The node, and below it the tensor that is rounded on its account. Open it for its pictures.",
        cell=_layer_cell,
    ),
    doc.worded("Operator", "op_type", minor=True, on="page"),
    doc.figure("SQNR dB", "sqnr", decibels, _MEASURED),
    doc.figure("Clipped", "tensor.clipped", percent, "The share of values that lie beyond the largest code."),
    doc.figure(
        "Range",
        "tensor.span",
        meaning="The least and the greatest value that calibration saw.",
        text=lambda layer: extent(layer.tensor.minimum, layer.tensor.maximum),
        minor=True,
    ),
    doc.Column("Step", "The distance between two codes.", numeric=True, minor=True, cell=_step_cell),
    doc.worded("Type", "dtype", "The number format of the codes.", minor=True, on="page"),
)


def _opened(
    report: Report, layer: LayerRow, moved: Mapping[str, Sequence[str]], refined: Mapping[str, LayerReport]
) -> list[doc.Block]:
    """Return what a row opens into."""
    tensor = layer.tensor
    if tensor is None:
        return [doc.Paragraph(f"Left float: {layer.reason}.")]
    close = tensor.closeness
    facts = {
        "Tensor": tensor.name,
        "Codes": _codes(tensor),
        "Same scale as": tensor.shares,
        "Moved by rules": "; ".join(moved.get(tensor.shares or tensor.name, ())) or None,
        "PSNR, cosine": None if close is None else f"{in_decibels(close.psnr_db)}, {close.cosine:.5f}",
    }
    for each in layer.constants:
        spread = f"{extent(each.minimum, each.maximum)}, {percent(each.clipped)} clipped"
        facts[each.role.capitalize()] = f"{each.name}: {_codes(each)}, {spread}"
        facts[f"{each.role.capitalize()} moved by rules"] = "; ".join(moved.get(each.name, ())) or None
    if layer.constants and layer.node in refined:
        facts["Refined"] = _refined_layer(refined[layer.node])
    return [*_pictures(report, layer, tensor), doc.Facts(facts)]


def _pictures(report: Report, layer: LayerRow, tensor: TensorReport) -> list[doc.Block]:
    """Return the histogram of the activation, and the channels of the weights."""
    found: list[doc.Block] = []
    seen = report.pictures.distributions.get(tensor.shares or tensor.name)
    if seen is not None:
        clip = f"{percent(tensor.clipped)} of them clip" if tensor.clipped else "none of them clips"
        found.append(doc.Figure(HistogramChart(seen, f"{seen.values:,} values of the activation; {clip}.")))
    for each in layer.constants:
        sizes = report.pictures.channels.get(each.name)
        if sizes is not None:
            label = f"Largest weight of each of {sizes.channels} channels, before and after equalization: flat is good."
            found.append(doc.Figure(ChannelChart(sizes, label)))
    return found


def _codes(tensor: TensorReport) -> str:
    if tensor.scale is None or (tensor.scale == 1.0 and not tensor.position):
        return tensor.dtype
    many = "" if tensor.channels is None else f", {tensor.channels} scales, the largest"
    zero = f", zero point {tensor.zero_point}" if tensor.zero_point else ""
    return f"{tensor.dtype}{many} step {step(tensor)}{zero}"


def _refined_layer(layer: LayerReport) -> str:
    if layer.before is None or layer.after is None:
        return f"{layer.method}{f': {layer.note}' if layer.note else ''}"
    return f"{layer.method}, relative error {layer.before:.3g} to {layer.after:.3g}"
