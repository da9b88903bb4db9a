"""The report and the inspection as text for a terminal: what matters first, in as few lines as tell it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from detent.comparison.inspection import Inspection
from detent.equalize.absorb import Absorption
from detent.equalize.equalize import Equalization
from detent.equalize.smooth_quant import Smoothing
from detent.report.check_view import device_notes
from detent.report.figures import decibels, extent, ratio, size, step
from detent.report.names import inert
from detent.results.advice import agreement
from detent.results.checked import DeviceCheck, summary
from detent.results.quantized import Calibration, Report
from detent.results.tensors import TensorReport, in_integers

_DEVICE_WARNINGS = 5


def print_report(report: Report, console: Console) -> None:
    """Everything about one quantization."""
    console.print(_headline(report))
    if report.calibration is not None:
        console.print(_calibration(report, report.calibration))
        if report.calibration.note:
            console.print(Text(report.calibration.note))
    console.print(_operator_table(report))
    rewritten = Counter(change.by for change in report.changes if change.by != "InferShapes")  # annotates only
    if rewritten:
        listed = ", ".join(f"{name} {count}" for name, count in rewritten.items())
        console.print(Text(f"Rewritten: {listed}."))
    for rescaled in _rescaling(report):
        console.print(rescaled)
    if report.moves:
        rules = Counter(move.rule for move in report.moves)
        listed = ", ".join(f"{rule} {count}" for rule, count in rules.most_common())
        console.print(Text(f"Scales moved by the rules of {report.recipe.target}: {listed}."))
    if report.refined:
        console.print(_refinement(report))
    if report.fidelity is not None:
        console.print(_fidelity(report))
        if report.fidelity.tensors:
            console.print(_worst_table(report.worst_tensors()))
    if report.device is not None:
        console.print(_device(report.device))
    for warning in report.warnings:
        console.print(Text(f"Warning: {warning}", style="yellow"))
    for suggestion in report.suggestions:
        console.print(Text(f"Suggestion: {suggestion}", style="cyan"))
    console.print(_seconds(report))


def _device(check: DeviceCheck) -> Text:
    """The verdict, and what is in the way of a better one."""
    said = Text(summary(check), "red" if check.verdict == "rejected" else "")
    notes = device_notes(check)
    for note in notes[:_DEVICE_WARNINGS]:
        said.append(f"\n{'Error' if note.is_error else 'Warning'}: {note.said}", "red" if note.is_error else "yellow")
    if len(notes) > _DEVICE_WARNINGS:
        said.append(f"\n{len(notes) - _DEVICE_WARNINGS} more: `detent check MODEL --target {check.target}`.")
    return said


def _headline(report: Report) -> Text:
    sizes = size(report.bytes_before)
    if report.bytes_after is not None:
        sizes += f" -> {size(report.bytes_after)} ({ratio(report.bytes_before, report.bytes_after)})"
    destination = report.output or ("nothing written (dry run)" if report.dry_run else "in memory")
    # Two lines: paths may be long, and what follows them should not wrap in the middle.
    return Text(f"{report.source} -> {destination}\n{report.recipe.name} for {report.recipe.target}, {sizes}", "bold")


def _operator_table(report: Report) -> Table:
    table = _table("operator", "quantized", "left float", "why")
    quantized = Counter(node.op_type for node in report.nodes if node.quantized)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for node in report.left_float():
        reasons[node.op_type][node.reason] += 1
    for op_type in sorted({node.op_type for node in report.nodes}, key=lambda name: (-quantized[name], name)):
        left = reasons[op_type]
        why = "; ".join(f"{reason} ({count})" if len(left) > 1 else reason for reason, count in left.most_common(3))
        table.add_row(op_type, str(quantized[op_type] or "-"), str(left.total() or "-"), inert(why))
    return table


def _calibration(report: Report, calibration: Calibration) -> Text:
    if not report.dry_run and not calibration.samples:
        return Text(f"Not calibrated: this recipe needs no statistics. Measured on {calibration.source}.")
    verb = "Would calibrate" if report.dry_run else "Calibrated"
    return Text(f"{verb} on {calibration.source}, method {type(report.recipe.method).__name__}.")


def _rescaling(report: Report) -> list[Text]:
    """What was done to the float model before it was calibrated."""
    found = [] if report.smoothing is None else [_smoothing(report.smoothing)]
    found += [] if report.absorption is None else [_absorption(report.absorption)]
    found += [] if report.equalization is None else [_equalization(report.equalization)]
    return found


def _smoothing(done: Smoothing) -> Text:
    left = f"; {len(done.declined)} left, where it is not possible or would not help" if done.declined else ""
    return Text(f"Smoothed {len(done.layers)} layers, by factors up to {done.largest_factor:.3g}{left}.")


def _absorption(done: Absorption) -> Text:
    if not done.channels:
        return Text("No biases absorbed: every channel may be 0, or what is behind it cannot take its bias.")
    return Text(
        f"Absorbed the biases of {done.channels} channels of {done.layers} layers into the layers behind, "
        f"up to {done.largest_amount:.3g}."
    )


def _equalization(done: Equalization) -> Text:
    if not done.channels:
        return Text("Not equalized: no channels could be rescaled, or all of those that can are cut off by Clips.")
    said = f"Equalized {done.channels} channels of {done.layers} layers, by factors up to {done.largest_factor:.3g}"
    if not done.noise_before or not done.noise_after:
        return Text(f"{said}.")
    gain = 10 * math.log10(done.noise_before / done.noise_after)
    return Text(f"{said}: {gain:.1f} dB less rounding noise expected.")


def _refinement(report: Report) -> Text:
    methods = Counter(layer.method for layer in report.refined)
    listed = ", ".join(f"{method} {count}" for method, count in methods.most_common())
    return Text(f"Refined layer by layer: {listed}.")


def _fidelity(report: Report) -> RenderableType:
    fidelity = report.fidelity
    assert fidelity is not None
    kind = "calibration samples" if report.in_sample else "held-out samples"
    how = in_integers(fidelity.emulated)
    table = _table(f"output, against float on {fidelity.samples} {kind}{how}", "SQNR dB", "PSNR dB", "cosine")
    for name, closeness in fidelity.outputs.items():
        table.add_row(inert(name), decibels(closeness.sqnr_db), decibels(closeness.psnr_db), f"{closeness.cosine:.5f}")
    if fidelity.same_top1 is None:
        return table
    return Group(table, Text(f"Same top-1 class as float: {agreement(fidelity)}."))


def _worst_table(tensors: Sequence[TensorReport]) -> Table:
    table = _table("worst tensors", "SQNR dB", "range", "step", "clipped")
    for tensor in tensors:
        table.add_row(
            inert(tensor.name),
            decibels(tensor.closeness.sqnr_db if tensor.closeness else math.inf),
            extent(tensor.minimum, tensor.maximum),
            step(tensor),
            f"{100 * tensor.clipped:.3g} %",
        )
    return table


def _seconds(report: Report) -> Text:
    total = sum(report.seconds.values())
    stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in report.seconds.items())
    return Text(f"{total:.1f} s: {stages}", style="dim")


def print_inspection(inspection: Inspection, console: Console, *, nodes: bool) -> None:
    """The contents of a model."""
    opset = ", ".join(f"{domain} {version}" for domain, version in inspection.opset.items())
    made_by = f", made by {inspection.producer}" if inspection.producer else ""
    console.print(
        Text(f"{size(inspection.bytes)}, {sum(inspection.operators.values())} nodes, opset {opset}{made_by}", "bold")
    )
    for kind, values in (("input", inspection.inputs), ("output", inspection.outputs)):
        for name, typed in values.items():
            console.print(Text(f"{kind} {name}: {typed}"))
    for dtype, count in inspection.constants.items():
        console.print(Text(f"constants {dtype}: {size(count)}"))
    table = _table("operator", "nodes")
    for op_type, count in inspection.operators.items():
        table.add_row(inert(op_type), str(count))
    console.print(table)
    if inspection.quantized:
        console.print(_quantized_table(inspection))
    else:
        console.print(Text("Not quantized: no DequantizeLinear in it."))
    if nodes:
        listing = _table("node", "operator", "inputs", "of them quantized")
        for node in inspection.nodes:
            listing.add_row(inert(node.name), node.op_type, str(node.inputs), str(node.quantized_inputs))
        console.print(listing)


def _quantized_table(inspection: Inspection) -> Table:
    table = _table("quantized tensor", "kind", "type", "scale", "zero point", "position")
    for tensor in inspection.quantized:
        scale = f"{tensor.scale:.6g}" if tensor.scale is not None else f"{tensor.channels} channels"
        table.add_row(
            inert(tensor.name),
            "constant" if tensor.constant else "activation",
            tensor.dtype,
            scale,
            "-" if tensor.zero_point is None else str(tensor.zero_point),
            "-" if tensor.position is None else str(tensor.position),
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(
            name, justify="left" if name in ("why", "kind", "type", "operator") else "right", overflow="fold"
        )
    return table
