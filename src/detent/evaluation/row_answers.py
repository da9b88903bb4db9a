"""Compare answers that are rows of scores: one of several classes, or any of several tags; of one output or of several.

    classes   whether the top class is kept; and the expected loss of accuracy: with p the float model's probabilities
              and i, j the top classes of float and quantized model, the mean of p[i] - p[j]. If p is as right as it
              claims, that is how many answers become wrong less those that become right. A change between two classes
              that were equally likely costs nothing, so a few samples tell more than a count of changes does.
    tags      whether each tag stays on its side of a half; and the expected loss of F1: a tag that is lost costs
              2p - 1, one that is new half of 1 - 2p (a wrong tag more lowers F1 half as much as a right one less),
              all relative to the sum of p over the tags of float. If no sample has a tag, the best few are compared.

A model of several outputs is judged by the worst of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from detent.evaluation.sample_answers import (
    AnswerReader,
    Floats,
    Row,
    Rows,
    SampleAnswer,
    Summary,
    bootstrap,
    points_text,
    rankable,
    threshold,
    unseen,
)
from detent.results.paired import in_percent, interval_text, wilson_interval
from detent.tasks.endings import HeadKind
from detent.tasks.purpose import Outputs, Purpose

BEST_TAGS = 3  # that are compared if float finds none in any sample

Heads = Mapping[str, HeadKind]


def probabilities(scores: Floats) -> Floats:
    """Return probabilities along the last axis: the scores themselves, if they are within 0..1."""
    if float(scores.min(initial=0.0)) >= -1e-6 and float(scores.max(initial=0.0)) <= 1.0 + 1e-3:
        return scores
    if float(scores.max(initial=0.0)) <= 1e-6 and np.allclose(np.exp(scores).sum(-1), 1.0, atol=1e-2):
        return np.asarray(np.exp(scores))  # a LogSoftmax
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def chances(scores: Floats) -> Floats:
    """Return the probability of each tag by itself: the scores, or their Sigmoid if they are logits."""
    return scores if threshold(scores) else _sigmoid(scores)


def _sigmoid(logits: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.maximum(logits, -700.0))))  # beyond, exp overflows


def score_heads(heads: Heads, outputs: Outputs, samples: int) -> dict[str, Floats]:
    """Return the outputs that hold scores, each as [samples, classes]. Without known heads it is the first row."""
    rows = {
        name: array.reshape(samples, -1).astype(np.float64)
        for name, array in outputs.items()
        if array.dtype.kind == "f" and array.ndim >= 2 and array.shape[0] == samples and _is_row(array.shape)
    }
    known = {name: rows[name] for name, kind in heads.items() if kind != "number" and name in rows}
    found = known or dict(list(rows.items())[:1])
    if not found:
        raise ValueError("no output holds class scores")
    return found


def class_scores(heads: Heads, outputs: Outputs, samples: int) -> Floats:
    """Return the first output that holds scores, as [samples, classes]."""
    return next(iter(score_heads(heads, outputs, samples).values()))


def _is_row(shape: Sequence[int]) -> bool:
    return max(shape[1:]) == math.prod(shape[1:])


def compare_classes(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Return, for each row of scores, whether the top class is the same and what the change is expected to cost."""
    if first.shape[-1] == 1:  # the probability of the one class
        half, p = threshold(first), chances(first)[..., 0]
        same = (first[..., 0] > half) == (second[..., 0] > half)
        return same.astype(np.float64), np.where(same, 0.0, np.abs(2 * p - 1))
    shares = probabilities(first)
    one, other = first.argmax(-1)[..., None], second.argmax(-1)[..., None]
    cost = np.take_along_axis(shares, one, -1) - np.take_along_axis(shares, other, -1)
    return (one == other)[..., 0].astype(np.float64), cost[..., 0]


def _compare(purpose: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    """Return numbers to sum up for each sample, by what they count and the output.

    `same` is whether all outputs keep their top class.
    """
    rows: list[Row] = [{} for _ in range(samples)]
    for name, scores in score_heads(purpose.heads, expected, samples).items():
        first, second = rankable(scores), rankable(found[name]).reshape(scores.shape)
        compared = _classes if purpose.heads.get(name, purpose.usual_kind) == "classes" else _tags
        for row, numbers in zip(rows, compared(first, second), strict=True):
            same = min(row.get("same", 1.0), numbers.get("same", 1.0))
            row.update({f"{what} of {name}": value for what, value in numbers.items()}, same=same)
    return [SampleAnswer(row) for row in rows]


def _classes(first: Floats, second: Floats) -> list[Row]:
    kept, cost = compare_classes(first, second)
    return [{"same": float(same), "cost": float(lost), "weight": 1.0} for same, lost in zip(kept, cost, strict=True)]


def _tags(first: Floats, second: Floats) -> list[Row]:
    half = threshold(first)
    return [
        _tags_of(p, q, one > half, other > half)
        for p, q, one, other in zip(chances(first), _like(first, second), first, second, strict=True)
    ]


def _like(first: Floats, second: Floats) -> Floats:
    """Return the probabilities of tags, of logits or not as those of the float model are."""
    return np.clip(second, 0.0, 1.0) if threshold(first) else _sigmoid(second)


def _tags_of(p: Floats, q: Floats, wanted: npt.NDArray[np.bool_], shown: npt.NDArray[np.bool_]) -> Row:
    kept, extra = wanted & shown, shown & ~wanted
    best, still = (np.argsort(-each, kind="stable")[:BEST_TAGS] for each in (p, q))
    return {
        "wanted": float(wanted.sum()),
        "kept": float(kept.sum()),
        "extra": float(extra.sum()),
        "shift": float((q - p)[wanted].sum()),
        "cost": float((2 * p - 1)[wanted & ~shown].sum() + (1 - 2 * p)[extra].sum() / 2),
        "weight": float(p[wanted].sum()),
        "best_wanted": float(len(best)),
        "best_kept": float(len(set(best.tolist()) & set(still.tolist()))),
        "best_shift": float((q - p)[best].sum()),
        "best_cost": float(p[best].sum() - p[still].sum()),
        "best_weight": float(p[best].sum()),
    }


_COST = "cost of "


def _by_head(rows: Rows) -> dict[str, Rows]:
    """Return the numbers of each output."""
    names = [key.removeprefix(_COST) for key in rows if key.startswith(_COST)]
    return {
        name: {key.removesuffix(f" of {name}"): values for key, values in rows.items() if key.endswith(f" of {name}")}
        for name in names
    }


def _costs(rows: Rows) -> tuple[Floats, Floats]:
    """Return what each sample costs, and its weight, of the worst output."""

    def of_output(numbers: Rows) -> tuple[Floats, Floats]:
        faint = _faint(numbers)
        return numbers[f"{faint}cost"], numbers[f"{faint}weight"]

    return max(map(of_output, _by_head(rows).values()), key=lambda pair: pair[0].sum() / max(pair[1].sum(), 1e-30))


def _faint(numbers: Rows) -> str:
    """Return how the numbers begin that count: float may have found no tag in any sample."""
    return "best_" if "wanted" in numbers and not numbers["wanted"].any() else ""


def _summarize(rows: Rows, _: Sequence[SampleAnswer]) -> Summary:
    """Return the summary of the worst output."""
    found = {name: (_of_tags if "wanted" in each else _of_classes)(each) for name, each in _by_head(rows).items()}
    worst = max(found, key=lambda name: (found[name][1] or (0.0, 1.0))[1])
    loss, interval, figures, text = found[worst]
    if len(found) > 1:
        figures = figures | {f"loss of '{name}'": each[0] for name, each in found.items() if each[0] is not None}
        text = f"'{worst}' keeps least of {len(found)} answers: {text}"
    return loss, interval, figures, text


def _of_classes(numbers: Rows) -> Summary:
    count, same = len(numbers["same"]), round(float(numbers["same"].sum()))
    loss, (low, high) = bootstrap(numbers["cost"])
    high = max(high, unseen(int((numbers["cost"] > 0).sum()), count, float(numbers["cost"].sum())))
    kept = wilson_interval(same, count)
    text = f"{same} of {count} samples keep their top class (95 % interval {interval_text(in_percent(kept), '.0f')} %)"
    text += f"; expected loss of accuracy {points_text(loss, (low, high))}"
    figures = {"same_top1": float(numbers["same"].mean()), "same_top1_low": kept[0], "same_top1_high": kept[1]}
    return loss, (low, high), figures, text


def _of_tags(numbers: Rows) -> Summary:
    faint = _faint(numbers)
    wanted, kept, shift = (float(numbers[f"{faint}{what}"].sum()) for what in ("wanted", "kept", "shift"))
    extra = float(numbers["extra"].sum())
    loss, (low, high) = bootstrap(numbers[f"{faint}cost"], numbers[f"{faint}weight"])
    changes = int(wanted - kept)
    high = max(high, unseen(changes, round(wanted), float(numbers[f"{faint}cost"].sum())))
    which = f"of the {BEST_TAGS} best tags" if faint else "tags above 0.5"
    text = f"{kept:.0f} of {wanted:.0f} {which} are kept, {extra:.0f} are new, scores move by {shift / wanted:+.2f}"
    figures = {
        "kept": kept / wanted,
        "new": extra / wanted,
        "score_shift": shift / wanted,
        "confident": 0.0 if faint else 1.0,
    }
    return loss, (low, high), figures, f"{text}; expected loss of F1 {points_text(loss, (low, high))}"


ROWS = AnswerReader(_compare, _summarize, _costs)
