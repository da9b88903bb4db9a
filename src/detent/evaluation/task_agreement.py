"""Judge the answers of a quantized model by those of the float one, as the user of its task would; without labels.

    classify   the top class, or the tags, of each output (row_answers.py), with the expected loss of accuracy or F1
    tag        the same
    sequence   the classes of all steps, read as text: the dominant first or last class is a blank and says nothing; if
               blanks stand between others (CTC), repeated classes are one. Changes (the edit distance) are counted
               among the classes of both, and cost what changed steps cost on average, as above.
    detect     the float model's detections (score above LEAST_SCORE, or the best few if there are none) that the
               quantized one has too: same class, overlap above a half. Each weighs as much as its score, and a partner
               counts less the less the two overlap (`_precision_kept`); detections that float does not have count half.
    segment    pixels of the same class, and the overlap of regions but for a background. In maps of few peaks, such as
               those of key points, most pixels have no class: there the peaks count that stay in place, by their height
    embed      the cosine of each vector, and the rank correlation of all similarities between two samples
    image      the PSNR, against the span of the float image
    regress    the error relative to the signal, and to how much the numbers differ between samples: those who answer
               30 to everything are right about the age of most people (the figures of parts say more). Where another
               output says how sure the model is of each number, those that float is not sure of are left out

Losses are fractions, 0 for the same answers. Their interval is that of a bootstrap over samples; of few samples with no
change at all, the upper end is Wilson's for the share of changes times what a change usually costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.evaluation import row_answers
from detent.evaluation.row_answers import (
    Floats,
    Outputs,
    Row,
    Rows,
    Summary,
    bootstrap,
    compare_classes,
    compare_rows,
    points_text,
    threshold,
    unseen,
)
from detent.observe.sources import Shape
from detent.results.tensors import TaskAgreement
from detent.results.verdict import LEAST_SAMPLES
from detent.tasks import (
    Task,
    answer_heads,
    channels_and_sides,
    class_count,
    find_task,
    image_size,
    number_confidences,
    takes_tokens,
)
from detent.tasks.detection import Detections, Head, match_detections, overlaps, recognise_head
from detent.tasks.endings import HeadKind, passed_on

LEAST_SCORE = 0.25  # the usual threshold of detectors
# A detection that falls to this score is still there: thresholds of users differ, and the shift of scores is reported.
STILL_THERE = 0.15

BEST = 20  # detections that are compared if none is above it
# How far the boxes of trained detectors are from labelled ones, as 1 - overlap: YOLOv8n's on COCO, weighted by score.
OWN_ERROR = 0.15
LEAST_BLANK = 0.25  # the share of steps from which on a class is taken for a blank

# Maps of peaks: at most this share of pixels is above half of the highest, and the median below this share of it. A
# peak counts from this share of the highest on, and may move by this share of the larger side.
MOST_PEAKED, BACKGROUND, LEAST_PEAK, NEAR = 0.1, 0.1, 0.25, 0.02
SMALLEST_REGION = 0.005  # the share of the pixels below which a region is no object

SURE = 0.5  # the confidence below which a number may be anything, as the pitch of silence
FEW_NUMBERS = 1024  # of a sample, whose differences between samples are looked at
STILL = 0.005  # numbers that differ by less than this share of themselves are the same for all samples

VECTORS = 64  # samples whose similarities are ranked: their pairs grow with the square

Classes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Purpose:
    """What a model is for, how that is known, and what its file says about its classes and its image.

    `passed_on` are outputs that are inputs, and no answers; `tokens` says that each step is of an input's token;
    `heads` are the outputs of a classifier, tagger or detector that hold answers, if they are known; `confidences` are
    the outputs that say how sure the numbers of another are, by the name of that one.
    """

    task: Task
    why: str
    classes: int | None = None
    image: tuple[int, int] | None = None
    passed_on: frozenset[str] = frozenset()
    tokens: bool = False
    heads: Mapping[str, HeadKind] = field(default_factory=dict)
    confidences: Mapping[str, str] = field(default_factory=dict)

    @property
    def usual_kind(self) -> HeadKind:
        """Return what a row of scores is if `heads` does not say."""
        return "tags" if self.task is Task.TAG else "classes"

    @property
    def numbers(self) -> list[str]:
        """Return the outputs that hold a number beside the classes or tags, such as an age."""
        return [name for name, kind in self.heads.items() if kind == "number"]

    def is_beside(self, output: str) -> bool:
        """Tell whether an output is not read as the answer, such as the features that it is computed from."""
        known = bool(self.heads) and output not in self.passed_on
        return known and self.heads.get(output, "number") == "number"

    def answers(self, outputs: Outputs) -> Outputs:
        """Return the outputs that are answers."""
        return {name: array for name, array in outputs.items() if name not in self.passed_on}

    def unsure(self, outputs: Outputs) -> dict[str, npt.NDArray[np.bool_]]:
        """Return where the numbers of each output are that the model itself is not sure of, if it says so."""
        pairs = {name: sure for name, sure in self.confidences.items() if name in outputs and sure in outputs}
        return {
            name: outputs[sure] < SURE for name, sure in pairs.items() if outputs[sure].shape == outputs[name].shape
        }


def purpose_of(model: ir.Model, named: str | None, shapes: Mapping[str, Shape] | None = None) -> Purpose:
    """Return what a model is for. Raise UsageError for a task that it cannot have."""
    graph, metadata = model.graph, dict(model.metadata_props)
    task, why = find_task(named, graph, metadata, shapes)
    heads, sure = answer_heads(task, graph, shapes), number_confidences(graph, shapes)
    image, given, tokens = image_size(graph), passed_on(graph), takes_tokens(graph)
    return Purpose(task, why, class_count(metadata), image, given, tokens, heads, sure)


@dataclass(frozen=True, eq=False)
class SampleAnswer:
    """One sample: numbers to sum up, and for encoders both vectors."""

    numbers: Row
    vectors: tuple[Floats, Floats] | None = None


def where_sure(purpose: Purpose, expected: Outputs, found: Outputs) -> tuple[Outputs, Outputs]:
    """Return both with 0 for the numbers that the float model is not sure of: what they are says nothing."""
    unsure = {name: where for name, where in purpose.unsure(expected).items() if found[name].shape == where.shape}
    if not unsure:
        return expected, found
    one, other = (
        outputs | {name: np.where(where, outputs[name].dtype.type(0), outputs[name]) for name, where in unsure.items()}
        for outputs in (dict(expected), dict(found))
    )
    return one, other


def compare_answers(purpose: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    """Return what became of each sample's answer; empty if this output cannot be read as the task's."""
    expected, found = where_sure(purpose, expected, found)
    try:
        return _READERS[purpose.task](purpose, purpose.answers(expected), purpose.answers(found), samples)
    except (ValueError, IndexError, KeyError, StopIteration):  # an output of another shape than the task's
        return []


def summarize_answers(purpose: Purpose, answers: Sequence[SampleAnswer]) -> TaskAgreement | None:
    """Return the figures of all samples; None if there are none."""
    if not answers:
        return None
    rows = {name: np.array([answer.numbers.get(name, 0.0) for answer in answers]) for name in answers[0].numbers}
    loss, interval, figures, text = _SUMMARIES[purpose.task](rows, answers)
    return TaskAgreement(str(purpose.task), purpose.why, len(answers), loss, interval, figures, text)


def paired_costs(purpose: Purpose, answers: Sequence[SampleAnswer]) -> tuple[Floats, Floats] | None:
    """Return what each sample costs, and its weight: the loss is the ratio of their sums. None if there is no such."""
    if not answers or purpose.task in (Task.EMBED, Task.IMAGE, Task.REGRESS):
        return None
    rows = {name: np.array([answer.numbers[name] for answer in answers]) for name in answers[0].numbers}
    if purpose.task is Task.DETECT:
        faint = "" if rows["wanted"].any() else "best_"
        return rows[f"{faint}lost"] / 2, rows[f"{faint}weight"]
    if purpose.task is Task.SEQUENCE:
        return rows["loss"], rows["length"]
    if purpose.task is Task.SEGMENT:
        if _are_of_peaks(rows):
            return rows["lost_height"], rows["height"]
        return _region_costs(rows)
    return row_answers.paired_costs(rows)


# --- classes and tags


def _rows_of_scores(purpose: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    rows = compare_rows(purpose.heads, purpose.usual_kind, expected, found, samples)
    return [SampleAnswer(row) for row in rows]


def _summarized(rows: Rows, _: Sequence[SampleAnswer]) -> Summary:
    return row_answers.summarize_rows(rows)


# --- sequences


def step_scores(outputs: Outputs, samples: int) -> tuple[str, Floats]:
    """Return the output that holds class scores of steps, as [samples, steps, classes]."""
    for name, array in outputs.items():
        if array.dtype.kind == "f" and array.ndim == 3 and array.shape[2] > 1 and samples in array.shape[:2]:
            return name, in_steps(array, samples)
    raise ValueError("no output holds class scores of steps")


def in_steps(array: npt.NDArray[Any], samples: int) -> Floats:
    """Return [samples, steps, classes] of an array that may have the steps first, as recurrent networks do."""
    first = array.shape[1] == samples and array.shape[0] != samples
    return np.asarray(np.swapaxes(array, 0, 1) if first else array, np.float64)


def _sequence(purpose: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    name, first = step_scores(expected, samples)
    second = np.nan_to_num(in_steps(found[name], samples), nan=-np.inf)
    _, costs = compare_classes(first, second)
    one, other = first.argmax(-1), second.argmax(-1)
    blank = _blank(one, first.shape[-1])
    answers = []
    for at in range(samples):
        if purpose.tokens:
            said = (one[at] != blank) | (other[at] != blank)
            edits, length = int((one[at] != other[at]).sum()), int(said.sum())
        else:
            texts = [_text(each, blank, merged=_is_merged(one[at], blank)) for each in (one[at], other[at])]
            edits, length = edit_distance(*texts), max(map(len, texts))
        changed = one[at] != other[at]
        cost = edits * float(costs[at][changed].mean()) if edits else 0.0
        answers.append(SampleAnswer({"kept": float(not edits), "edits": edits, "length": length, "loss": cost}))
    return answers


def _blank(classes: Classes, count: int) -> int | None:
    """Return the class that says nothing, as CTC's blank and the label of other words: a frequent first or last one."""
    shares = {end: float((classes == end).mean()) for end in (0, count - 1)}
    end = max(shares, key=lambda each: shares[each])
    return end if shares[end] >= LEAST_BLANK else None


def _is_merged(classes: Classes, blank: int | None) -> bool:
    """Tell whether blanks stand between other classes. Those that only fill the end do not divide repeated ones."""
    said = np.flatnonzero(classes != blank)
    return blank is not None and bool(len(said)) and bool((classes[: said[-1]] == blank).any())


def _text(classes: Classes, blank: int | None, *, merged: bool) -> list[int]:
    """Return what steps say together."""
    before = [None, *classes.tolist()[:-1]] if merged else [None] * len(classes)
    return [one for one, last in zip(classes.tolist(), before, strict=True) if one not in (blank, last)]


def edit_distance(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many insertions, deletions and replacements make one text the other (Levenshtein)."""
    row = list(range(len(other) + 1))
    for at, each in enumerate(one, 1):
        above, row = row, [at]
        for column, its in enumerate(other, 1):
            row.append(min(above[column] + 1, row[-1] + 1, above[column - 1] + (each != its)))
    return row[-1]


def _sequenced(rows: Rows, answers: Sequence[SampleAnswer]) -> Summary:
    count, edits, length = len(answers), int(rows["edits"].sum()), int(rows["length"].sum())
    kept = int(rows["kept"].sum())
    loss, (low, high) = bootstrap(rows["loss"], rows["length"])
    figures = {"kept": kept / count, "classes": float(length), "changed": edits / length if length else 0.0}
    if not length:
        return None, None, figures, f"float reads nothing in any of the {count} samples"
    high = max(high, unseen(min(edits, length), length, float(rows["loss"].sum())))
    text = f"{kept} of {count} sequences are kept whole, {edits} of their {length} classes change"
    return loss, (low, high), figures, f"{text}; expected loss {points_text(loss, (low, high))}"


# --- pixels


def _segment(_: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    name = next(name for name, array in expected.items() if array.ndim >= 3 and array.shape[0] == samples)
    first, second = expected[name], found[name]
    if first.dtype.kind != "f":
        same = (first == second).reshape(samples, -1).mean(1).tolist()
        regions = [_overlaps(*pair) for pair in zip(first, second, strict=True)]
        return [
            SampleAnswer(_of_pixels(*each)) for each in zip(same, [1.0 - each for each in same], regions, strict=True)
        ]
    axis = 1 if first.ndim == 3 else _class_axis(first.shape)
    one, other = (np.moveaxis(each[:, None] if first.ndim == 3 else each, axis, -1) for each in (first, second))
    answers = []
    for at in range(samples):
        x, y = one[at].astype(np.float64), np.nan_to_num(other[at].astype(np.float64), nan=-np.inf)
        same, cost = compare_classes(x, y)
        numbers = _of_pixels(float(same.mean()), float(cost.mean()), _region_overlaps(x, y))
        answers.append(SampleAnswer(numbers | (_of_peaks(x, y) if _has_peaks(x) else {})))
    return answers


def _of_pixels(same: float, loss: float, overlaps: Sequence[float]) -> Row:
    # Regions are judged by their overlap: a class of few pixels may be lost with hardly any pixel changed.
    peaks = dict.fromkeys(("peaks", "kept", "rise", "lost_height", "height"), 0.0)
    count, shared = float(len(overlaps)), float(sum(overlaps))
    return {"same": same, "loss": loss, "regions": count, "shared": shared, "cost": (count - shared) / 2, **peaks}


def _has_peaks(maps: Floats) -> bool:
    """Tell whether maps are nothing but for a few places, as those of key points are: [height, width, maps]."""
    top = maps.max(-1)
    peak = float(top.max())
    few = float((top > peak / 2).mean()) < MOST_PEAKED
    return maps.shape[-1] > 1 and few and float(np.median(top)) < BACKGROUND * peak


def _of_peaks(first: Floats, second: Floats) -> Row:
    """Compare the highest places of maps: a peak stays if it moves little and keeps half of its height."""
    reach = max(2.0, NEAR * max(first.shape[:2]))
    heights, places = _highest(first)
    others, moved = _highest(second)
    shown = heights >= LEAST_PEAK * heights.max()
    near = np.hypot(*(places - moved)) <= reach
    kept = shown & near & (others >= heights / 2)
    return {
        "peaks": float(shown.sum()),
        "kept": float(kept.sum()),
        "rise": float((others[kept] / heights[kept] - 1.0).sum()),
        "lost_height": float(heights[shown & ~kept].sum()),
        "height": float(heights[shown].sum()),
    }


def _highest(maps: Floats) -> tuple[Floats, Floats]:
    """Return the largest value of each map, and its row and column."""
    flat = maps.reshape(-1, maps.shape[-1])
    at = flat.argmax(0)
    return flat.max(0), np.array(np.divmod(at, maps.shape[1]), np.float64)


def _class_axis(shape: Sequence[int]) -> int:
    channels, sides = channels_and_sides(shape)
    return 3 if (channels, sides) == (shape[3], (shape[1], shape[2])) and shape[3] != shape[1] else 1


def _region_overlaps(first: Floats, second: Floats) -> list[float]:
    """Return intersection over union of each region that float sees; of a mask, that of what it marks."""
    if first.shape[-1] > 1:
        return _overlaps(first.argmax(-1), second.argmax(-1))
    half = threshold(first)
    one, other = first[..., 0] > half, second[..., 0] > half
    marked = one | other
    return [float((one & other).sum() / marked.sum())] if marked.mean() >= SMALLEST_REGION else []


def _overlaps(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> list[float]:
    """Return intersection over union of the regions of each class that float sees, but of a background.

    What takes more than half of an image overlaps well whatever becomes of the rest. An image of nothing else says
    nothing, unless it changes.
    """
    kinds, counts = np.unique(one, return_counts=True)
    sizes = zip(kinds.tolist(), counts.tolist(), strict=True)
    seen = {kind: count for kind, count in sizes if count >= SMALLEST_REGION * one.size}
    regions = [kind for kind, count in seen.items() if 2 * count <= one.size] or list(seen)
    shares = [
        float(((one == kind) & (other == kind)).sum() / ((one == kind) | (other == kind)).sum()) for kind in regions
    ]
    return [] if len(seen) == 1 and shares[0] > 1.0 - SMALLEST_REGION else shares


def _are_of_peaks(rows: Rows) -> bool:
    """Tell whether most samples have maps of peaks; in some there may be nothing to see."""
    return float((rows["peaks"] > 0).mean()) > 0.5


def _region_costs(rows: Rows) -> tuple[Floats, Floats]:
    """Return what samples cost and weigh: as much as they have regions, so that empty ones dilute nothing."""
    return rows["cost"], rows["regions"] if rows["regions"].any() else np.ones_like(rows["cost"])


def _segmented(rows: Rows, _: Sequence[SampleAnswer]) -> Summary:
    if _are_of_peaks(rows):
        loss, interval = bootstrap(rows["lost_height"], rows["height"])
        peaks, kept, risen = (float(rows[name].sum()) for name in ("peaks", "kept", "rise"))
        rise = risen / kept if kept else 0.0
        text = f"{kept:.0f} of {peaks:.0f} peaks of the maps stay in place, heights move by {100 * rise:+.0f} %"
        return loss, interval, {"kept_peaks": kept / peaks, "peaks": peaks, "height_shift": rise}, text
    regions = float(rows["regions"].sum())
    loss, interval = bootstrap(*_region_costs(rows))
    iou = float(rows["shared"].sum()) / regions if regions else 1.0
    same, cost = float(rows["same"].mean()), float(rows["loss"].mean())
    text = f"{100 * same:.1f} % of the pixels keep their class; regions overlap by {100 * iou:.1f} %"
    figures = {"same_pixels": same, "overlap": iou, "expected_pixel_loss": cost}
    return loss, interval, figures, text


# --- boxes


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


def _detect(purpose: Purpose, expected: Outputs, found: Outputs, _: int) -> list[SampleAnswer]:
    head = head_of(purpose, expected)
    pairs = zip(head.detect(expected, 0.01), head.detect(found, 0.01), strict=True)
    return [SampleAnswer(_compare_detections(one, other)) for one, other in pairs]


def _compare_detections(one: Detections, other: Detections) -> Row:
    confident = one.above(LEAST_SCORE)
    numbers = _kept(confident, one, other, LEAST_SCORE)
    # The same of the best few, whatever their scores, in case that no sample has a confident one.
    best = one.take(slice(BEST))
    least = float(best.scores[-1]) if len(best) else 1.0
    return numbers | {f"best_{name}": value for name, value in _kept(best, one, other, least).items()}


def _kept(wanted: Detections, one: Detections, other: Detections, least: float) -> Row:
    there = other.above(least * STILL_THERE / LEAST_SCORE)
    partners = match_detections(wanted, there)
    kept = partners >= 0
    shared = overlaps(wanted.boxes[kept], there.boxes[partners[kept]]).diagonal()
    shown = other.above(least)
    extra = match_detections(shown, one.above(least * STILL_THERE / LEAST_SCORE)) < 0
    weight = float(wanted.scores.sum()) + float(shown.scores[extra].sum()) / 2
    return {
        "wanted": float(len(wanted)),
        "kept": float(kept.sum()),
        "extra": float(extra.sum()),
        "shown": float(len(shown)),
        "shift": float((there.scores[partners[kept]] - wanted.scores[kept]).sum()),
        "weight": weight,
        "lost": weight - float((wanted.scores[kept] * _precision_kept(shared)).sum()),
        "overlap": float(shared.sum()),
    }


def _precision_kept(shared: Floats) -> Floats:
    """Return the share of average precision that boxes keep which overlap with those of float by `shared`.

    A box of float is OWN_ERROR away from the labelled one. What rounding adds knows nothing of that, so the squares of
    both add up. Average precision counts overlaps from 0.5 on, in even steps: a loss of 0.5 is all of it.
    """
    further = np.hypot(OWN_ERROR, 1.0 - shared) - OWN_ERROR
    return np.asarray(np.clip(1.0 - further / 0.5, 0.0, 1.0))


def _detected(rows: Rows, answers: Sequence[SampleAnswer]) -> Summary:
    count = len(answers)
    faint = "" if rows["wanted"].any() else "best_"
    totals = ("wanted", "kept", "extra", "shown", "shift", "overlap")
    wanted, kept, extra, shown, shift, overlap = (float(rows[f"{faint}{name}"].sum()) for name in totals)
    # Average precision is about a half to begin with, and loses in proportion.
    loss, interval = bootstrap(rows[f"{faint}lost"] / 2, rows[f"{faint}weight"])
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


# --- vectors, images, numbers


def _embed(_: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    name = _vector_output(expected, samples)
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


def _embedded(rows: Rows, answers: Sequence[SampleAnswer]) -> Summary:
    pairs = [answer.vectors for answer in answers[:VECTORS] if answer.vectors is not None]
    ranking = None
    if len(pairs) >= 4 and len({one.size for one, _ in pairs}) == 1:  # only vectors of one length can be compared
        ranking = spearman(*(_similarities(np.array([pair[at] for pair in pairs])) for at in (0, 1)))
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
    # The same ranks are not off by the last bit of a quotient, which a loss of 1e-14 % would be told for.
    return 1.0 if np.array_equal(ranks[0], ranks[1]) else float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _image(_: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    name = next(name for name, array in expected.items() if array.ndim == 4 and array.shape[0] == samples)
    answers = []
    for at in range(samples):
        x, y = expected[name][at].astype(np.float64), found[name][at].astype(np.float64)
        error, span = float(np.square(x - y).mean()), float(np.ptp(x))
        psnr = 100.0 if error == 0.0 else 10 * math.log10(span**2 / error) if span and math.isfinite(error) else 0.0
        answers.append(SampleAnswer({"psnr": min(psnr, 100.0)}))
    return answers


def _imaged(rows: Rows, _: Sequence[SampleAnswer]) -> Summary:
    mean, least = float(rows["psnr"].mean()), float(rows["psnr"].min())
    text = f"PSNR {mean:.1f} dB on average, {least:.1f} dB at worst"
    return None, None, {"psnr_db": mean, "worst_psnr_db": least}, text


def _regress(purpose: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    # A number without an axis is that of the one sample.
    arrays = {
        name: array for name, array in expected.items() if array.dtype.kind == "f" and (array.ndim or samples == 1)
    }
    rows = {name: len(array) if array.shape[:1] == (samples,) else 0 for name, array in arrays.items()}
    if samples > 1 and not all(rows.values()):
        raise ValueError("the rows of an output are not those of the samples")
    unsure = purpose.unsure(expected)
    answers = []
    for at in range(samples):
        pairs = {
            name: (array[at], found[name][at]) if rows[name] else (array, found[name]) for name, array in arrays.items()
        }
        signal = sum(float(np.square(x, dtype=np.float64).sum()) for x, _ in pairs.values())
        noise = sum(float(np.square(x.astype(np.float64) - y).sum()) for x, y in pairs.values())
        error = math.sqrt(noise / signal) if signal else float(noise > 0)
        few = sum(x.size for x, _ in pairs.values()) <= FEW_NUMBERS
        left_out = {name: where[at] if rows[name] else where for name, where in unsure.items()}
        pairs |= {name: (np.where(where, np.nan, pairs[name][0]), pairs[name][1]) for name, where in left_out.items()}
        sure = 1.0 - np.mean([where.mean() for where in left_out.values()]) if left_out else 1.0
        numbers = {"error": error if math.isfinite(error) else 1e9, "sure": float(sure)}
        both = tuple(np.concatenate([each.reshape(-1) for each in side]) for side in zip(*pairs.values(), strict=True))
        answers.append(SampleAnswer(numbers, (both[0], both[1]) if few else None))
    return answers


def _regressed(rows: Rows, answers: Sequence[SampleAnswer]) -> Summary:
    mean, worst, sure = float(rows["error"].mean()), float(rows["error"].max()), float(rows["sure"].mean())
    text = f"the error is {100 * mean:.2g} % of the signal on average, {100 * worst:.2g} % at worst"
    figures = {"relative_error": mean, "worst_relative_error": worst}
    if sure < 1.0:
        text = f"of the {100 * sure:.0f} % of the numbers that float is sure of, {text}"
    if not sure:
        return None, None, figures | {"unsure": 1.0}, "the float model is sure of nothing in these samples"
    pairs = [answer.vectors for answer in answers if answer.vectors is not None]
    # Samples of different lengths have no numbers in common.
    alike = len(pairs) == len(answers) and len({one.shape for one, _ in pairs}) == 1
    if not alike or len(pairs) < LEAST_SAMPLES:
        return None, None, figures, text
    one, other = (np.array([pair[at] for pair in pairs], np.float64) for at in (0, 1))
    often = (~np.isnan(one)).sum(0) >= LEAST_SAMPLES  # float is sure of it
    if not often.any():
        return None, None, figures, text
    one, other = one[:, often], other[:, often]
    known = ~np.isnan(one)
    spread = one.std(0, where=known)
    moving = spread > STILL * np.abs(one).max(0, where=known, initial=0.0)
    if not moving.any():
        return None, None, figures | {"still": 1.0}, f"{text}; the float model gives all samples the same numbers"
    ratio = float(np.median(np.square(one - other).mean(0, where=known)[moving] / np.square(spread[moving])))
    figures["error_of_spread"] = math.sqrt(ratio) if math.isfinite(ratio) else 1e9
    text += f"; it is {100 * figures['error_of_spread']:.2g} % of how much the numbers differ between samples"
    return None, None, figures, text


# How the answers of a task are compared, and how all of them are summed up.
_READERS: dict[Task, Callable[[Purpose, Outputs, Outputs, int], list[SampleAnswer]]] = {
    Task.CLASSIFY: _rows_of_scores,
    Task.TAG: _rows_of_scores,
    Task.SEQUENCE: _sequence,
    Task.DETECT: _detect,
    Task.SEGMENT: _segment,
    Task.EMBED: _embed,
    Task.IMAGE: _image,
    Task.REGRESS: _regress,
}
_SUMMARIES: dict[Task, Callable[[Rows, Sequence[SampleAnswer]], Summary]] = {
    Task.CLASSIFY: _summarized,
    Task.TAG: _summarized,
    Task.SEQUENCE: _sequenced,
    Task.DETECT: _detected,
    Task.SEGMENT: _segmented,
    Task.EMBED: _embedded,
    Task.IMAGE: _imaged,
    Task.REGRESS: _regressed,
}
