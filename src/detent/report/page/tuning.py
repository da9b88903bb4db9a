"""The page of a tuning: the ladder that was climbed, and the rung that was taken."""

from __future__ import annotations

from pathlib import Path

from detent.report.figures import loss_form, ratio, size
from detent.report.page.charts import Loss, interval_chart
from detent.report.page.html import joined, tag
from detent.report.page.parts import Contents, Level, Section, Tile, Verdict, code
from detent.report.page.table import Cell, Column, Row, number, table, words
from detent.report.tuning_view import SHORT_UNITS
from detent.results.paired import interval_text
from detent.results.searched import StepOutcome, Tuning


def tuning(result: Tuning) -> Contents:
    """The verdict, the ladder and the recipe."""
    destination = result.output or "kept in memory"
    return Contents(
        "tuning",
        Path(result.source).name,
        [
            f"{result.source} → {destination}",
            f"Judged on {result.data}; the float model: {result.reference}.",
            result.note,
        ],
        _verdict(result),
        _tiles(result),
        [_chart(result), _ladder(result), _recipe(result)],
    )


def _unit(outcome: StepOutcome) -> str:
    return SHORT_UNITS.get(outcome.unit, outcome.unit)


def _form(outcome: StepOutcome) -> str:
    return loss_form(outcome.unit, outcome.loss, outcome.interval)


def _verdict(result: Tuning) -> Verdict:
    outcome = result.outcome
    within = "within" if result.met else "above"
    loss = f"{outcome.loss:{_form(outcome)}} {_unit(outcome)}"
    said = f"'{outcome.name}' loses {loss}, {within} the {result.max_drop:g} asked for."
    if result.met and outcome.interval is not None and outcome.interval[1] > result.max_drop:
        said += (
            f" {result.samples} samples leave room for chance: up to {outcome.interval[1]:.2g} would not be a surprise."
        )
    if not result.met:
        said += " Try more calibration images, a longer --budget, or a recipe with finer numbers (A8W8, A16W8)."
    return Verdict("good" if result.met else "warn", "Reached" if result.met else "Not reached", said)


def _tiles(result: Tuning) -> list[Tile]:
    outcome = result.outcome
    form = _form(outcome)
    ends = f" 95 % interval {interval_text(outcome.interval, form)}." if outcome.interval is not None else ""
    level: Level = "good" if result.met else "warn"
    tiles = [Tile("Loss", f"{outcome.loss:{form}}", f"In {_unit(outcome)}, against the float model.{ends}", level)]
    if outcome.bytes_after is not None:
        before = "" if result.bytes_before is None else f"{size(result.bytes_before)} before, "
        said = "" if result.bytes_before is None else ratio(result.bytes_before, outcome.bytes_after)
        tiles.append(Tile("Size", size(outcome.bytes_after), f"{before}{said}."))
    tiles.append(Tile("Rungs tried", str(len(result.rungs)), f"Stopped because {result.stopped}."))
    tiles.append(Tile("Time", f"{result.seconds:.0f} s", f"Every rung was judged on {result.samples} samples."))
    return tiles


def _chart(result: Tuning) -> Section:
    losses = [Loss(rung.name, rung.loss, rung.interval, marked=rung.name == result.taken) for rung in result.rungs]
    meaning = (
        "Each way to quantize that was tried, in order: a dot for its loss, a line for the 95 % interval. The one that "
        "was taken is filled."
    )
    unit = _unit(result.outcome)
    return Section("Ladder", meaning, interval_chart(losses, result.max_drop, unit), folded=False)


def _ladder(result: Tuning) -> Section:
    columns = [
        Column("#", "The order of climbing.", numeric=True, minor=True),
        Column("Rung", "The way to quantize, and what it does."),
        Column("Loss", f"In {_unit(result.outcome)}, against the float model.", numeric=True),
        Column("95 % interval", "Where the loss on all possible samples lies.", numeric=True),
        Column(
            "Output error", "Noise power over signal power on calibration samples held out.", numeric=True, minor=True
        ),
        Column("Seconds", "To quantize and to judge.", numeric=True, minor=True),
        Column("Size", "", numeric=True, minor=True),
        Column("", "", minor=True),
    ]
    rows = [Row(_cells(place, rung, result)) for place, rung in enumerate(result.rungs, 1)]
    return Section("Rungs", "The same as numbers.", table(columns, rows, "rungs"), folded=False, count=str(len(rows)))


def _cells(place: int, rung: StepOutcome, result: Tuning) -> list[Cell]:
    state = "taken" if rung.name == result.taken else "better than below" if rung.kept else "no better"
    error, written = rung.output_error, rung.bytes_after
    return [
        number(place),
        words(joined((rung.name, tag("div", rung.what, class_="quiet small"))), rung.name),
        number(rung.loss, f"{rung.loss:{_form(rung)}}"),
        number(None if rung.interval is None else rung.interval[0], interval_text(rung.interval, _form(rung))),
        number(error, None if error is None else f"{100 * error:.3g} %"),
        number(rung.seconds, "known" if rung.resumed else f"{rung.seconds:.1f}"),
        number(written, None if written is None else size(written)),
        words(state),
    ]


def _recipe(result: Tuning) -> Section:
    return Section(
        "Recipe", "The one that was taken, as a file for --recipe.", code(result.to_toml()), count=result.recipe.name
    )
