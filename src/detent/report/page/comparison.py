"""The pages of comparisons: two models tensor by tensor, and two folders of results file by file."""

from __future__ import annotations

from pathlib import Path

from detent.report.figures import decibels
from detent.report.page.charts import Point, depth_chart
from detent.report.page.html import joined, name_of, tag
from detent.report.page.layers import SQNR
from detent.report.page.parts import Contents, Section, Tile, Verdict
from detent.report.page.table import Cell, Column, Row, number, table, words
from detent.results.compared import MEASURES, FolderComparison, ModelComparison, TensorDifference

_MEANINGS = {
    "sqnr_db": ("SQNR dB", SQNR),
    "psnr_db": ("PSNR dB", "Decibels of the squared largest value over the mean squared difference."),
    "cosine": ("Cosine", "1 where both have one direction."),
    "l1": ("L1", "The mean absolute difference."),
    "l2": ("L2", "The mean squared difference."),
    "ssim": ("SSIM", "Structural similarity in windows of 7 by 7; 1 where both are the same."),
}


def comparison(result: ModelComparison) -> Contents:
    """Two models: the outputs first, then every tensor of one name in both."""
    outputs = [tensor for tensor in result.tensors if tensor.is_output]
    worst = min(outputs or result.tensors, key=lambda tensor: tensor.mean("sqnr_db"))
    figure = worst.mean("sqnr_db")
    least = decibels(worst.worst("sqnr_db"))
    said = f"'{worst.name}' has an SQNR of {decibels(figure)} dB on average, {least} dB at worst."
    tiles = [
        Tile("Output SQNR" if outputs else "Least SQNR", f"{decibels(figure)} dB", SQNR),
        Tile("Cosine", f"{worst.mean('cosine'):.5f}", "1 where both have one direction; the mean over the samples."),
        Tile("Samples", str(len(worst.samples)), f"The hardest is {worst.worst_samples(1)[0]}."),
        Tile("Tensors", str(len(result.tensors)), "Tensors that have one name and one shape in both models."),
    ]
    sections = [_along(result), _tensors(result), _skipped(result)]
    return Contents(
        "comparison",
        f"{Path(result.after).name} against {Path(result.before).name}",
        [f"On {result.data}.", result.note, result.rescaling],
        Verdict("plain", "The same" if figure == float("inf") else "Compared", said),
        tiles,
        [section for section in sections if section is not None],
    )


def _along(result: ModelComparison) -> Section | None:
    if len(result.tensors) < 2:
        return None
    points = [
        Point(f"{each.name}: {decibels(each.mean('sqnr_db'))} dB", each.mean("sqnr_db"), marked=each.is_output)
        for each in result.tensors
    ]
    meaning = f"SQNR of each tensor, in the order of the first model. {SQNR}"
    return Section("Difference along the network", meaning, depth_chart([points], "SQNR in dB"), folded=False)


def _tensors(result: ModelComparison) -> Section:
    columns = [Column("Tensor"), *(_column(measure) for measure in MEASURES)]
    columns += [
        Column("Worst SQNR", "On the sample where it is least.", numeric=True, minor=True),
        Column("Worst sample", "", minor=True),
    ]
    rows = [Row(_cells(tensor)) for tensor in result.worst_first()]
    meaning = "Means over the samples, the least SQNR first."
    if result.rescaling:
        meaning += " Of those that are marked, the scales of channels were undone: equalization changes them."
    listed = table(columns, rows, "tensors", order=(1, True))
    return Section("Tensors", meaning, listed, folded=False, count=str(len(rows)))


def _cells(tensor: TensorDifference) -> list[Cell]:
    marks = [*(["output"] if tensor.is_output else []), *(["scales undone"] if tensor.rescaled else [])]
    mark = joined(tag("span", said, class_="badge plain") for said in marks)
    worst = tensor.worst_samples(1)[0]
    return [
        words(joined((name_of(tensor.name), mark)), tensor.name),
        *(_figure(measure, tensor.mean(measure)) for measure in MEASURES),
        _figure("sqnr_db", tensor.worst("sqnr_db")),
        words(name_of(worst), worst),
    ]


def _column(measure: str) -> Column:
    title, meaning = _MEANINGS[measure]
    return Column(title, meaning, numeric=True, minor=measure not in ("sqnr_db", "cosine"))


def _figure(measure: str, value: float | None) -> Cell:
    if value is None:
        return number(None)
    shown = (
        decibels(value)
        if measure.endswith("_db")
        else f"{value:.5f}"
        if measure in ("cosine", "ssim")
        else f"{value:.3g}"
    )
    return number(value, shown)


def _skipped(result: ModelComparison) -> Section | None:
    if not result.skipped:
        return None
    rows = [Row([words(name_of(name), name)]) for name in result.skipped]
    meaning = "Tensors of one name that have other shapes or types."
    return Section("Not compared", meaning, table([Column("Tensor")], rows, "tensors"), count=str(len(rows)))


def folders(result: FolderComparison) -> Contents:
    """Two folders of results."""
    measures = [measure for measure in ("cosine", "psnr_db", "ssim", "l1", "l2") if measure in result.measures()]
    tiles = [_folder_tile(result, measure) for measure in measures[:4]]
    rows = [
        Row([words(name_of(file.name), file.name), *(_figure(measure, getattr(file, measure)) for measure in measures)])
        for file in sorted(result.files, key=lambda file: file.cosine)
    ]
    columns = [Column("File"), *(_column(measure) for measure in measures)]
    section = Section(
        "Files", "Every file, the least cosine first.", table(columns, rows, "files", order=(1, True)), folded=False
    )
    said = f"{len(result.files)} files; the figures below are means over them."
    return Contents(
        "comparison",
        f"{Path(result.other).resolve().name} against {Path(result.baseline).resolve().name}",
        [f"{result.other} against {result.baseline}."],
        Verdict("plain", "Compared", said),
        tiles,
        [section],
    )


def _folder_tile(result: FolderComparison, measure: str) -> Tile:
    title, meaning = _MEANINGS[measure]
    mean, worst = (str(_figure(measure, value).shown) for value in (result.mean(measure), result.worst(measure).value))
    return Tile(title, mean, f"{meaning} Worst: {worst}, in {result.worst(measure).file}.")
