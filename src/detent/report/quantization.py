"""The documents of a quantization and of a check for a device."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from detent.equalize.absorb import Absorption
from detent.equalize.equalize import Equalization
from detent.equalize.smooth_quant import Smoothing
from detent.plan.layout import Decision
from detent.recipe.file import to_toml
from detent.refine.layers import LayerReport
from detent.refine.ranges import RULE as RANGES
from detent.report.charts import ChannelChart, DepthChart, HistogramChart, Point
from detent.report.document import (
    Block,
    Cell,
    Code,
    Column,
    Document,
    Facts,
    Figure,
    KeyFigure,
    Level,
    Note,
    NoteList,
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
from detent.report.figures import SQNR, command, decibels, extent, listed, percent, ratio, recipe_words, size, step
from detent.report.findings import SHOWN, device_figure, device_section, rejections, serious
from detent.results.advice import refinement_to_try
from detent.results.checked import summary
from detent.results.paired import interval_text
from detent.results.quantized import Report
from detent.results.tensors import Closeness, Fidelity, PartCloseness, TensorReport, in_integers
from detent.results.verdict import agreement_interval

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

WORST = 3
"""Tensors that a short answer lists."""

LISTED = 6
"""Operators that a short answer names."""

_LEVELS: dict[str, Level] = {"close": "good", "unclear": "plain", "worse": "warn", "broken": "bad", "unknown": "warn"}


def quantization_document(report: Report) -> Document:
    """Build the document of a quantization."""
    destination = report.output or ("nothing written (dry run)" if report.dry_run else "in memory")
    sizes = size(report.bytes_before)
    if report.bytes_after is not None:
        sizes += f" -> {size(report.bytes_after)} ({ratio(report.bytes_before, report.bytes_after)})"
    layers = layers_of(report)
    return Document(
        "quantization",
        Path(report.source).name,
        [f"{report.source} -> {destination}", f"{report.recipe.name} for {report.recipe.target}, {sizes}"],
        [*_about_data(report), *_about_postprocessing(report)],
        _verdict(report),
        _figures(report),
        [
            _what_to_know(report),
            _error_along(layers, [] if report.fidelity is None else list(report.fidelity.outputs)),
            _operators(report),
            _preparation(report),
            _rescaling(report),
            _moves(report),
            _refinement(report),
            _outputs(report),
            _layers(report, layers),
            _left_float(report),
            None if report.device is None else device_section(report.device),
            Section(
                "Recipe",
                "All settings of this run, as a file for --recipe.",
                [Code(to_toml(report.recipe))],
                count=report.recipe.name,
                on="page",
            ),
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
    """Say what quantizing cost. What is in a warning already is not said again."""
    verdict, judgement = _verdict(report), report.judgement
    told = judgement is None or judgement.level == "unknown" or verdict.title != judgement.title
    reason = "" if told or judgement is None else judgement.reason
    return f"{verdict.title}{f': {reason}' if reason else ''}."


def _next(report: Report) -> str:
    """Return what to do next: never what was just done."""
    judgement = report.judgement
    calibration = report.calibration
    if judgement is None or (calibration is not None and calibration.random):
        return "Next: the same with real, varied data in --calib."
    if calibration is not None and calibration.findings:
        return "Next: what the first warning above says."
    if judgement.level in ("close", "unclear"):
        if report.device is not None and report.device.verdict == "rejected":
            return "Next: the fix that the first error above names."
        return f"Next: {command('evaluate', report.source, report.output or 'OUTPUT', '--data', 'LABELLED')}"
    refinement = refinement_to_try(report.recipe)
    if refinement is not None:
        return f"Next: the same with --refine {refinement}"
    return f"Next: {command('sensitivity', report.source, '--calib', 'DATA', *recipe_words(report.recipe))}"


def _about_data(report: Report) -> list[str]:
    calibration = report.calibration
    if calibration is None:
        return []
    if not report.dry_run and not calibration.samples:
        return [f"Not calibrated: this recipe needs no statistics. Measured on {calibration.source}.", calibration.note]
    verb = "Would calibrate" if report.dry_run else "Calibrated"
    return [f"{verb} on {calibration.source}, method {type(report.recipe.method).__name__}.", calibration.note]


def _about_postprocessing(report: Report) -> list[str]:
    tail = report.postprocessing
    if tail is None:
        return []
    ends = f"'{tail.starts[0]}'" + (f" and {len(tail.starts) - 1} more values" if len(tail.starts) > 1 else "")
    lines = [f"Left float from {ends} on: {len(tail.nodes)} nodes, {tail.reason}."]
    if report.cut is not None:
        file = report.cut.tail or "a model of its own"
        lines.append(f"Cut there: the rest is {file}, which takes {len(report.cut.between)} tensors.")
    return lines


def _verdict(report: Report) -> Verdict:
    """Say how good the result is, as far as that is known."""
    fidelity = report.fidelity
    if report.dry_run:
        return Verdict("plain", "Dry run", "Only what needs no data was decided; nothing was computed or written.")
    if fidelity is None:
        return Verdict("plain", "Not measured", "There was no data to run the float and the quantized model on.")
    judgement = report.judgement
    assert judgement is not None, "there are figures"
    if report.calibration is not None and report.calibration.random:
        return Verdict("warn", "Not real data", "Random numbers were used instead of data: no figure here is real.")
    kind = "calibration samples, which flatter it" if report.in_sample else "samples that calibration did not see"
    kind += in_integers(fidelity.emulated)
    level = _LEVELS[judgement.level]
    if judgement.level == "unknown":
        return Verdict(level, judgement.title, f"{judgement.reason}.")
    if judgement.reason:
        hint = " More samples, or `detent evaluate` on labelled ones, can tell." if level == "plain" else ""
        return Verdict(level, judgement.title, f"On {fidelity.samples} {kind}: {judgement.reason}.{hint}")
    return Verdict(level, judgement.title, f"Measured on {fidelity.samples} {kind}.")


def _figures(report: Report) -> list[KeyFigure]:
    fidelity, figures = report.fidelity, []
    if fidelity is not None and fidelity.same_top1 is not None:
        ends = interval_text(agreement_interval(fidelity.same_top1, fidelity.samples), ".0f")
        meaning = f"Samples whose largest class score is that of the float model; 95 % interval {ends} %."
        same = f"{fidelity.same_top1} of {fidelity.samples}"
        assert report.judgement is not None, "there are figures"
        figures.append(KeyFigure("Same top-1 as float", same, meaning, _LEVELS[report.judgement.level]))
    if fidelity is not None and fidelity.outputs:
        of, worst = worst_output(fidelity)
        figures.append(KeyFigure("Output SQNR", f"{decibels(worst.sqnr_db)} dB", f"{of and f'Of {of}. '}{SQNR}"))
    if report.bytes_after is None:
        figures.append(KeyFigure("Size", size(report.bytes_before), "Of the float model's file, with its data."))
    else:
        meaning = f"{size(report.bytes_before)} before, {ratio(report.bytes_before, report.bytes_after)}."
        figures.append(KeyFigure("Size", size(report.bytes_after), meaning))
    quantized = sum(node.quantized for node in report.nodes)
    others = "The others are computed" if quantized < len(report.nodes) else "None is computed"
    figures.append(
        KeyFigure("Nodes quantized", f"{quantized} of {len(report.nodes)}", f"{others} in float, as before.")
    )
    if report.device is not None:
        figures.append(device_figure(report.device))
    return figures


def worst_output(fidelity: Fidelity) -> tuple[str, Closeness]:
    """Return the output, or the part of one, that is furthest from float. An only output has no name."""
    output, worst = min(fidelity.outputs.items(), key=lambda item: item[1].sqnr_db)
    of = f"'{output}', the worst of {len(fidelity.outputs)} outputs" if len(fidelity.outputs) > 1 else ""
    parts = [(part.closeness.sqnr_db, name, part) for name, several in fidelity.parts.items() for part in several]
    if not parts:
        return of, worst
    _, output, part = min(parts, key=lambda each: each[0])
    return f"'{part.label}' in '{output}', the worst part of any output", part.closeness


def _what_to_know(report: Report) -> Section | None:
    """List errors, warnings and suggestions; on a terminal also what the device minds, which a page has apart."""
    errors = [] if report.device is None else rejections(report.device)
    first = [Note("Error", "bad", text) for text in (*errors, *report.errors)]
    first += [Note("Warning", "warn", text) for text in report.warnings]
    minded = [] if report.device is None else [text for is_error, text in serious(report.device) if not is_error]
    on_device = [Note("Warning", "warn", text) for text in minded]
    last = [Note("Suggestion", "plain", text) for text in report.suggestions]
    if not (first or on_device or last):
        return None
    blocks = [
        NoteList([*first, *last], on="page"),
        NoteList(first, on="terminal"),
        NoteList(on_device, on="terminal", shown=SHOWN),
        NoteList(last, on="terminal"),
    ]
    return Section("What to know", blocks=blocks, folded=False, on="both" if first or last else "terminal")


def _operators(report: Report) -> Section:
    quantized = Counter(node.op_type for node in report.nodes if node.quantized)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for node in report.left_float():
        reasons[node.op_type][node.reason] += 1
    columns = [
        Column("Operator"),
        numeric("Quantized", "Nodes that compute on codes."),
        numeric("Left float", "Nodes that compute in float."),
        Column("Why", "What decided that they are left float."),
    ]
    rows = []
    for op_type in sorted({node.op_type for node in report.nodes}, key=lambda each: (-quantized[each], each)):
        left = reasons[op_type]
        why = "; ".join(f"{reason} ({count})" if len(left) > 1 else reason for reason, count in left.most_common(3))
        counts = [number(count or None) for count in (quantized[op_type], left.total())]
        rows.append(Row([words(op_type), *counts, words(why)]))
    meaning = "How many nodes of each operator were quantized."
    left_float = Counter(node.op_type for node in report.left_float()).most_common()
    left_text = listed([f"{op_type} {count}" for op_type, count in left_float], LISTED)
    brief = f"{'Would quantize' if report.dry_run else 'Quantized'} {quantized.total()} of {len(report.nodes)} nodes"
    return Section(
        "Operators",
        meaning,
        [Table(columns, rows, "operators")],
        count=str(len(rows)),
        brief=f"{brief}; left float: {left_text}." if left_float else f"{brief}.",
    )


def _preparation(report: Report) -> Section | None:
    done = [change for change in report.changes if change.by != "InferShapes"]  # which only annotates
    changes = [*((change, "done") for change in done), *((change, "left") for change in report.declined)]
    if not changes:
        return None
    columns = [Column("Node"), Column("What", "What was done, or why not."), Column("Step", minor=True), Column("")]
    rows = [Row([name(change.node), words(change.what), words(change.by), words(state)]) for change, state in changes]
    meaning = "What was rewritten before quantizing, so that less is left to round, and what was looked at and left."
    counts = Counter(change.by for change in done)
    brief = f"Rewritten: {', '.join(f'{by} {count}' for by, count in counts.items())}." if counts else ""
    return Section(
        "Preparation", meaning, [Table(columns, rows, "notes")], count=str(len(rows)), brief=brief, on="verbose"
    )


def _rescaling(report: Report) -> Section | None:
    """Tell what was done to the float model before it was calibrated."""
    lines = [] if report.smoothing is None else [_smoothing(report.smoothing)]
    lines += [] if report.absorption is None else [_absorption(report.absorption)]
    lines += [] if report.equalization is None else [_equalization(report.equalization)]
    if not lines:
        return None
    nodes = {tensor.name: tensor.node for tensor in report.tensors}
    columns = [
        Column("Layer"),
        numeric("Channels", "Output channels of its weight."),
        numeric("Before", "The largest weight of all channels over that of the middle channel."),
        numeric("After", "The same after equalization: near 1, one step is right for all channels."),
    ]
    rows = [
        Row(
            [
                name(nodes.get(weight, weight)),
                number(sizes.channels),
                number(sizes.spread_before, f"{sizes.spread_before:.2f}"),
                number(sizes.spread_after, f"{sizes.spread_after:.2f}"),
            ]
        )
        for weight, sizes in report.pictures.channels.items()
    ]
    blocks: list[Block] = [Paragraph(line) for line in lines]
    blocks += [Table(columns, rows, "layers")] if rows else []
    meaning = "Channels are rescaled, which does not change the float model, so that one step fits all of a tensor."
    return Section("Weights per channel", meaning, blocks, count=str(len(rows) or ""), on="verbose")


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


def _moves(report: Report) -> Section | None:
    if not report.moves:
        return None
    rules = Counter(move.rule for move in report.moves)
    counts = ", ".join(f"{rule} {count}" for rule, count in rules.most_common())
    columns = [
        Column("Tensor"),
        numeric("Before", "The position p of the scale 2^-p that calibration chose, or the scale itself."),
        numeric("After", "What the rule asks for; a smaller position is a coarser step."),
        Column("Why", "The rule of the device that moved it, or the search for ranges, and what it asks for."),
        Column("At node", "Where the rule applies.", minor=True),
    ]
    rows = [
        Row(
            [
                name(move.value),
                number(move.before, f"{move.before:.4g}"),
                number(move.after, f"{move.after:.4g}"),
                words(move.rule, RULES.get(move.rule, "")),
                name(move.node),
            ]
        )
        for move in report.moves
    ]
    return Section(
        "Scales moved by rules",
        f"Scales that {report.recipe.target} allows only in relation to others: {counts}.",
        [Table(columns, rows, "moves")],
        count=str(len(rows)),
        brief=f"Scales moved by the rules of {report.recipe.target}: {counts}.",
        on="verbose",
    )


def _refinement(report: Report) -> Section | None:
    if not report.refined:
        return None
    columns = [
        Column("Layer"),
        Column("Method", "How its numbers were chosen."),
        numeric("Before", "The error of its output, relative to the float output's mean square."),
        numeric("After", "The same afterwards, on samples that were held out if the method learns."),
        Column("Note", minor=True),
    ]
    rows = [
        Row(
            [
                name(layer.name),
                words(layer.method),
                number(layer.before, None if layer.before is None else f"{layer.before:.3g}"),
                number(layer.after, None if layer.after is None else f"{layer.after:.3g}"),
                words(layer.note),
            ]
        )
        for layer in report.refined
    ]
    methods = Counter(layer.method for layer in report.refined)
    counts = ", ".join(f"{method} {count}" for method, count in methods.most_common())
    return Section(
        "Refinement",
        "Weights and biases that were chosen so that each layer answers as in float, after the layers before it.",
        [Table(columns, rows, "layers")],
        count=str(len(rows)),
        brief=f"Refined layer by layer: {counts}.",
        on="verbose",
    )


def _outputs(report: Report) -> Section | None:
    fidelity = report.fidelity
    if fidelity is None or not fidelity.outputs:
        return None
    kind = "calibration samples" if report.in_sample else "held-out samples"
    where = f"against float on {fidelity.samples} {kind}{in_integers(fidelity.emulated)}"
    columns = [
        Column("Output"),
        numeric("SQNR dB", SQNR),
        numeric("PSNR dB", "The same against the largest value instead of the mean power."),
        numeric("Cosine", "1 if the output has the direction of the float one."),
    ]
    rows = []
    for output, close in fidelity.outputs.items():
        rows.append(_closeness_row(output, close))
        rows += [_closeness_row(_part_name(output, part), part.closeness) for part in fidelity.parts.get(output, ())]
    blocks: list[Block] = [Table(columns, rows, "outputs", title=f"output, {where}")]
    if fidelity.agreement is not None:
        told = fidelity.agreement
        blocks.append(Paragraph(f"As {told.task} ({told.why}): {told.summary}."))
    meaning = f"Each output, and the parts that it is joined from, {where}."
    of, worst = worst_output(fidelity)
    brief = f"Output SQNR {decibels(worst.sqnr_db)} dB{of and f' of {of}'}, {where}."
    return Section("Outputs", meaning, blocks, count=str(len(fidelity.outputs)), brief=brief)


def _part_name(output: str, part: PartCloseness) -> str:
    span = f"{part.start}..{part.stop}"
    return f"{output}: {part.label}" if span in part.label else f"{output}: {part.label} {span}"


def _closeness_row(what: str, close: Closeness) -> Row:
    return Row(
        [
            name(what),
            number(close.sqnr_db, decibels(close.sqnr_db)),
            number(close.psnr_db, decibels(close.psnr_db)),
            number(close.cosine, f"{close.cosine:.5f}"),
        ]
    )


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


def _error_along(layers: Sequence[LayerRow], outputs: Sequence[str]) -> Section | None:
    points = [
        Point(f"{layer.node}: {decibels(layer.sqnr)} dB", layer.sqnr, layer.id, layer.tensor.name in outputs)
        for layer in layers
        if layer.sqnr is not None and layer.tensor is not None
    ]
    if len(points) < 2:
        return None
    meaning = (
        f"SQNR of each layer's result. {SQNR} Errors add up on the way, so a line that falls slowly is normal; "
        "a sudden drop points at the layer to look at. Each dot opens its layer."
    )
    return Section(
        "Error along the network", meaning, [Figure(DepthChart([points], "SQNR in dB"))], folded=False, on="page"
    )


def _layers(report: Report, layers: Sequence[LayerRow]) -> Section:
    columns = [
        numeric("#", "The place in the network.", minor=True, on="page"),
        Column("Layer", "The node, and below it the tensor that is rounded on its account. Open it for its pictures."),
        Column("Operator", minor=True, on="page"),
        numeric("SQNR dB", f"{SQNR} Measured in the quantized network, with the errors of all layers before."),
        numeric("Clipped", "The share of values that lie beyond the largest code."),
        numeric("Range", "The least and the greatest value that calibration saw.", minor=True),
        numeric("Step", "The distance between two codes.", minor=True),
        Column("Type", "The number format of the codes.", minor=True, on="page"),
    ]
    moved: dict[str, list[str]] = {}
    for move in report.moves:
        moved.setdefault(move.value, []).append(f"{move.before:g} to {move.after:g} ({move.rule})")
    refined = {layer.name: layer for layer in report.refined}
    measured = any(layer.sqnr is not None for layer in layers)
    if measured:
        layers = sorted(layers, key=lambda layer: math.inf if layer.sqnr is None else layer.sqnr)
    rows = [Row(_cells(layer), layer.id, _opened(report, layer, moved, refined)) for layer in layers]
    fused = sum(node.quantized for node in report.nodes) - len({layer.node for layer in layers if layer.tensor})
    meaning = (
        "Every tensor that is rounded, the worst first. Open a row for its histogram, its weights and its numbers."
    )
    if fused > 0:
        meaning += f" {fused} more nodes are fused with the layer before them, such as a Relu after a Conv."
    worst = Table(
        columns, rows, "layers", (3 if measured else 0, True), WORST, "worst tensors", "both" if measured else "page"
    )
    return Section("Layers", meaning, [worst], folded=False, count=str(len(rows)))


def _cells(layer: LayerRow) -> list[Cell]:
    tensor = layer.tensor
    below = layer.reason if tensor is None else tensor.name if tensor.name != layer.node else ""
    named = Cell(
        layer.node,
        f"{layer.node} {below}",
        name=True,
        below=below,
        below_is_name=tensor is not None,
        short=None if tensor is None else tensor.name,
    )
    first = [number(layer.place), named, words(layer.op_type)]
    if tensor is None:
        return [*first, *[number(None)] * 4, words("float")]
    low, high = tensor.minimum, tensor.maximum
    return [
        *first,
        number(layer.sqnr, None if layer.sqnr is None else decibels(layer.sqnr)),
        number(tensor.clipped, percent(tensor.clipped)),
        number(None if low is None or high is None else high - low, extent(low, high)),
        Cell(step(tensor), tensor.scale),
        words(tensor.dtype),
    ]


def _opened(
    report: Report, layer: LayerRow, moved: Mapping[str, Sequence[str]], refined: Mapping[str, LayerReport]
) -> list[Block]:
    """Return what a row opens into."""
    tensor = layer.tensor
    if tensor is None:
        return [Paragraph(f"Left float: {layer.reason}.")]
    close = tensor.closeness
    facts = {
        "Tensor": tensor.name,
        "Codes": _codes(tensor),
        "Same scale as": tensor.shares,
        "Moved by rules": "; ".join(moved.get(tensor.shares or tensor.name, ())) or None,
        "PSNR, cosine": None if close is None else f"{decibels(close.psnr_db)} dB, {close.cosine:.5f}",
    }
    for each in layer.constants:
        spread = f"{extent(each.minimum, each.maximum)}, {percent(each.clipped)} clipped"
        facts[each.role.capitalize()] = f"{each.name}: {_codes(each)}, {spread}"
        facts[f"{each.role.capitalize()} moved by rules"] = "; ".join(moved.get(each.name, ())) or None
    if layer.constants and layer.node in refined:
        facts["Refined"] = _refined_layer(refined[layer.node])
    return [*_pictures(report, layer, tensor), Facts(facts)]


def _pictures(report: Report, layer: LayerRow, tensor: TensorReport) -> list[Block]:
    """Return the histogram of the activation, and the channels of the weights."""
    found: list[Block] = []
    seen = report.pictures.distributions.get(tensor.shares or tensor.name)
    if seen is not None:
        clip = f"{percent(tensor.clipped)} of them clip" if tensor.clipped else "none of them clips"
        found.append(Figure(HistogramChart(seen, f"{seen.values:,} values of the activation; {clip}.")))
    for each in layer.constants:
        sizes = report.pictures.channels.get(each.name)
        if sizes is not None:
            label = f"Largest weight of each of {sizes.channels} channels, before and after equalization: flat is good."
            found.append(Figure(ChannelChart(sizes, label)))
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


def _left_float(report: Report) -> Section | None:
    left = report.left_float()
    if not left:
        return None
    columns = [Column("Node"), Column("Operator", minor=True), Column("Why", "What decided that it is not quantized.")]
    rows = [Row([name(node.node), words(node.op_type), words(node.reason)]) for node in left]
    meaning = "Nodes that compute in float, as in the original model."
    return Section("Left float", meaning, [Table(columns, rows, "nodes")], count=str(len(left)), on="page")


def _seconds(report: Report) -> Section:
    total = f"{sum(report.seconds.values()):.1f} s"
    longest = max(report.seconds.values(), default=0.0) or 1.0
    rows = [
        Row([words(stage), number(seconds, f"{seconds:.1f}"), bar(seconds, seconds / longest)])
        for stage, seconds in report.seconds.items()
    ]
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in report.seconds.items())
    table = Table([Column("Stage"), numeric("Seconds"), Column("")], rows, "stages", on="page")
    line = Paragraph(f"{total}: {stages}", on="terminal", quiet=True)
    return Section("Time", "How long each stage took.", [table, line], count=total, on="verbose")
