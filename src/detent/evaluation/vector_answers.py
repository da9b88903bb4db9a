"""Compare answers that are numbers: vectors by which samples are ranked, and any others.

embed      the cosine of each vector, and the rank correlation of all similarities between two samples
regress    the error relative to the signal, and to how much the numbers differ between samples: those who answer
           30 to everything are right about the age of most people (the figures of parts say more). Where another
           output says how sure the model is of each number, those that float is not sure of are left out
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.evaluation.sample_answers import (
    AnswerReader,
    Floats,
    Rows,
    SampleAnswer,
    Summary,
    without_common_infinities,
)
from detent.results.verdict import LEAST_SAMPLES
from detent.tasks.purpose import Outputs, Purpose

VECTORS = 64  # samples whose similarities are ranked: their pairs grow with the square
FEW_NUMBERS = 1024  # of a sample, whose differences between samples are looked at
LEAST_APART = 1e-4  # similarities in float that differ by less rank nothing, as those of one sample again and again
STILL = 0.005  # numbers that differ by less than this share of themselves are the same for all samples


def _compare_vectors(_: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    name = _vector_output(expected, samples)
    expected, found = without_common_infinities(expected, found)
    one, other = (_vectors(each[name], samples) for each in (expected, found))
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    same = (one == other).all(1).astype(np.float64)  # as vectors of zeros may be
    cosines = np.divide((one * other).sum(1), norms, out=same, where=norms > 0)
    return [SampleAnswer({"cosine": float(cosines[at])}, (one[at], other[at])) for at in range(samples)]


def _vector_output(outputs: Outputs, samples: int) -> str:
    kept = [name for name, array in outputs.items() if array.dtype.kind == "f" and array.shape[:1] == (samples,)]
    return min(kept, key=lambda name: outputs[name].ndim)


def vectors_of(outputs: Outputs) -> Floats:
    return np.asarray(_vectors(outputs[_vector_output(outputs, 1)], 1)[0])


def _vectors(array: npt.NDArray[Any], samples: int) -> Floats:
    """Return a vector for each sample: of tokens, their mean."""
    values = np.nan_to_num(array.astype(np.float64))
    return values.mean(1) if values.ndim == 3 else values.reshape(samples, -1)


def _summarize_vectors(rows: Rows, answers: Sequence[SampleAnswer]) -> Summary:
    pairs = [answer.vectors for answer in answers[:VECTORS] if answer.vectors is not None]
    ranking = None
    if len(pairs) >= 4 and len({one.size for one, _ in pairs}) == 1:  # only vectors of one length can be compared
        first, second = (_similarities(np.array([pair[at] for pair in pairs])) for at in (0, 1))
        ranking = spearman(first, second) if float(np.ptp(first)) > LEAST_APART else None
    cosine = float(rows["cosine"].mean())
    text = f"the cosine with float's vectors is {cosine:.4f} on average, {rows['cosine'].min():.4f} at worst"
    figures = {"cosine": cosine, "worst_cosine": float(rows["cosine"].min())}
    if ranking is not None:
        figures["ranking"] = ranking
        text += f"; the ranking of similarities is kept by {ranking:.3f}"
    loss = None if ranking is None else 1.0 - ranking
    return loss, None, figures, text


def _similarities(vectors: Floats) -> Floats:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return np.asarray((unit @ unit.T)[np.triu_indices(len(unit), 1)])


def spearman(first: Floats, second: Floats) -> float:
    """Return the rank correlation, 0 if either is constant and the other is not the same."""
    if np.array_equal(first, second):
        return 1.0
    ranks = [np.argsort(np.argsort(each, kind="stable"), kind="stable").astype(np.float64) for each in (first, second)]
    if np.ptp(first) == 0.0 or np.ptp(second) == 0.0:
        return 0.0
    # Exactly 1 for the same ranks: a rounding error would be reported as a loss of 1e-14 %.
    return 1.0 if np.array_equal(ranks[0], ranks[1]) else float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _compare_numbers(purpose: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    # A number without an axis is that of the one sample.
    names = [name for name, array in expected.items() if array.dtype.kind == "f" and (array.ndim or samples == 1)]
    if samples > 1 and any(len(expected[name]) != samples for name in names):
        raise ValueError("the rows of an output are not those of the samples")
    expected, found = without_common_infinities(expected, found)
    known = {name: ~unsure for name, unsure in purpose.unsure(expected).items()}
    everywhere = {name: np.ones(expected[name].shape, np.bool_) for name in names}
    one, other, where = (
        np.concatenate([arrays[name].reshape(samples, -1) for name in names], axis=1)
        for arrays in (expected, found, everywhere | known)
    )
    one, other = one.astype(np.float64), other.astype(np.float64)
    shares = [sure.reshape(samples, -1).mean(1) for sure in known.values()] or [np.ones(samples)]
    answers = []
    for x, y, sure, share in zip(one, other, where, np.mean(shares, axis=0).tolist(), strict=True):
        signal, noise = float(np.square(x).sum()), float(np.square(x - y).sum())
        error = math.sqrt(noise / signal) if signal else float(noise > 0)
        numbers = {"error": error if math.isfinite(error) else 1e9, "sure": share}
        answers.append(SampleAnswer(numbers, (np.where(sure, x, np.nan), y) if x.size <= FEW_NUMBERS else None))
    return answers


def _summarize_numbers(rows: Rows, answers: Sequence[SampleAnswer]) -> Summary:
    mean, worst, sure = float(rows["error"].mean()), float(rows["error"].max()), float(rows["sure"].mean())
    text = f"the error is {100 * mean:.2g} % of the signal on average, {100 * worst:.2g} % at worst"
    figures = {"relative_error": mean, "worst_relative_error": worst}
    if not sure:
        return None, None, figures | {"unsure": 1.0}, "the float model is sure of nothing in these samples"
    if sure < 1.0:
        text = f"of the {100 * sure:.0f} % of the numbers that float is sure of, {text}"
    share = _error_of_spread(answers)
    if share is None:
        return None, None, figures, text
    if math.isnan(share):
        return None, None, figures | {"still": 1.0}, f"{text}; the float model gives all samples the same numbers"
    text += f"; it is {100 * share:.2g} % of how much the numbers differ between samples"
    return None, None, figures | {"error_of_spread": share}, text


def _error_of_spread(answers: Sequence[SampleAnswer]) -> float | None:
    """Return the error of the median number relative to how much float's differ between samples.

    NaN if they hardly differ; None if too few samples have numbers in common, or float is sure of too few.
    """
    pairs = [answer.vectors for answer in answers if answer.vectors is not None]
    alike = len(pairs) == len(answers) and len({one.shape for one, _ in pairs}) == 1
    if not alike or len(pairs) < LEAST_SAMPLES:
        return None
    one, other = (np.array([pair[at] for pair in pairs]) for at in (0, 1))
    often = (~np.isnan(one)).sum(0) >= LEAST_SAMPLES
    if not often.any():
        return None
    one, other = one[:, often], other[:, often]
    known = ~np.isnan(one)
    spread = one.std(0, where=known)
    moving = spread > STILL * np.abs(one).max(0, where=known, initial=0.0)
    if not moving.any():
        return math.nan
    errors = np.square(one - other).mean(0, where=known)[moving]
    ratio = float(np.median(errors / np.square(spread[moving])))
    return math.sqrt(ratio) if math.isfinite(ratio) else 1e9


EMBEDDINGS = AnswerReader(_compare_vectors, _summarize_vectors, vectors=VECTORS)
NUMBERS = AnswerReader(_compare_numbers, _summarize_numbers)
