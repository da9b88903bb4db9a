"""What becomes of the answer to each sample, and how the answers to all of them are summed up.

Losses are fractions, 0 for the same answers. Their interval is that of a bootstrap over samples; of few samples with no
change at all, the upper end is Wilson's for the share of changes times what a change usually costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detent.graph.values import all_finite
from detent.results.paired import Interval, in_percent, interval_text, resampled, wilson_interval
from detent.tasks.purpose import Outputs, Purpose

# What a change of the answer costs on average, where few changes were seen: that of common classifiers.
USUAL_COST = 0.15
HUGE = 1e300  # stands for infinity; twice as much is finite, too

Floats = npt.NDArray[np.float64]
Row = dict[str, float]
Rows = Mapping[str, Floats]  # the numbers of all samples, by name

# The loss and its interval, None if the task has none; the figures of the task, and a clause that tells them.
Summary = tuple[float | None, Interval | None, dict[str, float], str]


@dataclass(frozen=True, eq=False)
class SampleAnswer:
    """One sample: numbers to sum up, and for encoders both vectors."""

    numbers: Row
    vectors: tuple[Floats, Floats] | None = None


class AnswerReader(NamedTuple):
    """How answers of one kind are compared with those of the float model, and summed up.

    `compare` takes the outputs of both models and the number of samples, and raises ValueError, or what indexing
    raises, for outputs of another kind. `costs` returns what each sample costs and weighs: the loss is the ratio of
    their sums. `vectors` is of how many samples the summary uses them; those of all would fill the memory.
    """

    compare: Callable[[Purpose, Outputs, Outputs, int], list[SampleAnswer]]
    summarize: Callable[[Rows, Sequence[SampleAnswer]], Summary]
    costs: Callable[[Rows], tuple[Floats, Floats]] | None = None
    vectors: int | None = None


def without_common_infinities(
    expected: Outputs, found: Outputs
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
    """Return both with 0 for what is the same infinity in both, or NaN: nothing was lost there.

    That is for sums of squares. Scores are ranked, and 0 may outrank all others: see `rankable`.
    """
    before, after = dict(expected), dict(found)
    for name, x in expected.items():
        y = found[name]
        if x.dtype.kind == y.dtype.kind == "f" and x.shape == y.shape and not all_finite(x):
            common = ~np.isfinite(x) & ((x == y) | (np.isnan(x) & np.isnan(y)))
            before[name], after[name] = np.where(common, x.dtype.type(0), x), np.where(common, y.dtype.type(0), y)
    return before, after


def with_finite_ends(scores: npt.NDArray[Any]) -> Floats:
    """Return scores with finite numbers for infinities, in the same order."""
    return np.nan_to_num(scores.astype(np.float64), nan=np.nan, posinf=HUGE, neginf=-HUGE)


def rankable(scores: npt.NDArray[Any]) -> Floats:
    """Return scores with finite numbers for infinities, in the same order, and the lowest score for NaN."""
    values = with_finite_ends(scores)
    nan = np.isnan(values)
    return np.where(nan, values[~nan].min() if not nan.all() else 0.0, values) if nan.any() else values


def threshold(scores: Floats) -> float:
    """Return what a score by itself has to exceed: a half of a probability, 0 of a logit."""
    return 0.5 if float(scores.min(initial=0.0)) >= 0.0 and float(scores.max(initial=0.0)) <= 1.0 else 0.0


def bootstrap(parts: Floats, wholes: Floats | None = None) -> tuple[float, Interval]:
    """Return mean(parts), or sum(parts) / sum(wholes), and where it lies with 95 % confidence."""
    total = float(len(parts) if wholes is None else wholes.sum())
    if total == 0.0:
        return 0.0, (0.0, 1.0)
    low, high = np.percentile(resampled(parts, wholes), [2.5, 97.5])
    return float(parts.sum()) / total, (float(low), float(high))


def unseen(changes: int, count: int, loss: float, cost: float = USUAL_COST) -> float:
    """Return the loss to reckon with after few answers: the most changes there may be, at their usual cost.

    `loss` is that of the changes that were seen, in answers; `cost` is what one is reckoned to cost beside them.
    """
    usual = (loss + cost) / (changes + 1)
    return wilson_interval(changes, count)[1] * usual


def points_text(loss: float, interval: Interval) -> str:
    """Return a loss and its interval as a reader is told them."""
    return f"{100 * loss:.1f} points ({interval_text(in_percent(interval), '.1f')})"
