"""What a model got on the data, one small record for each sample, and what it lost against another.

    Answers        labelled classes: which answer each sample got, and at what rank its label came
    SampleScores   a number of the user's own measure for each sample
    WholeScore     one number of the user's own measure for all of them
    Deviation      without labels: how far the outputs are from those of the reference model

`compare` takes two of a kind, of the same samples. A loss is positive where the second model is worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError
from detent.results import Result, plain
from detent.results.paired import (
    Floats,
    Interval,
    mcnemar_exact,
    mean_interval,
    mean_ratio,
    paired_loss_interval,
    wilson_interval,
)
from detent.results.tensors import Closeness

Integers = npt.NDArray[np.int64]

NO_ANSWER = -1
"""The answer of a model whose scores are not all numbers."""

CHANCE = 0.05
"""The p-value below which a loss is called hardly chance."""

POINTS = "percentage points of top-{top} accuracy"
CHANGED = "percent of the samples whose top answer is another than the reference model's"
OUTPUT_ERROR = "percent of relative output error (noise power over signal power, mean over the outputs)"


@dataclass(frozen=True)
class Change:
    """A sample that the second model answers differently. `label` is None where the data has none."""

    name: str
    label: int | None
    before: int
    after: int


@dataclass(frozen=True)
class Loss:
    """How much worse the second model is; negative where it is better. `unit` says what `points` counts.

    `interval` (95 %) is None where there is nothing to pair. The counts, and McNemar's exact p-value of them, are there
    for labelled classes only. `changed` are the samples with another top answer; a loss of top-5 does not repeat them.
    """

    points: float
    unit: str
    interval: Interval | None
    samples: int
    became_wrong: int | None = None
    became_right: int | None = None
    p_value: float | None = None
    changed: Sequence[Change] = ()

    @property
    def beyond_chance(self) -> bool | None:
        """Whether the models differ by more than chance: McNemar's exact test decides, None where there is none."""
        return None if self.p_value is None else self.p_value < CHANCE

    @property
    def is_disputed(self) -> bool:
        """Whether the interval, which is an approximation, is on the other side of zero than the test says."""
        if self.interval is None or self.beyond_chance is None:
            return False
        return (self.interval[0] <= 0 <= self.interval[1]) == self.beyond_chance


@dataclass(frozen=True, eq=False)
class Answers:
    """For each sample its label, the model's top answer, and the label's rank among the answers (0: it is the top).

    `classes` is how many there are to choose from.
    """

    names: Sequence[str]
    labels: Integers
    answers: Integers
    ranks: Integers
    classes: int

    def right(self, top: int = 1) -> npt.NDArray[np.bool_]:
        """Whether the label is among the first `top` answers."""
        return self.ranks < top

    def accuracy(self, top: int = 1) -> float:
        """The percentage of the samples whose label is among the first `top` answers."""
        return 100 * float(self.right(top).mean())

    def interval(self, top: int = 1) -> Interval:
        """Wilson's 95 % interval of that."""
        return _percent(wilson_interval(int(self.right(top).sum()), len(self.ranks)))

    @property
    def tops(self) -> tuple[int, ...]:
        """The accuracies worth telling: being among the first five says nothing where there are only five."""
        return (1, 5) if self.classes > 5 else (1,)

    @property
    def unanswered(self) -> int:
        """Samples whose scores are not all numbers; they count as wrong."""
        return int((self.answers == NO_ANSWER).sum())


@dataclass(frozen=True, eq=False)
class SampleScores:
    """The user's own measure for each sample."""

    names: Sequence[str]
    values: Floats
    metric: str
    lower_is_better: bool

    @property
    def mean(self) -> float:
        """The mean over all samples."""
        return float(self.values.mean())

    def interval(self) -> Interval | None:
        """The 95 % interval of the mean."""
        return mean_interval(self.values)


@dataclass(frozen=True)
class WholeScore:
    """The user's own measure of all samples together."""

    value: float
    metric: str
    lower_is_better: bool
    samples: int


@dataclass(frozen=True, eq=False)
class Deviation:
    """The outputs against those of the reference model.

    `noise` and `signal` are the sums of squares for each sample (rows) and output (columns). `expected`
    and `answers` are the top answers of both where an output looks like class scores, else None.
    """

    names: Sequence[str]
    outputs: Mapping[str, Closeness]
    noise: Floats
    signal: Floats
    expected: Integers | None
    answers: Integers | None

    @property
    def agreeing(self) -> int | None:
        """Samples with the same top answer."""
        return None if self.expected is None else int((self.expected == self.answers).sum())


Scores = Answers | SampleScores | WholeScore | Deviation


def compare(before: Scores, after: Scores) -> Loss:
    """What the model of `after` lost against that of `before`."""
    if isinstance(before, Answers) and isinstance(after, Answers):
        return compare_answers(before, after)
    if isinstance(before, SampleScores) and isinstance(after, SampleScores):
        return _compare_samples(before, after)
    if isinstance(before, WholeScore) and isinstance(after, WholeScore):
        worse = after.value - before.value if after.lower_is_better else before.value - after.value
        return Loss(worse, f"units of {after.metric}", None, after.samples)
    if isinstance(before, Deviation) and isinstance(after, Deviation):
        return deviation_loss(after)
    raise UsageError(
        f"Scores of two kinds cannot be compared: {type(before).__name__} and {type(after).__name__}. Evaluate both "
        "models with the same data, labels and metric."
    )


def compare_answers(before: Answers, after: Answers, top: int = 1) -> Loss:
    """The loss of accuracy, paired sample by sample."""
    _check_names(before.names, after.names)
    was, is_now = before.right(top), after.right(top)
    wrong, right, samples = int((was & ~is_now).sum()), int((~was & is_now).sum()), len(was)
    return Loss(
        points=100 * (wrong - right) / samples,
        unit=POINTS.format(top=top),
        interval=_percent(paired_loss_interval(wrong, right, samples)),
        samples=samples,
        became_wrong=wrong,
        became_right=right,
        p_value=mcnemar_exact(wrong, right),
        changed=_changed(after.names, after.labels, before.answers, after.answers) if top == 1 else (),
    )


def _compare_samples(before: SampleScores, after: SampleScores) -> Loss:
    _check_names(before.names, after.names)
    worse = after.values - before.values if after.lower_is_better else before.values - after.values
    return Loss(float(worse.mean()), f"units of {after.metric}", mean_interval(worse), len(worse))


def deviation_loss(after: Deviation) -> Loss:
    """The loss against the reference model: changed top answers, or where outputs are no class scores their error."""
    samples = len(after.names)
    if after.expected is None or after.answers is None:
        ratio, interval = mean_ratio(after.noise, after.signal)
        return Loss(100 * ratio, OUTPUT_ERROR, None if interval is None else _percent(interval), samples)
    changed = _changed(after.names, None, after.expected, after.answers)
    interval = _percent(wilson_interval(len(changed), samples))
    return Loss(100 * len(changed) / samples, CHANGED, interval, samples, changed=changed)


def _changed(names: Sequence[str], labels: Integers | None, before: Integers, after: Integers) -> list[Change]:
    return [
        Change(names[at], None if labels is None else int(labels[at]), int(before[at]), int(after[at]))
        for at in np.flatnonzero(before != after).tolist()
    ]


def _check_names(before: Sequence[str], after: Sequence[str]) -> None:
    if list(before) != list(after):
        raise UsageError("Scores of different samples cannot be paired. Evaluate both models on the same data.")


def _percent(interval: Interval) -> Interval:
    return 100 * interval[0], 100 * interval[1]


@dataclass(frozen=True)
class ModelResult:
    """What one model got. `losses` are against the first model: for labelled classes of top-1, then of top-5.

    `scores` is None for the first model where outputs are compared with its own.
    """

    model: str
    bytes: int | None
    seconds: float
    scores: Scores | None
    losses: Sequence[Loss] = ()

    @property
    def loss(self) -> Loss | None:
        """The loss that counts; None for the first model."""
        return self.losses[0] if self.losses else None


@dataclass(frozen=True)
class Evaluation(Result):
    """All models on the same samples; the first is what the others are compared with."""

    data: str
    note: str
    samples: int
    preprocess: Mapping[str, Any] | None
    models: Sequence[ModelResult]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; decibels of equal outputs (infinite) are null."""
        values = plain(
            {
                "data": self.data,
                "samples": self.samples,
                "preprocess": self.preprocess,
                "models": [_of_model(result) for result in self.models],
            }
        )
        assert isinstance(values, dict)
        return values


def _of_model(result: ModelResult) -> dict[str, Any]:
    losses = dict(zip(("loss", "loss_top5"), result.losses, strict=False))
    said = {"model": result.model, "bytes": result.bytes, "seconds": round(result.seconds, 3)}
    return {**said, **_of_scores(result.scores), **losses}


def _of_scores(scores: Scores | None) -> dict[str, Any]:
    if isinstance(scores, Answers):
        accuracies = {
            f"top{top}": {
                "percent": scores.accuracy(top),
                "interval": scores.interval(top),
                "right": int(scores.right(top).sum()),
            }
            for top in scores.tops
        }
        return {**accuracies, "unanswered": scores.unanswered}
    if isinstance(scores, SampleScores):
        named = {"metric": scores.metric, "lower_is_better": scores.lower_is_better}
        return {"score": {**named, "mean": scores.mean, "interval": scores.interval()}}
    if isinstance(scores, WholeScore):
        return {"score": {"metric": scores.metric, "lower_is_better": scores.lower_is_better, "value": scores.value}}
    if isinstance(scores, Deviation):
        return {"outputs": scores.outputs, "same_top_answer": _agreement(scores)}
    return {}


def _agreement(scores: Deviation) -> dict[str, Any] | None:
    if scores.agreeing is None:
        return None
    low, high = wilson_interval(scores.agreeing, len(scores.names))
    percent = 100 * scores.agreeing / len(scores.names)
    return {"count": scores.agreeing, "percent": percent, "interval": (100 * low, 100 * high)}
