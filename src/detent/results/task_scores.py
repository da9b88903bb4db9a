"""What a model got at its task on labelled data, in percent: mAP of boxes, mIoU of pixels, Spearman's of pairs.

Each figure comes with the same figure on draws from the samples (see evaluation/task_measures.py). The draws of two
models are the same, so the spread of their differences is the interval of the loss. Draws are biased where the figure
is (a class may not be drawn at all), so their spread is centred on the measured value:

    value + (quantile of the draws - median of the draws)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detent.errors import DataError
from detent.results.evaluated import Loss, Scores, check_same_samples
from detent.results.paired import Floats, Interval, in_percent, resampled, spread_around
from detent.results.tensors import TaskAgreement

POINTS_OF = "points of {figure}"


@dataclass(frozen=True, eq=False)
class TaskFigure:
    """A figure in percent, and the same on each draw of the samples. `meaning` is a sentence."""

    name: str
    value: float
    drawn: Floats
    meaning: str

    @property
    def interval(self) -> Interval:
        """Return where the figure of all possible samples lies with 95 % confidence."""
        low, high = spread_around(self.value, self.drawn)
        return max(-100.0, low), min(100.0, high)


@dataclass(frozen=True)
class ChangedSample:
    """What a sample got from the first model and from this one, in percent."""

    name: str
    before: float
    after: float


@dataclass(frozen=True, eq=False)
class TaskScores(Scores):
    """The figures of a task; the first is the one that counts.

    `values` has a figure for each sample, NaN for those that say nothing, and `value_name` says what it is.
    `warnings` are for people. `nothing_found` says that no sample got any answer.
    """

    task: str
    names: Sequence[str]
    figures: Sequence[TaskFigure]
    values: Floats
    value_name: str
    warnings: Sequence[str] = ()
    nothing_found: bool = False

    def _losses(self, before: TaskScores) -> tuple[Loss, ...]:
        check_same_samples(before.names, self.names)
        return tuple(self._loss(was, is_now) for was, is_now in zip(before.figures, self.figures, strict=True))

    def _loss(self, before: TaskFigure, after: TaskFigure) -> Loss:
        points, drawn = before.value - after.value, before.drawn - after.drawn
        unit = POINTS_OF.format(figure=after.name)
        interval = spread_around(points, drawn)
        return Loss(points, unit, interval, len(self.names), p_value=_chance(points, drawn))

    def drawn_losses(self, before: Scores | None) -> Floats:
        """Return the loss of the first figure on each draw."""
        assert isinstance(before, TaskScores), "losses are of the same kind of scores"
        return before.figures[0].drawn - self.figures[0].drawn

    @property
    def loss_names(self) -> tuple[str, ...]:
        return "loss", *(f"loss_{figure.name}" for figure in self.figures[1:])

    @property
    def summary(self) -> str:
        return f"{self.figures[0].value:.2f} {self.figures[0].name}"

    def changed(self, before: TaskScores) -> list[ChangedSample]:
        """Return the samples that got less than before, the worst first, then those that got more."""
        lost = before.values - self.values
        order = np.argsort(-lost, kind="stable")
        return [
            ChangedSample(self.names[at], float(before.values[at]), float(self.values[at]))
            for at in order.tolist()
            if np.isfinite(lost[at]) and lost[at] != 0.0
        ]

    def check_reference(self, model: str) -> None:
        """Raise DataError if the model to compare with finds nothing: then there is nothing to lose."""
        if self.nothing_found:
            raise DataError(
                f"{model} finds nothing in any of the {len(self.names)} samples, so nothing can be lost. Are the "
                "images read as it was trained (--fit, --mean, --std, --order)?"
            )

    def to_dict(self) -> dict[str, Any]:
        figures = {figure.name: {"percent": figure.value, "interval": figure.interval} for figure in self.figures}
        by_sample = dict(zip(self.names, self.values.tolist(), strict=True))
        samples = {"metric": self.value_name, "values": by_sample}
        return {"task": self.task, **figures, "samples": samples, "warnings": list(self.warnings)}


def _chance(points: float, drawn: Floats) -> float:
    """Return how often draws alone would turn a loss around (or a gain): twice the smaller tail, at most 1."""
    known = drawn[np.isfinite(drawn)]
    if not len(known):
        return 1.0
    moved = points + known - np.median(known)
    return float(min(1.0, 2 * min((moved <= 0).mean(), (moved >= 0).mean())))


WORST_PART = "percent of relative output error (noise power over signal power, at the worst part of the outputs)"


@dataclass(frozen=True, eq=False)
class AgreementScores(Scores):
    """The answers against those of the reference model, as its task reads them.

    `noise` and `signal` are the sums of squares for each sample (rows) and part of the outputs (columns). `costs` and
    `weights` have a number for each sample, with sum(costs) / sum(weights) the loss of the task; None if it has no
    such loss.
    """

    relative: ClassVar[bool] = True

    names: Sequence[str]
    agreement: TaskAgreement | None
    noise: Floats
    signal: Floats
    costs: tuple[Floats, Floats] | None

    def _losses(self, before: AgreementScores | None = None) -> tuple[Loss, ...]:  # noqa: ARG002  (they are relative)
        samples, found = len(self.names), self.agreement
        if found is not None and found.loss is not None:
            ends = None if found.interval is None else in_percent(found.interval)
            return (Loss(100 * found.loss, found.loss_unit, ends, samples),)
        noise, signal = self._worst()
        ratio = float(noise.sum() / signal.sum()) if signal.any() else float(noise.any())
        ratio = ratio if np.isfinite(ratio) else np.inf
        ends = spread_around(100 * ratio, self.drawn_losses(None)) if np.isfinite(ratio) else None
        return (Loss(100 * ratio, WORST_PART, ends, samples),)

    def drawn_losses(self, before: Scores | None) -> Floats:  # noqa: ARG002
        return 100 * resampled(*(self.costs if self.costs is not None else self._worst()))

    def _worst(self) -> tuple[Floats, Floats]:
        """Return noise and signal of each sample at the part with the largest error."""
        if not self.noise.size:
            return np.zeros(len(self.names)), np.ones(len(self.names))
        noise, signal = self.noise.sum(0), self.signal.sum(0)
        at = int(np.argmax(np.divide(noise, signal, out=np.zeros_like(noise), where=signal > 0)))
        return self.noise[:, at], self.signal[:, at]

    @property
    def summary(self) -> str:
        return self._losses()[0].unit if self.agreement is None else self.agreement.summary

    def to_dict(self) -> dict[str, Any]:
        return {"agreement": self.agreement}
