"""How sure a figure of all samples is: the figure again, on samples drawn from these with replacement (bootstrap).

A draw of n samples is how often each was drawn: a row of weights that add up to n. The rows follow from n alone, so two
models that are measured apart are judged on the same draws, and their difference in each draw is a paired one.

Average precision of a draw needs no new matching: with its image's weight on each detection, sorted by score once,

    precision = drawn hits so far / drawn detections so far          recall = drawn hits so far / drawn truths

and the precision is highest at hits, so only they are looked at. A hit covers those of the 101 recalls that lie between
the recall before it and its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from detent.tasks.boxes import RECALLS, THRESHOLDS, Matches

Weights = npt.NDArray[np.float64]

DRAWS = 1000
FEWEST_DRAWS = 200
_MOST_WEIGHTS = 20_000_000
_AT_ONCE = 2_000_000  # numbers of a table in memory at a time


def draw_weights(samples: int, seed: int = 0) -> Weights:
    """Return how often each sample is drawn (columns) in each draw (rows); fewer draws of very many samples."""
    draws = int(np.clip(_MOST_WEIGHTS // max(samples, 1), FEWEST_DRAWS, DRAWS))
    generator = np.random.default_rng(seed)
    return generator.multinomial(samples, np.full(samples, 1 / samples), size=draws).astype(np.float64)


def drawn_precision(images: Sequence[dict[int, Matches]], weights: Weights) -> Weights:
    """Return the mean average precision at each threshold (columns) of each draw (rows); NaN without any truth."""
    by_class: dict[int, list[tuple[int, Matches]]] = {}
    for at, image in enumerate(images):
        for kind, matches in image.items():
            by_class.setdefault(kind, []).append((at, matches))
    total = np.zeros((len(weights), len(THRESHOLDS)))
    classes = np.zeros(len(weights))
    for found in by_class.values():
        truths = weights[:, [at for at, _ in found]] @ np.array([each.truths for _, each in found], np.float64)
        if truths.any():
            total += _drawn_class_precision(found, weights, truths)
            classes += truths > 0
    return np.divide(total, classes[:, None], out=np.full_like(total, np.nan), where=classes[:, None] > 0)


def _drawn_class_precision(found: Sequence[tuple[int, Matches]], weights: Weights, truths: Weights) -> Weights:
    scores = np.concatenate([each.scores for _, each in found])
    order = np.argsort(-scores, kind="mergesort")
    image = np.concatenate([np.full(len(each.scores), at) for at, each in found])[order]
    hits = np.concatenate([each.hits for _, each in found], axis=1)[:, order]
    ignored = np.concatenate([each.ignored for _, each in found], axis=1)[:, order]
    right = hits & ~ignored
    result = np.zeros((len(weights), len(THRESHOLDS)))
    if not right.any():
        return result
    end = int(np.flatnonzero(right.any(0))[-1]) + 1  # what follows the last hit changes no figure
    step = max(1, _AT_ONCE // end)
    for start in range(0, len(weights), step):
        rows = slice(start, start + step)
        drawn = weights[rows][:, image[:end].astype(np.intp)]
        seen = np.cumsum(drawn, axis=1)
        for column in range(len(THRESHOLDS)):
            at = np.flatnonzero(right[column, :end])
            if not len(at):
                continue
            counted = seen[:, at]
            skipped = np.flatnonzero(ignored[column, :end])
            if len(skipped):
                before = np.cumsum(np.insert(drawn[:, skipped], 0, 0.0, axis=1), axis=1)
                counted = counted - before[:, np.searchsorted(skipped, at)]
            result[rows, column] = _area(np.cumsum(drawn[:, at], axis=1), counted, truths[rows])
    return result


def _area(right: Weights, counted: Weights, truths: Weights) -> Weights:
    """Return the mean precision at the 101 recalls, from the counts at each hit (columns) of each draw (rows)."""
    precision = np.divide(right, counted, out=np.zeros_like(right), where=counted > 0)
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    recall = np.divide(right, truths[:, None], out=np.zeros_like(right), where=truths[:, None] > 0)
    covered = np.searchsorted(RECALLS, recall.ravel(), side="right").reshape(recall.shape)
    area: Weights = (precision * np.diff(covered, axis=1, prepend=0)).sum(1) / len(RECALLS)
    return np.where(truths > 0, area, 0.0)


def drawn_overlap(common: Weights, found: Weights, truths: Weights, weights: Weights) -> Weights:
    """Return the mean intersection over union of each draw, over the classes that occur in it.

    Arguments are pixels of each sample (rows) and class (columns): of both, found, and labelled.
    """
    shared, predicted, labelled = (weights @ each for each in (common, found, truths))
    occurs = labelled > 0
    union = predicted + labelled - shared
    ratio = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    classes = occurs.sum(1)
    total = np.where(occurs, ratio, 0.0).sum(1)
    mean: Weights = np.divide(total, classes, out=np.full(len(weights), np.nan), where=classes > 0)
    return mean


def drawn_correlation(one: Weights, other: Weights, weights: Weights) -> Weights:
    """Return Spearman's rank correlation of two lists in each draw; 0 where one of them is constant."""
    ranks = [drawn_ranks(values, weights) for values in (one, other)]
    size = weights.sum(1, keepdims=True)
    centered = [each - (weights * each).sum(1, keepdims=True) / size for each in ranks]
    product = (weights * centered[0] * centered[1]).sum(1)
    power = (weights * centered[0] ** 2).sum(1) * (weights * centered[1] ** 2).sum(1)
    correlation: Weights = np.divide(product, np.sqrt(power), out=np.zeros_like(product), where=power > 0)
    return correlation


def drawn_ranks(values: Weights, weights: Weights) -> Weights:
    """Return the rank of each value (columns) in each draw (rows), from 1; equal values share the mean of theirs."""
    known, group = np.unique(values, return_inverse=True)
    sizes = np.zeros((len(weights), len(known)))
    np.add.at(sizes.T, group.reshape(-1), weights.T)
    ends = np.cumsum(sizes, axis=1)
    middles = ends - (sizes - 1) / 2
    ranks: Weights = middles[:, group.reshape(-1)]
    return ranks
