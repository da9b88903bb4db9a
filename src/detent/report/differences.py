"""The documents of comparisons: two models, two folders of answers, an emulation, and a model before and after."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from detent.convert import Conversion
from detent.convert.splitting import BetweenTensor, Split
from detent.errors import listed
from detent.prepare.base import Change
from detent.report import document as doc
from detent.report.charts import DepthChart, Point
from detent.report.figures import SQNR, command, decibels, in_decibels, size
from detent.results.compared import MEASURES, Emulation, FolderComparison, ModelComparison, TensorDifference
from detent.results.verdict import CLOSE_DB

MOST_TENSORS = 5  # tensors on the way, and outputs, that a short answer lists

MOST_FIGURES = 12  # figures of a conversion that a short answer lists

_SHOWN = 5

_MEANINGS = {
    "sqnr_db": ("SQNR dB", SQNR),
    "psnr_db": ("PSNR dB", "Decibels of the squared largest value over the mean squared difference."),
    "cosine": ("Cosine", "1 if both have one direction."),
    "l1": ("L1", "The mean absolute difference."),
    "l2": ("L2", "The mean squared difference."),
    "ssim": ("SSIM", "Structural similarity in windows of 7 by 7; 1 if both are the same."),
}


def comparison_document(result: ModelComparison) -> doc.Document:
    """Build the document of two models: the outputs first, then every tensor of one name in both."""
    outputs = [tensor for tensor in result.tensors if tensor.is_output]
    inside = [tensor for tensor in result.worst_first() if not tensor.is_output]
    worst = min(outputs or result.tensors, key=lambda tensor: tensor.mean("sqnr_db"))
    mean, least = worst.mean("sqnr_db"), in_decibels(worst.worst("sqnr_db"))
    text = f"'{worst.name}' has an SQNR of {in_decibels(mean)} on average, {least} at worst."
    following = command("evaluate", result.before, result.after, "--data", "LABELLED")
    if mean < CLOSE_DB:
        following = command("sensitivity", result.before, "--calib", "DATA")
    return doc.Document(
        "comparison",
        f"{Path(result.after).name} against {Path(result.before).name}",
        [f"{result.after} against {result.before}, on {result.data}."],
        [result.note],
        doc.Verdict("plain", "The same" if mean == math.inf else "Compared", text),
        [
            doc.KeyFigure("Output SQNR" if outputs else "Least SQNR", in_decibels(mean), SQNR),
            doc.KeyFigure(
                "Cosine", f"{worst.mean('cosine'):.5f}", "1 if both have one direction; the mean over samples."
            ),
            doc.KeyFigure("Samples", str(len(worst.samples)), f"The hardest is {worst.worst_samples(1)[0]}."),
            doc.KeyFigure("Tensors", str(len(result.tensors)), "Tensors of one name and one shape in both models."),
        ],
        [_difference_along(result), _tensors("Outputs", outputs), _tensors("Tensors", inside), *_remarks(result)],
        [text, f"Next: {following}"],
    )


def _difference_along(result: ModelComparison) -> doc.Section | None:
    if len(result.tensors) < 2:
        return None
    points = [
        Point(f"{each.name}: {in_decibels(each.mean('sqnr_db'))}", each.mean("sqnr_db"), marked=each.is_output)
        for each in result.tensors
    ]
    meaning = f"SQNR of each tensor, in the order of the first model. {SQNR}"
    chart = doc.Figure(DepthChart([points], "SQNR in dB"))
    return doc.Section("Difference along the network", meaning, [chart], folded=False, on="page")


def _tensors(title: str, tensors: Sequence[TensorDifference]) -> doc.Section | None:
    if not tensors:
        return None
    columns = [
        doc.Column("Tensor", cell=_tensor_cell),
        *(_mean_column(measure) for measure in MEASURES),
        doc.named("Worst sample", lambda tensor: tensor.worst_samples(1)[0], minor=True),
    ]
    meaning = "Means over the samples, the least SQNR first. Below each: the worst sample."
    head = "outputs" if title == "Outputs" else "worst tensors of the same name"
    rows = doc.table("tensors", columns, tensors, order=(1, True), shown=MOST_TENSORS, title=head)
    return doc.Section(title, meaning, [rows, doc.Paragraph("", on="terminal")], folded=False, count=str(len(tensors)))


def _tensor_cell(tensor: TensorDifference) -> doc.Cell:
    return doc.name(tensor.name, badges=["scales undone"] if tensor.rescaled else [])


def _remarks(result: ModelComparison) -> Iterable[doc.Section]:
    if result.rescaling:
        yield doc.Section("Channels", blocks=[doc.Paragraph(result.rescaling)])
    if result.skipped:
        yield doc.Section(
            "Not compared",
            "Tensors of one name that have other shapes or types.",
            [doc.table("tensors", [doc.named("Tensor", str)], result.skipped)],
            count=str(len(result.skipped)),
            brief=f"Not compared, for their shapes or types: {listed(list(result.skipped), 3)}.",
        )


def _mean_column(measure: str) -> doc.Column:
    """Return the mean of a measure, with its worst value below."""
    return doc.figure(
        f"{_MEANINGS[measure][0]}: mean",
        lambda tensor: tensor.mean(measure),
        partial(_text, measure),
        _MEANINGS[measure][1],
        small=lambda tensor: _text(measure, tensor.worst(measure)),
        below="worst",
        **_importance(measure),
    )


def _importance(measure: str) -> dict[str, Any]:
    """Return what a narrow screen and a short answer leave out."""
    minor = measure not in ("sqnr_db", "cosine")
    return {"minor": minor, "on": "verbose" if minor else "both"}


def _text(measure: str, value: float) -> str:
    if measure.endswith("_db"):
        return decibels(value)
    return f"{value:.5f}" if measure in ("cosine", "ssim") else f"{value:.3g}"


def folders_document(result: FolderComparison) -> doc.Document:
    """Build the document of two folders of answers."""
    measures = [measure for measure in ("cosine", "psnr_db", "ssim", "l1", "l2") if measure in result.measures()]
    figures = []
    for measure in measures[:4]:
        worst = result.worst(measure)
        meaning = f"{_MEANINGS[measure][1]} Worst: {_text(measure, worst.value)}, in {worst.file}."
        figures.append(doc.KeyFigure(_MEANINGS[measure][0], _text(measure, result.mean(measure)), meaning))
    means = [
        doc.worded("Measure", lambda measure: _MEANINGS[measure][0]),
        doc.figure("Mean", result.mean, ".6g"),
        doc.figure("Worst", lambda measure: result.worst(measure).value, ".6g"),
        doc.named("In", lambda measure: result.worst(measure).file, "The file of the worst value.", minor=True),
    ]
    files = [doc.named("File", "name"), *map(_file_column, measures)]
    ordered = sorted(result.files, key=lambda file: file.cosine)
    least = result.worst("cosine")
    return doc.Document(
        "comparison",
        f"{Path(result.other).resolve().name} against {Path(result.baseline).resolve().name}",
        [f"{len(result.files)} files compared: {result.other} against {result.baseline}."],
        (),
        doc.Verdict("plain", "Compared", f"{len(result.files)} files; the figures below are means over them."),
        figures,
        [
            doc.Section("Measures", "Over all files.", [doc.table("measures", means, measures)]),
            doc.Section(
                "Files",
                "Every file, the least cosine first.",
                [doc.table("files", files, ordered, order=(1, True))],
                folded=False,
                on="verbose",
            ),
        ],
        [
            f"{len(result.files)} files: the cosine is {result.mean('cosine'):.5f} on average, and "
            f"{least.value:.5f} at worst, in {least.file}.",
            "Next: `detent compare` of the models that wrote them tells at which layer they part.",
        ],
    )


def _file_column(measure: str) -> doc.Column:
    title, meaning = _MEANINGS[measure]
    return doc.figure(title, measure, partial(_text, measure), meaning, **_importance(measure))


def emulation_document(emulation: Emulation) -> doc.Document:
    """Build the document of an emulation: what was computed how, and each output against onnxruntime's."""
    report = emulation.report
    lines = [doc.Paragraph(f"{report.integer_steps} nodes in integers, {report.quantized_tensors} tensors of codes.")]
    kinds = Counter((step.op_type, step.reason) for step in report.float_steps)
    lines += [
        doc.Paragraph(f"In float, on the host: {count} x {op_type}: {reason}.")
        for (op_type, reason), count in kinds.most_common()
    ]
    lines += [
        doc.Paragraph(f"'{node}': {count:,} sums left the 32 bits of the accumulator.", "bad")
        for node, count in report.overflows.items()
    ]
    columns = [
        doc.named("Output", "name"),
        doc.figure("Elements", "elements"),
        doc.figure("Differ", "differing"),
        doc.figure("By at most", "farthest", ".6g"),
        doc.figure(
            "Same top-1",
            lambda each: each.same_top1 if each.rows else None,
            meaning="Rows with the same largest element, if the output looks like class scores.",
            text=lambda each: f"{each.same_top1} of {each.rows}",
        ),
    ]
    outputs = doc.table("outputs", columns, emulation.outputs, title="output, against onnxruntime")
    warning = [doc.Paragraph("The data was random: give --data to see what real inputs do.", "warn")]
    return doc.Document(
        "emulation",
        "Emulated in integers",
        [f"Emulated in integers on {emulation.data}, rounding {report.rounding}."],
        [emulation.note],
        sections=[
            doc.Section(
                "Outputs",
                "Each output against onnxruntime's.",
                [*(warning if emulation.random else []), *lines, outputs],
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


def conversion_document(conversion: Conversion) -> doc.Document:
    """Build the document of a conversion: a model before and after, and what each step did and declined."""
    sections = [doc.Section("Contents", "What differs, and the size.", [_contents(conversion)], folded=False)]
    for step in dict.fromkeys(change.by for change in (*conversion.changes, *conversion.declined)):
        done = [change for change in conversion.changes if change.by == step]
        left = [change for change in conversion.declined if change.by == step]
        notes = [doc.Note("left", "plain", change.what, f"'{change.node}'") for change in left]
        summary = doc.Paragraph(f"{step}: {_counted(done) or 'nothing'}.")
        sections.append(doc.Section(step, blocks=[summary, doc.NoteList(notes, shown=_SHOWN)], folded=False))
    headline = [f"{conversion.source} -> {conversion.output}", ", ".join(conversion.steps)]
    following = ("compare", conversion.source, conversion.output, "--data", "DATA")
    closing = [f"Wrote {conversion.output}: {size(conversion.after.bytes)}.", f"Next: {command(*following)}"]
    return doc.Document("conversion", Path(conversion.source).name, headline, sections=sections, closing=closing)


def split_document(done: Split) -> doc.Document:
    """Build the document of a model that was cut in two."""
    sizes = f"{done.body_nodes} and {done.tail_nodes} nodes, {size(done.body_bytes)} and {size(done.tail_bytes)}"
    headline = [f"{done.source} -> {done.body} + {done.tail}", sizes]
    about = [f"Cut where the post-processing of detections starts ({done.sign})."] if done.sign else []
    run = f'detent.Pipeline("{done.body}", "{done.tail}") runs them as one; evaluate, compare and infer take --tail.'
    if done.foreign:
        run = f"onnxruntime does not know {done.foreign}, so {done.tail} was not tried: run it where that operator is."
    between = between_table(done.between)
    sections = [
        doc.Section("Between them", "What the first gives to the second.", [between, doc.Paragraph(run)], folded=False)
    ]
    closing = [
        f"Wrote {done.body}, for the device, and {done.tail}, for the CPU.",
        f"Next: {command('quantize', done.body, 'OUTPUT', '--calib', 'DATA')}",
    ]
    return doc.Document("split", Path(done.source).name, headline, about, sections=sections, closing=closing)


def between_table(tensors: Sequence[BetweenTensor]) -> doc.Table:
    """Return the tensors that go from the body of a model to its tail."""
    columns = [
        doc.named("Tensor", "name"),
        doc.worded("Type", "type"),
        doc.worded("Shape", lambda each: " x ".join("?" if side is None else str(side) for side in each.shape)),
        doc.worded("", lambda each: "also: it leads around the cut" if each.added else ""),
    ]
    return doc.table("tensors", columns, tensors)


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


def _contents(conversion: Conversion) -> doc.Table:
    """List each figure that differs, and always the size."""
    before, after = conversion.before, conversion.after
    rows: list[tuple[str, str, int | None, int | None]] = [("file", " bytes", before.bytes, after.bytes)]
    for title, unit, old, new in (
        ("opset ", "", before.opset, after.opset),
        ("constants ", " bytes", before.constants, after.constants),
        ("", "", before.operators, after.operators),
    ):
        rows += [
            (f"{title}{key}", unit, old.get(key), new.get(key))
            for key in sorted(set(old) | set(new))
            if old.get(key) != new.get(key)
        ]

    columns = [
        doc.worded("", itemgetter(0)),
        doc.figure("Before", itemgetter(2), text=lambda row: f"{row[2]:,}{row[1]}"),
        doc.figure("After", itemgetter(3), text=lambda row: f"{row[3]:,}{row[1]}"),
    ]
    return doc.table("figures", columns, rows, shown=MOST_FIGURES)
