"""The document of an evaluation: what each model gets, and what it loses against the first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from detent.report import document as doc
from detent.report.charts import Estimate, FrontChart, IntervalChart
from detent.report.figures import (
    SQNR,
    command,
    decibels,
    form_of,
    in_decibels,
    loss_words,
    probability,
    ratio,
    size,
    unit_of,
)
from detent.results import evaluated
from detent.results.paired import Interval, in_percent, interval_text, wilson_interval
from detent.results.task_scores import TaskFigure, TaskScores

MOST_CHANGES = 3  # changed answers that a short answer lists for a model

MOST_OUTPUTS = 10  # outputs that a short answer lists

SMALL_LOSS = 1.0  # percentage points of accuracy: a model that certainly loses less is called as good

DISPUTED = "Whether a loss may be chance is judged by McNemar's exact test; the intervals are approximate."
INTERVAL = "95 % interval"
INTERVAL_MEANING = "Below: where the figure of all possible samples lies, with 95 % confidence."

_TITLES: dict[doc.Level, str] = {"good": "As good as the first", "plain": "Compared", "warn": "Worse, beyond chance"}
_KINDS = ("became wrong", "became right", "wrong before and after", "")
_TOPS = {1: "Samples whose top answer is their label.", 5: "Samples whose label is among the first five answers."}


def evaluation_document(result: evaluated.Evaluation) -> doc.Document:
    """Build the document of an evaluation: the losses first, then the models and the changed answers."""
    first, *others = result.models
    names = " and ".join(Path(model.model).name for model in result.models[:2])
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return doc.Document(
        "evaluation",
        f"{names}{more}",
        [f"Evaluated on {result.data}."],
        [result.note, _order(first, others)],
        _verdict(first, others),
        _figures(first, others),
        [
            _unanswered(result),
            _models(result),
            _front(result),
            _outputs(result.models),
            _losses(first, others),
            *map(_changes, others),
            *(_changed_samples(first, other) for other in others),
        ],
        [_verdict(first, others).text, _next(first, others)],
    )


def _order(first: evaluated.ModelResult, others: Sequence[evaluated.ModelResult]) -> str:
    """Return a doubt about the order of the models if the first is by far the smallest file."""
    sizes = [each.bytes for each in others if each.bytes is not None]
    if first.bytes is None or not sizes or 2 * first.bytes >= min(sizes):
        return ""
    return (
        f"Losses are those against {Path(first.model).name}. If that is the quantized model, name the float one first."
    )


def _next(first: evaluated.ModelResult, others: Sequence[evaluated.ModelResult]) -> str:
    """Return the command to type next, for the model that lost most."""
    if not others:
        return f"Next: {command('evaluate', first.model, 'ANOTHER', '--data', 'DATA')}"
    worst = max(others, key=lambda result: -math.inf if result.loss is None else result.loss.points)
    if worst.loss is not None and _level(worst.loss) == "warn":
        return f"Next: {command('tune', first.model, 'OUTPUT', '--calib', 'DATA', '--eval', 'LABELLED')}"
    return f"Next: {command('check', worst.model)}"


def _verdict(first: evaluated.ModelResult, others: Sequence[evaluated.ModelResult]) -> doc.Verdict:
    if not others:
        alone = f"{first.model} was measured alone; give a second model to compare with it."
        return doc.Verdict("plain", "Measured", alone)
    losses = [(Path(result.model).name, result.loss) for result in others if result.loss is not None]
    levels = [_level(loss) for _, loss in losses]
    level: doc.Level = "warn" if "warn" in levels else "plain" if "plain" in levels else "good"
    worse = levels.count("warn")
    title = f"{worse} of {len(levels)} are worse, beyond chance" if worse and len(levels) > 1 else _TITLES[level]
    return doc.Verdict(level, title, " ".join(f"{model} {_loss_text(loss)}." for model, loss in losses))


def _loss_text(loss: evaluated.Loss) -> str:
    verb = "gains" if loss.points < 0 else "loses"
    points, ends = loss_words(loss.unit, abs(loss.points), loss.interval)
    if loss.unit == evaluated.CHANGED:  # without labels nobody knows which of the two answers was lost
        return f"changes {points} % of the top answers{ends and f' ({INTERVAL}: {ends})'}"
    text = f"{verb} {points} {unit_of(loss.unit)}{ends and f' ({INTERVAL} of the loss: {ends})'}"
    if loss.p_value is None:
        return text
    text += f", which {'is ' if loss.beyond_chance else ''}{chance_text(loss)}"
    if not loss.is_disputed:
        return text
    p = probability(loss.p_value)
    return f"{text}: McNemar's exact test decides that (p {p}), and the interval is only approximate"


def chance_text(loss: evaluated.Loss) -> str:
    """Say whether the loss may be chance, in two words."""
    return "hardly chance" if loss.beyond_chance else "could be chance"


def _level(loss: evaluated.Loss) -> doc.Level:
    """Return "warn" for a loss beyond chance, and "good" if the interval excludes a large loss.

    Both need labels: only the user knows what their own measure or a changed answer is worth.
    """
    if loss.interval is None or loss.p_value is None:
        return "plain"
    if loss.beyond_chance and loss.points > 0:
        return "warn"
    return "good" if loss.interval[1] <= SMALL_LOSS else "plain"


def _figures(first: evaluated.ModelResult, others: Sequence[evaluated.ModelResult]) -> list[doc.KeyFigure]:
    figures = []
    for result in (first, *others)[:4]:
        figure = _key_figure(result.scores)
        if figure is not None:
            figures.append(doc.KeyFigure("", *figure, name=_short(result.model)))
    for result in others if len(others) <= 2 else ():
        if first.bytes is not None and result.bytes is not None:
            meaning = f"{size(first.bytes)} before, {ratio(first.bytes, result.bytes)}."
            of = "" if len(others) == 1 else _short(result.model)
            figures.append(doc.KeyFigure("Size", size(result.bytes), meaning, name=of))
    return figures


def _short(model: str) -> str:
    """Return the name of the file without its ending, which all of them have."""
    path = Path(model)
    return path.stem if path.suffix == ".onnx" else path.name


def _key_figure(scores: evaluated.Scores | None) -> tuple[str, str] | None:
    """Return the one number of a model, and its meaning."""
    if isinstance(scores, evaluated.Answers):
        meaning = f"{_TOPS[1].rstrip('.')}; {INTERVAL} {interval_text(scores.interval())}."
        return f"{scores.accuracy():.2f} %", meaning
    if isinstance(scores, TaskScores):
        figure = scores.figures[0]
        return f"{figure.value:.2f} {figure.name}", f"{figure.meaning} {INTERVAL} {interval_text(figure.interval)}."
    if isinstance(scores, evaluated.SampleScores):
        form = _score_form(scores)
        ends = interval_text(scores.interval(), form)
        return f"{scores.mean:{form}}", f"Mean of {scores.metric}; {INTERVAL} {ends}."
    if isinstance(scores, evaluated.WholeScore):
        return f"{scores.value:.4g}", f"{scores.metric} of all samples together."
    if isinstance(scores, evaluated.Deviation) and scores.agreeing is not None:
        return f"{scores.agreeing} of {len(scores.names)}", "Samples with the top answer of the first model."
    if isinstance(scores, evaluated.Deviation) and scores.agreement is not None and scores.agreement.loss is not None:
        lost = scores.losses_against(None)[0]
        points, _ = loss_words(lost.unit, lost.points, lost.interval)
        return points, f"{unit_of(lost.unit)}: {scores.agreement.summary}."
    if isinstance(scores, evaluated.Deviation):
        worst = min(closeness.sqnr_db for closeness in scores.outputs.values())
        return in_decibels(worst), f"SQNR of its worst output. {SQNR}"
    return None if scores is None else (scores.summary, "On all samples.")


def _score_form(scores: evaluated.SampleScores) -> str:
    return form_of(scores.mean, *(scores.interval() or ()))


def _models(result: evaluated.Evaluation) -> doc.Section | None:
    scored = [model for model in result.models if model.scores is not None]
    columns = _score_columns(scored[0].scores)
    if not columns:
        return None
    timed = any(model.cost is not None for model in scored)
    shown: doc.Audience = "both" if timed else "page"
    sizes = doc.figure("Size", "bytes", size, "Of the file, with its data.", minor=not timed, on=shown)
    times = doc.figure(
        "Estimated ms",
        "cost.milliseconds",
        ".1f",
        "One sample on the device, by a formula fitted to published times; below, how far it may be off. A dash: the "
        "device does not take the model, or nothing is known.",
        small=lambda model: interval_text(model.cost.ends, ".1f"),
    )
    models = doc.table("models", [doc.named("Model", "model"), *columns, sizes, times if timed else None], scored)
    return doc.Section("Models", f"All models on the same {result.samples} samples.", [models], folded=False)


def _front(result: evaluated.Evaluation) -> doc.Section | None:
    """Draw what the models cost against what they lose, if there are several to choose from."""
    first, *others = result.models
    lost = [(each, Estimate(_short(each.model), each.loss.points, each.loss.interval)) for each in others if each.loss]
    if len(lost) < 2:
        return None
    unit = next(each.loss.unit for each in others if each.loss)
    shown = [(first, Estimate(_short(first.model), 0.0)), *lost]
    sizes = [replace(estimate, cost=each.bytes / 1e6) for each, estimate in shown if each.bytes]
    times = [replace(estimate, cost=each.cost.milliseconds) for each, estimate in shown if each.cost]
    return front_section([("MB", sizes), ("estimated ms", times)], unit_of(unit))


def front_section(candidates: Sequence[tuple[str, Sequence[Estimate]]], loss: str) -> doc.Section | None:
    """Draw a front for each cost, such as the size or the time; None if there are not two candidates to choose from."""
    drawn = [
        doc.Figure(FrontChart(each, cost, loss)) for cost, each in candidates if len({one.cost for one in each}) > 1
    ]
    if not drawn:
        return None
    meaning = "What each candidate costs and what it loses against the first model, with the 95 % interval of the loss."
    return doc.Section("Front", meaning, drawn, folded=False, on="page")


def _score_columns(scores: evaluated.Scores | None) -> list[doc.Column]:
    """Return the columns for models that have scores of this kind."""
    if isinstance(scores, evaluated.Answers):
        return [_accuracy_column(top) for top in scores.tops]
    if isinstance(scores, TaskScores):
        return [_task_column(at, shown) for at, shown in enumerate(scores.figures)]
    if isinstance(scores, evaluated.SampleScores):
        form = _score_form(scores)
        return [
            _score_column(
                f"mean of {scores.metric}", "scores.mean", form, lambda model: model.scores.interval(), verbatim=True
            )
        ]
    if isinstance(scores, evaluated.WholeScore):
        return [doc.figure(scores.metric, "scores.value", ".6g", verbatim=True)]
    if not isinstance(scores, evaluated.Deviation):
        return [doc.worded("Score", "scores.summary")]
    if scores.agreement is not None:
        meaning = f"As the task reads them: {scores.agreement.task} ({scores.agreement.why})."
        return [doc.worded("Answers beside the first model's", "scores.agreement.summary", meaning)]
    return [] if scores.agreeing is None else [_agreement_column(len(scores.names))]


def _score_column(
    title: str, get: doc.Getter, form: str, interval: Callable[[Any], Interval | None], meaning: str = "", **more: Any
) -> doc.Column:
    explained = f"{meaning} {INTERVAL_MEANING}".strip()
    return doc.figure(
        title, get, form, explained, small=lambda model: interval_text(interval(model), form), below=INTERVAL, **more
    )


def _accuracy_column(top: int) -> doc.Column:
    return _score_column(
        f"Top-{top} %",
        lambda model: model.scores.accuracy(top),
        ".2f",
        lambda model: model.scores.interval(top),
        _TOPS[top],
        minor=top > 1,
    )


def _task_column(at: int, shown: TaskFigure) -> doc.Column:
    return _score_column(
        shown.name,
        lambda model: model.scores.figures[at].value,
        ".2f",
        lambda model: model.scores.figures[at].interval,
        shown.meaning,
        minor=at > 0,
        verbatim=True,
    )


def _agreement_column(samples: int) -> doc.Column:
    return doc.figure(
        "Same top answer",
        "scores.agreeing",
        lambda agreeing: f"{agreeing} of {samples}",
        f"As the first model. {INTERVAL_MEANING}",
        small=lambda model: f"{interval_text(in_percent(wilson_interval(model.scores.agreeing, samples)))} %",
        below=INTERVAL,
    )


def _outputs(models: Sequence[evaluated.ModelResult]) -> doc.Section | None:
    rows = [
        (model.model, output, close)
        for model in models
        if isinstance(model.scores, evaluated.Deviation)
        for output, close in model.scores.outputs.items()
    ]
    if not rows:
        return None
    direction = "1 if it has the direction of the first model's."
    columns = [
        doc.named("Model", itemgetter(0)),
        doc.named("Output", itemgetter(1)),
        doc.figure("SQNR dB", lambda row: row[2].sqnr_db, decibels, SQNR),
        doc.figure("Cosine", lambda row: row[2].cosine, ".5f", direction, minor=True),
    ]
    drawn = doc.table("outputs", columns, rows, shown=MOST_OUTPUTS)
    return doc.Section("Outputs", "Each output against that of the first model.", [drawn], folded=False)


def _losses(first: evaluated.ModelResult, others: Sequence[evaluated.ModelResult]) -> doc.Section | None:
    losses = [(result, loss) for result in others for loss in result.losses]
    if not losses:
        return None
    leading = losses[0][1]
    charted = [
        Estimate(Path(result.model).name, result.loss.points, result.loss.interval)
        for result in others
        if result.loss is not None
    ]
    counted = leading.became_wrong is not None
    chance = "a line that crosses zero may be chance."
    if counted:
        test = "McNemar's exact test decides (p below), not the line, which is approximate"
        chance = f"whether a loss may be chance, {test}."
    meaning = (
        f"How much worse than {Path(first.model).name}, sample by sample: a dot for the loss, a line for its 95 % "
        f"interval. Left of zero the model is better; {chance}"
    )
    blocks: list[doc.Block] = [
        doc.Paragraph("", on="terminal"),
        doc.Figure(IntervalChart(charted, None, unit_of(leading.unit))),
        doc.table("losses", _loss_columns(counted), losses, title=f"loss against {first.model}"),
    ]
    if any(loss.is_disputed for _, loss in losses):
        blocks.append(doc.Paragraph(DISPUTED, on="terminal"))
    return doc.Section("Loss", meaning, blocks, folded=False)


def _loss_columns(counted: bool) -> list[doc.Column | None]:
    """Return the columns for pairs of a model and one of its losses. `counted`: with what became wrong or right."""

    def model_cell(row: tuple[evaluated.ModelResult, evaluated.Loss]) -> doc.Cell:
        return doc.name(row[0].model, short=None if row[1] is row[0].losses[0] else "")

    def loss_cell(row: tuple[evaluated.ModelResult, evaluated.Loss]) -> doc.Cell:
        loss = row[1]
        return doc.number(loss.points, *loss_words(loss.unit, loss.points, loss.interval))

    def p_text(row: tuple[evaluated.ModelResult, evaluated.Loss]) -> str:
        return f"{probability(row[1].p_value or 0.0)} ({chance_text(row[1])})"

    against = f"Against the first model; below zero it is better. {INTERVAL_MEANING}"
    wrong, right = (f"Samples that only {which} model gets right." for which in ("the first", "this"))
    exact = "McNemar's exact test: how often chance alone would be this uneven."
    chance = f"{exact} Below {evaluated.CHANCE} the loss is called hardly chance."
    return [
        doc.Column("Model", cell=model_cell),
        doc.Column("Loss", against, numeric=True, below=INTERVAL, cell=loss_cell),
        doc.figure("Became wrong", lambda row: row[1].became_wrong, ",", wrong, minor=True) if counted else None,
        doc.figure("Became right", lambda row: row[1].became_right, ",", right, minor=True) if counted else None,
        doc.figure("McNemar's p", lambda row: row[1].p_value, meaning=chance, minor=True, text=p_text)
        if counted
        else None,
        doc.worded("In", lambda row: unit_of(row[1].unit), "The unit of the loss."),
    ]


def _unanswered(result: evaluated.Evaluation) -> doc.Section | None:
    warnings = [
        f"{each.model} answers {each.scores.unanswered} samples with NaN: they count as wrong."
        for each in result.models
        if isinstance(each.scores, evaluated.Answers) and each.scores.unanswered
    ]
    warnings += [
        f"{each.model}: {warning}"
        for each in result.models
        if isinstance(each.scores, TaskScores)
        for warning in each.scores.warnings
    ]
    notes = [doc.Note("Warning", "warn", warning) for warning in warnings]
    return doc.Section("Missing answers", blocks=[doc.NoteList(notes)], folded=False) if notes else None


def _changes(result: evaluated.ModelResult) -> doc.Section | None:
    """List the samples that a model answers differently: those that became wrong, then right, then the others."""
    changed = result.loss.changed if result.loss is not None else ()
    if not changed:
        return None
    labelled = changed[0].label is not None
    columns = [
        doc.named("Sample", "name"),
        doc.figure("Label", "label", "", "The class that is right.") if labelled else None,
        doc.figure("Before", "before", _answer, "The top answer of the first model."),
        doc.figure("After", "after", _answer, "The top answer of this model."),
        doc.worded("So it", change_kind) if labelled else None,
    ]
    ordered = sorted(changed, key=lambda change: _KINDS.index(change_kind(change)))
    meaning = "Samples whose top answer is another than that of the first model."
    return _samples(result, "answers", meaning, columns, ordered)


def _answer(answer: int) -> str:
    return "NaN" if answer == evaluated.NO_ANSWER else str(answer)


def _samples(
    result: evaluated.ModelResult,
    what: str,
    meaning: str,
    columns: Sequence[doc.Column | None],
    changed: Sequence[Any],
    unit: str = "",
) -> doc.Section:
    """Return a section on samples that changed, of which a short answer lists a few."""
    title = f"changed {what} of {result.model} ({len(changed)}){unit and f', {unit}'}"
    drawn = doc.table("samples", columns, changed, shown=MOST_CHANGES, title=title)
    head = f"Changed {what} of {Path(result.model).name}"
    return doc.Section(head, meaning, [doc.Paragraph("", on="terminal"), drawn], count=str(len(changed)))


def _changed_samples(first: evaluated.ModelResult, result: evaluated.ModelResult) -> doc.Section | None:
    """List the samples that get less from a model than from the first, and those that get more."""
    before, after = first.scores, result.scores
    if not isinstance(before, TaskScores) or not isinstance(after, TaskScores):
        return None
    changed = after.changed(before)
    if not changed:
        return None
    columns = [
        doc.named("Sample", "name"),
        doc.figure("Before", "before", ".1f", f"From the first model: {after.value_name}."),
        doc.figure("After", "after", ".1f", f"From this model: {after.value_name}."),
        doc.figure("Loss", lambda change: change.before - change.after, ".1f", "The difference."),
    ]
    meaning = f"What each sample got, {after.value_name}: the worst losses first."
    return _samples(result, "samples", meaning, columns, changed, after.value_name)


def change_kind(change: evaluated.ChangedAnswer) -> str:
    """Say what became of a labelled sample; nothing if there is no label."""
    if change.label is None:
        return ""
    if change.label == change.before:
        return "became wrong"
    return "became right" if change.label == change.after else "wrong before and after"
