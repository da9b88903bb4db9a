"""The page of an evaluation: what each model got and lost, and which samples it answers differently."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from detent.report.evaluation_view import (
    SHORT_UNITS,
    answer_text,
    chance_text,
    change_kind,
    score_form,
)
from detent.report.figures import decibels, loss_form, probability, ratio, size
from detent.report.page import charts
from detent.report.page.html import joined, name_of, tag
from detent.report.page.layers import SQNR
from detent.report.page.parts import Contents, Level, Section, Tile, Verdict
from detent.report.page.table import Cell, Column, Row, number, table, words
from detent.results.evaluated import (
    CHANCE,
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
from detent.results.paired import Interval, interval_text

SMALL_LOSS = 1.0
"""Percentage points of accuracy: what is certainly less is called as good."""

_TITLES: dict[Level, str] = {
    "good": "As good as the first",
    "plain": "Compared",
    "warn": "Worse, beyond chance",
}

_DISPUTED = "McNemar's exact test decides that (p {p}), and the interval is only approximate"

INTERVAL = "where the figure of all possible samples lies, with 95 % confidence."
RULE = f"Below {CHANCE} the loss is called hardly chance."


def evaluation(result: Evaluation) -> Contents:
    """The losses first, then the models and the changed answers."""
    first, *others = result.models
    sections = [_losses(first, others), _models(result), _outputs(result.models), *map(_changes, others)]
    names = " and ".join(Path(model.model).name for model in result.models[:2])
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return Contents(
        "evaluation",
        f"{names}{more}",
        [", ".join(model.model for model in result.models), f"On {result.data}.", result.note],
        _verdict(first, others),
        _tiles(first, others),
        [section for section in sections if section is not None],
    )


def _verdict(first: ModelResult, others: Sequence[ModelResult]) -> Verdict:
    if not others:
        return Verdict(
            "plain", "Measured", f"{first.model} was measured alone; give a second model to compare with it."
        )
    said = [f"{Path(result.model).name} {_said(result.loss)}." for result in others if result.loss is not None]
    levels = [_level(result.loss) for result in others if result.loss is not None]
    level: Level = "warn" if "warn" in levels else "plain" if "plain" in levels else "good"
    worse = levels.count("warn")
    title = f"{worse} of {len(levels)} are worse, beyond chance" if worse and len(levels) > 1 else _TITLES[level]
    return Verdict(level, title, " ".join(said))


def _said(loss: Loss) -> str:
    verb = "gains" if loss.points < 0 else "loses"
    form = loss_form(loss.unit, loss.points, loss.interval)
    ends = f" (95 % interval of the loss: {interval_text(loss.interval, form)})" if loss.interval is not None else ""
    return f"{verb} {abs(loss.points):{form}} {SHORT_UNITS.get(loss.unit, loss.unit)}{ends}{_chance(loss)}"


def _chance(loss: Loss) -> str:
    if loss.p_value is None:
        return ""
    said = f", which {'is ' if loss.beyond_chance else ''}{chance_text(loss)}"
    return f"{said}: {_DISPUTED.format(p=probability(loss.p_value))}" if loss.is_disputed else said


def _level(loss: Loss) -> Level:
    """A warning where there is a loss beyond chance, and good where no large one can be; only where labels tell.

    What a user's own measure or a changed answer is worth, nobody knows but the user.
    """
    if loss.interval is None or loss.p_value is None:
        return "plain"
    if loss.beyond_chance and loss.points > 0:
        return "warn"
    return "good" if loss.interval[1] <= SMALL_LOSS else "plain"


def _tiles(first: ModelResult, others: Sequence[ModelResult]) -> list[Tile]:
    tiles = []
    for result in (first, *others)[:4]:
        figure = _figure(result.scores)
        if figure is not None:
            tiles.append(Tile(name_of(_short(result.model)), figure[0], figure[1]))
    for result in others[:2]:
        if first.bytes is not None and result.bytes is not None:
            meaning = f"{size(first.bytes)} before, {ratio(first.bytes, result.bytes)}."
            title = "Size" if len(others) == 1 else joined(("Size of ", name_of(_short(result.model))))
            tiles.append(Tile(title, size(result.bytes), meaning))
    return tiles


def _short(model: str) -> str:
    """The name of the file without its ending, which all of them have."""
    path = Path(model)
    return path.stem if path.suffix == ".onnx" else path.name


def _figure(scores: Scores | None) -> tuple[str, str] | None:
    """The one number of a model, and its meaning."""
    if isinstance(scores, Answers):
        meaning = f"Samples whose top answer is their label; 95 % interval {interval_text(scores.interval())}."
        return f"{scores.accuracy():.2f} %", meaning
    if isinstance(scores, SampleScores):
        form = score_form(scores)
        return (
            f"{scores.mean:{form}}",
            f"Mean of {scores.metric}; 95 % interval {interval_text(scores.interval(), form)}.",
        )
    if isinstance(scores, WholeScore):
        return f"{scores.value:.4g}", f"{scores.metric} of all samples together."
    if isinstance(scores, Deviation) and scores.agreeing is not None:
        return f"{scores.agreeing} of {len(scores.names)}", "Samples with the top answer of the first model."
    if isinstance(scores, Deviation):
        worst = min(closeness.sqnr_db for closeness in scores.outputs.values())
        return f"{decibels(worst)} dB", f"SQNR of its worst output. {SQNR}"
    return None


def _losses(first: ModelResult, others: Sequence[ModelResult]) -> Section | None:
    losses = [result.loss for result in others]
    if not losses or losses[0] is None:
        return None
    unit = SHORT_UNITS.get(losses[0].unit, losses[0].unit)
    rows = [
        charts.Loss(Path(result.model).name, result.loss.points, result.loss.interval)
        for result in others
        if result.loss is not None
    ]
    chance = (
        "a line that crosses zero may be chance."
        if losses[0].p_value is None
        else "whether a loss may be chance, McNemar's exact test decides (p below), not the line, which is approximate."
    )
    meaning = (
        f"How much worse than {Path(first.model).name}, sample by sample: a dot for the loss, a line for its 95 % "
        f"interval. Left of zero the model is better; {chance}"
    )
    return Section("Loss", meaning, charts.interval_chart(rows, None, unit), folded=False)


def _models(result: Evaluation) -> Section | None:
    rows = [
        Row([words(name_of(Path(model.model).name), model.model), *_scores(model.scores), *_lost(model), _bytes(model)])
        for model in result.models
        if model.scores is not None
    ]
    shown = next((model.scores for model in result.models if model.scores is not None), None)
    if shown is None:
        return None
    columns = [
        Column("Model"),
        *_titles(shown),
        Column("Loss", f"Against the first model; below zero it is better. Small: {INTERVAL}", numeric=True),
        Column("Became wrong", "Samples that only the first model gets right.", numeric=True, minor=True),
        Column("Became right", "Samples that only this model gets right.", numeric=True, minor=True),
        Column(
            "p", f"McNemar's exact test: how often chance alone would be this uneven. {RULE}", numeric=True, minor=True
        ),
        Column("Size", "Of the file, with its data.", numeric=True, minor=True),
    ]
    kept = [at for at in range(len(columns)) if at == 0 or any(row.cells[at].key is not None for row in rows)]
    rows = [Row([row.cells[at] for at in kept]) for row in rows]
    meaning = f"All models on the same {result.samples} samples."
    return Section("Models", meaning, table([columns[at] for at in kept], rows, "models"), folded=False)


def _titles(scores: Scores) -> list[Column]:
    if isinstance(scores, Answers):
        tops = {
            1: "Samples whose top answer is their label.",
            5: "Samples whose label is among the first five answers.",
        }
        return [
            Column(f"Top-{top} %", f"{tops[top]} Small: {INTERVAL}", numeric=True, minor=top > 1) for top in scores.tops
        ]
    if isinstance(scores, SampleScores):
        return [Column(f"Mean of {scores.metric}", f"Small: {INTERVAL}", numeric=True)]
    if isinstance(scores, WholeScore):
        return [Column(scores.metric, numeric=True)]
    return [Column("Same answer", "Samples with the top answer of the first model.", numeric=True)]


def _scores(scores: Scores | None) -> list[Cell]:
    if isinstance(scores, Answers):
        return [_with_interval(scores.accuracy(top), scores.interval(top), ".2f") for top in scores.tops]
    if isinstance(scores, SampleScores):
        return [_with_interval(scores.mean, scores.interval(), score_form(scores))]
    if isinstance(scores, WholeScore):
        return [number(scores.value, f"{scores.value:.6g}")]
    return [number(scores.agreeing if isinstance(scores, Deviation) else None)]


def _lost(result: ModelResult) -> list[Cell]:
    loss = result.loss
    if loss is None:
        return [number(None)] * 4
    return [
        _with_interval(loss.points, loss.interval, loss_form(loss.unit, loss.points, loss.interval)),
        number(loss.became_wrong),
        number(loss.became_right),
        number(loss.p_value, probability(loss.p_value)),
    ]


def _with_interval(value: float, ends: Interval | None, form: str) -> Cell:
    """A number with its interval below it, in one column: tables of several models are wide enough."""
    below = None if ends is None else tag("div", interval_text(ends, form), class_="quiet small")
    return number(value, joined((f"{value:{form}}", below)))


def _bytes(result: ModelResult) -> Cell:
    return number(result.bytes, None if result.bytes is None else size(result.bytes))


def _outputs(models: Sequence[ModelResult]) -> Section | None:
    """Where models are compared by their outputs."""
    columns = [
        Column("Model"),
        Column("Output"),
        Column("SQNR dB", SQNR, numeric=True),
        Column("Cosine", "1 where it has the direction of the first model's.", numeric=True, minor=True),
    ]
    rows = [
        Row(
            [
                words(name_of(Path(model.model).name), model.model),
                words(name_of(name), name),
                number(close.sqnr_db, decibels(close.sqnr_db)),
                number(close.cosine, f"{close.cosine:.5f}"),
            ]
        )
        for model in models
        if isinstance(model.scores, Deviation)
        for name, close in model.scores.outputs.items()
    ]
    if not rows:
        return None
    meaning = "Each output against that of the first model."
    return Section("Outputs", meaning, table(columns, rows, "outputs"), folded=False)


def _changes(result: ModelResult) -> Section | None:
    """Every sample that a model answers differently."""
    changed = result.loss.changed if result.loss is not None else ()
    if not changed:
        return None
    labelled = changed[0].label is not None
    columns = [
        Column("Sample"),
        *([Column("Label", "The class that is right.", numeric=True)] if labelled else []),
        Column("Before", "The top answer of the first model.", numeric=True),
        Column("After", "The top answer of this model.", numeric=True),
        *([Column("So it")] if labelled else []),
    ]
    meaning = "Samples whose top answer is another than that of the first model."
    title = f"Changed answers of {Path(result.model).name}"
    return Section(
        title, meaning, table(columns, [_changed(each) for each in changed], "samples"), count=str(len(changed))
    )


def _changed(change: Change) -> Row:
    label = [] if change.label is None else [number(change.label, str(change.label))]
    kind = [] if change.label is None else [words(change_kind(change))]
    answers = [number(answer, answer_text(answer)) for answer in (change.before, change.after)]
    return Row([words(name_of(change.name), change.name), *label, *answers, *kind])
