"""The document of a quantization."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from detent.devices.catalog import device_of
from detent.equalize.absorb import Absorption
from detent.equalize.equalize import Equalization
from detent.equalize.input_channels import Smoothing
from detent.errors import listed
from detent.prepare import FixBatch, FixShapes
from detent.refine.ranges import RULE as RANGES
from detent.report import document as doc
from detent.report.figures import SQNR, command, decibels, in_decibels, ratio, recipe_words, size
from detent.report.layer_table import error_along, layer_section, layers_of
from detent.report.listings import device_figure, device_notes, device_section
from detent.report.network_view import network_section
from detent.results.checked import summary
from detent.results.paired import in_percent, interval_text, wilson_interval
from detent.results.quantized import Report
from detent.results.tensors import Closeness, Fidelity, in_integers, kind_of_samples
from detent.results.verdict import helpful_trials, refinement_to_try

# Why a scale was moved, by the name of the rule.
RULES = {
    "align": "What is joined, pooled, padded or sliced has one scale for its inputs and its output.",
    "pool": "The input and the result of an average pool have one scale: that which costs least at the outputs.",
    "shift read": "The inputs of an Add or Sub are at most 7 positions apart.",
    "shift write": "A sum or product is shifted to its output by as much as the device can.",
    "shift cut": "The product of input and weight is shifted to the output by 0 to 16 bits.",
    "shift bias": "The bias is shifted to the unit of the products by as much as the device can.",
    "shift swish": "x times HardSigmoid(x) is shifted to its output by 0 to 15 bits.",
    "hard sigmoid": "The device's HardSigmoid has limits for the positions of its input and output.",
    "zero throughout": "A tensor of zeros takes the scale of its neighbours, so that it moves none of them.",
    "room for the bias": "With a finer weight the 32-bit bias would overflow.",
    RANGES: "Another scale brings the output of the network closer to float.",
}

LISTED = 6  # operators that a short answer names

_LEVELS: dict[str, doc.Level] = {
    "close": "good",
    "unclear": "plain",
    "worse": "warn",
    "broken": "bad",
    "unknown": "warn",
}


def quantization_document(report: Report) -> doc.Document:
    destination = report.output or ("nothing written (dry run)" if report.dry_run else "in memory")
    sizes = size(report.bytes_before)
    if report.bytes_after is not None:
        sizes += f" -> {size(report.bytes_after)} ({ratio(report.bytes_before, report.bytes_after)})"
    layers = layers_of(report)
    return doc.Document(
        "quantization",
        Path(report.source).name,
        [f"{report.source} -> {destination}", f"{report.recipe.name} for {device_of(report.recipe).name}, {sizes}"],
        [
            report.recipe_reason,
            *_about_data(report),
            *_about_batch(report),
            *_about_postprocessing(report),
            _reading(report, guessed=False),
        ],
        _verdict(report),
        _figures(report),
        [
            _what_to_know(report),
            error_along(layers, [] if report.fidelity is None else list(report.fidelity.outputs)),
            network_section(report, layers),
            _operators(report),
            _preparation(report),
            _rescaling(report),
            _wide(report),
            _moves(report),
            _refinement(report),
            _outputs(report),
            layer_section(report, layers),
            _left_float(report),
            None if report.device is None else device_section(report.device),
            doc.recipe_section(report.recipe, "All settings of this run, as a file for --recipe."),
            _seconds(report),
        ],
        closing_lines(report),
    )


def closing_lines(report: Report) -> list[str]:
    """Say in three lines what was written, whether the device takes it, and what it cost with what to do next."""
    if report.dry_run:
        return ["Nothing was computed or written: a dry run.", "Next: the same without --dry-run."]
    written = "The quantized model is in memory" if report.output is None else f"Wrote {report.output}"
    sizes = "" if report.bytes_after is None else f": {size(report.bytes_after)}, {report.recipe.name}"
    device = f"No device is known for {report.recipe.name}." if report.device is None else summary(report.device)
    return [f"{written}{sizes}.", device, f"{_cost(report)} {_next(report)}"]


def _cost(report: Report) -> str:
    """Say what quantizing cost, without repeating a warning."""
    verdict, judgement = _verdict(report), report.judgement
    repeated = judgement is None or judgement.level == "unknown" or verdict.title != judgement.title
    reason = "" if repeated or judgement is None else judgement.reason
    return f"{verdict.title}{f': {reason}' if reason else ''}."


def _next(report: Report) -> str:
    """Return what to do next: never what was just done."""
    judgement = report.judgement
    calibration = report.calibration
    if judgement is None or (calibration is not None and calibration.random):
        return "Next: the same with real, varied data (--calib)."
    if calibration is not None and calibration.findings:
        return "Next: mend the data first, as the warning about it says."
    flags = [] if calibration is None else calibration.flags
    if judgement.level not in ("close", "unclear"):
        return _improvement(report, flags)
    if report.device is not None and report.device.verdict == "rejected":
        return "Next: the fix that the first warning above names."
    tail = [] if report.cut is None else ["--tail", report.cut.tail or "TAIL"]
    rounding = report.recipe.emulated  # to judge as the device rounds
    words = [*flags, *tail, *([] if rounding is None else ["--emulate", rounding])]
    return f"Next: {command('evaluate', report.source, report.output or 'OUTPUT', '--data', 'LABELLED', *words)}"


def _improvement(report: Report, flags: Sequence[str]) -> str:
    """Return what to try next for a result that is worse than float."""
    helpful, tried = helpful_trials(report), {trial.options for trial in report.trials}
    if helpful:
        return f"Next: the same with {helpful[0].options}"
    refinement = refinement_to_try(report.recipe)
    data = None if report.calibration is None else report.calibration.path
    words = ["--calib", data or "DATA", *flags, *recipe_words(report.recipe)]
    if refinement is not None and f"--refine {refinement}" not in tried:  # not measured, so not promised
        return f"Next: {command('tune', report.source, report.output or 'OUTPUT', *words)}"
    return f"Next: {command('sensitivity', report.source, *words)}"


def _about_data(report: Report) -> list[str]:
    calibration = report.calibration
    if calibration is None:
        return []
    if not report.dry_run and not calibration.samples:
        done = f"Not calibrated: this recipe needs no statistics. Measured on {calibration.source}."
    else:
        verb = "Would calibrate" if report.dry_run else "Calibrated"
        done = f"{verb} on {calibration.source}, method {type(report.recipe.method).__name__}."
    return [done, _reading(report, guessed=True)]


def _reading(report: Report, *, guessed: bool) -> str:
    """Say how images were read, if that was guessed or not: a guess is shown early, because users are to check it."""
    note = "" if report.calibration is None else report.calibration.note
    return note if note.startswith("Guessed") == guessed else ""


def _about_batch(report: Report) -> list[str]:
    """Say that an open batch, or another open size, was fixed."""
    sizes, batches = (
        [change for change in report.changes if change.by == step.__name__ and change.node != "model"]
        for step in (FixShapes, FixBatch)
    )
    lines = []
    if sizes:
        named = listed([f"'{change.node}' {change.what}" for change in sizes], LISTED)
        lines.append(f"Input {named}: an NPU is programmed for one shape (--fix-shape none leaves it open).")
    if batches:
        inputs = listed([f"'{change.node}'" for change in batches], LISTED)
        why = "an NPU computes one sample at a time (--keep-batch leaves it open)"
        lines.append(f"Batch of {inputs} fixed to 1: {why}.")
    return lines


def _about_postprocessing(report: Report) -> list[str]:
    tail = report.postprocessing
    if tail is None:
        return []
    ends = f"'{tail.starts[0]}'" + (f" and {len(tail.starts) - 1} more values" if len(tail.starts) > 1 else "")
    lines = [f"Left float from {ends} on: {len(tail.nodes)} nodes, {tail.reason}."]
    if report.cut is not None:
        file = report.cut.tail or "a model of its own"
        whole = device_of(report.recipe).all_or_nothing
        why = f" ({report.recipe.target} rejects models with a float tail)" if whole else ""
        lines.append(f"Cut there{why}: the rest is {file}, which takes {len(report.cut.between)} tensors.")
    return lines


def _verdict(report: Report) -> doc.Verdict:
    """Say how good the result is, as far as that is known."""
    fidelity = report.fidelity
    if report.dry_run:
        return doc.Verdict("plain", "Dry run", "Only what needs no data was decided; nothing was computed or written.")
    if fidelity is None:
        return doc.Verdict("plain", "Not measured", "There was no data to run the float and the quantized model on.")
    judgement = report.judgement
    assert judgement is not None, "there are figures"
    if report.calibration is not None and report.calibration.random:
        return doc.Verdict("warn", "Not real data", "Random numbers were used instead of data: no figure here is real.")
    kind = kind_of_samples(fidelity, in_sample=report.in_sample) + (", which flatter it" if report.in_sample else "")
    kind += in_integers(fidelity.emulated)
    level = _LEVELS[judgement.level]
    if judgement.level == "unknown":
        return doc.Verdict(level, judgement.title, f"{judgement.reason}.")
    if judgement.reason:
        hint = " More samples, or `detent evaluate` on labelled ones, can tell." if level == "plain" else ""
        return doc.Verdict(level, judgement.title, f"On {kind}: {judgement.reason}.{hint}")
    return doc.Verdict(level, judgement.title, f"Measured on {kind}.")


def _figures(report: Report) -> list[doc.KeyFigure]:
    fidelity, figures = report.fidelity, []
    if fidelity is not None and fidelity.same_top1 is not None:
        ends = interval_text(in_percent(wilson_interval(fidelity.same_top1, fidelity.samples)), ".0f")
        meaning = f"Samples whose largest class score is that of the float model; 95 % interval {ends} %."
        same = f"{fidelity.same_top1} of {fidelity.samples}"
        assert report.judgement is not None, "there are figures"
        figures.append(doc.KeyFigure("Same top-1 as float", same, meaning, _LEVELS[report.judgement.level]))
    if fidelity is not None and fidelity.outputs:
        of, worst = worst_output(fidelity)
        figures.append(doc.KeyFigure("Output SQNR", in_decibels(worst.sqnr_db), f"{of and f'Of {of}. '}{SQNR}"))
    if report.bytes_after is None:
        figures.append(doc.KeyFigure("Size", size(report.bytes_before), "Of the float model's file, with its data."))
    else:
        meaning = f"{size(report.bytes_before)} before, {ratio(report.bytes_before, report.bytes_after)}."
        figures.append(doc.KeyFigure("Size", size(report.bytes_after), meaning))
    quantized = sum(node.quantized for node in report.nodes)
    others = "The others stay" if quantized < len(report.nodes) else "None stays"
    count = f"{quantized} of {len(report.nodes)}"
    figures.append(doc.KeyFigure("Nodes quantized", count, f"{others} in float."))
    if report.device is not None:
        figures.append(device_figure(report.device))
    return figures


def worst_output(fidelity: Fidelity) -> tuple[str, Closeness]:
    """Return the output, or the part of one, that is furthest from float. A single output needs no name."""
    output, worst = min(fidelity.outputs.items(), key=lambda item: item[1].sqnr_db)
    of = f"'{output}', the worst of {len(fidelity.outputs)} outputs" if len(fidelity.outputs) > 1 else ""
    parts = [(part.closeness.sqnr_db, name, part) for name, several in fidelity.parts.items() for part in several]
    if not parts:
        return of, worst
    _, output, part = min(parts, key=itemgetter(0))
    return f"'{part.label}' in '{output}', the worst part of any output", part.closeness


def _what_to_know(report: Report) -> doc.Section | None:
    """List errors, warnings and suggestions; the section about the device has its findings node by node."""
    on_device = [] if report.device is None else device_notes(report.device, report.output or "MODEL")
    # The file is written and runs: a refusal by the device is no error of this command, which exits with 0.
    rejected = report.device is not None and report.device.verdict == "rejected"
    texts = [*on_device, *report.warnings] if rejected else [*report.warnings, *on_device]
    notes = [doc.Note("Error", "bad", text) for text in report.errors]
    notes += [doc.Note("Warning", "warn", text) for text in texts]
    notes += [doc.Note("Suggestion", "plain", text) for text in report.suggestions]
    verdict = _verdict(report).text.rstrip(".")  # a page shows it above
    on_page = doc.NoteList([note for note in notes if note.text.rstrip(".") != verdict], on="page")
    blocks = [on_page, doc.NoteList(notes, on="terminal")]
    return doc.Section("What to know", blocks=blocks, folded=False) if notes else None


def _operators(report: Report) -> doc.Section:
    quantized = Counter(node.op_type for node in report.nodes if node.quantized)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for node in report.left_float():
        reasons[node.op_type][node.reason] += 1

    def why(op_type: str) -> str:
        left = reasons[op_type]
        return "; ".join(f"{reason} ({count})" if len(left) > 1 else reason for reason, count in left.most_common(3))

    left_float = Counter({op_type: left.total() for op_type, left in reasons.items()}).most_common()
    verb = "Would quantize" if report.dry_run else "Quantized"
    brief = f"{verb} {quantized.total()} of {len(report.nodes)} nodes"
    if left_float:
        brief += f"; left float: {listed([f'{op_type} {count}' for op_type, count in left_float], LISTED)}"
    columns = [
        doc.worded("Operator", str),
        doc.figure("Quantized", lambda op_type: quantized[op_type] or None, ",", "Nodes that compute on codes."),
        doc.figure("Left float", lambda op_type: reasons[op_type].total() or None, ",", "Nodes that compute in float."),
        doc.worded("Why", why, "What decided that they are left float."),
    ]
    op_types = sorted({node.op_type for node in report.nodes}, key=lambda each: (-quantized[each], each))
    meaning = "How many nodes of each operator were quantized."
    tables = [doc.table("operators", columns, op_types)]
    return doc.Section("Operators", meaning, tables, count=str(len(op_types)), brief=f"{brief}.")


def _preparation(report: Report) -> doc.Section | None:
    done = [change for change in report.changes if change.by != "InferShapes"]  # which only annotates
    changes = [*((change, "done") for change in done), *((change, "left") for change in report.declined)]
    columns = [
        doc.named("Node", lambda each: each[0].node),
        doc.worded("What", lambda each: each[0].what, "What was done, or why not."),
        doc.worded("Step", lambda each: each[0].by, minor=True),
        doc.worded("", itemgetter(1)),
    ]
    counts = ", ".join(f"{by} {count}" for by, count in Counter(change.by for change in done).items())
    return _rows_section(
        "Preparation",
        "What was rewritten before quantizing, so that less is left to round, and what was looked at and left.",
        doc.table("notes", columns, changes),
        f"Rewritten: {counts}." if counts else "",
    )


def _rows_section(title: str, meaning: str, rows: doc.Table, brief: str = "") -> doc.Section | None:
    """Return a section that is one table, with its rows counted; None if there are none."""
    if not rows.rows:
        return None
    return doc.Section(title, meaning, [rows], count=str(len(rows.rows)), brief=brief, on="verbose")


def _rescaling(report: Report) -> doc.Section | None:
    """Say what was done to the float model before it was calibrated."""
    lines = [] if report.smoothing is None else [_smoothing(report.smoothing)]
    lines += [] if report.absorption is None else [_absorption(report.absorption)]
    lines += [] if report.equalization is None else [_equalization(report.equalization)]
    if not lines:
        return None
    nodes = {tensor.name: tensor.node for tensor in report.tensors}
    before = "The largest weight of all channels over that of the middle channel."
    after = "The same after equalization: near 1, one step is right for all channels."
    columns = [
        doc.named("Layer", lambda each: nodes.get(each[0], each[0])),
        doc.figure("Channels", lambda each: each[1].channels, ",", "Output channels of its weight."),
        doc.figure("Before", lambda each: each[1].spread_before, ".2f", before),
        doc.figure("After", lambda each: each[1].spread_after, ".2f", after),
    ]
    channels = report.pictures.channels
    blocks: list[doc.Block] = [doc.Paragraph(line) for line in lines]
    blocks += [doc.table("layers", columns, channels.items())] if channels else []
    meaning = "Channels are rescaled, which does not change the float model, so that one step fits all of a tensor."
    return doc.Section("Weights per channel", meaning, blocks, count=str(len(channels) or ""), on="verbose")


def _smoothing(done: Smoothing) -> str:
    left = f"; {len(done.declined)} left, where it is not possible or would not help" if done.declined else ""
    return f"Smoothed {len(done.layers)} layers, by factors up to {done.largest_factor:.3g}{left}."


def _absorption(done: Absorption) -> str:
    if not done.channels:
        return "No biases absorbed: every channel may be 0, or what is behind it cannot take its bias."
    return (
        f"Absorbed the biases of {done.channels} channels of {done.layers} layers into the layers behind, "
        f"up to {done.largest_amount:.3g}."
    )


def _equalization(done: Equalization) -> str:
    if not done.channels:
        return "Not equalized: no channels could be rescaled, or all of those that can are cut off by Clips."
    text = f"Equalized {done.channels} channels of {done.layers} layers, by factors up to {done.largest_factor:.3g}"
    if not done.noise_before or not done.noise_after:
        return f"{text}."
    return f"{text}: {10 * math.log10(done.noise_before / done.noise_after):.1f} dB less rounding noise expected."


def _wide(report: Report) -> doc.Section | None:
    """Say which activations got 16 bits, and what 8 would have cost."""
    done = report.widening
    if done is None:
        return None
    before, after = (
        f"{decibels(-10 * math.log10(each)) if each else 'no loss'} dB" for each in (done.before, done.after)
    )
    count = f"{len(done.tensors)} of {done.candidates}"
    alone = "At the outputs, if it alone had 8 bits."
    spread = "Its largest channel over the middle one: with one step for all, the middle one has so many fewer codes."
    columns = [
        doc.named("Activation", "name"),
        doc.worded("Between", "role", "What computes it, and what reads it."),
        doc.figure("SQNR dB", lambda each: -10 * math.log10(each.cost), decibels, alone),
        doc.figure("Channels", "channel_ratio", ".3g", spread),
    ]
    brief = f"16 bits for {count} activations, where 8 cost most: {before} at the outputs without them, {after} with."
    if not done.tensors:
        brief = f"8 bits for all {done.candidates} activations: {before} at the outputs."
    return doc.Section(
        "16-bit activations",
        "8 bits would cost too much at the outputs, often because a few channels are far larger than the others.",
        [doc.table("wide", columns, done.tensors)] if done.tensors else [],
        count=count,
        brief=brief,
    )


def _moves(report: Report) -> doc.Section | None:
    counts = ", ".join(f"{rule} {count}" for rule, count in Counter(move.rule for move in report.moves).most_common())
    before = "The position p of the scale 2^-p that calibration chose, or the scale itself."
    why = "The rule of the device that moved it, or the search for ranges, and what it asks for."
    columns = [
        doc.named("Tensor", "value"),
        doc.figure("Before", "before", ".4g", before),
        doc.figure("After", "after", ".4g", "What the rule asks for; a smaller position is a coarser step."),
        doc.Column("Why", why, cell=lambda move: doc.words(move.rule, RULES.get(move.rule, ""))),
        doc.named("At node", "node", "Where the rule applies.", minor=True),
    ]
    return _rows_section(
        "Scales moved by rules",
        f"Scales that {report.recipe.target} allows only in relation to others: {counts}.",
        doc.table("moves", columns, report.moves),
        f"Scales moved by the rules of {report.recipe.target}: {counts}.",
    )


def _refinement(report: Report) -> doc.Section | None:
    before = "The error of its output, relative to the float output's mean square."
    after = "The same afterwards, on samples that were held out if the method learns."
    columns = [
        doc.named("Layer", "name"),
        doc.worded("Method", "method", "How its numbers were chosen."),
        doc.figure("Before", "before", ".3g", before),
        doc.figure("After", "after", ".3g", after),
        doc.worded("Note", "note", minor=True),
    ]
    methods = Counter(layer.method for layer in report.refined)
    return _rows_section(
        "Refinement",
        "Weights and biases that were chosen so that each layer answers as in float, after the layers before it.",
        doc.table("layers", columns, report.refined),
        f"Refined layer by layer: {', '.join(f'{method} {count}' for method, count in methods.most_common())}.",
    )


def _outputs(report: Report) -> doc.Section | None:
    fidelity = report.fidelity
    if fidelity is None or not fidelity.outputs:
        return None
    kind = kind_of_samples(fidelity, in_sample=report.in_sample)
    where = f"against float on {kind}{in_integers(fidelity.emulated)}"
    rows: list[tuple[str, Closeness]] = []
    for output, close in fidelity.outputs.items():
        rows.append((output, close))
        rows += [(part.name_in(output), part.closeness) for part in fidelity.parts.get(output, ())]
    same = "The same against the largest value instead of the mean power."
    columns = [
        doc.named("Output", itemgetter(0)),
        doc.figure("SQNR dB", lambda row: row[1].sqnr_db, decibels, SQNR),
        doc.figure("PSNR dB", lambda row: row[1].psnr_db, decibels, same),
        doc.figure("Cosine", lambda row: row[1].cosine, ".5f", "1 if the output has the direction of the float one."),
    ]
    blocks: list[doc.Block] = [doc.table("outputs", columns, rows, title=f"output, {where}")]
    if fidelity.agreement is not None:
        found = fidelity.agreement
        blocks.append(doc.Paragraph(f"As {found.task} ({found.why}): {found.summary}."))
    meaning = f"Each output, and the parts that it is joined from, {where}."
    of, worst = worst_output(fidelity)
    brief = f"Output SQNR {in_decibels(worst.sqnr_db)}{of and f' of {of}'}, {where}."
    return doc.Section("Outputs", meaning, blocks, count=str(len(fidelity.outputs)), brief=brief)


def _left_float(report: Report) -> doc.Section | None:
    columns = [
        doc.named("Node", "node"),
        doc.worded("Operator", "op_type", minor=True),
        doc.worded("Why", "reason", "What decided that it is not quantized."),
    ]
    rows = doc.table("nodes", columns, report.left_float())
    return _rows_section("Left float", "Nodes that compute in float, as in the original model.", rows)


def _seconds(report: Report) -> doc.Section:
    total = f"{sum(report.seconds.values()):.1f} s"
    longest = max(report.seconds.values(), default=0.0) or 1.0
    columns = [
        doc.worded("Stage", itemgetter(0)),
        doc.figure("Seconds", itemgetter(1), ".1f"),
        doc.Column("", cell=lambda each: doc.bar(each[1], each[1] / longest)),
    ]
    rows = doc.table("stages", columns, report.seconds.items(), on="page")
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in report.seconds.items())
    line = doc.Paragraph(f"{total}: {stages}", on="terminal", quiet=True)
    return doc.Section("Time", "How long each stage took.", [rows, line], count=total, on="verbose")
