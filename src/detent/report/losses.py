"""The documents of an evaluation and of a tuning: what each model gets, and what it loses against the first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from detent.report.charts import Estimate, IntervalChart
from detent.report.document import (
    Block,
    Cell,
    Code,
    Column,
    Document,
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
    name,
    number,
    numeric,
    words,
)
from detent.report.figures import SQNR, command, decibels, form_of, loss_form, probability, ratio, size, unit_of
from detent.results.evaluated import (
    CHANCE,
    NO_ANSWER,
    Answers,
    ChangedAnswer,
    Deviation,
    Evaluation,
    Loss,
    ModelResult,
    SampleScores,
    Scores,
    WholeScore,
)
from detent.results.paired import interval_text, wilson_interval
from detent.results.searched import StepOutcome, Tuning
from detent.results.task_scores import TaskFigure, TaskScores

MOST_CHANGES = 3
"""Changed answers that a short answer lists for a model."""

MOST_OUTPUTS = 10
"""Outputs that a short answer lists."""

SMALL_LOSS = 1.0
"""Percentage points of accuracy: what is certainly less is called as good."""

DISPUTED = "Whether a loss may be chance is judged by McNemar's exact test; the intervals are approximate."
INTERVAL = "95 % interval"
INTERVAL_MEANING = "Below: where the figure of all possible samples lies, with 95 % confidence."

_TITLES: dict[Level, str] = {"good": "As good as the first", "plain": "Compared", "warn": "Worse, beyond chance"}
_KINDS = ("became wrong", "became right", "wrong before and after", "")
_TOPS = {1: "Samples whose top answer is their label.", 5: "Samples whose label is among the first five answers."}


def evaluation_document(result: Evaluation) -> Document:
    """Build the document of an evaluation: the losses first, then the models and the changed answers."""
    first, *others = result.models
    names = " and ".join(Path(model.model).name for model in result.models[:2])
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return Document(
        "evaluation",
        f"{names}{more}",
        [f"Evaluated on {result.data}."],
        [result.note],
        _verdict(first, others),
        _figures(first, others),
        [
            _unanswered(result),
            _models(result),
            _outputs(result.models),
            _losses(first, others),
            *map(_changes, others),
            *(_changed_samples(first, other) for other in others),
        ],
        [_verdict(first, others).text, _next(first, others)],
    )


def _next(first: ModelResult, others: Sequence[ModelResult]) -> str:
    """Return the command to type next, for the model that lost most."""
    if not others:
        return f"Next: {command('quantize', first.model, 'OUTPUT', '--calib', 'DATA')}"
    worst = max(others, key=lambda result: -math.inf if result.loss is None else result.loss.points)
    if worst.loss is not None and _level(worst.loss) == "warn":
        return f"Next: {command('tune', first.model, 'OUTPUT', '--calib', 'DATA', '--eval', 'LABELLED')}"
    return f"Next: {command('check', worst.model)}"


def _verdict(first: ModelResult, others: Sequence[ModelResult]) -> Verdict:
    if not others:
        alone = f"{first.model} was measured alone; give a second model to compare with it."
        return Verdict("plain", "Measured", alone)
    losses = [(Path(result.model).name, result.loss) for result in others if result.loss is not None]
    levels = [_level(loss) for _, loss in losses]
    level: Level = "warn" if "warn" in levels else "plain" if "plain" in levels else "good"
    worse = levels.count("warn")
    title = f"{worse} of {len(levels)} are worse, beyond chance" if worse and len(levels) > 1 else _TITLES[level]
    return Verdict(level, title, " ".join(f"{model} {_loss_text(loss)}." for model, loss in losses))


def _loss_text(loss: Loss) -> str:
    verb = "gains" if loss.points < 0 else "loses"
    form = loss_form(loss.unit, loss.points, loss.interval)
    ends = "" if loss.interval is None else f" ({INTERVAL} of the loss: {interval_text(loss.interval, form)})"
    text = f"{verb} {abs(loss.points):{form}} {unit_of(loss.unit)}{ends}"
    if loss.p_value is None:
        return text
    text += f", which {'is ' if loss.beyond_chance else ''}{chance_text(loss)}"
    if not loss.is_disputed:
        return text
    p = probability(loss.p_value)
    return f"{text}: McNemar's exact test decides that (p {p}), and the interval is only approximate"


def chance_text(loss: Loss) -> str:
    """Say whether the loss may be chance, in two words."""
    return "hardly chance" if loss.beyond_chance else "could be chance"


def _level(loss: Loss) -> Level:
    """Return a warning if there is a loss beyond chance, and good if no large one can be; only if labels tell.

    What a user's own measure or a changed answer is worth, only the user knows.
    """
    if loss.interval is None or loss.p_value is None:
        return "plain"
    if loss.beyond_chance and loss.points > 0:
        return "warn"
    return "good" if loss.interval[1] <= SMALL_LOSS else "plain"


def _figures(first: ModelResult, others: Sequence[ModelResult]) -> list[KeyFigure]:
    figures = []
    for result in (first, *others)[:4]:
        figure = _key_figure(result.scores)
        if figure is not None:
            figures.append(KeyFigure("", *figure, name=_short(result.model)))
    for result in others[:2]:
        if first.bytes is not None and result.bytes is not None:
            meaning = f"{size(first.bytes)} before, {ratio(first.bytes, result.bytes)}."
            of = "" if len(others) == 1 else _short(result.model)
            figures.append(KeyFigure("Size", size(result.bytes), meaning, name=of))
    return figures


def _short(model: str) -> str:
    """Return the name of the file without its ending, which all of them have."""
    path = Path(model)
    return path.stem if path.suffix == ".onnx" else path.name


def _key_figure(scores: Scores | None) -> tuple[str, str] | None:
    """Return the one number of a model, and its meaning."""
    if isinstance(scores, Answers):
        meaning = f"{_TOPS[1].rstrip('.')}; {INTERVAL} {interval_text(scores.interval())}."
        return f"{scores.accuracy():.2f} %", meaning
    if isinstance(scores, TaskScores):
        figure = scores.figures[0]
        return f"{figure.value:.2f} {figure.name}", f"{figure.meaning} {INTERVAL} {interval_text(figure.interval)}."
    if isinstance(scores, SampleScores):
        form = _score_form(scores)
        ends = interval_text(scores.interval(), form)
        return f"{scores.mean:{form}}", f"Mean of {scores.metric}; {INTERVAL} {ends}."
    if isinstance(scores, WholeScore):
        return f"{scores.value:.4g}", f"{scores.metric} of all samples together."
    if isinstance(scores, Deviation) and scores.agreeing is not None:
        return f"{scores.agreeing} of {len(scores.names)}", "Samples with the top answer of the first model."
    if isinstance(scores, Deviation):
        worst = min(closeness.sqnr_db for closeness in scores.outputs.values())
        return f"{decibels(worst)} dB", f"SQNR of its worst output. {SQNR}"
    return None if scores is None else (scores.summary, "On all samples.")


def _score_form(scores: SampleScores) -> str:
    return form_of(scores.mean, *(scores.interval() or ()))


def _models(result: Evaluation) -> Section | None:
    scored = [model for model in result.models if model.scores is not None]
    columns = _score_columns(scored[0].scores)
    if not columns:
        return None
    rows = [
        Row([name(model.model), *_score_cells(model.scores), number(model.bytes, _size(model.bytes))])
        for model in scored
    ]
    sizes = numeric("Size", "Of the file, with its data.", minor=True, on="page")
    meaning = f"All models on the same {result.samples} samples."
    return Section("Models", meaning, [Table([Column("Model"), *columns, sizes], rows, "models")], folded=False)


def _size(count: int | None) -> str | None:
    return None if count is None else size(count)


def _score_columns(scores: Scores | None) -> list[Column]:
    if isinstance(scores, Answers):
        return [
            numeric(f"Top-{top} %", f"{_TOPS[top]} {INTERVAL_MEANING}", minor=top > 1, below=INTERVAL)
            for top in scores.tops
        ]
    if isinstance(scores, TaskScores):
        return [_task_column(figure, minor=at > 0) for at, figure in enumerate(scores.figures)]
    if isinstance(scores, SampleScores):
        return [Column(f"mean of {scores.metric}", INTERVAL_MEANING, numeric=True, below=INTERVAL, verbatim=True)]
    if isinstance(scores, WholeScore):
        return [Column(scores.metric, numeric=True, verbatim=True)]
    if not isinstance(scores, Deviation):
        return [Column("Score")]
    if scores.agreeing is None:
        return []
    return [numeric("Same top answer", f"As the first model. {INTERVAL_MEANING}", below=INTERVAL)]


def _task_column(figure: TaskFigure, *, minor: bool) -> Column:
    return Column(
        figure.name, f"{figure.meaning} {INTERVAL_MEANING}", numeric=True, minor=minor, below=INTERVAL, verbatim=True
    )


def _score_cells(scores: Scores | None) -> list[Cell]:
    if isinstance(scores, Answers):
        return [
            number(scores.accuracy(top), f"{scores.accuracy(top):.2f}", interval_text(scores.interval(top)))
            for top in scores.tops
        ]
    if isinstance(scores, TaskScores):
        return [
            number(figure.value, f"{figure.value:.2f}", interval_text(figure.interval)) for figure in scores.figures
        ]
    if isinstance(scores, SampleScores):
        form = _score_form(scores)
        return [number(scores.mean, f"{scores.mean:{form}}", interval_text(scores.interval(), form))]
    if isinstance(scores, WholeScore):
        return [number(scores.value, f"{scores.value:.6g}")]
    if not isinstance(scores, Deviation) or scores.agreeing is None:
        return [words("" if scores is None else scores.summary)]
    samples = len(scores.names)
    low, high = wilson_interval(scores.agreeing, samples)
    ends = f"{interval_text((100 * low, 100 * high))} %"
    return [number(scores.agreeing, f"{scores.agreeing} of {samples}", ends)]


def _outputs(models: Sequence[ModelResult]) -> Section | None:
    """Compare models by their outputs."""
    columns = [
        Column("Model"),
        Column("Output"),
        numeric("SQNR dB", SQNR),
        numeric("Cosine", "1 if it has the direction of the first model's.", minor=True),
    ]
    rows = [
        Row(
            [
                name(model.model),
                name(output),
                number(close.sqnr_db, decibels(close.sqnr_db)),
                number(close.cosine, f"{close.cosine:.5f}"),
            ]
        )
        for model in models
        if isinstance(model.scores, Deviation)
        for output, close in model.scores.outputs.items()
    ]
    if not rows:
        return None
    meaning = "Each output against that of the first model."
    return Section("Outputs", meaning, [Table(columns, rows, "outputs", shown=MOST_OUTPUTS)], folded=False)


def _losses(first: ModelResult, others: Sequence[ModelResult]) -> Section | None:
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
    columns = [
        Column("Model"),
        numeric("Loss", f"Against the first model; below zero it is better. {INTERVAL_MEANING}", below=INTERVAL),
        *([numeric("Became wrong", "Samples that only the first model gets right.", minor=True)] if counted else []),
        *([numeric("Became right", "Samples that only this model gets right.", minor=True)] if counted else []),
        *([numeric("McNemar's p", _p_meaning(), minor=True)] if counted else []),
        Column("In", "The unit of the loss."),
    ]
    rows = [Row(_loss_cells(result, loss, counted)) for result, loss in losses]
    chance = (
        "a line that crosses zero may be chance."
        if not counted
        else "whether a loss may be chance, McNemar's exact test decides (p below), not the line, which is approximate."
    )
    meaning = (
        f"How much worse than {Path(first.model).name}, sample by sample: a dot for the loss, a line for its 95 % "
        f"interval. Left of zero the model is better; {chance}"
    )
    blocks: list[Block] = [
        Paragraph("", on="terminal"),
        Figure(IntervalChart(charted, None, unit_of(leading.unit))),
        Table(columns, rows, "losses", title=f"loss against {first.model}"),
    ]
    if any(loss.is_disputed for _, loss in losses):
        blocks.append(Paragraph(DISPUTED, on="terminal"))
    return Section("Loss", meaning, blocks, folded=False)


def _p_meaning() -> str:
    exact = "McNemar's exact test: how often chance alone would be this uneven."
    return f"{exact} Below {CHANCE} the loss is called hardly chance."


def _loss_cells(result: ModelResult, loss: Loss, counted: bool) -> list[Cell]:
    form = loss_form(loss.unit, loss.points, loss.interval)
    ends = "" if loss.interval is None else interval_text(loss.interval, form)
    p = "-" if loss.p_value is None else f"{probability(loss.p_value)} ({chance_text(loss)})"
    changes = [number(loss.became_wrong), number(loss.became_right), number(loss.p_value, p)] if counted else []
    repeated = loss is not result.losses[0]
    model = name(result.model, short="" if repeated else None)
    return [model, number(loss.points, f"{loss.points:{form}}", ends), *changes, words(unit_of(loss.unit))]


def _unanswered(result: Evaluation) -> Section | None:
    notes = [
        Note("Warning", "warn", f"{each.model} answers {each.scores.unanswered} samples with NaN: they count as wrong.")
        for each in result.models
        if isinstance(each.scores, Answers) and each.scores.unanswered
    ]
    notes += [
        Note("Warning", "warn", f"{each.model}: {warning}")
        for each in result.models
        if isinstance(each.scores, TaskScores)
        for warning in each.scores.warnings
    ]
    return Section("Answers that are none", blocks=[NoteList(notes)], folded=False) if notes else None


def _changes(result: ModelResult) -> Section | None:
    """List the samples that a model answers differently: those that became wrong, then right, then the others."""
    changed = result.loss.changed if result.loss is not None else ()
    if not changed:
        return None
    labelled = changed[0].label is not None
    columns = [
        Column("Sample"),
        *([numeric("Label", "The class that is right.")] if labelled else []),
        numeric("Before", "The top answer of the first model."),
        numeric("After", "The top answer of this model."),
        *([Column("So it")] if labelled else []),
    ]
    ordered = sorted(changed, key=lambda change: _KINDS.index(change_kind(change)))
    rows = [Row(_change_cells(change)) for change in ordered]
    title = f"changed answers of {result.model} ({len(rows)})"
    return Section(
        f"Changed answers of {Path(result.model).name}",
        "Samples whose top answer is another than that of the first model.",
        [Paragraph("", on="terminal"), Table(columns, rows, "samples", shown=MOST_CHANGES, title=title)],
        count=str(len(rows)),
    )


def _changed_samples(first: ModelResult, result: ModelResult) -> Section | None:
    """List the samples that get less from a model than from the first, and those that get more."""
    before, after = first.scores, result.scores
    if not isinstance(before, TaskScores) or not isinstance(after, TaskScores):
        return None
    rows = [
        Row(
            [
                name(change.name),
                number(change.before, f"{change.before:.1f}"),
                number(change.after, f"{change.after:.1f}"),
                number(change.before - change.after, f"{change.before - change.after:.1f}"),
            ]
        )
        for change in after.changed(before)
    ]
    if not rows:
        return None
    columns = [
        Column("Sample"),
        numeric("Before", f"From the first model: {after.value_name}."),
        numeric("After", f"From this model: {after.value_name}."),
        numeric("Loss", "The difference."),
    ]
    title = f"samples that changed in {result.model} ({len(rows)}), {after.value_name}"
    return Section(
        f"Changed samples of {Path(result.model).name}",
        f"What each sample got, {after.value_name}: the worst losses first.",
        [Paragraph("", on="terminal"), Table(columns, rows, "samples", shown=MOST_CHANGES, title=title)],
        count=str(len(rows)),
    )


def _change_cells(change: ChangedAnswer) -> list[Cell]:
    label = [] if change.label is None else [number(change.label, str(change.label))]
    kind = [] if change.label is None else [words(change_kind(change))]
    answers = [number(each, "NaN" if each == NO_ANSWER else str(each)) for each in (change.before, change.after)]
    return [name(change.name), *label, *answers, *kind]


def change_kind(change: ChangedAnswer) -> str:
    """Say what became of a labelled sample; nothing if there is no label."""
    if change.label is None:
        return ""
    if change.label == change.before:
        return "became wrong"
    return "became right" if change.label == change.after else "wrong before and after"


def tuning_document(result: Tuning) -> Document:
    """Build the document of a tuning: the verdict, the steps that were tried, and the recipe that was taken."""
    outcome = result.outcome
    level: Level = "good" if result.met else "warn"
    within = f"{'within' if result.met else 'above'} the {result.max_drop:g} asked for"
    remarks = list(_remarks(result))
    verdict = " ".join([f"'{outcome.name}' loses {_rung_loss(outcome)}, {within}.", *remarks])
    taken = f"Stopped because {result.stopped}."
    judged = f"Judged on {result.data}; the float model: {result.reference}."
    told = [judged, result.note, result.blame, *remarks]
    if result.kept is not None:
        told.append(f"The steps are kept in {result.kept}: with a longer --budget the same command goes on.")
    blocks = [Paragraph("\n" + taken, level), *(Paragraph(line) for line in told if line)]
    return Document(
        "tuning",
        Path(result.source).name,
        (),
        (),
        Verdict(level, "Reached" if result.met else "Not reached", verdict),
        _tuning_figures(result, level),
        [
            # The steps were printed as they were tried: a terminal only needs the end.
            Section("Result", blocks=blocks, on="terminal"),
            Section(
                "About",
                blocks=[Paragraph(line) for line in (_destination(result), judged, result.note) if line],
                folded=False,
                on="page",
            ),
            _tuning_chart(result),
            _tuning_steps(result),
            Section(
                "Recipe",
                "The one that was taken, as a file for --recipe.",
                [Code(result.to_toml())],
                count=result.recipe.name,
                on="page",
            ),
        ],
        _tuning_closing(result, f"{result.taken} loses {_rung_loss(outcome)}, {within}."),
    )


def _tuning_closing(result: Tuning, cost: str) -> list[str]:
    files = " and ".join(file for file in (result.output, result.file) if file)
    written = f"Wrote {files}" if files else "The quantized model is in memory"
    following = command("check", result.output or "OUTPUT")
    if not result.met:
        following = command("sensitivity", result.source, "--calib", "DATA", "--recipe", result.file or "RECIPE")
    return [f"{written}, in {result.seconds:.0f} s.", f"{cost} Next: {following}"]


def _destination(result: Tuning) -> str:
    return f"{result.source} -> {result.output or 'kept in memory'}"


def _remarks(result: Tuning) -> list[str]:
    ends = result.outcome.interval
    if not result.met:
        activations = result.recipe.activations
        finer = "" if activations is None or activations.bits >= 16 else ", or --recipe A16W8, which has finer numbers"
        return [f"Try more calibration images, a longer --budget{finer}."]
    if ends is None or ends[1] <= result.max_drop:
        return []
    chance = f"{result.samples} samples leave room for chance: up to {ends[1]:.2g} would not be a surprise."
    return [f"{chance} More evaluation data would tell."]


def step_line(outcome: StepOutcome) -> str:
    """Return one line for a step that was tried: what it lost, and in what time."""
    took = "known from before" if outcome.resumed else f"{outcome.seconds:.0f} s"
    mark = "+" if outcome.kept else "-"
    return f"{mark} {outcome.name:<16} {_rung_loss(outcome):<44} {took:>7}   {outcome.what}"


def _rung_loss(outcome: StepOutcome) -> str:
    form = loss_form(outcome.unit, outcome.loss, outcome.interval)
    text = f"{outcome.loss:{form}} {unit_of(outcome.unit)}"
    if outcome.interval is None:
        return text
    low, high = outcome.interval
    return f"{text} ({low:{form}} to {high:{form}})"


def _tuning_figures(result: Tuning, level: Level) -> list[KeyFigure]:
    outcome = result.outcome
    form = loss_form(outcome.unit, outcome.loss, outcome.interval)
    ends = f" {INTERVAL} {interval_text(outcome.interval, form)}." if outcome.interval is not None else ""
    meaning = f"In {unit_of(outcome.unit)}, against the float model.{ends}"
    figures = [KeyFigure("Loss", f"{outcome.loss:{form}}", meaning, level)]
    if outcome.bytes_after is not None:
        before = result.bytes_before
        meaning = "" if before is None else f"{size(before)} before, {ratio(before, outcome.bytes_after)}."
        figures.append(KeyFigure("Size", size(outcome.bytes_after), meaning))
    figures.append(KeyFigure("Steps tried", str(len(result.rungs)), f"Stopped because {result.stopped}."))
    judged = f"Every step was judged on {result.samples} samples."
    return [*figures, KeyFigure("Time", f"{result.seconds:.0f} s", judged)]


def _tuning_chart(result: Tuning) -> Section:
    losses = [Estimate(rung.name, rung.loss, rung.interval, rung.name == result.taken) for rung in result.rungs]
    meaning = (
        "Each way to quantize that was tried, in order: a dot for its loss, a line for the 95 % interval. The one that "
        "was taken is filled."
    )
    chart = IntervalChart(losses, result.max_drop, unit_of(result.outcome.unit))
    return Section("Ladder", meaning, [Figure(chart)], folded=False, on="page")


def _tuning_steps(result: Tuning) -> Section:
    columns = [
        numeric("#", "The order of trying.", minor=True),
        Column("Step", "The way to quantize, and what it does."),
        numeric("Loss", f"In {unit_of(result.outcome.unit)}, against the float model."),
        numeric(INTERVAL, "Where the loss on all possible samples lies."),
        numeric("Output error", "Noise power over signal power on calibration samples held out.", minor=True),
        numeric("Seconds", "To quantize and to judge.", minor=True),
        numeric("Size", minor=True),
        Column("", minor=True),
    ]
    rows = []
    for place, rung in enumerate(result.rungs, 1):
        form = loss_form(rung.unit, rung.loss, rung.interval)
        state = "taken" if rung.name == result.taken else "better than below" if rung.kept else "no better"
        error = rung.output_error
        cells = [
            number(place),
            words(rung.name, rung.what),
            number(rung.loss, f"{rung.loss:{form}}"),
            number(None if rung.interval is None else rung.interval[0], interval_text(rung.interval, form)),
            number(error, None if error is None else f"{100 * error:.3g} %"),
            number(rung.seconds, "known" if rung.resumed else f"{rung.seconds:.1f}"),
            number(rung.bytes_after, _size(rung.bytes_after)),
            words(state),
        ]
        rows.append(Row(cells))
    table = Table(columns, rows, "steps")
    return Section("Steps", "The same as numbers.", [table], folded=False, count=str(len(rows)), on="page")
