"""Question calibration data before it is used: by its values, and by what the float model makes of it.

A model calibrated on noise, on black images or on one image has wrong ranges, and measured on the same data it looks
right. So a few samples are looked at:

    values      the same or nearly the same sample again; constant images; images whose neighbouring pixels are not
                alike (noise); too few different samples
    answers     all samples get the same answer, or the float model does not tell them apart, or finds nothing, or is
                surer than training makes any model
    range       what the first BatchNorm was trained on against what it gets; and whether the float model answers
                better with others of the usual normalisations (normalisation.py)

How well a classifier tells samples apart is the mutual information of sample and class in nats: with p the
probabilities of a sample and H the entropy, H(mean p) - mean H(p). It is 0 if all samples get the same answer and if no
answer is sure, and log n if each of n samples surely gets a class of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.evaluation.box_answers import detections_of, head_of
from detent.evaluation.normalisation import LARGE, SATURATED, ImageSamples, Rivals, recognised, told_apart
from detent.evaluation.row_answers import chances, class_scores, probabilities
from detent.evaluation.vector_answers import vectors_of
from detent.graph.values import constant
from detent.tasks import BY_LAYOUT, BY_SHAPE, Task
from detent.tasks.purpose import Purpose

LOOKED_AT = 32  # samples that may be looked at; the values of the first half always are

ASKED, DETECTED = 8, 4  # samples that the float model answers; of a detector, whose answers cost more, fewer

FEWEST_DIFFERENT = 12  # fewer different samples than this are warned of
NEARLY_THE_SAME = 0.02  # of the spread: a copy that was compressed again differs by less
# Neighbouring pixels of photographs correlate by 0.8 and more, of noise by 0; a part of each image tells.
NOISE_CORRELATION, NOISE_SIDE = 0.3, 96

# Of pixels a sixteenth of a side apart: 0.6 to 0.7 in photographs, 0.77 in such made from 24x24 pixels. Differences
# grow with the distance where there are edges (power 0.8 to 1.2), with its square where there are none (1.4 to 1.9).
BLUR_CORRELATION, BLUR_GROWTH, BLUR_SIDE = 0.75, 1.35, 64

SMALLEST_IMAGE = 16  # a smaller array of that shape need not be an image
LEAST_TOLD_APART = 0.15  # of the information that so many samples could have

MOST_RATINGS, ALIKE = 16, 0.8  # numbers, and the least share of their squares that their mean stands for
# Coordinates of points: so many numbers at least, and the correlation of each with the one that is as far into the next
# point. It is 0.93 to 0.99 of faces, hands and eyes, and 0.1 to 0.4 of logits, whatever is seen.
FEWEST_COORDINATES, TAKE_TURNS = 32, 0.8
RARE = 0.1  # a probability that says no
SAME_VECTOR = 0.9999  # the cosine from which on two vectors are the same
SAME_SCORE = 1e-3  # scores of two classes that differ by less count as the same
UNLIKE_TRAINING = 4.0
CONFIDENT = 0.25  # the score above which detectors usually show a box
# How far the top score of a trained classifier is above the median: 10 to 40. Of more, Softmax makes 0 or 1.
LARGEST_SCORE = 80.0

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
Answer = Callable[[Feeds], Mapping[str, Array]]


def question_data(
    samples: Sequence[Feeds],
    purpose: Purpose,
    answer: Answer,
    *,
    guessed: bool = False,
    arrays: bool = False,
    declared: bool = False,
    known: Mapping[int, Mapping[str, Array]] | None = None,
) -> list[str]:
    """Return what is wrong with samples, each in a sentence or two; empty if nothing is.

    `samples` are read one by one as they are needed. `answer` runs the float model; `known` has what it answers to some
    of them. `guessed`: nobody said how images are normalised; `arrays`: the user did that, and gave the result;
    `declared`: the model's file says it, and is not doubted where samples of another kind give poor answers.
    """
    rows = _rows(samples, LOOKED_AT // 2)
    name = _telling_input(rows)
    if name is None:
        return []
    found = _of_values([row[name] for row in rows])
    if found and len(rows) == LOOKED_AT // 2:  # chance may have put a few of a kind first
        found = _of_values([row[name] for row in _rows(samples, LOOKED_AT)])
    if found and len(rows) > 1 and any(_FATAL in each for each in found):
        return found
    asked = DETECTED if purpose.task is Task.DETECT else ASKED

    def given(index: int) -> Mapping[str, Array]:
        return known[index] if known is not None and index in known else answer(samples[index])

    # A model with a fixed batch takes whole samples only.
    answers = [given(index) for index in range(min(asked, len(samples)))]
    single = len(_rows(samples, len(answers))) == len(answers) and all(len(row[name]) == 1 for row in rows)
    size = _size(samples[0])
    idle = _idle_states(rows, _rows(answers, 1, size))
    told = _of_answers(purpose, _rows(answers, asked, size))
    # In a few images there may be nothing to detect.
    if told and (purpose.task is Task.DETECT or _ONE_KIND in told[0]):
        more = [given(index) for index in range(len(answers), min(LOOKED_AT // 2, len(samples)))]
        told = _of_answers(purpose, _rows([*answers, *more], LOOKED_AT // 2, size))
    axis = _channel_axis(rows[0][name])
    if axis is not None and single and len(answers) >= 4 and not declared:
        images = ImageSamples(purpose, samples.__getitem__, len(samples), name, axis, answer, given)
        wrong = _wrong_normalisation(images, [row[name] for row in rows], answers, guessed=guessed, ready=arrays)
        told = [wrong] if wrong else told
    return [*told, *idle, *_without_numbers(answers), *found]


def _telling_input(rows: Sequence[Feeds]) -> str | None:
    """Return the largest input, of those that differ between samples if any do: a state or a mask may be larger."""
    if not rows:
        return None
    differing = [name for name, first in rows[0].items() if any(not np.array_equal(row[name], first) for row in rows)]
    return max(differing or rows[0], key=lambda name: rows[0][name].size, default=None)


def _idle_states(rows: Sequence[Feeds], answers: Sequence[Feeds]) -> list[str]:
    """Name inputs that are zero in all samples, and may be states that an output of their shape hands on."""
    found = []
    for name, first in rows[0].items():
        alike = [output for output, array in answers[0].items() if array.shape == first.shape] if answers else []
        if len(rows) > 1 and first.dtype.kind == "f" and alike and not any(row[name].any() for row in rows):
            output = next(iter(get_close_matches(name, alike, 1, 0.0)))
            found.append(
                f"Input '{name}' is zero in all of the first {len(rows)} samples, so its range is that of zeros. If it "
                f"is a state: --feedback {name}={output}."
            )
    return found


def _without_numbers(answers: Sequence[Mapping[str, Array]]) -> list[str]:
    """Name outputs in which the float model answers nothing but NaN."""
    return [
        f"The float model answers NaN in all of output '{name}' on the first {len(answers)} samples, so nothing of it "
        "is compared. Is this the data that it was made for?"
        for name, first in answers[0].items()
        if first.dtype.kind == "f" and first.size and all(np.isnan(answer[name]).all() for answer in answers)
    ]


def settled(purpose: Purpose, answer: Callable[[int], Mapping[str, Array]], count: int, size: int = 1) -> Purpose:
    """Return what a model is for now that it can be asked. `answer` runs the float model on one of `count` samples.

    A few numbers that only their shape calls scores of classes are ratings where they are all positive, about as large
    as each other, and tell no samples apart as classes. Training by classes moves scores apart and leaves their sum.
    Many are coordinates of points where each is like the second or third after it, as x of one point and the next.
    Rows that are more than the samples, of which an answer has `size`, are those of steps: of a recurrent reader, say.
    Rows of six numbers are objects if they hold a class and a score.
    """
    if purpose.task is Task.DETECT and purpose.why.startswith(BY_LAYOUT):
        if all(_are_objects(purpose, answer(index)) for index in range(min(DETECTED, count))):
            return purpose
        why = f"{purpose.why}, but they hold no classes and scores"
        return replace(purpose, task=Task.REGRESS, why=why, heads={})
    if purpose.task is not Task.CLASSIFY or not purpose.why.endswith(BY_SHAPE):
        return purpose
    if (steps := _of_steps(purpose, answer(0), size)) is not None:
        return steps
    answers = _rows([answer(index) for index in range(min(ASKED, count))], ASKED, size)
    try:
        scores = _scores(purpose, answers).astype(np.float64)
    except ValueError:  # outputs that cannot be read as scores
        return purpose
    if len(scores) < 4 or not np.isfinite(scores).all():
        return purpose
    numbers = "ratings" if _are_ratings(scores) else "coordinates" if _are_coordinates(scores) else ""
    if not numbers:
        return purpose
    why = f"{purpose.why.removesuffix(BY_SHAPE)} by its shape, but of {numbers} by what the model answers"
    return replace(purpose, task=Task.REGRESS, why=why, heads={})


def _are_objects(purpose: Purpose, outputs: Mapping[str, Array]) -> bool:
    try:
        return head_of(purpose, purpose.answers(outputs)).holds_objects(outputs)
    except ValueError:  # maps of several grids, which only code around the model reads
        return True


def _of_steps(purpose: Purpose, outputs: Mapping[str, Array], size: int) -> Purpose | None:
    """Return a purpose for scores of steps, if a model answers [steps, samples, classes] with several steps."""
    for name, array in outputs.items():
        # Other outputs of that shape may be states of a recurrence, a row for each layer.
        if name in (purpose.heads or outputs) and array.ndim == 3 and array.shape[0] > array.shape[1] == size:
            why = f"'{name}' is a row of {array.shape[2]} scores for each step, by what the model answers"
            return replace(purpose, task=Task.SEQUENCE, why=why, heads={})
    return None


def _are_ratings(scores: npt.NDArray[np.float64]) -> bool:
    if not 2 < scores.shape[1] <= MOST_RATINGS or np.allclose(scores.sum(1), 1.0, atol=1e-2):
        return False
    if scores.min() <= 0.0:
        return False
    alike = np.square(scores.mean(1)) / np.square(scores).mean(1)
    return bool(alike.min() >= ALIKE) and bool(_of_classes(scores))


def _are_coordinates(scores: npt.NDArray[np.float64]) -> bool:
    """Tell whether x and y, and maybe z, of neighbouring points take turns. Classes in order are like the very next."""
    mean = scores.mean(0)
    if mean.size < FEWEST_COORDINATES or not np.ptp(mean):
        return False
    like = [float(np.corrcoef(mean[step:], mean[:-step])[0, 1]) for step in (1, 2, 3)]
    return max(like[1:]) >= TAKE_TURNS and like[0] < TAKE_TURNS / 2


_FATAL = " cannot be learned from"
_ONE_KIND = " Give it some of both kinds."
_NO_CLASSES = " If its outputs are numbers and no scores of classes, give --task regress."


def _size(feeds: Feeds) -> int:
    """Return how many rows every array has; 1 if they differ."""
    sizes = {array.shape[0] if array.ndim else 0 for array in feeds.values()}
    return sizes.pop() if len(sizes) == 1 else 1


def _rows(samples: Sequence[Feeds], count: int, size: int | None = None) -> list[dict[str, Array]]:
    """Return the first samples one by one, if every array has a row for each; else as they are.

    `size` is that of the batches that answers are to: other rows of theirs are steps, or objects in one image.
    """
    found: list[dict[str, Array]] = []
    for index in range(len(samples)):
        feeds = samples[index]
        rows = _size(feeds)
        if rows > 1 and size in (None, rows):
            found += [{name: array[at : at + 1] for name, array in feeds.items()} for at in range(rows)]
        else:
            found.append(dict(feeds))
        if len(found) >= count:
            break
    return found[:count]


def _channel_axis(array: Array) -> int | None:
    """Return where an image has its channels; None if it is not an image."""
    if array.ndim != 4 or array.dtype.kind != "f":
        return None
    if array.shape[1] in (1, 3):
        return 1 if min(array.shape[2:]) >= SMALLEST_IMAGE else None
    return 3 if array.shape[3] in (1, 3) and min(array.shape[1:3]) >= SMALLEST_IMAGE else None


def _of_values(arrays: Sequence[Array]) -> list[str]:
    count = len(arrays)
    found = []
    image = _channel_axis(arrays[0]) is not None
    moving = [array for array in arrays if array.size == 1 or not _is_constant(array)]
    still, different = count - len(moving), _different(arrays)
    # A few constant samples do no harm beside enough of others, such as the empty squares of a board.
    few = 4 * still >= count and _different(moving) < FEWEST_DIFFERENT
    if still and few and arrays[0].size > 1 and arrays[0].dtype.kind == "f":
        found.append(f"{still} of the first {count} samples are constant, such as black images: ranges{_FATAL} them.")
    if count > 1 and different == 1 and not found:
        found.append(f"All {count} samples are the same, or nearly: ranges{_FATAL} one sample.")
    elif 2 * different <= count and different < FEWEST_DIFFERENT and not found:
        found.append(f"Only {different} of the first {count} samples differ: give other samples, not copies.")
    elif different < FEWEST_DIFFERENT:
        known = "one sample" if different == 1 else f"{different} different samples"
        found.append(f"Only {known}: ranges, and this verdict, need 16 or more; 100 are better.")
    if image and not still:
        likeness = float(np.median([_neighbours(array) for array in arrays]))
        if likeness < NOISE_CORRELATION:
            found.append(
                f"The images look like noise: neighbouring pixels correlate by {likeness:.2f}, those of photographs by "
                f"0.8 or more. Ranges{_FATAL} noise; give real images."
            )
        apart, growth = np.median([_blur(array) for array in arrays], axis=0).tolist()
        if apart > BLUR_CORRELATION and growth > BLUR_GROWTH:
            found.append(
                f"The images are blurred: pixels a sixteenth of a side apart correlate by {apart:.2f}, those of "
                f"photographs by 0.6 to 0.8. Ranges{_FATAL} images without detail; give sharp ones."
            )
    return found


def _is_constant(array: Array) -> bool:
    """Tell whether all values are the same; in an image, within each channel, since normalising separates channels."""
    axis = _channel_axis(array)
    planes = array.reshape(1, -1) if axis is None else np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    few = planes[:, :: max(1, planes.shape[1] // 64)]  # most arrays are told by a few values
    return bool((few == planes[:, :1]).all()) and bool((planes == planes[:, :1]).all())


def _different(arrays: Sequence[Array]) -> int:
    """Count samples that are not nearly the same as an earlier one; texts that are not the same."""
    if arrays and arrays[0].dtype.kind == "U":
        return len({tuple(array.flat) for array in arrays})
    kept: list[Array] = []
    for array in arrays:
        flat = array.reshape(-1)
        thin = flat[:: max(1, flat.size // 4096)].astype(np.float64)
        spread = float(thin.std()) or 1.0
        alike = (
            other.shape == thin.shape and math.sqrt(float(np.square(other - thin).mean())) <= NEARLY_THE_SAME * spread
            for other in kept
        )
        if not any(alike):
            kept.append(thin)
    return len(kept)


def _neighbours(array: Array) -> float:
    """Return how much neighbouring pixels of an image correlate, the better of both directions."""
    planes = _planes(array)
    top, left = (max(0, (side - NOISE_SIDE) // 2) for side in planes.shape[1:])
    return _correlation(planes[:, top : top + NOISE_SIDE, left : left + NOISE_SIDE], 1)


def _blur(array: Array) -> tuple[float, float]:
    """Return how much pixels a sixteenth of a side apart correlate, and the power of distance with which they differ.

    Both are 0 of a small image, which may well be smooth.
    """
    planes = _planes(array)
    far = min(planes.shape[1:]) // 16
    if far < BLUR_SIDE // 16:
        return 0.0, 0.0
    least = 1e-9
    near, apart = (max(1.0 - _correlation(planes, step), least) for step in (1, far))
    return 1.0 - apart, math.log(apart / near) / math.log(far)


def _planes(array: Array) -> Array:
    """Return the first image of an array, the channels first."""
    return np.asarray(np.moveaxis(array, _channel_axis(array) or 1, 1)[0])


def _correlation(planes: Array, step: int) -> float:
    """Return the correlation of pixels that are so far apart, across or down, whichever is higher."""
    planes = planes.astype(np.float64) - planes.mean(axis=(1, 2), keepdims=True, dtype=np.float64)
    power = float(np.square(planes).mean())
    if power == 0.0:
        return 1.0
    across = float((planes[:, :, step:] * planes[:, :, :-step]).mean())
    down = float((planes[:, step:] * planes[:, :-step]).mean())
    return max(across, down) / power


def _of_answers(purpose: Purpose, answers: Sequence[Mapping[str, Array]]) -> list[str]:
    count = len(answers)
    if count < 4:
        return []
    try:
        if purpose.task is Task.CLASSIFY:
            found = _of_classes(_scores(purpose, answers))
            return [each + _NO_CLASSES if purpose.why.endswith(BY_SHAPE) else each for each in found]
        if purpose.task is Task.TAG and float(np.ptp(chances(_scores(purpose, answers)), axis=0).max()) < SAME_SCORE:
            return [f"The float model gives all of the first {count} samples the same tags."]
        if purpose.task is Task.DETECT:
            scores = [detections_of(purpose, each)[0].scores for each in answers]
            best = max((float(each[0]) for each in scores if len(each)), default=0.0)
            if best < CONFIDENT:
                return [
                    f"The float model detects nothing in the first {count} samples (best score {best:.2f}). Is this "
                    "the data, and the normalisation, that it was trained for?"
                ]
        if purpose.task is Task.EMBED:
            vectors = np.array([vectors_of(purpose.answers(each)) for each in answers])
            vectors = np.column_stack([vectors, ~vectors.any(1)])  # zeros, too, are the same vector
            unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
            if float(np.median((unit @ unit.T)[np.triu_indices(count, 1)])) > SAME_VECTOR:
                return ["Most samples get the same vector from the float model: is this the data it was trained for?"]
    except (ValueError, IndexError, StopIteration):  # outputs that cannot be read as the task's
        return []
    return []


def _scores(purpose: Purpose, answers: Sequence[Mapping[str, Array]]) -> Array:
    """Return the scores of the first output that has any, a row for each sample."""
    return np.array([class_scores(purpose.heads, each, 1)[0] for each in answers])


def _of_classes(scores: Array) -> list[str]:
    count, classes = scores.shape
    if classes < 2:
        chance = chances(scores)
        if chance.max() < RARE:
            return [
                f"The float model says no to all of the first {count} samples ({chance.max():.2g} at most).{_ONE_KIND}"
            ]
        least = float(chance.min())
        return [f"The float model says yes to all of the first {count} samples.{_ONE_KIND}"] if least > 1 - RARE else []
    rows = np.array([probabilities(each) for each in scores])
    # One of two classes may well be rare, as long as the scores differ.
    still = classes > 2 or float(np.ptp(rows[:, 0])) < SAME_SCORE
    if still and len({int(row.argmax()) for row in rows}) == 1:
        return [f"The float model gives all of the first {count} samples the same class ({int(rows[0].argmax())})."]
    told, most = told_apart(rows), math.log(min(count, classes))
    if told < LEAST_TOLD_APART * most and classes > 2:
        mean = float(rows.max(-1).mean())
        return [
            f"The float model hardly tells these samples apart (mean top probability {mean:.2f}, {classes} classes). "
            "Is this the data, and the normalisation, that it was trained for?"
        ]
    return []


def _wrong_normalisation(
    images: ImageSamples, arrays: Sequence[Array], answers: Sequence[Mapping[str, Array]], *, guessed: bool, ready: bool
) -> str | None:
    """Say which normalisation the float model answers better with than with the given one; None if there is none."""
    given = recognised(arrays)
    try:
        if given is None or not _is_asked(images.purpose, answers[0]):
            return None
        beyond = _beyond_training(images.purpose, answers) if given in LARGE else None
        better = None if beyond else Rivals(images, given, answers).best()
    except (ValueError, IndexError, StopIteration):  # outputs that cannot be read as the task's
        return None
    if beyond is None and better is None:
        return None
    why, advice = beyond or "", "Check --mean and --std, or how the arrays were made."
    if better is not None:
        why, advice = better[1], f"Make the arrays as {better[0].flags} would." if ready else f"Give {better[0].flags}."
    guess = "was guessed and " if guessed else ""
    return f"The normalisation {guess}looks wrong: the data is {given.name}, and {why}. {advice}"


def _is_asked(purpose: Purpose, answer: Mapping[str, Array]) -> bool:
    """Tell whether answers depend on the normalisation: boxes, or three or more classes or tags."""
    if purpose.task in (Task.CLASSIFY, Task.TAG):
        return bool(class_scores(purpose.heads, answer, 1).shape[1] > 2)
    return purpose.task is Task.DETECT


def _beyond_training(purpose: Purpose, answers: Sequence[Mapping[str, Array]]) -> str | None:
    """Say that scores are larger than training makes them; None if they are not."""
    if purpose.task is Task.DETECT:
        best = [detections_of(purpose, each)[0].scores[:10] for each in answers]
        certain = all(len(each) == 10 and float(each.min()) >= SATURATED for each in best)
        return "the float model is certain of ten boxes and more in every image" if certain else None
    scores = _scores(purpose, answers)
    ahead = float(np.median([each.max() - np.median(each) for each in scores]))
    if ahead <= LARGEST_SCORE:
        return None
    return f"the float model's top score is {ahead:.0f} above the others, that of trained classifiers 10 to 40"


@dataclass(frozen=True, eq=False)
class FirstBatchNorm:
    """The statistics that the first BatchNorm learned in training of what the first Conv computes."""

    conv: ir.Node
    mean: Array
    variance: Array


def first_batch_norm(graph: ir.Graph) -> FirstBatchNorm | None:
    """Return the BatchNorm behind the Conv that reads an input of the model; None if there is none."""
    inputs = {value for value in graph.inputs if value.name not in graph.initializers}
    for node in graph:
        if node.op_type != "BatchNormalization" or node.inputs[0] is None:
            continue
        before = node.inputs[0].producer()
        mean, variance = constant(node.inputs[3]), constant(node.inputs[4])
        if before is None or before.op_type != "Conv" or before.inputs[0] not in inputs:
            return None
        if mean is None or variance is None or any(constant(each) is None for each in before.inputs[1:]):
            return None
        return FirstBatchNorm(before, mean.astype(np.float64), variance.astype(np.float64))
    return None


def unlike_training(norm: FirstBatchNorm, seen: Sequence[Array]) -> str | None:
    """Say that values before the first BatchNorm are of another size than those of training; None if they are not."""
    values = np.concatenate([np.moveaxis(each, 1, 0).reshape(each.shape[1], -1) for each in seen], axis=1)
    values = values.astype(np.float64)
    around = np.square(values - norm.mean[:, None]).mean(1)
    ratio = float(np.median(np.sqrt(around / np.maximum(norm.variance, 1e-12))))
    if 1 / UNLIKE_TRAINING <= ratio <= UNLIKE_TRAINING:
        return None
    return (
        f"The first layer gets values {ratio:.2g} times as far from its mean as in training (BatchNorm after "
        f"'{norm.conv.name}'): the data is not normalised as the model expects. Check --mean and --std."
    )
