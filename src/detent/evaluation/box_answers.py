"""Compare detections: those of the float model that the quantized one has too, of the same class and in place.

They are the ones whose score is above LEAST_SCORE, or the best few if there are none. Each weighs as much as its score,
and a partner, which overlaps by more than a half, counts less the less the two overlap (`_precision_kept`). Detections
that float does not have count half.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detent.evaluation.sample_answers import (
    AnswerReader,
    Floats,
    Row,
    Rows,
    SampleAnswer,
    Summary,
    bootstrap,
    points_text,
    unseen,
)
from detent.tasks.detection import Detections, match_detections, overlaps
from detent.tasks.heads import Head, recognise_head
from detent.tasks.purpose import Outputs, Purpose

LEAST_SCORE = 0.25  # the usual threshold of detectors
# A detection that falls to this score is still there: thresholds of users differ, and the shift of scores is reported.
STILL_THERE = 0.15

BEST = 20  # detections that are compared if none is above it
# How far the boxes of trained detectors are from labelled ones, as 1 - overlap: YOLOv8n's on COCO, weighted by score.
OWN_ERROR = 0.15
# What a lost detection costs beside a mean one: it is half of average precision, and lost ones have low scores.
COST_OF_LOST = 0.3


def head_of(purpose: Purpose, outputs: Outputs) -> Head:
    """Return how the outputs of a detector are laid out. Raise ValueError if that is not known."""
    shapes = {name: array.shape for name, array in outputs.items()}
    image = purpose.image or (640, 640)
    head = recognise_head(shapes, image, purpose.classes) or recognise_head(shapes, image)
    if head is None:
        raise ValueError("the layout of the detections is not known")
    return head


def detections_of(purpose: Purpose, outputs: Outputs) -> list[Detections]:
    """Return what each image's detections are. Raise ValueError if the layout of the outputs is not known."""
    return head_of(purpose, outputs).detect(outputs, 0.01)


def _compare(purpose: Purpose, expected: Outputs, found: Outputs, _: int) -> list[SampleAnswer]:
    head = head_of(purpose, expected)
    pairs = zip(head.detect(expected, 0.01), head.detect(found, 0.01), strict=True)
    return [SampleAnswer(_compare_detections(one, other)) for one, other in pairs]


def _compare_detections(one: Detections, other: Detections) -> Row:
    confident = one.above(LEAST_SCORE)
    numbers = _kept(confident, one, other, LEAST_SCORE)
    # The same of the best few, whatever their scores, in case that no sample has a confident one.
    best = one.take(slice(BEST))
    least = float(np.nextafter(best.scores[-1], np.float32(0.0))) if len(best) else 1.0  # the last one is above it
    return numbers | {f"best_{name}": value for name, value in _kept(best, one, other, least).items()}


def _kept(wanted: Detections, one: Detections, other: Detections, least: float) -> Row:
    there = other.above(least * STILL_THERE / LEAST_SCORE)
    partners = match_detections(wanted, there)
    kept = partners >= 0
    shared = overlaps(wanted.boxes[kept], there.boxes[partners[kept]]).diagonal()
    shown = other.above(least)
    extra = match_detections(shown, one.above(least * STILL_THERE / LEAST_SCORE)) < 0
    scores = wanted.scores.astype(np.float64)  # sums of float32 would differ from each other by rounding
    weight = float(scores.sum()) + float(shown.scores[extra].sum()) / 2
    return {
        "wanted": float(len(wanted)),
        "kept": float(kept.sum()),
        "extra": float(extra.sum()),
        "shown": float(len(shown)),
        "shift": float((there.scores[partners[kept]] - wanted.scores[kept]).sum()),
        "weight": weight,
        "lost": weight - float((scores[kept] * _precision_kept(shared)).sum()),
        "overlap": float(shared.sum()),
    }


def _precision_kept(shared: Floats) -> Floats:
    """Return the share of average precision that boxes keep which overlap with those of float by `shared`.

    A box of float is OWN_ERROR away from the labelled one. What rounding adds knows nothing of that, so the squares of
    both add up. Average precision counts overlaps from 0.5 on, in even steps: a loss of 0.5 is all of it.
    """
    further = np.hypot(OWN_ERROR, 1.0 - shared) - OWN_ERROR
    return np.asarray(np.clip(1.0 - further / 0.5, 0.0, 1.0))


def _summarize(rows: Rows, answers: Sequence[SampleAnswer]) -> Summary:
    count = len(answers)
    faint = _faint(rows)
    totals = ("wanted", "kept", "extra", "shown", "shift", "overlap")
    wanted, kept, extra, shown, shift, overlap = (float(rows[f"{faint}{name}"].sum()) for name in totals)
    loss, (low, high) = bootstrap(*_costs(rows))
    lost = wanted - kept
    # A lost detection is rare and costs much: that none of a few is lost may be chance.
    most = unseen(round(lost), round(wanted), COST_OF_LOST * lost, COST_OF_LOST) if wanted else 1.0
    interval = low, max(high, most)
    moved = shift / kept if kept else 0.0
    which = f"of the {BEST} best detections" if faint else f"detections above {LEAST_SCORE}"
    text = f"{kept:.0f} of {wanted:.0f} {which} are kept, {extra:.0f} are new, scores move by {moved:+.2f}"
    text += f", {shown / count:.1f} boxes in a sample instead of {wanted / count:.1f}"
    if wanted and not faint:
        text += f"; expected loss of average precision {points_text(loss, interval)}"
    figures = {
        "kept": kept / wanted if wanted else 0.0,
        "new": extra / wanted if wanted else 0.0,
        "score_shift": moved,
        "boxes_per_sample": shown / count,
        "boxes_per_sample_float": wanted / count,
        "confident": 0.0 if faint else 1.0,
        "overlap": overlap / kept if kept else 0.0,
    }
    return loss if wanted else None, interval, figures, text


def _costs(rows: Rows) -> tuple[Floats, Floats]:
    """Return what is lost of average precision, which is about a half to begin with and loses in proportion."""
    faint = _faint(rows)
    return rows[f"{faint}lost"] / 2, rows[f"{faint}weight"]


def _faint(rows: Rows) -> str:
    """Return how the numbers begin that count: float may have found nothing with confidence in any sample."""
    return "" if rows["wanted"].any() else "best_"


BOXES = AnswerReader(_compare, _summarize, _costs)
