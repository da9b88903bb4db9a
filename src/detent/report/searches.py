"""The documents of a sensitivity analysis and of a search for mixed precision."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from detent.report.charts import DepthChart, Point
from detent.report.document import (
    Block,
    Cell,
    Code,
    Column,
    Document,
    Figure,
    KeyFigure,
    Level,
    Paragraph,
    Row,
    Section,
    Table,
    Verdict,
    bar,
    name,
    number,
    numeric,
    words,
)
from detent.report.figures import command, recipe_words, size
from detent.results.searched import (
    LayerSensitivity,
    PrecisionReport,
    Proposal,
    Sensitivity,
    SensitivityReport,
    Way,
    decibels,
)

ERROR = "The power of the error at the outputs over that of the signal: -20 dB is 1 %; more negative is better."

SHOWN = 5
"""Layers that a short answer lists."""

MUCH_BETTER = 6
"""Decibels by which a proposal is to be better, if the user has not said: a quarter of the error's power."""

BAR_DECIBELS = 30.0
"""An empty bar stands for an error that is this much below the largest."""

LEAST = 1e-6
"""Of the largest error: what is less is drawn as if it were that, because it does not matter."""

_WAYS: dict[Way, str] = {
    "exclude": "leave float",
    "a16": "give 16 bits to",
    "w8": "give 8 bits to the weights of",
}


def sensitivity_document(report: SensitivityReport) -> Document:
    """Build the document of a sensitivity analysis: the whole error, where it comes from, and what to do about it."""
    found = report.found
    how = "" if found.exact else "; --exact takes all, and measures what each layer gains if it is left float"
    whole = f"All quantized, nothing refined: error {_decibels(found.total)} dB"
    if found.part:
        whole += f" at {found.part}, the worst part of the outputs"
    if found.changed is not None:
        whole += f", another top answer on {found.changed} of {found.samples}"
    return Document(
        "sensitivity",
        Path(report.source).name,
        [f"{report.source}, {report.recipe.name}"],
        [report.data and f"On {report.data}.", report.note, f"{whole}. Measured on {found.samples} samples{how}."],
        _verdict(report),
        _figures(report),
        [_error_along(found), _layers(found), _proposal(report)],
        _closing(report),
    )


def _closing(report: SensitivityReport) -> list[str]:
    """Say where the error comes from or where the recipe is, what the device makes of it, and what to type next."""
    found, proposal = report.found, report.proposal
    if proposal is None:
        error = decibels(found.total)
        better = f"{math.floor(error) - MUCH_BETTER}dB" if math.isfinite(error) else "-25dB"
        goal = ["--max-error", better, "--toml", "better.toml"]
        following = command("sensitivity", report.source, "--calib", "DATA", *recipe_words(report.recipe), *goal)
        return [_verdict(report).text, *([f"Next: {following}"] if found.layers else [])]
    written = f"Wrote {report.file}: {_promise(proposal)}" if report.file is not None else _promise(proposal)
    device = [] if report.device is None else [f"{report.device}."]
    changed = bool(proposal.nodes or proposal.tensors)
    recipe = ["--recipe", report.file or "RECIPE.toml"] if changed else recipe_words(report.recipe)
    return [written, *device, f"Next: {command('quantize', report.source, 'OUTPUT', '--calib', 'DATA', *recipe)}"]


def _verdict(report: SensitivityReport) -> Verdict:
    proposal, found = report.proposal, report.found
    if not found.layers:
        return Verdict("plain", "Nothing to measure", "No layer is quantized.")
    if proposal is None:
        leading = found.worst_first()[:3]
        share = _share(found, sum(layer.error for layer in leading))
        text = f"{len(leading)} of {len(found.layers)} layers have {100 * share:.0f} % of all errors."
        return Verdict("plain", "Where the error comes from", text)
    price = report.device is not None and report.device.is_worse
    better = "A better recipe, but less of it on the device" if price else "A better recipe"
    title = better if proposal.nodes or proposal.tensors else "Good enough as it is"
    text = f"{_promise(proposal)} {report.device}." if price else _promise(proposal)
    level: Level = "good" if proposal.reached and not price else "warn"
    return Verdict(level, title if proposal.reached else "Not within reach", text)


def _figures(report: SensitivityReport) -> list[KeyFigure]:
    found = report.found
    figures = [KeyFigure("Error, all quantized", f"{_decibels(found.total)} dB", ERROR)]
    if found.changed is not None:
        meaning = "Samples whose top answer is another than in float, with everything quantized."
        figures.append(KeyFigure("Other answers", f"{found.changed} of {found.samples}", meaning))
    if found.layers:
        worst = found.worst_first()[0]
        meaning = f"Of all errors alone, '{worst.node}' has this share."
        figures.append(KeyFigure("Worst layer", f"{100 * _share(found, worst.error):.0f} %", meaning))
    how = "" if found.exact else " --exact takes all, and measures what each layer gains if it is left float."
    figures.append(KeyFigure("Samples", str(found.samples), f"What the errors were measured on.{how}"))
    if report.device is not None:
        now = report.device.after
        level: Level = "warn" if report.device.is_worse else "good"
        figure = f"{now.device_nodes} of {now.device_nodes + now.cpu_nodes}"
        meaning = f"With the proposed recipe: {report.device}."
        figures.append(KeyFigure(f"Nodes on {now.target}", figure, meaning, level))
    return figures


def _share(found: Sensitivity, part: float) -> float:
    """Return the share of the sum of all errors; an infinite error is all of it."""
    whole = sum(layer.error for layer in found.layers)
    return 1.0 if part == math.inf else part / whole if whole else 0.0


def _promise(proposal: Proposal) -> str:
    if not proposal.nodes and not proposal.tensors:
        return f"The error is below {_decibels(proposal.wanted)} dB already: nothing needs to change."
    text = f"{_changes(proposal)}: the error is expected to fall to {_decibels(proposal.predicted)} dB"
    if proposal.way == "exclude":
        text += f", with {100 * proposal.operations:.1f} % of the products computed in float"
    return f"{text}." if proposal.reached else f"{text}; {_decibels(proposal.wanted)} dB cannot be reached this way."


def _changes(proposal: Proposal) -> str:
    count = len(proposal.nodes) or len(proposal.tensors)
    changed = {"exclude": "nodes left float", "a16": "activations with 16 bits", "w8": "layers with 8-bit weights"}
    return f"{count} {changed[proposal.way]}"


def _proposal(report: SensitivityReport) -> Section | None:
    proposal = report.proposal
    if proposal is None:
        return None
    names = ", ".join((*proposal.nodes, *proposal.tensors))
    what = [Paragraph(f"Proposal: {_WAYS[proposal.way]} {names}.", on="terminal", strong=True)] if names else []
    return Section(
        "Proposed recipe",
        f"{_changes(proposal)}, as a file for --recipe.",
        [
            *what,
            Code(report.to_toml()),
        ],
        count=proposal.recipe.name,
    )


def _error_along(found: Sensitivity) -> Section | None:
    if len(found.layers) < 2:
        return None
    chart = DepthChart(
        [_line(found, kind) for kind in ("weights", "activations")], "Error in dB", ("weights", "activations")
    )
    meaning = f"What quantizing one thing alone does to the outputs. {ERROR}"
    return Section("Errors along the network", meaning, [Figure(chart)], folded=False, on="page")


def _line(found: Sensitivity, kind: str) -> list[Point | None]:
    """Return the errors of one kind; None for layers that have none."""
    errors: list[float] = [getattr(layer, kind) or 0.0 for layer in found.layers]
    floor = max((error for error in errors if math.isfinite(error)), default=0.0) * LEAST
    return [
        Point(f"{layer.node}, {kind}: {decibels(error):.1f} dB", decibels(max(error, floor)), f"layer-{place}")
        if error
        else None
        for place, (layer, error) in enumerate(zip(found.layers, errors, strict=True), 1)
    ]


def _layers(found: Sensitivity) -> Section:
    scores = any(layer.changed is not None for layer in found.layers)
    gain = "By how much the whole error falls if this layer alone is left float."
    answers = "Samples with another top answer: by weights, by activations."
    columns = [
        numeric("#", "The place in the network.", minor=True, on="page"),
        Column("Layer"),
        Column("Operator", minor=True),
        Column("Error", "Weights and activations together; a full bar is the largest, an empty one 30 dB less."),
        numeric("Weights dB", "The error if its weights alone are quantized."),
        numeric("Activations dB", "The error if its activations alone are quantized."),
        *([numeric("Gain left float", gain, minor=True)] if found.exact else []),
        *([Column("Other answers", answers, minor=True)] if scores else []),
        *([Column("At", "The part of the outputs where it makes most error.")] if found.part else []),
        numeric("Parameters", "Numbers in its weights.", minor=True, on="page"),
    ]
    largest = max((layer.error for layer in found.layers), default=0.0)
    places = {layer.node: place for place, layer in enumerate(found.layers, 1)}
    rows = [
        Row(_cells(found, layer, places[layer.node], largest, scores), f"layer-{places[layer.node]}")
        for layer in found.worst_first()
    ]
    table = Table(columns, rows, "layers", (3, False), SHOWN)
    meaning = "Every quantized layer, the one that costs most first."
    return Section("Layers", meaning, [table], folded=False, count=str(len(rows)))


def _cells(found: Sensitivity, layer: LayerSensitivity, place: int, largest: float, scores: bool) -> list[Cell]:
    gain = None if layer.gain is None or not found.total else layer.gain / found.total
    others = [node for node in layer.members if node != layer.node]
    changed = Cell("-") if layer.changed is None else Cell("{}, {}".format(*layer.changed), max(layer.changed))
    return [
        number(place),
        name(layer.node, below=f"with {', '.join(others)}" if others else "", below_is_name=True),
        words(layer.op_type),
        bar(layer.error, bar_length(layer.error, largest)),
        number(layer.weights, _decibels(layer.weights)),
        number(layer.activations, _decibels(layer.activations)),
        *([number(gain, None if gain is None else f"{100 * gain:+.1f} %")] if found.exact else []),
        *([changed] if scores else []),
        *([words(layer.part)] if found.part else []),
        number(layer.parameters),
    ]


def bar_length(error: float, largest: float) -> float:
    """Return 1 for the largest error, 0 for one that is BAR_DECIBELS below it or less."""
    if error <= 0 or largest <= 0 or not math.isfinite(largest):
        return 0.0
    return max(0.0, 1 - (decibels(largest) - decibels(error)) / BAR_DECIBELS)


def _decibels(error: float | None) -> str:
    return "-" if error is None else f"{decibels(error):.1f}"


def precision_document(report: PrecisionReport) -> Document:
    """Build the document of a search for mixed precision: each layer's format, what it costs, and what it saves."""
    found = report.found
    return Document(
        "mixed precision",
        Path(report.source).name,
        [f"{report.source}, {report.base.name}: the format of each layer's {found.what}"],
        (),
        Verdict("good" if found.reached else "warn", "Reached" if found.reached else "Not reached", _saved(report)),
        [
            KeyFigure("Error", f"{_decibels(found.error)} dB", ERROR),
            KeyFigure("Bits", f"{found.mean_bits:.2f}", f"On average, for each number of the {found.what}."),
        ],
        [
            _formats(report),
            _whole(report),
            Section("Recipe", "As a file for --recipe.", [Code(report.to_toml())], count=report.recipe.name, on="page"),
        ],
        _precision_closing(report),
    )


def _precision_closing(report: PrecisionReport) -> list[str]:
    written = "" if report.file is None else f"Wrote {report.file}. "
    found = f"Error {_decibels(report.found.error)} dB with {report.found.mean_bits:.2f} bits on average."
    following = ("quantize", report.source, "OUTPUT", "--calib", "DATA", "--recipe", report.file or "RECIPE.toml")
    return [f"{written}{_saved(report)}", f"{found} Next: {command(*following)}"]


def _formats(report: PrecisionReport) -> Section:
    columns = [
        Column("Layer" if report.found.what == "weights" else "Activation"),
        Column("Format"),
        numeric("Numbers", "How many have this format; of an activation, for one sample."),
        numeric("Error alone dB", "The error if nothing else is quantized."),
    ]
    rows = [
        Row([name(slot), words(option.format.label), number(option.numbers), _error_cell(option.error)])
        for slot, option in report.found.choice.items()
    ]
    meaning = "The format that each one gets."
    table = Table(columns, rows, "formats", shown=SHOWN)
    return Section("Formats", meaning, [table], folded=False, count=str(len(rows)))


def _error_cell(error: float) -> Cell:
    return number(decibels(error), _decibels(error))


def _whole(report: PrecisionReport) -> Section:
    found = report.found
    columns = [Column("Whole model"), numeric("Bits"), numeric("Size"), numeric("Error dB", ERROR)]
    rows = [
        Row([words(f"all {fmt.label}"), number(fmt.bits), _bits_cell(report.numbers * fmt.bits), _error_cell(error)])
        for fmt, error in found.uniform_errors()
    ]
    counts = Counter(option.format.label for option in found.choice.values())
    mixed = "mixed: " + ", ".join(f"{count} {label}" for label, count in sorted(counts.items()))
    bits = number(found.mean_bits, f"{found.mean_bits:.2f}")
    rows.append(Row([words(mixed), bits, _bits_cell(report.bits), _error_cell(found.error)]))
    blocks: list[Block] = [
        Paragraph("", on="terminal"),
        Table(columns, rows, "choices"),
        Paragraph(_saved(report), on="page"),
    ]
    if not found.reached and report.max_error is not None:
        blocks.append(Paragraph(_missed(report, report.max_error), "warn"))
    blocks.append(Paragraph(f"Measured on {found.samples} samples, nothing refined.", quiet=True))
    meaning = "The choice beside one format throughout."
    return Section("Whole model", meaning, blocks, folded=False)


def _bits_cell(bits: int) -> Cell:
    return number(bits, size(bits / 8))


def _saved(report: PrecisionReport) -> str:
    """Say how much smaller or larger the result is than with the recipe that the search began with."""
    what = report.found.what.capitalize()
    difference = report.bits_before - report.bits
    if not difference:
        return f"{what} take as much as with {report.base.name}."
    share = 100 * abs(difference) / report.bits_before
    less = "less" if difference > 0 else "more"
    return f"{what} take {size(abs(difference) / 8)} {less} than with {report.base.name} ({share:.1f} %)."


def _missed(report: PrecisionReport, wanted: float) -> str:
    formats = ", ".join(fmt.label for fmt, _ in report.found.uniform_errors())
    return (
        f"{_decibels(wanted)} dB cannot be reached by choosing from {formats}: the best is "
        f"{_decibels(report.found.error)} dB. The rest comes from what keeps its format; offer finer ones, or "
        "see `detent sensitivity`."
    )
