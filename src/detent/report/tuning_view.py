"""A tuning as text for a terminal: a line for each rung as it is climbed, and what was taken in the end."""

from __future__ import annotations

from rich.console import Console

from detent.report.figures import PERCENTAGES, loss_form
from detent.report.names import inert
from detent.results.evaluated import CHANGED, OUTPUT_ERROR, POINTS
from detent.results.searched import StepOutcome, Tuning

SHORT_UNITS = {
    POINTS.format(top=1): "points of top-1",
    CHANGED: "% of answers changed",
    OUTPUT_ERROR: "% of output error",
}


def print_rung(outcome: StepOutcome, console: Console) -> None:
    """One line: what it lost, in what time."""
    mark = "[green]+[/]" if outcome.kept else "[dim]-[/]"
    took = "[dim]known from before[/]" if outcome.resumed else f"{outcome.seconds:.0f} s"
    console.print(f"{mark} {outcome.name:<16} {_loss(outcome):<44} {took:>7}   [dim]{inert(outcome.what)}[/]")


def print_tuning(tuning: Tuning, console: Console) -> None:
    """The end of the climb. The rungs were printed as they came."""
    outcome = tuning.outcome
    colour = "green" if tuning.met else "yellow"
    console.print()
    verdict = (
        f"loses {_loss(outcome)}, {'within' if tuning.met else 'above'} the {tuning.max_drop:g} that was asked for"
    )
    console.print(f"[bold {colour}]{inert(tuning.taken)}[/] {verdict}. Stopped because {tuning.stopped}.")
    console.print(f"Judged on {inert(tuning.data)}; the float model: {inert(tuning.reference)}.")
    if tuning.note:
        console.print(tuning.note, markup=False)
    if tuning.met and outcome.interval is not None and outcome.interval[1] > tuning.max_drop:
        console.print(
            f"[dim]{tuning.samples} samples leave room for chance: up to {outcome.interval[1]:.2g} would not be a "
            "surprise. More evaluation data would tell.[/]"
        )
    if not tuning.met:
        console.print("Try more calibration images, a longer --budget, or a recipe with finer numbers (A8W8, A16W8).")
    if tuning.kept is not None:
        console.print(f"The rungs are kept in {inert(tuning.kept)}: with a longer --budget the same command goes on.")
    if tuning.output is not None:
        console.print(f"Written to {inert(tuning.output)} in {tuning.seconds:.0f} s.")


def _loss(outcome: StepOutcome) -> str:
    unit = SHORT_UNITS.get(outcome.unit, outcome.unit)
    form = loss_form(outcome.unit, outcome.loss, outcome.interval)
    if outcome.interval is None:
        return f"{outcome.loss:{form}} {inert(unit)}"
    low, high = outcome.interval
    ends = ".1f" if outcome.unit in PERCENTAGES else form
    return f"{outcome.loss:{form}} {inert(unit)} ({low:{ends}} to {high:{ends}})"
