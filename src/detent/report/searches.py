"""The documents of searches: a sensitivity analysis, a search for mixed precision, and a tuning."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path

from detent.report import document as doc
from detent.report.charts import DepthChart, Estimate, IntervalChart, Point
from detent.report.figures import command, loss_words, percent, ratio, recipe_words, size, unit_of
from detent.report.losses import INTERVAL, front_section
from detent.results import searched

ERROR = "The power of the error at the outputs over that of the signal: -20 dB is 1 %; more negative is better."

SHOWN = 5  # layers that a short answer lists

# Decibels by which a proposal is to be better, if the user has not said: a quarter of the error's power.
MUCH_BETTER = 6

BAR_DECIBELS = 30.0  # an empty bar stands for an error that is this much below the largest

LEAST = 1e-6  # of the largest error: smaller errors do not matter and are drawn at this height

_WAYS: dict[searched.Way, str] = {
    "exclude": "leave float",
    "a16": "give 16 bits to",
    "w8": "give 8 bits to the weights of",
}


def sensitivity_document(report: searched.SensitivityReport) -> doc.Document:
    """Build the document of a sensitivity analysis: the whole error, its causes, and what to do about it."""
    found = report.found
    how = "" if found.exact else "; --exact takes all, and measures what each layer gains if it is left float"
    whole = f"All quantized, nothing refined: error {_decibels(found.total)} dB"
    if found.part:
        whole += f" at {found.part}, the worst part of the outputs"
    if found.changed is not None:
        whole += f", another top answer on {found.changed} of {found.samples}"
    return doc.Document(
        "sensitivity",
        Path(report.source).name,
        [f"{report.source}, {report.recipe.name}"],
        [report.data and f"On {report.data}.", report.note, f"{whole}. Measured on {found.samples} samples{how}."],
        _verdict(report),
        _figures(report),
        [_error_along(found), _layers(found), _proposal(report)],
        _closing(report),
    )


def _closing(report: searched.SensitivityReport) -> list[str]:
    """Return the causes of the error or the file of the recipe, its effect on the device, and the next command."""
    found, proposal = report.found, report.proposal
    if proposal is None:
        error = searched.decibels(found.total)
        better = f"{math.floor(error) - MUCH_BETTER}dB" if math.isfinite(error) else "-25dB"
        goal = ["--max-error", better, "--toml", "better.toml"]
        following = command("sensitivity", report.source, "--calib", "DATA", *recipe_words(report.recipe), *goal)
        return [_verdict(report).text, *([f"Next: {following}"] if found.layers else [])]
    written = f"Wrote {report.file}: {_promise(proposal)}" if report.file is not None else _promise(proposal)
    device = [] if report.device is None else [f"{report.device}."]
    changed = bool(proposal.nodes or proposal.tensors)
    recipe = ["--recipe", report.file or "RECIPE.toml"] if changed else recipe_words(report.recipe)
    return [written, *device, f"Next: {command('quantize', report.source, 'OUTPUT', '--calib', 'DATA', *recipe)}"]


def _verdict(report: searched.SensitivityReport) -> doc.Verdict:
    proposal, found = report.proposal, report.found
    if not found.layers:
        return doc.Verdict("plain", "Nothing to measure", "No layer is quantized.")
    if proposal is None:
        leading = found.worst_first()[:3]
        share = _share(found, sum(layer.error for layer in leading))
        text = f"{len(leading)} of {len(found.layers)} layers have {100 * share:.0f} % of all errors."
        return doc.Verdict("plain", "Where the error comes from", text)
    price = report.device is not None and report.device.is_worse
    better = "A better recipe, but less of it on the device" if price else "A better recipe"
    title = better if proposal.nodes or proposal.tensors else "Good enough as it is"
    text = f"{_promise(proposal)} {report.device}." if price else _promise(proposal)
    level: doc.Level = "good" if proposal.reached and not price else "warn"
    return doc.Verdict(level, title if proposal.reached else "Not within reach", text)


def _figures(report: searched.SensitivityReport) -> list[doc.KeyFigure]:
    found = report.found
    figures = [doc.KeyFigure("Error, all quantized", f"{_decibels(found.total)} dB", ERROR)]
    if found.changed is not None:
        meaning = "Samples whose top answer is another than in float, with everything quantized."
        figures.append(doc.KeyFigure("Other answers", f"{found.changed} of {found.samples}", meaning))
    if found.layers:
        worst = found.worst_first()[0]
        meaning = f"Of all errors alone, '{worst.node}' has this share."
        figures.append(doc.KeyFigure("Worst layer", f"{100 * _share(found, worst.error):.0f} %", meaning))
    how = "" if found.exact else " --exact takes all, and measures what each layer gains if it is left float."
    figures.append(doc.KeyFigure("Samples", str(found.samples), f"What the errors were measured on.{how}"))
    if report.device is not None:
        now = report.device.after
        level: doc.Level = "warn" if report.device.is_worse else "good"
        figure = f"{now.device_nodes} of {now.device_nodes + now.cpu_nodes}"
        meaning = f"With the proposed recipe: {report.device}."
        figures.append(doc.KeyFigure(f"Nodes on {now.target}", figure, meaning, level))
    return figures


def _share(found: searched.Sensitivity, part: float) -> float:
    """Return the share of the sum of all errors; an infinite error is all of it."""
    whole = sum(layer.error for layer in found.layers)
    return 1.0 if part == math.inf else part / whole if whole else 0.0


def _promise(proposal: searched.Proposal) -> str:
    if not proposal.nodes and not proposal.tensors:
        return f"The error is below {_decibels(proposal.wanted)} dB already: nothing needs to change."
    text = f"{_changes(proposal)}: the error is expected to fall to {_decibels(proposal.predicted)} dB"
    if proposal.way == "exclude":
        text += f", with {100 * proposal.operations:.1f} % of the products computed in float"
    return f"{text}." if proposal.reached else f"{text}; {_decibels(proposal.wanted)} dB cannot be reached this way."


def _changes(proposal: searched.Proposal) -> str:
    count = len(proposal.nodes) or len(proposal.tensors)
    changed = {"exclude": "nodes left float", "a16": "activations with 16 bits", "w8": "layers with 8-bit weights"}
    return f"{count} {changed[proposal.way]}"


def _proposal(report: searched.SensitivityReport) -> doc.Section | None:
    proposal = report.proposal
    if proposal is None:
        return None
    names = ", ".join((*proposal.nodes, *proposal.tensors))
    what = [doc.Paragraph(f"Proposal: {_WAYS[proposal.way]} {names}.", on="terminal", strong=True)] if names else []
    return doc.Section(
        "Proposed recipe",
        f"{_changes(proposal)}, as a file for --recipe.",
        [*what, doc.Code(report.to_toml())],
        count=proposal.recipe.name,
    )


def _error_along(found: searched.Sensitivity) -> doc.Section | None:
    if len(found.layers) < 2:
        return None
    kinds = ("weights", "activations")
    chart = DepthChart([_line(found, kind) for kind in kinds], "Error in dB", kinds)
    meaning = f"What quantizing one thing alone does to the outputs. {ERROR}"
    return doc.Section("Errors along the network", meaning, [doc.Figure(chart)], folded=False, on="page")


def _line(found: searched.Sensitivity, kind: str) -> list[Point | None]:
    """Return the errors of one kind; None for layers that have none."""
    errors: list[float] = [getattr(layer, kind) or 0.0 for layer in found.layers]
    floor = max((error for error in errors if math.isfinite(error)), default=0.0) * LEAST
    return [
        Point(
            f"{layer.node}, {kind}: {searched.decibels(error):.1f} dB",
            searched.decibels(max(error, floor)),
            f"layer-{place}",
        )
        if error
        else None
        for place, (layer, error) in enumerate(zip(found.layers, errors, strict=True), 1)
    ]


def _layers(found: searched.Sensitivity) -> doc.Section:
    scores = any(layer.changed is not None for layer in found.layers)
    largest = max((layer.error for layer in found.layers), default=0.0)
    places = {layer.node: place for place, layer in enumerate(found.layers, 1)}
    errors = "Weights and activations together; a full bar is the largest, an empty one 30 dB less."
    gain = "By how much the whole error falls if this layer alone is left float."
    answers = "Samples with another top answer: by weights, by activations."
    columns = [
        doc.figure("#", lambda layer: places[layer.node], ",", "The place in the network.", minor=True, on="page"),
        doc.Column("Layer", cell=_layer_cell),
        doc.worded("Operator", "op_type", minor=True),
        doc.Column("Error", errors, cell=lambda layer: doc.bar(layer.error, bar_length(layer.error, largest))),
        doc.figure("Weights dB", "weights", _decibels, "The error if its weights alone are quantized."),
        doc.figure("Activations dB", "activations", _decibels, "The error if its activations alone are quantized."),
        doc.figure("Gain left float", partial(_gain, found), "{:+.1f} %".format, gain, minor=True)
        if found.exact
        else None,
        doc.Column("Other answers", answers, minor=True, cell=_answers_cell) if scores else None,
        doc.worded("At", "part", "The part of the outputs where it makes most error.") if found.part else None,
        doc.figure("Parameters", "parameters", ",", "Numbers in its weights.", minor=True, on="page"),
    ]
    worst = found.worst_first()
    drawn = doc.table("layers", columns, worst, order=(3, False), shown=SHOWN)
    rows = [replace(row, id=f"layer-{places[layer.node]}") for row, layer in zip(drawn.rows, worst, strict=True)]
    meaning = "Every quantized layer, the one that costs most first."
    return doc.Section("Layers", meaning, [replace(drawn, rows=rows)], folded=False, count=str(len(rows)))


def _layer_cell(layer: searched.LayerSensitivity) -> doc.Cell:
    others = [node for node in layer.members if node != layer.node]
    return doc.name(layer.node, below=f"with {', '.join(others)}" if others else "", below_is_name=True)


def _gain(found: searched.Sensitivity, layer: searched.LayerSensitivity) -> float | None:
    return None if layer.gain is None or not found.total else 100 * layer.gain / found.total


def _answers_cell(layer: searched.LayerSensitivity) -> doc.Cell:
    return doc.Cell("-") if layer.changed is None else doc.Cell("{}, {}".format(*layer.changed), max(layer.changed))


def bar_length(error: float, largest: float) -> float:
    """Return 1 for the largest error, 0 for one that is BAR_DECIBELS below it or less."""
    if error <= 0 or largest <= 0 or not math.isfinite(largest):
        return 0.0
    return max(0.0, 1 - (searched.decibels(largest) - searched.decibels(error)) / BAR_DECIBELS)


def _decibels(error: float | None) -> str:
    return "-" if error is None else f"{searched.decibels(error):.1f}"


def precision_document(report: searched.PrecisionReport) -> doc.Document:
    """Build the document of a search for mixed precision: each layer's format, what it costs, and what it saves."""
    found = report.found
    return doc.Document(
        "mixed precision",
        Path(report.source).name,
        [f"{report.source}, {report.base.name}: the format of each layer's {found.what}"],
        (),
        doc.Verdict("good" if found.reached else "warn", "Reached" if found.reached else "Not reached", _saved(report)),
        [
            doc.KeyFigure("Error", f"{_decibels(found.error)} dB", ERROR),
            doc.KeyFigure("Bits", f"{found.mean_bits:.2f}", f"On average, for each number of the {found.what}."),
        ],
        [
            _formats(report),
            _whole(report),
            doc.recipe_section(report.recipe, "As a file for --recipe."),
        ],
        _precision_closing(report),
    )


def _precision_closing(report: searched.PrecisionReport) -> list[str]:
    written = "" if report.file is None else f"Wrote {report.file}. "
    found = f"Error {_decibels(report.found.error)} dB with {report.found.mean_bits:.2f} bits on average."
    following = ("quantize", report.source, "OUTPUT", "--calib", "DATA", "--recipe", report.file or "RECIPE.toml")
    return [f"{written}{_saved(report)}", f"{found} Next: {command(*following)}"]


def _formats(report: searched.PrecisionReport) -> doc.Section:
    numbers = "How many have this format; of an activation, for one sample."
    alone = "The error if nothing else is quantized."
    columns = [
        doc.named("Layer" if report.found.what == "weights" else "Activation", itemgetter(0)),
        doc.worded("Format", lambda each: each[1].format.label),
        doc.figure("Numbers", lambda each: each[1].numbers, ",", numbers),
        doc.figure("Error alone dB", lambda each: searched.decibels(each[1].error), ".1f", alone),
    ]
    choice = report.found.choice
    rows = doc.table("formats", columns, choice.items(), shown=SHOWN)
    return doc.Section("Formats", "The format that each one gets.", [rows], folded=False, count=str(len(choice)))


def _whole(report: searched.PrecisionReport) -> doc.Section:
    found = report.found
    counts = Counter(option.format.label for option in found.choice.values())
    mixed = "mixed: " + ", ".join(f"{count} {label}" for label, count in sorted(counts.items()))
    choices = [
        *((f"all {fmt.label}", fmt.bits, report.numbers * fmt.bits, error) for fmt, error in found.uniform_errors()),
        (mixed, found.mean_bits, report.bits, found.error),
    ]
    columns = [
        doc.worded("Whole model", itemgetter(0)),
        doc.figure("Bits", itemgetter(1), lambda bits: f"{bits:.2f}" if isinstance(bits, float) else str(bits)),
        doc.figure("Size", itemgetter(2), lambda bits: size(bits / 8)),
        doc.figure("Error dB", lambda each: searched.decibels(each[3]), ".1f", ERROR),
    ]
    missed = [] if found.reached or report.max_error is None else [doc.Paragraph(_missed(report), "warn")]
    blocks: list[doc.Block] = [
        doc.Paragraph("", on="terminal"),
        doc.table("choices", columns, choices),
        doc.Paragraph(_saved(report), on="page"),
        *missed,
        doc.Paragraph(f"Measured on {found.samples} samples, nothing refined.", quiet=True),
    ]
    return doc.Section("Whole model", "The choice beside one format throughout.", blocks, folded=False)


def _saved(report: searched.PrecisionReport) -> str:
    """Say how much smaller or larger the result is than with the recipe that the search began with."""
    what = report.found.what.capitalize()
    difference = report.bits_before - report.bits
    if not difference:
        return f"{what} take as much as with {report.base.name}."
    share = 100 * abs(difference) / report.bits_before
    less = "less" if difference > 0 else "more"
    return f"{what} take {size(abs(difference) / 8)} {less} than with {report.base.name} ({share:.1f} %)."


def _missed(report: searched.PrecisionReport) -> str:
    formats = ", ".join(fmt.label for fmt, _ in report.found.uniform_errors())
    return (
        f"{_decibels(report.max_error)} dB cannot be reached by choosing from {formats}: the best is "
        f"{_decibels(report.found.error)} dB. The rest comes from what keeps its format; offer finer ones, or "
        "see `detent sensitivity`."
    )


def tuning_document(result: searched.Tuning) -> doc.Document:
    """Build the document of a tuning: the verdict, the steps that were tried, and the recipe that was taken."""
    outcome = result.outcome
    level: doc.Level = "good" if result.met else "warn"
    within = f"{'within' if result.met else 'above'} the {result.max_drop:g} asked for"
    remarks = list(_tuning_remarks(result))
    verdict = " ".join([f"'{outcome.name}' loses {_step_loss(outcome)}, {within}.", *remarks])
    destination = f"{result.source} -> {result.output or 'kept in memory'}"
    judged = f"Judged on {result.data}; the float model: {result.reference}."
    lines = [judged, result.note, result.blame, *remarks]
    if result.kept is not None:
        lines.append(f"The steps are kept in {result.kept}: with a longer --budget the same command goes on.")
    stopped = doc.Paragraph(f"\nStopped because {result.stopped}.", level)
    blocks = [stopped, *(doc.Paragraph(line) for line in lines if line)]
    return doc.Document(
        "tuning",
        Path(result.source).name,
        (),
        (),
        doc.Verdict(level, "Reached" if result.met else "Not reached", verdict),
        _tuning_figures(result, level),
        [
            # The steps were printed as they were tried: a terminal only needs the end.
            doc.Section("Result", blocks=blocks, on="terminal"),
            doc.Section(
                "About",
                blocks=[doc.Paragraph(line) for line in (destination, judged, result.note) if line],
                folded=False,
                on="page",
            ),
            _tuning_chart(result),
            _tuning_front(result),
            _tuning_steps(result),
            doc.recipe_section(result.recipe, "The one that was taken, as a file for --recipe."),
        ],
        _tuning_closing(result, f"{result.taken} loses {_step_loss(outcome)}, {within}."),
    )


def _tuning_closing(result: searched.Tuning, cost: str) -> list[str]:
    files = " and ".join(file for file in (result.output, result.file) if file)
    written = f"Wrote {files}" if files else "The quantized model is in memory"
    following = command("check", result.output or "OUTPUT")
    if not result.met:
        following = command("sensitivity", result.source, "--calib", "DATA", "--recipe", result.file or "RECIPE")
    return [f"{written}, in {result.seconds:.0f} s.", f"{cost} Next: {following}"]


def _tuning_remarks(result: searched.Tuning) -> list[str]:
    ends = result.outcome.interval
    if not result.met:
        activations = result.recipe.activations
        finer = "" if activations is None or activations.bits >= 16 else ", or --recipe A16W8, which has finer numbers"
        return [f"Try more calibration images, a longer --budget{finer}."]
    if ends is None or ends[1] <= result.max_drop:
        return []
    chance = f"{result.samples} samples leave room for chance: up to {ends[1]:.2g} would not be a surprise."
    return [f"{chance} More evaluation data would tell."]


def step_line(outcome: searched.StepOutcome) -> str:
    """Return one line for a step that was tried: what it lost, and in what time."""
    took = "known from before" if outcome.resumed else f"{outcome.seconds:.0f} s"
    mark = "+" if outcome.kept else "-"
    return f"{mark} {outcome.name:<16} {_step_loss(outcome):<44} {took:>7}   {outcome.what}"


def _step_loss(outcome: searched.StepOutcome) -> str:
    loss, ends = loss_words(outcome.unit, outcome.loss, outcome.interval)
    return f"{loss} {unit_of(outcome.unit)}" + (f" ({ends.replace(' .. ', ' to ')})" if ends else "")


def _tuning_figures(result: searched.Tuning, level: doc.Level) -> list[doc.KeyFigure]:
    outcome = result.outcome
    loss, ends = loss_words(outcome.unit, outcome.loss, outcome.interval)
    meaning = f"In {unit_of(outcome.unit)}, against the float model.{ends and f' {INTERVAL} {ends}.'}"
    figures = [doc.KeyFigure("Loss", loss, meaning, level)]
    if outcome.bytes_after is not None:
        before = result.bytes_before
        meaning = "" if before is None else f"{size(before)} before, {ratio(before, outcome.bytes_after)}."
        figures.append(doc.KeyFigure("Size", size(outcome.bytes_after), meaning))
    figures.append(doc.KeyFigure("Steps tried", str(len(result.steps)), f"Stopped because {result.stopped}."))
    judged = f"Every step was judged on {result.samples} samples."
    return [*figures, doc.KeyFigure("Time", f"{result.seconds:.0f} s", judged)]


def _tuning_chart(result: searched.Tuning) -> doc.Section:
    losses = [Estimate(step.name, step.loss, step.interval, step.name == result.taken) for step in result.steps]
    meaning = (
        "Each way to quantize that was tried, in order: a dot for its loss, a line for the 95 % interval. The one that "
        "was taken is filled."
    )
    chart = IntervalChart(losses, result.max_drop, unit_of(result.outcome.unit))
    return doc.Section("Losses", meaning, [doc.Figure(chart)], folded=False, on="page")


def _tuning_front(result: searched.Tuning) -> doc.Section | None:
    steps = [
        Estimate(step.name, step.loss, step.interval, step.name == result.taken, step.bytes_after / 1e6)
        for step in result.steps
        if step.bytes_after is not None and step.unit == result.outcome.unit
    ]
    return front_section([("MB", steps)], unit_of(result.outcome.unit))


def _tuning_steps(result: searched.Tuning) -> doc.Section:
    places = {id(step): place for place, step in enumerate(result.steps, 1)}

    def words(step: searched.StepOutcome) -> tuple[str, str]:
        return loss_words(step.unit, step.loss, step.interval)

    def low(step: searched.StepOutcome) -> float | None:
        return None if step.interval is None else step.interval[0]

    def seconds(step: searched.StepOutcome) -> str:
        return "known" if step.resumed else f"{step.seconds:.1f}"

    def state(step: searched.StepOutcome) -> str:
        return "taken" if step.name == result.taken else "better than below" if step.kept else "no better"

    loss = f"In {unit_of(result.outcome.unit)}, against the float model."
    lies = "Where the loss on all possible samples lies."
    error = "Noise power over signal power on calibration samples held out."
    what = "The way to quantize, and what it does."
    columns = [
        doc.figure("#", lambda step: places[id(step)], ",", "The order of trying.", minor=True),
        doc.Column("Step", what, cell=lambda step: doc.words(step.name, step.what)),
        doc.figure("Loss", "loss", meaning=loss, text=lambda step: words(step)[0]),
        doc.figure(INTERVAL, low, meaning=lies, text=lambda step: words(step)[1]),
        doc.figure("Output error", "output_error", percent, error, minor=True),
        doc.figure("Seconds", "seconds", meaning="To quantize and to judge.", minor=True, text=seconds),
        doc.figure("Size", "bytes_after", size, minor=True),
        doc.worded("", state, minor=True),
    ]
    steps = doc.table("steps", columns, result.steps)
    return doc.Section("Steps", "The same as numbers.", [steps], folded=False, count=str(len(result.steps)), on="page")
