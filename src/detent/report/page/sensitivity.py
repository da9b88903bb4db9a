"""The page of a sensitivity analysis: what each layer costs when it alone is quantized."""

from __future__ import annotations

import math
from pathlib import Path

from detent.report.page.charts import Point, bar, depth_chart
from detent.report.page.html import joined, name_of, tag
from detent.report.page.parts import Contents, Level, Section, Tile, Verdict, code
from detent.report.page.table import Cell, Column, Row, number, table, words
from detent.report.sensitivity_view import bar_length
from detent.results.searched import LayerSensitivity, Proposal, Sensitivity, SensitivityReport, decibels

ERROR = "The power of the error at the outputs over that of the signal: -20 dB is 1 %; more negative is better."

_GAIN = "By how much the whole error falls when this layer alone is left float."
_ANSWERS = "Samples with another top answer: by weights, by activations."

LEAST = 1e-6
"""Of the largest error: what is less is drawn as if it were that, because it does not matter."""


def sensitivity(report: SensitivityReport) -> Contents:
    """The whole error, where it comes from, and what to do about it."""
    found = report.found
    worst = found.worst_first()[0] if found.layers else None
    tiles = [Tile("Error, all quantized", f"{_decibels(found.total)} dB", ERROR)]
    if found.changed is not None:
        meaning = "Samples whose top answer is another than in float, with everything quantized."
        tiles.append(Tile("Other answers", f"{found.changed} of {found.samples}", meaning))
    if worst is not None:
        share = _share(found, worst.error)
        tiles.append(
            Tile("Worst layer", f"{100 * share:.0f} %", f"Of all errors alone, '{worst.node}' has this share.")
        )
    how = "" if found.exact else "--exact takes all, and measures what each layer gains if it is left float."
    tiles.append(Tile("Samples", str(found.samples), f"What the errors were measured on. {how}".rstrip()))
    if report.device is not None:
        now = report.device.after
        level: Level = "warn" if report.device.is_worse else "good"
        figure = f"{now.device_nodes} of {now.device_nodes + now.cpu_nodes}"
        tiles.append(Tile(f"Nodes on {now.target}", figure, f"With the proposed recipe: {report.device}.", level))
    sections = [_proposal(report), _along(found), _layers(found)]
    return Contents(
        "sensitivity",
        Path(report.source).name,
        [
            report.source,
            f"{report.recipe.name}, with nothing refined.",
            report.data and f"On {report.data}.",
            report.note,
        ],
        _verdict(report, worst),
        tiles,
        [section for section in sections if section is not None],
    )


def _verdict(report: SensitivityReport, worst: LayerSensitivity | None) -> Verdict:
    proposal = report.proposal
    if worst is None:
        return Verdict("plain", "Nothing to measure", "No layer is quantized.")
    if proposal is not None:
        price = report.device is not None and report.device.is_worse
        level: Level = "good" if proposal.reached and not price else "warn"
        better = "A better recipe, but less of it on the device" if price else "A better recipe"
        title = better if proposal.nodes or proposal.tensors else "Good enough as it is"
        said = f"{_promise(proposal)} {report.device}." if price else _promise(proposal)
        return Verdict(level, title if proposal.reached else "Not within reach", said)
    leading = report.found.worst_first()[:3]
    share = _share(report.found, sum(layer.error for layer in leading))
    said = f"{len(leading)} of {len(report.found.layers)} layers have {100 * share:.0f} % of all errors."
    return Verdict("plain", "Where the error comes from", said)


def _share(found: Sensitivity, part: float) -> float:
    """Of the sum of all errors; an infinite error is all of it."""
    whole = sum(layer.error for layer in found.layers)
    return 1.0 if part == math.inf else part / whole if whole else 0.0


def _promise(proposal: Proposal) -> str:
    if not proposal.nodes and not proposal.tensors:
        return f"The error is below {_decibels(proposal.wanted)} dB already: nothing needs to change."
    said = f"{_changes(proposal)}: the error is expected to fall to {_decibels(proposal.predicted)} dB"
    if proposal.way == "exclude":
        said += f", with {100 * proposal.operations:.1f} % of the products computed in float"
    return f"{said}." if proposal.reached else f"{said}; {_decibels(proposal.wanted)} dB cannot be reached this way."


def _proposal(report: SensitivityReport) -> Section | None:
    if report.proposal is None:
        return None
    meaning = f"{_changes(report.proposal)}, as a file for --recipe."
    return Section("Proposed recipe", meaning, code(report.to_toml()), count=report.proposal.recipe.name)


def _changes(proposal: Proposal) -> str:
    count = len(proposal.nodes) or len(proposal.tensors)
    return f"{count} nodes left float" if proposal.way == "exclude" else f"{count} activations with 16 bits"


def _along(found: Sensitivity) -> Section | None:
    if len(found.layers) < 2:
        return None
    lines = [_line(found, kind) for kind in ("weights", "activations")]
    meaning = f"What quantizing one thing alone does to the outputs. {ERROR}"
    chart = depth_chart(lines, "Error in dB", ("weights", "activations"))
    return Section("Errors along the network", meaning, chart, folded=False)


def _line(found: Sensitivity, kind: str) -> list[Point | None]:
    """The errors of one kind; nothing for layers that have none."""
    errors: list[float] = [getattr(layer, kind) or 0.0 for layer in found.layers]
    floor = max((error for error in errors if math.isfinite(error)), default=0.0) * LEAST
    return [
        Point(f"{layer.node}, {kind}: {decibels(error):.1f} dB", decibels(max(error, floor)), _row(found, layer))
        if error
        else None
        for layer, error in zip(found.layers, errors, strict=True)
    ]


def _row(found: Sensitivity, layer: LayerSensitivity) -> str:
    return f"layer-{found.layers.index(layer) + 1}"


def _layers(found: Sensitivity) -> Section:
    scores = any(layer.changed is not None for layer in found.layers)
    columns = [
        Column("#", "The place in the network.", numeric=True, minor=True),
        Column("Layer"),
        Column("Operator", "", minor=True),
        Column("Error", "Weights and activations together; a full bar is the largest, an empty one 30 dB less."),
        Column("Weights dB", "The error when its weights alone are quantized.", numeric=True),
        Column("Activations dB", "The error when its activations alone are quantized.", numeric=True),
        *([Column("Gain", _GAIN, numeric=True, minor=True)] if found.exact else []),
        *([Column("Other answers", _ANSWERS, minor=True)] if scores else []),
        Column("Parameters", "Numbers in its weights.", numeric=True, minor=True),
    ]
    largest = max((layer.error for layer in found.layers), default=0.0)
    rows = [Row(_cells(found, layer, largest, scores), _row(found, layer)) for layer in found.worst_first()]
    meaning = "Every quantized layer, the one that costs most first."
    return Section(
        "Layers", meaning, table(columns, rows, "layers", order=(3, False)), folded=False, count=str(len(rows))
    )


def _cells(found: Sensitivity, layer: LayerSensitivity, largest: float, scores: bool) -> list[Cell]:
    gain = None if layer.gain is None or not found.total else layer.gain / found.total
    changed = (
        []
        if not scores
        else [Cell("–") if layer.changed is None else Cell("{}, {}".format(*layer.changed), max(layer.changed))]
    )
    others = [node for node in layer.members if node != layer.node]
    below = tag("div", "with ", name_of(", ".join(others)), class_="quiet small") if others else None
    return [
        number(found.layers.index(layer) + 1),
        words(joined((name_of(layer.node), below)), layer.node),
        words(layer.op_type),
        number(layer.error, bar(bar_length(layer.error, largest))),
        number(layer.weights, _decibels(layer.weights)),
        number(layer.activations, _decibels(layer.activations)),
        *([number(gain, None if gain is None else f"{100 * gain:+.1f} %")] if found.exact else []),
        *changed,
        number(layer.parameters),
    ]


def _decibels(error: float | None) -> str:
    if error is None:
        return "–"
    value = decibels(error)
    return f"{value:.1f}" if math.isfinite(value) else "none" if value < 0 else "NaN"
