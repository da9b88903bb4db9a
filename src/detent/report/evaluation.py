"""What an evaluation found, model by model, as data and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detent.evaluation.scores import Answers, Deviation, Loss, SampleScores, Scores, WholeScore
from detent.evaluation.statistics import wilson_interval
from detent.graph.save import write_text
from detent.report.report import plain


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
class Evaluation:
    """All models on the same samples; the first is what the others are compared with."""

    data: str
    note: str
    samples: int
    preprocess: Mapping[str, Any] | None
    models: Sequence[ModelResult]

    def __str__(self) -> str:
        """What the command line prints."""
        from detent.report.evaluation_view import evaluation_text

        return evaluation_text(self)

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

    def to_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def save(self, path: str | Path) -> None:
        """Write it as JSON, complete or not at all."""
        write_text(self.to_json() + "\n", Path(path))


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
