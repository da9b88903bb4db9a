"""How far answers are from those of the float model, as one number to choose by: it follows the task, and is smooth.

A count of kept answers hardly moves between two ways to quantize. What moves with them, and tells which is better on a
few samples, is

    classify   the divergence of the probabilities, sum of p (log p - log q), as they are and softened until all classes
               count alike, of each output
    tag        the same of each tag, which is there or not
    sequence   the same, mean over the steps
    detect     at the positions that either model takes for an object: the squared error of the scores, relative to
               those of the float model; and 1 - the overlap of the boxes, each weighing as much as its score
    segment    the divergence, mean over the positions
    embed      1 - the cosine
    others     the squared error of every part of every output, relative to its signal, where the float model is sure
               of its numbers (tasks/purpose.py)

The error of several samples is the mean over its parts of sum(wrong) / sum(right). Parts count alike, however large
their numbers are: boxes of 0..640 do not outweigh scores of 0..1. A sample in which a detector sees nothing has no
answer, and is judged by the parts of its outputs only if no sample has one: noise would outweigh all objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.evaluation.box_answers import head_of
from detent.evaluation.map_answers import class_axis
from detent.evaluation.row_answers import probabilities, score_heads
from detent.evaluation.sample_answers import with_finite_ends, without_common_infinities
from detent.evaluation.step_answers import in_steps, step_scores
from detent.evaluation.task_agreement import compare_answers
from detent.tasks import Task
from detent.tasks.detection import overlaps_in_pairs
from detent.tasks.parts import OutputPart
from detent.tasks.purpose import Purpose, where_sure

Outputs = Mapping[str, npt.NDArray[Any]]
Floats = npt.NDArray[np.float64]
Sums = dict[str, tuple[float, float]]  # what is wrong and what it is to be compared with, by the name of the part

LEAST_SCORE = 0.1  # positions below this score in both models hold nothing

# A box that overlaps its partner by 0.05 less fails one of COCO's ten thresholds; scores have to keep their order.
BOX_WEIGHT = 4.0

LEAST_SHARE = 1e-6  # keeps logarithms finite
# Probabilities are also compared with all logits divided by some number: a sample that the model is certain of tells
# nothing otherwise, and of a few samples that may be all. Divided without end, all classes count alike: a thousand
# errors instead of the few that decide, so that 16 samples choose rightly where the divergence alone is a coin's flip
# (mobilenetv2, A8W8: in 98 instead of 66 of 100 draws). Of probabilities the logits of rare classes are not known.
SOFTENED_LOGITS, SOFTENED_PROBABILITIES = (1.0, np.inf), (1.0, 4.0)

_WHOLE = OutputPart("", 0, 0, 1 << 62)
_PART = "part of "  # how names of parts begin, which stand for answers where there are none


def error_sums(
    purpose: Purpose, parts: Mapping[str, Sequence[OutputPart]], expected: Outputs, found: Outputs, samples: int
) -> Sums:
    expected, found = where_sure(purpose, expected, found)
    try:
        with np.errstate(all="ignore"):  # what is not finite ends as an infinite error
            read = _BY_TASK.get(purpose.task)
            sums = {} if read is None else read(purpose, purpose.answers(expected), purpose.answers(found), samples)
    except (ValueError, IndexError, KeyError, StopIteration):  # an output of another shape than the task's
        sums = {}
    return sums or _of_parts(parts, expected, found)


def total_error(each: Sequence[Sums]) -> float:
    """Return the error of several inferences; infinity if it is not finite."""
    names = dict.fromkeys(name for sums in each for name in sums)
    names = {name: None for name in names if not name.startswith(_PART)} or names
    totals = [np.sum([sums[name] for sums in each if name in sums], axis=0) for name in names]
    if not np.isfinite(totals).all():
        return float("inf")
    shares = [float(wrong / right) for wrong, right in totals if right > 0.0]
    return sum(shares) / len(shares) if shares else 0.0


def _of_scores(purpose: Purpose, expected: Outputs, found: Outputs, samples: int) -> Sums:
    sums = {}
    for name, first in score_heads(purpose.heads, expected, samples).items():
        tags = purpose.heads.get(name, purpose.usual_kind) == "tags"
        shape = (*first.shape, 1) if tags else first.shape  # each tag is a question of its own
        one, other = (with_finite_ends(each).reshape(shape) for each in (first, found[name]))
        sums[name] = float(_divergence(one, other).sum()), float(samples)
    for name in purpose.numbers:
        if name in expected:
            sums[name] = _squares(expected[name], found[name])
    return sums


def _of_steps(purpose: Purpose, expected: Outputs, found: Outputs, samples: int) -> Sums:
    name, first = step_scores(purpose.heads, expected, samples)
    first, second = with_finite_ends(first), with_finite_ends(in_steps(found[name], samples))
    return {name: (float(_divergence(first, second).mean(axis=-1).sum()), float(samples))}


def _of_maps(_: Purpose, expected: Outputs, found: Outputs, samples: int) -> Sums:
    name, first = next((name, array) for name, array in expected.items() if array.ndim == 4 and array.dtype.kind == "f")
    one, other = (np.moveaxis(with_finite_ends(array), class_axis(first.shape), -1) for array in (first, found[name]))
    return {name: (float(_divergence(one, other).mean()) * samples, float(samples))}


def _divergence(first: Floats, second: Floats) -> Floats:
    """Return the divergence of each row of scores."""
    if first.shape[-1] == 1:  # one score: of a logit or a probability
        first, second = (np.concatenate([each, _other(each)], axis=-1) for each in (first, second))
    softened = SOFTENED_LOGITS
    if probabilities(first) is first:
        first, second = (np.log(np.maximum(each, LEAST_SHARE)) for each in (first, second))
        softened = SOFTENED_PROBABILITIES
    return np.asarray(np.mean([_softened_divergence(first, second, softness) for softness in softened], axis=0))


def _softened_divergence(first: Floats, second: Floats, softness: float) -> Floats:
    """Return softness^2 times the divergence of logits that are divided by it.

    For small errors of the logits that is half their variance under p; without end, p is the same for all classes.
    """
    if np.isinf(softness):
        return np.asarray((second - first).var(-1) / 2)
    p, q = (_log_shares(each / softness) for each in (first, second))
    return np.asarray(softness**2 * (np.exp(p) * (p - q)).sum(-1))


def _log_shares(scores: Floats) -> Floats:
    shifted = scores - scores.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _other(scores: Floats) -> Floats:
    """Return the score of the other class: what is left of a probability, 0 beside a logit."""
    return 1.0 - scores if probabilities(scores) is scores else np.zeros_like(scores)


def _of_detections(purpose: Purpose, expected: Outputs, found: Outputs, _: int) -> Sums:
    head = head_of(purpose, expected)
    wrong = np.zeros(2)
    right = np.zeros(2)
    for (boxes, scores), (other_boxes, other_scores) in zip(head.dense(expected), head.dense(found), strict=True):
        if not (np.isfinite(other_scores).all() and np.isfinite(other_boxes).all()):
            return {"scores": (float("inf"), 1.0)}
        hot = np.maximum(scores, other_scores) > LEAST_SCORE
        best = scores.max(axis=1)
        there = best > LEAST_SCORE
        apart = 1.0 - overlaps_in_pairs(boxes[there], other_boxes[there])
        wrong += float(np.square(other_scores[hot] - scores[hot]).sum()), float((best[there] * apart).sum())
        right += float(np.square(scores[hot]).sum()), float(best[there].sum())
    # With nothing to see in any sample there are no sums, and parts tell.
    sums = {"scores": (wrong[0], right[0]), "boxes": (BOX_WEIGHT * wrong[1], right[1])}
    return {name: (float(one), float(other)) for name, (one, other) in sums.items()} if right[0] else {}


def _of_vectors(purpose: Purpose, expected: Outputs, found: Outputs, samples: int) -> Sums:
    pairs = [answer.numbers["cosine"] for answer in compare_answers(purpose, expected, found, samples)]
    return {"cosine": (sum(1.0 - cosine for cosine in pairs), float(len(pairs)))} if pairs else {}


def _of_parts(parts: Mapping[str, Sequence[OutputPart]], expected: Outputs, found: Outputs) -> Sums:
    sums = {}
    expected, found = without_common_infinities({name: expected[name] for name in expected if name in found}, found)
    for name, right in expected.items():
        wrong = found[name]
        if right.dtype.kind != "f" or right.shape != wrong.shape:
            continue
        for part in parts.get(name, (_WHOLE,)):
            x, y = (array if part is _WHOLE else part.of(array) for array in (right, wrong))
            sums[f"{_PART}{name}: {part.label}"] = _squares(x, y)
    return sums


def _squares(expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> tuple[float, float]:
    x = expected.astype(np.float64)
    return float(np.square(found - x).sum()), float(np.square(x).sum())


_BY_TASK = {
    Task.CLASSIFY: _of_scores,
    Task.TAG: _of_scores,
    Task.SEQUENCE: _of_steps,
    Task.DETECT: _of_detections,
    Task.SEGMENT: _of_maps,
    Task.EMBED: _of_vectors,
}
