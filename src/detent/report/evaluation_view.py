"""An evaluation as text for a terminal: each model with its interval, then what each lost against the first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detent.report.figures import decibels, form_of, loss_form, probability
from detent.report.names import inert
from detent.results.evaluated import (
    CHANGED,
    NO_ANSWER,
    OUTPUT_ERROR,
    POINTS,
    Answers,
    Change,
    Deviation,
    Evaluation,
    Loss,
    ModelResult,
    SampleScores,
    Scores,
    WholeScore,
)
from detent.results.paired import interval_text

MOST_CHANGES = 10
"""Changed answers that are listed for a model; the JSON has all."""

DISPUTED = "Whether a loss may be chance is judged by McNemar's exact test; the intervals are approximate."

SHORT_UNITS = {
    POINTS.format(top=1): "points of top-1",
    POINTS.format(top=5): "points of top-5",
    CHANGED: "% of top answers changed",
    OUTPUT_ERROR: "% of relative output error (noise power / signal power)",
}
_VERDICTS = ("became wrong", "became right", "wrong before and after", "")


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    """All models, the losses, and which answers changed."""
    console.print(Text(f"Evaluated on {evaluation.data}.", "bold"))
    if evaluation.note:
        console.print(Text(evaluation.note))
    console.print(_model_table(evaluation))
    first, *others = evaluation.models
    if others:
        console.print()
        console.print(_loss_table(first, others))
        if any(loss.is_disputed for result in others for loss in result.losses):
            console.print(Text(DISPUTED))
    for result in evaluation.models:
        if isinstance(result.scores, Answers) and result.scores.unanswered:
            said = f"{result.model} answers {result.scores.unanswered} samples with NaN: they count as wrong."
            console.print(Text(f"Warning: {said}", "yellow"))
    for result in others:
        if result.loss is not None and result.loss.changed:
            console.print()
            console.print(_change_table(result.model, result.loss.changed))


def _model_table(evaluation: Evaluation) -> Table:
    scores = next(result.scores for result in evaluation.models if result.scores is not None)
    table = _table("model", *_titles(scores))
    for result in evaluation.models:
        if isinstance(result.scores, Deviation):
            _add_outputs(table, result)
        elif result.scores is not None:
            table.add_row(inert(result.model), *_figures(result.scores))
    return table


def _titles(scores: Scores) -> list[str]:
    if isinstance(scores, Answers):
        return [title for top in scores.tops for title in (f"top-{top} %", "95 % interval")]
    if isinstance(scores, SampleScores):
        return [f"mean of {scores.metric}", "95 % interval"]
    if isinstance(scores, WholeScore):
        return [scores.metric]
    return ["output", "SQNR dB", "cosine", "same top answer", "95 % interval"]


def _figures(scores: Scores) -> list[str]:
    if isinstance(scores, Answers):
        return [
            text for top in scores.tops for text in (f"{scores.accuracy(top):.2f}", interval_text(scores.interval(top)))
        ]
    if isinstance(scores, SampleScores):
        form = score_form(scores)
        return [f"{scores.mean:{form}}", interval_text(scores.interval(), form)]
    return [f"{scores.value:.6g}" if isinstance(scores, WholeScore) else scores.summary]


def _add_outputs(table: Table, result: ModelResult) -> None:
    """A row for each output; what concerns the model as a whole in the first of them."""
    assert isinstance(result.scores, Deviation)
    agreement = ["-", "-"]
    if result.scores.agreeing is not None and result.loss is not None and result.loss.interval is not None:
        low, high = result.loss.interval
        samples = len(result.scores.names)
        agreement = [f"{result.scores.agreeing} of {samples}", f"{interval_text((100 - high, 100 - low))} %"]
    for number, (name, closeness) in enumerate(result.scores.outputs.items()):
        about = [inert(result.model), *agreement] if number == 0 else ["", "", ""]
        table.add_row(about[0], inert(name), decibels(closeness.sqnr_db), f"{closeness.cosine:.5f}", *about[1:])


def _loss_table(first: ModelResult, others: Sequence[ModelResult]) -> Table:
    """A row for each loss. Below zero the model is better than the first."""
    counted = any(loss.p_value is not None for result in others for loss in result.losses)
    table = _table(inert(f"against {first.model}"), "loss", "95 % interval")
    for title in ("became wrong", "became right", "McNemar's p") if counted else ():
        table.add_column(title, justify="right")
    table.add_column("in")
    for result in others:
        for number, loss in enumerate(result.losses):
            form = loss_form(loss.unit, loss.points, loss.interval)
            changes = (str(loss.became_wrong), str(loss.became_right), _chance(loss)) if counted else ()
            table.add_row(
                inert(result.model) if number == 0 else "",
                f"{loss.points:{form}}",
                interval_text(loss.interval, form),
                *changes,
                inert(SHORT_UNITS.get(loss.unit, loss.unit)),
            )
    return table


def score_form(scores: SampleScores) -> str:
    """The same for a mean and its interval."""
    return form_of(scores.mean, *(scores.interval() or ()))


def _chance(loss: Loss) -> str:
    return "-" if loss.p_value is None else f"{probability(loss.p_value)} ({chance_text(loss)})"


def chance_text(loss: Loss) -> str:
    """Whether the loss may be chance, in two words."""
    return "hardly chance" if loss.beyond_chance else "could be chance"


def _change_table(model: str, changed: Sequence[Change]) -> Table:
    """The first of the changed answers: those that became wrong, then right, then those that were and are wrong."""
    labelled = changed[0].label is not None
    shown = sorted(changed, key=lambda change: _VERDICTS.index(change_kind(change)))[:MOST_CHANGES]
    count = str(len(changed)) if len(shown) == len(changed) else f"{len(shown)} of {len(changed)}"
    title = inert(f"changed answers of {model} ({count})")
    table = _table(title, "label", "before", "after") if labelled else _table(title, "before", "after")
    table.add_column("")
    for change in shown:
        label = [str(change.label)] if labelled else []
        table.add_row(
            inert(change.name), *label, answer_text(change.before), answer_text(change.after), change_kind(change)
        )
    return table


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for title in numbers:
        table.add_column(title, justify="right", overflow="fold")
    return table


def answer_text(answer: int) -> str:
    """The class, or that there is none."""
    return "NaN" if answer == NO_ANSWER else str(answer)


def change_kind(change: Change) -> str:
    """What became of a labelled sample; nothing where there is no label."""
    if change.label is None:
        return ""
    if change.label == change.before:
        return "became wrong"
    return "became right" if change.label == change.after else "wrong before and after"
