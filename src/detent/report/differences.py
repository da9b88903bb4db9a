"""The documents of comparisons: two models, two folders of answers, an emulation, and a model before and after."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from detent.convert import Conversion
from detent.convert.splitting import BetweenTensor, Split
from detent.prepare.base import Change
from detent.report.charts import DepthChart, Point
from detent.report.document import (
    Audience,
    Block,
    Cell,
    Column,
    Document,
    Figure,
    KeyFigure,
    Note,
    NoteList,
    Paragraph,
    Row,
    Section,
    Table,
    Verdict,
    name,
    number,
    numeric,
    words,
)
from detent.report.figures import SQNR, command, decibels, listed, size
from detent.results.compared import MEASURES, Emulation, FolderComparison, ModelComparison, TensorDifference
from detent.results.verdict import CLOSE_DB

MOST_TENSORS = 5
"""Tensors on the way, and outputs, that a short answer lists."""

MOST_FIGURES = 12
"""Figures of a conversion that a short answer lists."""

_SHOWN = 5

_MEANINGS = {
    "sqnr_db": ("SQNR dB", SQNR),
    "psnr_db": ("PSNR dB", "Decibels of the squared largest value over the mean squared difference."),
    "cosine": ("Cosine", "1 if both have one direction."),
    "l1": ("L1", "The mean absolute difference."),
    "l2": ("L2", "The mean squared difference."),
    "ssim": ("SSIM", "Structural similarity in windows of 7 by 7; 1 if both are the same."),
}


def comparison_document(result: ModelComparison) -> Document:
    """Build the document of two models: the outputs first, then every tensor of one name in both."""
    outputs = [tensor for tensor in result.tensors if tensor.is_output]
    inside = [tensor for tensor in result.worst_first() if not tensor.is_output]
    worst = min(outputs or result.tensors, key=lambda tensor: tensor.mean("sqnr_db"))
    mean, least = worst.mean("sqnr_db"), decibels(worst.worst("sqnr_db"))
    text = f"'{worst.name}' has an SQNR of {decibels(mean)} dB on average, {least} dB at worst."
    following = command("evaluate", result.before, result.after, "--data", "LABELLED")
    if mean < CLOSE_DB:
        following = command("sensitivity", result.before, "--calib", "DATA")
    return Document(
        "comparison",
        f"{Path(result.after).name} against {Path(result.before).name}",
        [f"{result.after} against {result.before}, on {result.data}."],
        [result.note],
        Verdict("plain", "The same" if mean == math.inf else "Compared", text),
        [
            KeyFigure("Output SQNR" if outputs else "Least SQNR", f"{decibels(mean)} dB", SQNR),
            KeyFigure("Cosine", f"{worst.mean('cosine'):.5f}", "1 if both have one direction; the mean over samples."),
            KeyFigure("Samples", str(len(worst.samples)), f"The hardest is {worst.worst_samples(1)[0]}."),
            KeyFigure("Tensors", str(len(result.tensors)), "Tensors of one name and one shape in both models."),
        ],
        [_difference_along(result), _tensors("Outputs", outputs), _tensors("Tensors", inside), *_remarks(result)],
        [text, f"Next: {following}"],
    )


def _difference_along(result: ModelComparison) -> Section | None:
    if len(result.tensors) < 2:
        return None
    points = [
        Point(f"{each.name}: {decibels(each.mean('sqnr_db'))} dB", each.mean("sqnr_db"), marked=each.is_output)
        for each in result.tensors
    ]
    meaning = f"SQNR of each tensor, in the order of the first model. {SQNR}"
    chart = Figure(DepthChart([points], "SQNR in dB"))
    return Section("Difference along the network", meaning, [chart], folded=False, on="page")


def _tensors(title: str, tensors: Sequence[TensorDifference]) -> Section | None:
    if not tensors:
        return None
    columns = [
        Column("Tensor"),
        *(_column(measure, below="worst") for measure in MEASURES),
        Column("Worst sample", minor=True),
    ]
    rows = [
        Row(
            [
                name(tensor.name, badges=["scales undone"] if tensor.rescaled else []),
                *(_figure(measure, tensor.mean(measure), tensor.worst(measure)) for measure in MEASURES),
                name(tensor.worst_samples(1)[0]),
            ]
        )
        for tensor in tensors
    ]
    meaning = "Means over the samples, the least SQNR first. Below each: the worst sample."
    head = "outputs" if title == "Outputs" else "worst tensors of the same name"
    table = Table(columns, rows, "tensors", (1, True), MOST_TENSORS, head)
    return Section(title, meaning, [table, Paragraph("", on="terminal")], folded=False, count=str(len(rows)))


def _remarks(result: ModelComparison) -> Iterable[Section]:
    if result.rescaling:
        yield Section("Channels", blocks=[Paragraph(result.rescaling)])
    if result.skipped:
        rows = [Row([name(each)]) for each in result.skipped]
        yield Section(
            "Not compared",
            "Tensors of one name that have other shapes or types.",
            [Table([Column("Tensor")], rows, "tensors")],
            count=str(len(rows)),
            brief=f"Not compared, for their shapes or types: {listed(list(result.skipped), 3)}.",
        )


def _column(measure: str, below: str = "") -> Column:
    title, meaning = _MEANINGS[measure]
    minor = measure not in ("sqnr_db", "cosine")
    on: Audience = "verbose" if minor else "both"
    return numeric(f"{title}: mean" if below else title, meaning, minor=minor, below=below, on=on)


def _text(measure: str, value: float) -> str:
    if measure.endswith("_db"):
        return decibels(value)
    return f"{value:.5f}" if measure in ("cosine", "ssim") else f"{value:.3g}"


def _figure(measure: str, value: float | None, worst: float | None = None) -> Cell:
    below = "" if worst is None else _text(measure, worst)
    return number(value, None if value is None else _text(measure, value), below)


def folders_document(result: FolderComparison) -> Document:
    """Build the document of two folders of answers."""
    measures = [measure for measure in ("cosine", "psnr_db", "ssim", "l1", "l2") if measure in result.measures()]
    figures = []
    for measure in measures[:4]:
        worst = result.worst(measure)
        meaning = f"{_MEANINGS[measure][1]} Worst: {_text(measure, worst.value)}, in {worst.file}."
        figures.append(KeyFigure(_MEANINGS[measure][0], _text(measure, result.mean(measure)), meaning))
    summary = [
        Row(
            [
                words(_MEANINGS[measure][0]),
                number(result.mean(measure), f"{result.mean(measure):.6g}"),
                number(result.worst(measure).value, f"{result.worst(measure).value:.6g}"),
                name(result.worst(measure).file),
            ]
        )
        for measure in measures
    ]
    rows = [
        Row([name(file.name), *(_figure(measure, getattr(file, measure)) for measure in measures)])
        for file in sorted(result.files, key=lambda file: file.cosine)
    ]
    columns = [
        Column("Measure"),
        numeric("Mean"),
        numeric("Worst"),
        Column("In", "The file of the worst value.", minor=True),
    ]
    files = Table([Column("File"), *map(_column, measures)], rows, "files", (1, True))
    return Document(
        "comparison",
        f"{Path(result.other).resolve().name} against {Path(result.baseline).resolve().name}",
        [f"{len(result.files)} files compared: {result.other} against {result.baseline}."],
        (),
        Verdict("plain", "Compared", f"{len(result.files)} files; the figures below are means over them."),
        figures,
        [
            Section("Measures", "Over all files.", [Table(columns, summary, "measures")]),
            Section("Files", "Every file, the least cosine first.", [files], folded=False, on="verbose"),
        ],
        [
            f"{len(result.files)} files: the cosine is {result.mean('cosine'):.5f} on average, and "
            f"{result.worst('cosine').value:.5f} at worst, in {result.worst('cosine').file}.",
            "Next: `detent compare` of the models that wrote them tells at which layer they part.",
        ],
    )


def emulation_document(emulation: Emulation) -> Document:
    """Build the document of an emulation: what was computed how, and each output against onnxruntime's."""
    report = emulation.report
    lines = [
        Paragraph(f"{report.integer_steps} nodes in integers, {report.quantized_tensors} tensors of codes."),
    ]
    kinds = Counter((step.op_type, step.reason) for step in report.float_steps)
    lines += [
        Paragraph(f"In float, on the host: {count} x {op_type}: {reason}.")
        for (op_type, reason), count in kinds.most_common()
    ]
    lines += [
        Paragraph(f"'{node}': {count:,} sums left the 32 bits of the accumulator.", "bad")
        for node, count in report.overflows.items()
    ]
    columns = [
        Column("Output"),
        numeric("Elements"),
        numeric("Differ"),
        numeric("By at most"),
        numeric("Same top-1", "Rows with the same largest element, if the output looks like class scores."),
    ]
    rows = [
        Row(
            [
                name(output.name),
                number(output.elements),
                number(output.differing),
                number(output.farthest, f"{output.farthest:.6g}"),
                Cell(f"{output.same_top1} of {output.rows}", output.same_top1) if output.rows else number(None),
            ]
        )
        for output in emulation.outputs
    ]
    table = Table(columns, rows, "outputs", title="output, against onnxruntime")
    warning = [Paragraph("The data was random: give --data to see what real inputs do.", "warn")]
    return Document(
        "emulation",
        "Emulated in integers",
        [f"Emulated in integers on {emulation.data}, rounding {report.rounding}."],
        [emulation.note],
        sections=[
            Section(
                "Outputs",
                "Each output against onnxruntime's.",
                [*(warning if emulation.random else []), *lines, table],
                folded=False,
            )
        ],
        closing=_emulation_closing(emulation),
    )


def _emulation_closing(emulation: Emulation) -> list[str]:
    differing, all_of = (sum(getattr(each, key) for each in emulation.outputs) for key in ("differing", "elements"))
    found = f"{differing:,} of {all_of:,} elements of the outputs differ from onnxruntime's."
    written = "" if emulation.folder is None else f"Wrote the answers to {emulation.folder}. "
    following = ("evaluate", "FLOAT_MODEL", emulation.source or "MODEL", "--data", "LABELLED", "--emulate")
    return [f"{written}{found}", f"Next: {command(*following, emulation.report.rounding)}"]


def conversion_document(conversion: Conversion) -> Document:
    """Build the document of a conversion: a model before and after, and what each step did and declined."""
    sections = [Section("Contents", "What differs, and the size.", [_contents(conversion)], folded=False)]
    for step in dict.fromkeys(change.by for change in (*conversion.changes, *conversion.declined)):
        done = [change for change in conversion.changes if change.by == step]
        left = [change for change in conversion.declined if change.by == step]
        blocks: list[Block] = [Paragraph(f"{step}: {_counted(done) or 'nothing'}.")]
        blocks.append(
            NoteList([Note("left", "plain", change.what, f"'{change.node}'") for change in left], shown=_SHOWN)
        )
        sections.append(Section(step, blocks=blocks, folded=False))
    headline = [f"{conversion.source} -> {conversion.output}", ", ".join(conversion.steps)]
    following = ("compare", conversion.source, conversion.output, "--data", "DATA")
    closing = [f"Wrote {conversion.output}: {size(conversion.after.bytes)}.", f"Next: {command(*following)}"]
    return Document("conversion", Path(conversion.source).name, headline, sections=sections, closing=closing)


def split_document(done: Split) -> Document:
    """Build the document of a model that was cut in two."""
    sizes = f"{done.body_nodes} and {done.tail_nodes} nodes, {size(done.body_bytes)} and {size(done.tail_bytes)}"
    headline = [f"{done.source} -> {done.body} + {done.tail}", sizes]
    about = [f"Cut where the post-processing of detections starts ({done.sign})."] if done.sign else []
    run = f'detent.Pipeline("{done.body}", "{done.tail}") runs them as one; evaluate, compare and infer take --tail.'
    table = between_table(done.between)
    sections = [Section("Between them", "What the first gives to the second.", [table, Paragraph(run)], folded=False)]
    closing = [
        f"Wrote {done.body}, for the device, and {done.tail}, for the CPU.",
        f"Next: {command('quantize', done.body, 'OUTPUT', '--calib', 'DATA')}",
    ]
    return Document("split", Path(done.source).name, headline, about, sections=sections, closing=closing)


def between_table(tensors: Sequence[BetweenTensor]) -> Table:
    """Return the tensors that go from the body of a model to its tail."""
    columns = [Column("Tensor"), Column("Type"), Column("Shape"), Column("")]
    rows = [
        Row(
            [
                name(each.name),
                words(each.type),
                words(" x ".join("?" if side is None else str(side) for side in each.shape)),
                words("also: it leads around the cut" if each.added else ""),
            ]
        )
        for each in tensors
    ]
    return Table(columns, rows, "tensors")


def _counted(changes: Sequence[Change]) -> str:
    """Say what was done, equal notes once with their number; a note on one node with its name."""
    counts = Counter(change.what for change in changes)
    names = {change.what: change.node for change in changes}
    shown = [
        f"{what} ({count} times)" if count > 1 else f"'{names[what]}' {what}"
        for what, count in counts.most_common(_SHOWN)
    ]
    rest = len(counts) - len(shown)
    return "; ".join(shown) + (f"; and {rest} more" if rest else "")


def _contents(conversion: Conversion) -> Table:
    """List each figure that differs, and always the size."""
    before, after = conversion.before, conversion.after
    rows = [Row([words("file"), *(number(each.bytes, f"{each.bytes:,} bytes") for each in (before, after))])]
    for title, old, new in (
        ("opset", before.opset, after.opset),
        ("constants", before.constants, after.constants),
        ("", before.operators, after.operators),
    ):
        unit = " bytes" if title == "constants" else ""
        for key in sorted(set(old) | set(new)):
            if old.get(key) != new.get(key):
                cells = [
                    number(each[key], f"{each[key]:,}{unit}") if key in each else number(None) for each in (old, new)
                ]
                rows.append(Row([words(f"{title} {key}".strip()), *cells]))
    return Table([Column(""), numeric("Before"), numeric("After")], rows, "figures", shown=MOST_FIGURES)
