"""The page of a quantization."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from detent.equalize.equalize import Equalization
from detent.recipe_file import to_toml
from detent.refine.ranges import RULE as RANGES
from detent.report.figures import decibels, ratio, size
from detent.report.page.charts import bar
from detent.report.page.device import device_section, device_tile, rejections
from detent.report.page.html import joined, name_of, tag
from detent.report.page.layers import SQNR, depth_section, layers_of, layers_section
from detent.report.page.parts import Contents, Level, Section, Tile, Verdict, code, notes
from detent.report.page.table import Column, Row, number, table, words
from detent.results.advice import agreement, agreement_interval, judge
from detent.results.paired import interval_text
from detent.results.quantized import Report
from detent.results.tensors import in_integers

RULES = {
    "align": "What is joined, pooled, padded or sliced has one scale for its inputs and its output.",
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
"""Why a scale was moved, by the name of the rule."""

_LEVELS: dict[str, Level] = {"close": "good", "unclear": "plain", "large": "warn"}


def quantization(report: Report) -> Contents:
    """Everything that the report has, the verdict first."""
    layers = layers_of(report)
    outputs = list(report.fidelity.outputs) if report.fidelity is not None else []
    sections = [
        _advice(report),
        depth_section(layers, outputs),
        layers_section(report, layers),
        _left_float(report),
        _moves(report),
        _refined(report),
        _equalized(report),
        None if report.device is None else device_section(report.device),
        _outputs(report),
        _rewritten(report),
        _recipe(report),
        _seconds(report),
    ]
    destination = report.output or ("nothing was written" if report.dry_run else "kept in memory")
    return Contents(
        "quantization",
        Path(report.source).name,
        [
            f"{report.source} → {destination}",
            f"{report.recipe.name} for {report.recipe.target}. {_calibration(report)}",
        ],
        verdict_of(report),
        _tiles(report),
        [section for section in sections if section is not None],
    )


def verdict_of(report: Report) -> Verdict:
    """How good the result is, as far as that is known."""
    fidelity = report.fidelity
    if report.dry_run:
        return Verdict("plain", "Dry run", "Only what needs no data was decided; nothing was computed or written.")
    if fidelity is None:
        return Verdict("plain", "Not measured", "There was no data to run the float and the quantized model on.")
    measures = [closeness.sqnr_db for closeness in (*fidelity.outputs.values(), *fidelity.tensors.values())]
    if -math.inf in measures:
        return Verdict(
            "bad", "Broken", "A tensor of the quantized model is NaN or infinite, or not zero where it should be."
        )
    if report.calibration is not None and report.calibration.random:
        return Verdict(
            "warn", "Not real data", "Random numbers were used in the place of data: no figure here is real."
        )
    kind = "calibration samples, which flatter it" if report.in_sample else "samples that calibration did not see"
    kind += in_integers(fidelity.emulated)
    judgement = judge(fidelity)
    if judgement.reason:
        return Verdict(_LEVELS[judgement.level], judgement.title, f"On {fidelity.samples} {kind}: {judgement.reason}.")
    same = "" if fidelity.same_top1 is None else f": {agreement(fidelity)} keep their top class"
    return Verdict("good", judgement.title, f"Measured on {fidelity.samples} {kind}{same}.")


def _tiles(report: Report) -> list[Tile]:
    fidelity, tiles = report.fidelity, []
    if fidelity is not None and fidelity.same_top1 is not None:
        level = _LEVELS[judge(fidelity).level]
        ends = interval_text(agreement_interval(fidelity.same_top1, fidelity.samples), ".0f")
        meaning = f"Samples whose largest class score is that of the float model; 95 % interval {ends} %."
        tiles.append(Tile("Same top-1 as float", f"{fidelity.same_top1} of {fidelity.samples}", meaning, level))
    if fidelity is not None and fidelity.outputs:
        name, worst = min(fidelity.outputs.items(), key=lambda item: item[1].sqnr_db)
        of = f"Of '{name}', the worst of {len(fidelity.outputs)} outputs. " if len(fidelity.outputs) > 1 else ""
        tiles.append(Tile("Output SQNR", f"{decibels(worst.sqnr_db)} dB", of + SQNR))
    if report.bytes_after is None:
        tiles.append(Tile("Size", size(report.bytes_before), "Of the float model's file, with its data."))
    else:
        meaning = f"{size(report.bytes_before)} before, {ratio(report.bytes_before, report.bytes_after)}."
        tiles.append(Tile("Size", size(report.bytes_after), meaning))
    quantized = sum(node.quantized for node in report.nodes)
    others = "The others are computed" if quantized < len(report.nodes) else "None is computed"
    tiles.append(Tile("Nodes quantized", f"{quantized} of {len(report.nodes)}", f"{others} in float, as before."))
    if report.device is not None:
        tiles.append(device_tile(report.device))
    return tiles


def _calibration(report: Report) -> str:
    calibration = report.calibration
    if calibration is None:
        return ""
    verb = "Would be calibrated" if report.dry_run else "Calibrated" if calibration.samples else "Measured"
    method = f", method {type(report.recipe.method).__name__}" if calibration.samples else ""
    note = f" {calibration.note}" if calibration.note else ""
    return f"{verb} on {calibration.source}{method}.{note}"


def _advice(report: Report) -> Section | None:
    errors = [] if report.device is None else rejections(report.device)
    if not errors and not report.warnings and not report.suggestions:
        return None
    return Section("What to know", "", notes(errors, report.warnings, report.suggestions), folded=False)


def _left_float(report: Report) -> Section | None:
    left = report.left_float()
    if not left:
        return None
    columns = [Column("Node"), Column("Operator", minor=True), Column("Why", "What decided that it is not quantized.")]
    rows = [Row([words(name_of(node.node), node.node), words(node.op_type), words(node.reason)]) for node in left]
    meaning = "Nodes that compute in float, as in the original model."
    return Section("Left float", meaning, table(columns, rows, "nodes"), count=str(len(left)))


def _moves(report: Report) -> Section | None:
    if not report.moves:
        return None
    rules = Counter(move.rule for move in report.moves)
    listed = ", ".join(f"{rule} {count}" for rule, count in rules.most_common())
    columns = [
        Column("Tensor"),
        Column("Before", "The position p of the scale 2^-p that calibration chose, or the scale itself.", numeric=True),
        Column("After", "What the rule asks for; a smaller position is a coarser step.", numeric=True),
        Column("Why", "The rule of the device that moved it, or the search for ranges, and what it asks for."),
        Column("At node", "Where the rule applies.", minor=True),
    ]
    rows = [
        Row(
            [
                words(name_of(move.value), move.value),
                number(move.before, f"{move.before:.4g}"),
                number(move.after, f"{move.after:.4g}"),
                words(joined((move.rule, tag("div", RULES.get(move.rule), class_="quiet small"))), move.rule),
                words(name_of(move.node), move.node),
            ]
        )
        for move in report.moves
    ]
    meaning = f"Scales that {report.recipe.target} allows only in relation to others: {listed}."
    return Section("Scales moved by rules", meaning, table(columns, rows, "moves"), count=str(len(rows)))


def _refined(report: Report) -> Section | None:
    if not report.refined:
        return None
    columns = [
        Column("Layer"),
        Column("Method", "How its numbers were chosen."),
        Column("Before", "The error of its output relative to the float output's mean square.", numeric=True),
        Column("After", "The same afterwards, on samples that were held out where the method learns.", numeric=True),
        Column("Note", "", minor=True),
    ]
    rows = [
        Row(
            [
                words(name_of(layer.name), layer.name),
                words(layer.method),
                number(layer.before, None if layer.before is None else f"{layer.before:.3g}"),
                number(layer.after, None if layer.after is None else f"{layer.after:.3g}"),
                words(layer.note),
            ]
        )
        for layer in report.refined
    ]
    meaning = "Weights and biases that were chosen so that each layer answers as in float, after the layers before it."
    return Section("Refinement", meaning, table(columns, rows, "layers"), count=str(len(rows)))


def _equalized(report: Report) -> Section | None:
    if report.equalization is None and report.smoothing is None:
        return None
    said = [] if report.equalization is None else [_equalization(report.equalization)]
    if report.smoothing is not None:
        layers, factor = len(report.smoothing.layers), report.smoothing.largest_factor
        said.append(f"{layers} layers were smoothed, by factors up to {factor:.3g}.")
    nodes = {tensor.name: tensor.node for tensor in report.tensors}
    columns = [
        Column("Layer"),
        Column("Channels", "Output channels of its weight.", numeric=True),
        Column("Before", "The largest weight of all channels over that of the middle channel.", numeric=True),
        Column("After", "The same after equalization: near 1, one step is right for all channels.", numeric=True),
    ]
    rows = [
        Row(
            [
                words(name_of(nodes.get(name, name)), nodes.get(name, name)),
                number(sizes.channels),
                number(sizes.spread_before, f"{sizes.spread_before:.2f}"),
                number(sizes.spread_after, f"{sizes.spread_after:.2f}"),
            ]
        )
        for name, sizes in report.pictures.channels.items()
    ]
    body = joined((tag("p", " ".join(said)), table(columns, rows, "layers") if rows else None))
    meaning = "Channels are rescaled, which does not change the float model, so that one step fits all of a tensor."
    return Section("Weights per channel", meaning, body, count=str(len(rows)) if rows else "")


def _equalization(done: Equalization) -> str:
    if not done.channels:
        return "Nothing was equalized: no channels could be rescaled, or Clips hold most of them."
    said = (
        f"{done.channels:,} channels of {done.layers} layers were rescaled, by factors up to {done.largest_factor:.3g}"
    )
    if not done.noise_before or not done.noise_after:
        return f"{said}."
    return f"{said}: {10 * math.log10(done.noise_before / done.noise_after):.1f} dB less rounding noise is expected."


def _outputs(report: Report) -> Section | None:
    if report.fidelity is None or not report.fidelity.outputs:
        return None
    columns = [
        Column("Output"),
        Column("SQNR dB", SQNR, numeric=True),
        Column("PSNR dB", "The same against the largest value instead of the mean power.", numeric=True),
        Column("Cosine", "1 where the output has the direction of the float one.", numeric=True),
    ]
    rows = [
        Row(
            [
                words(name_of(name), name),
                number(close.sqnr_db, decibels(close.sqnr_db)),
                number(close.psnr_db, decibels(close.psnr_db)),
                number(close.cosine, f"{close.cosine:.5f}"),
            ]
        )
        for name, close in report.fidelity.outputs.items()
    ]
    meaning = f"Each output against that of the float model, over {report.fidelity.samples} samples"
    meaning += f"{in_integers(report.fidelity.emulated)}."
    return Section("Outputs", meaning, table(columns, rows, "outputs"), count=str(len(rows)))


def _rewritten(report: Report) -> Section | None:
    changes = [(change, "done") for change in report.changes if change.by != "InferShapes"]  # annotates only
    changes += [(change, "left") for change in report.declined]
    if not changes:
        return None
    columns = [Column("Node"), Column("What", "What was done, or why not."), Column("Step", "", minor=True), Column("")]
    rows = [
        Row([words(name_of(change.node), change.node), words(change.what), words(change.by), words(done)])
        for change, done in changes
    ]
    meaning = "What was rewritten before quantizing, so that less is left to round, and what was looked at and left."
    return Section("Preparation", meaning, table(columns, rows, "notes"), count=str(len(rows)))


def _recipe(report: Report) -> Section:
    meaning = "All settings of this run, as a file for --recipe."
    return Section("Recipe", meaning, code(to_toml(report.recipe)), count=report.recipe.name)


def _seconds(report: Report) -> Section:
    longest = max(report.seconds.values(), default=0.0) or 1.0
    columns = [Column("Stage"), Column("Seconds", "", numeric=True), Column("")]
    rows = [
        Row([words(stage), number(seconds, f"{seconds:.1f}"), number(seconds, bar(seconds / longest))])
        for stage, seconds in report.seconds.items()
    ]
    total = f"{sum(report.seconds.values()):.1f} s"
    return Section("Time", "How long each stage took.", table(columns, rows, "stages"), count=total)
