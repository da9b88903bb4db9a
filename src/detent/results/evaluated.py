"""What a model got on the data, one small record for each sample, and what it lost against another.

    Answers        labelled classes: which answer each sample got, and at what rank its label came
    SampleScores   a number of the user's own measure for each sample
    WholeScore     one number of the user's own measure for all of them
    Deviation      without labels: how far answers and outputs are from those of the reference model
    TaskScores     labelled boxes, pixels or pairs (task_scores.py)

Each kind of scores knows how two of it are compared. A loss is positive if the second model is worse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError
from detent.results import Result, paired
from detent.results.checked import CostEstimate
from detent.results.tensors import Closeness, TaskAgreement

Integers = npt.NDArray[np.int64]

NO_ANSWER = -1  # the answer of a model whose scores are not all numbers

CHANCE = 0.05  # the p-value below which a loss is called hardly chance

POINTS = "percentage points of top-{top} accuracy"
CHANGED = "percent of the samples whose top answer is another than the reference model's"
OUTPUT_ERROR = "percent of relative output error (noise power over signal power, mean over the outputs)"


@dataclass(frozen=True)
class ChangedAnswer:
    """A sample that the second model answers differently. `label` is None if the data has none."""

    name: str
    label: int | None
    before: int
    after: int


@dataclass(frozen=True)
class Loss:
    """How much worse the second model is; negative if it is better. `unit` says what `points` counts.

    `interval` (95 %) is None if nothing can be paired. The counts are there for labelled classes only, with McNemar's
    exact p-value of them; that of another task is from draws, as its interval is. `changed` are the samples with
    another top answer; a loss of top-5 does not repeat them.
    """

    points: float
    unit: str
    interval: paired.Interval | None
    samples: int
    became_wrong: int | None = None
    became_right: int | None = None
    p_value: float | None = None
    changed: Sequence[ChangedAnswer] = ()

    @property
    def beyond_chance(self) -> bool | None:
        """Whether the models differ by more than chance, by their p-value; None without one."""
        return None if self.p_value is None else self.p_value < CHANCE

    @property
    def is_disputed(self) -> bool:
        """Whether the interval, which is an approximation, contradicts the test."""
        if self.interval is None or self.beyond_chance is None or self.became_wrong is None:
            return False
        return (self.interval[0] <= 0 <= self.interval[1]) == self.beyond_chance


class Scores(ABC):
    """What one model got. Each kind of measure has its kind of scores."""

    relative: ClassVar[bool] = False
    """Whether scores are differences from the reference model already, which has none of its own."""

    def losses_against(self, before: Scores | None) -> tuple[Loss, ...]:
        """Return what the model lost against that of `before`; the first loss is the one that counts.

        Raises UsageError for scores of another kind or of other samples.
        """
        if type(before) is not type(self) and not (self.relative and before is None):
            raise UsageError(
                f"Scores of two kinds cannot be compared: {type(before).__name__} and {type(self).__name__}. Evaluate "
                "both models with the same data, labels and metric."
            )
        return self._losses(before)

    @abstractmethod
    def _losses(self, before: Any) -> tuple[Loss, ...]:
        """Return the losses against scores of the same kind."""

    def drawn_losses(self, before: Scores | None) -> paired.Floats | None:  # noqa: ARG002  (not all kinds have any)
        """Return the loss against `before` on draws of the samples, which are the same for all models; None: no draws.

        The draws of two models are compared in pairs, which tells them apart where their intervals overlap.
        """
        return None

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The keys of the losses in JSON."""
        return "loss", "loss_top5"

    def check_reference(self, model: str) -> None:  # noqa: B027  (most scores are fit to compare with)
        """Raise DataError if a model with these scores is nothing to compare others with."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The scores in a few words, such as "71.88 % top-1"."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON."""


def compare_scores(before: Scores, after: Scores) -> Loss:
    """Return what the model of `after` lost against that of `before`."""
    return after.losses_against(before)[0]


@dataclass(frozen=True, eq=False)
class Answers(Scores):
    """For each sample its label, the model's top answer, and the label's rank among the answers (0: it is the top).

    `classes` is how many there are to choose from.
    """

    names: Sequence[str]
    labels: Integers
    answers: Integers
    ranks: Integers
    classes: int

    def right(self, top: int = 1) -> npt.NDArray[np.bool_]:
        """Return for each sample whether its label is among the first `top` answers."""
        return self.ranks < top

    def accuracy(self, top: int = 1) -> float:
        """Return the percentage of the samples whose label is among the first `top` answers."""
        return 100 * float(self.right(top).mean())

    def interval(self, top: int = 1) -> paired.Interval:
        """Return Wilson's 95 % interval of the accuracy."""
        return paired.in_percent(paired.wilson_interval(int(self.right(top).sum()), len(self.ranks)))

    @property
    def tops(self) -> tuple[int, ...]:
        """The accuracies worth telling: top-5 of five classes says nothing."""
        return (1, 5) if self.classes > 5 else (1,)

    @property
    def unanswered(self) -> int:
        """The number of samples whose scores are not all numbers; they count as wrong."""
        return int((self.answers == NO_ANSWER).sum())

    def _losses(self, before: Answers) -> tuple[Loss, ...]:
        check_same_samples(before.names, self.names)
        return tuple(self._loss(before, top) for top in before.tops)

    def _loss(self, before: Answers, top: int) -> Loss:
        was, is_now = before.right(top), self.right(top)
        wrong, right, samples = int((was & ~is_now).sum()), int((~was & is_now).sum()), len(was)
        return Loss(
            points=100 * (wrong - right) / samples,
            unit=POINTS.format(top=top),
            interval=paired.in_percent(paired.paired_loss_interval(wrong, right, samples)),
            samples=samples,
            became_wrong=wrong,
            became_right=right,
            p_value=paired.mcnemar_exact(wrong, right),
            changed=_changed(self.names, self.labels, before.answers, self.answers) if top == 1 else (),
        )

    def drawn_losses(self, before: Scores | None) -> paired.Floats:
        """Return the loss of top-1 on each draw."""
        assert isinstance(before, Answers), "losses are of the same kind of scores"
        return 100 * paired.resampled(before.right().astype(np.float64) - self.right())

    @property
    def summary(self) -> str:
        return f"{self.accuracy():.2f} % top-1"

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for top in self.tops:
            right = int(self.right(top).sum())
            found[f"top{top}"] = {"percent": self.accuracy(top), "interval": self.interval(top), "right": right}
        return {**found, "unanswered": self.unanswered}


@dataclass(frozen=True, eq=False)
class SampleScores(Scores):
    """The user's own measure for each sample."""

    names: Sequence[str]
    values: paired.Floats
    metric: str
    lower_is_better: bool

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    def interval(self) -> paired.Interval | None:
        """Return the 95 % interval of the mean."""
        return paired.mean_interval(self.values)

    def _losses(self, before: SampleScores) -> tuple[Loss, ...]:
        check_same_samples(before.names, self.names)
        worse = self._worse(before)
        return (Loss(float(worse.mean()), f"units of {self.metric}", paired.mean_interval(worse), len(worse)),)

    def _worse(self, before: SampleScores) -> paired.Floats:
        return self.values - before.values if self.lower_is_better else before.values - self.values

    def drawn_losses(self, before: Scores | None) -> paired.Floats:
        assert isinstance(before, SampleScores), "losses are of the same kind of scores"
        return paired.resampled(self._worse(before))

    @property
    def summary(self) -> str:
        return f"{self.metric} {self.mean:.4g}"

    def to_dict(self) -> dict[str, Any]:
        named = {"metric": self.metric, "lower_is_better": self.lower_is_better}
        return {"score": {**named, "mean": self.mean, "interval": self.interval()}}


@dataclass(frozen=True)
class WholeScore(Scores):
    """The user's own measure of all samples together."""

    value: float
    metric: str
    lower_is_better: bool
    samples: int

    def _losses(self, before: WholeScore) -> tuple[Loss, ...]:
        worse = self.value - before.value if self.lower_is_better else before.value - self.value
        return (Loss(worse, f"units of {self.metric}", None, self.samples),)

    @property
    def summary(self) -> str:
        return f"{self.metric} {self.value:.4g}"

    def to_dict(self) -> dict[str, Any]:
        return {"score": {"metric": self.metric, "lower_is_better": self.lower_is_better, "value": self.value}}


@dataclass(frozen=True, eq=False)
class Deviation(Scores):
    """The outputs against those of the reference model.

    `noise` and `signal` are the sums of squares for each sample (rows) and output (columns). `expected` and `answers`
    are the top answers of both models if they classify, else None; then `agreement` has the answers as the task reads
    them, if that is known.
    """

    relative: ClassVar[bool] = True

    names: Sequence[str]
    outputs: Mapping[str, Closeness]
    noise: paired.Floats
    signal: paired.Floats
    expected: Integers | None
    answers: Integers | None
    agreement: TaskAgreement | None = None

    @property
    def agreeing(self) -> int | None:
        """The number of samples with the same top answer."""
        return None if self.expected is None else int((self.expected == self.answers).sum())

    def _losses(self, before: Deviation | None = None) -> tuple[Loss, ...]:  # noqa: ARG002  (they are relative already)
        """Return the share of changed top answers, or the loss of another task; without either, the outputs' error."""
        samples, found = len(self.names), self.agreement
        if found is not None and found.loss is not None:
            ends = None if found.interval is None else paired.in_percent(found.interval)
            return (Loss(100 * found.loss, found.loss_unit, ends, samples),)
        if self.expected is None or self.answers is None:
            ratio, interval = paired.mean_ratio(self.noise, self.signal)
            ends = None if interval is None else paired.in_percent(interval)
            return (Loss(100 * ratio, OUTPUT_ERROR, ends, samples),)
        changed = _changed(self.names, None, self.expected, self.answers)
        interval = paired.in_percent(paired.wilson_interval(len(changed), samples))
        return (Loss(100 * len(changed) / samples, CHANGED, interval, samples, changed=changed),)

    @property
    def summary(self) -> str:
        """The loss against the reference model."""
        loss = self._losses()[0]
        return f"{loss.points:.4g} {loss.unit}"

    def to_dict(self) -> dict[str, Any]:
        if self.agreeing is None:
            return {"outputs": self.outputs, "same_top_answer": None, "agreement": self.agreement}
        interval = paired.in_percent(paired.wilson_interval(self.agreeing, len(self.names)))
        same = {"count": self.agreeing, "percent": 100 * self.agreeing / len(self.names), "interval": interval}
        return {"outputs": self.outputs, "same_top_answer": same, "agreement": None}


def _changed(names: Sequence[str], labels: Integers | None, before: Integers, after: Integers) -> list[ChangedAnswer]:
    return [
        ChangedAnswer(names[at], None if labels is None else int(labels[at]), int(before[at]), int(after[at]))
        for at in np.flatnonzero(before != after).tolist()
    ]


def check_same_samples(before: Sequence[str], after: Sequence[str]) -> None:
    """Raise UsageError for scores of different samples."""
    if list(before) != list(after):
        raise UsageError("Scores of different samples cannot be paired. Evaluate both models on the same data.")


@dataclass(frozen=True)
class ModelResult:
    """What one model got. `losses` are against the first model: for labelled classes of top-1, then of top-5.

    `scores` is None for the first model if outputs are compared with its own.
    """

    model: str
    bytes: int | None
    seconds: float
    scores: Scores | None
    losses: Sequence[Loss] = ()
    cost: CostEstimate | None = None
    """The estimated time on a device; None if none was asked about, or it does not take the model."""

    @property
    def loss(self) -> Loss | None:
        """The loss that counts; None for the first model."""
        return self.losses[0] if self.losses else None

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"model": self.model, "bytes": self.bytes, "seconds": round(self.seconds, 3)}
        if self.cost is not None:
            found["estimated_milliseconds"] = round(self.cost.milliseconds, 3)
        if self.scores is not None:
            found |= self.scores.to_dict()
            found |= zip(self.scores.loss_names, self.losses, strict=False)
        return found


@dataclass(frozen=True)
class Evaluation(Result):
    """All models on the same samples; the first is what the others are compared with."""

    json_fields: ClassVar[tuple[str, ...]] = ("data", "samples", "preprocess", "models")

    data: str
    note: str
    samples: int
    preprocess: Mapping[str, Any] | None
    models: Sequence[ModelResult]
