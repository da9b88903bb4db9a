"""Question calibration data before it is used: by its values, and by what the float model makes of it.

A model calibrated on noise, on black images or on one image has wrong ranges, and measured on the same data it looks
right. So a few samples are looked at:

    values      the same or nearly the same sample again; constant images; images whose neighbouring pixels are not
                alike (noise); too few different samples
    answers     all samples get the same answer, or the float model does not tell them apart, or finds nothing
    range       what the first BatchNorm was trained on against what it gets; and whether the float model would tell
                the samples apart much better, or answer otherwise with one voice, with others of the usual
                normalisations

How well a classifier tells samples apart is the mutual information of sample and class in nats: with p the
probabilities of a sample and H the entropy, H(mean p) - mean H(p). It is 0 if all samples get the same answer and if no
answer is sure, and log n if each of n samples surely gets a class of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.evaluation.task_agreement import Purpose, class_scores, detections_of, probabilities, vectors_of
from detent.graph.values import constant
from detent.tasks.task import Task

LOOKED_AT = 32
"""Samples whose values are looked at."""

ASKED, ASKED_AGAIN = 16, 12
"""Samples that the float model answers, and with each other normalisation."""

FEWEST_DIFFERENT = 12
NEARLY_THE_SAME = 0.02
NOISE_CORRELATION = 0.3
"""Neighbouring pixels of photographs correlate by 0.8 and more, of noise by 0."""

SMALLEST_IMAGE = 16
LEAST_TOLD_APART = 0.15
"""Of the information that so many samples could have."""

BETTER_BY, BETTER_TIMES, VOTING_SHARE = 0.5, 1.5, 0.6
KEENER, SURE = 1.1, 0.9
UNLIKE_TRAINING = 4.0
CONFIDENT = 0.25

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
Answer = Callable[[Feeds], Mapping[str, Array]]


@dataclass(frozen=True)
class Normalisation:
    """One of the usual ways to turn pixels of 0..1 into what a model takes, and the flags that ask for it."""

    name: str
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    flags: str

    def apply(self, unit: Array, axis: int) -> Array:
        """Return pixels of 0..1 as the model would get them."""
        return np.asarray(unit * _along(self.scale, unit, axis) + _along(self.shift, unit, axis), np.float32)

    def undo(self, values: Array, axis: int) -> Array:
        """Return what a model got as pixels of 0..1."""
        return np.asarray((values - _along(self.shift, values, axis)) / _along(self.scale, values, axis), np.float32)


def _along(numbers: Sequence[float], array: Array, axis: int) -> Array:
    """Return a number for each channel, to broadcast against an array."""
    shape = [1] * array.ndim
    shape[axis] = -1
    return np.resize(np.array(numbers, np.float32), array.shape[axis]).reshape(shape)


NORMALISATIONS = (
    Normalisation("0..1", (1.0,), (0.0,), "--mean 0 --std 255"),
    Normalisation("-1..1", (2.0,), (-1.0,), "--mean 127.5 --std 127.5"),
    Normalisation(
        "ImageNet's mean and deviation",
        tuple(1 / each for each in IMAGENET[1]),
        tuple(-mean / deviation for mean, deviation in zip(*IMAGENET, strict=True)),
        "--mean 123.675,116.28,103.53 --std 58.395,57.12,57.375",
    ),
    Normalisation("0..255", (255.0,), (0.0,), "--mean 0 --std 1"),
    Normalisation(
        "0..255 less the mean",
        (255.0,),
        (-103.94, -116.78, -123.68),
        "--mean 103.94,116.78,123.68 --std 1 --order BGR",
    ),
)


def question_data(samples: Sequence[Feeds], purpose: Purpose, answer: Answer, *, guessed: bool = False) -> list[str]:
    """Return what is wrong with samples, each in a sentence or two; empty if nothing is.

    `answer` runs the float model. `guessed`: nobody said how images are normalised.
    """
    rows = _rows(samples)[:LOOKED_AT]
    name = _main_input(rows)
    if name is None or not rows:
        return []
    found = _of_values([row[name] for row in rows])
    if found and len(rows) > 1 and any(_FATAL in each for each in found):
        return found
    # A model with a fixed batch takes whole samples only.
    answers = _rows([answer(feeds) for feeds in samples[:ASKED]])[:ASKED]
    told = _of_answers(purpose, answers)
    axis = _channel_axis(rows[0][name])
    one_by_one = len(rows[:ASKED]) == len(samples[:ASKED])
    if axis is not None and one_by_one and purpose.task in (Task.CLASSIFY, Task.DETECT):
        better = _better_normalisation(purpose, rows[:ASKED_AGAIN], name, axis, answers, answer, guessed=guessed)
        told = [better] if better else told
    return [*told, *found]


_FATAL = " cannot be learned from"


def _rows(samples: Sequence[Feeds]) -> list[dict[str, Array]]:
    """Return samples one by one, if every input has a row for each; else as they are."""
    found = []
    for feeds in samples:
        sizes = {array.shape[0] if array.ndim else 0 for array in feeds.values()}
        size = sizes.pop() if len(sizes) == 1 else 1
        if size > 1:
            found += [{name: array[at : at + 1] for name, array in feeds.items()} for at in range(size)]
        else:
            found.append(dict(feeds))
    return found


def _main_input(rows: Sequence[Feeds]) -> str | None:
    """Return the input that samples are told apart by: the largest."""
    return max(rows[0], key=lambda name: rows[0][name].size, default=None) if rows else None


def _channel_axis(array: Array) -> int | None:
    """Return where an image has its channels; None if it is no image."""
    if array.ndim != 4 or array.dtype.kind != "f":
        return None
    if array.shape[1] in (1, 3):
        return 1 if min(array.shape[2:]) >= SMALLEST_IMAGE else None
    return 3 if array.shape[3] in (1, 3) and min(array.shape[1:3]) >= SMALLEST_IMAGE else None


def _of_values(arrays: Sequence[Array]) -> list[str]:
    count = len(arrays)
    found = []
    image = _channel_axis(arrays[0]) is not None
    still = sum(array.size > 1 and _is_constant(array) for array in arrays)
    if still and arrays[0].size > 1 and arrays[0].dtype.kind == "f" and 4 * still >= count:
        found.append(f"{still} of {count} samples are constant, such as black images: ranges{_FATAL} them.")
    different = _different(arrays)
    if count > 1 and different == 1 and not found:
        found.append(f"All {count} samples are the same, or nearly: ranges{_FATAL} one sample.")
    elif 2 * different <= count and not found:
        found.append(f"Only {different} of the first {count} samples differ: give other samples, not copies.")
    elif different < FEWEST_DIFFERENT:
        found.append(f"Only {different} different samples: ranges, and this verdict, need 16 or more; 100 are better.")
    if image and not still:
        likeness = float(np.median([_neighbours(array) for array in arrays]))
        if likeness < NOISE_CORRELATION:
            found.append(
                f"The images look like noise: neighbouring pixels correlate by {likeness:.2f}, those of photographs by "
                f"0.8 or more. Ranges{_FATAL} noise; give real images."
            )
    return found


def _is_constant(array: Array) -> bool:
    """Whether all values are the same; in an image, all of each channel, since normalising tells channels apart."""
    axis = _channel_axis(array)
    if axis is None:
        return bool((array == array.flat[0]).all())
    planes = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    return bool((planes == planes[:, :1]).all())


def _different(arrays: Sequence[Array]) -> int:
    """Count samples that are not nearly the same as an earlier one."""
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
    planes = np.moveaxis(array, _channel_axis(array) or 1, 1)[0].astype(np.float64)
    planes = planes - planes.mean(axis=(1, 2), keepdims=True)
    power = float(np.square(planes).mean())
    if power == 0.0:
        return 1.0
    across = float((planes[:, :, 1:] * planes[:, :, :-1]).mean())
    down = float((planes[:, 1:] * planes[:, :-1]).mean())
    return max(across, down) / power


def _of_answers(purpose: Purpose, answers: Sequence[Mapping[str, Array]]) -> list[str]:
    count = len(answers)
    if count < 4:
        return []
    try:
        if purpose.task is Task.CLASSIFY:
            return _of_classes([class_scores(each, 1)[1][0] for each in answers])
        if purpose.task is Task.DETECT:
            scores = [detections_of(purpose, each)[0].scores for each in answers]
            best = max((float(each[0]) for each in scores if len(each)), default=0.0)
            if best < CONFIDENT:
                return [
                    f"The float model detects nothing in the first {count} samples (best score {best:.2f}). Is this "
                    "the data, and the normalisation, that it was trained for?"
                ]
        if purpose.task is Task.EMBED:
            vectors = np.array([vectors_of(each) for each in answers])
            unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
            if float((unit @ unit.T).min()) > 0.9999:
                return ["All samples get the same vector from the float model: is this the data it was trained for?"]
    except (ValueError, IndexError, StopIteration):  # outputs that cannot be read as the task's
        return []
    return []


def _of_classes(scores: Sequence[Array]) -> list[str]:
    count, classes = len(scores), scores[0].shape[-1]
    if scores[0].shape[0] != 1 or classes < 2:
        return []
    rows = np.array([probabilities(each)[0] for each in scores])
    if len({int(row.argmax()) for row in rows}) == 1:
        return [f"The float model gives all of the first {count} samples the same class ({int(rows[0].argmax())})."]
    told, most = told_apart(rows), math.log(min(count, classes))
    if told < LEAST_TOLD_APART * most and classes > 2:
        mean = float(rows.max(-1).mean())
        return [
            f"The float model hardly tells these samples apart (mean top probability {mean:.2f}, {classes} classes). "
            "Is this the data, and the normalisation, that it was trained for?"
        ]
    return []


def told_apart(rows: Array) -> float:
    """Return the mutual information of sample and class, in nats. Rows are the probabilities of samples."""
    shares = rows / np.maximum(rows.sum(-1, keepdims=True), 1e-30)

    def entropy(p: Array) -> Array:
        return np.asarray(-(p * np.log(np.maximum(p, 1e-30))).sum(-1))

    return max(0.0, float(entropy(shares.mean(0)) - entropy(shares).mean()))


def _better_normalisation(
    purpose: Purpose,
    rows: Sequence[Feeds],
    name: str,
    axis: int,
    answers: Sequence[Mapping[str, Array]],
    answer: Answer,
    *,
    guessed: bool,
) -> str | None:
    """Name another normalisation that the float model tells the samples apart much better with; None if none is."""
    given = _recognised([row[name] for row in rows])
    if given is None or len(rows) < 4:
        return None
    try:
        now = _tried(purpose, answers[: len(rows)], given)
        tried = []
        for other in NORMALISATIONS:
            if other is not given:
                fed = [{**row, name: other.apply(np.clip(given.undo(row[name], axis), 0, 1), axis)} for row in rows]
                tried.append(_tried(purpose, [answer(each) for each in fed], other))
    except (ValueError, IndexError, StopIteration):
        return None
    other_way = _outvoting(now, tried) or (None if "metadata" in purpose.why else _keener(now, tried))
    best = other_way or max(tried, key=lambda each: each.information)
    share = 1.0 if purpose.task is Task.CLASSIFY else 0.5
    most = math.log(len(rows)) if purpose.task is Task.CLASSIFY else 1.0
    # Raw pixels make some networks sure of anything: where half of what can be told apart is, they prove nothing.
    much = best.information >= BETTER_TIMES * now.information and now.information < most / 2
    if not (much and best.information - now.information >= BETTER_BY * share) and other_way is None:
        return None
    guess = "was guessed and " if guessed else ""
    why = (
        f"the float model's answers tell the samples apart by {now.information:.2f} nats, with {best.way.name} by "
        f"{best.information:.2f}"
        if much and purpose.task is Task.CLASSIFY
        else f"the mean of the best scores is {now.information:.2f}, with {best.way.name} {best.information:.2f}"
        if purpose.task is Task.DETECT
        else f"the float model's answers are surer, or confirmed by other normalisations, with {best.way.name}"
    )
    return (
        f"The normalisation {guess}looks wrong: the data is {given.name}, and {why}. Give {best.way.flags}, or arrays "
        "made that way."
    )


@dataclass(frozen=True, eq=False)
class _Tried:
    """What the float model makes of samples under one normalisation."""

    way: Normalisation
    information: float
    classes: Array
    confidence: float = 0.0

    def agrees(self, other: _Tried) -> float:
        """Return the share of samples with the same class."""
        return float((self.classes == other.classes).mean()) if self.classes.size else 0.0


def _tried(purpose: Purpose, answers: Sequence[Mapping[str, Array]], way: Normalisation) -> _Tried:
    if purpose.task is Task.CLASSIFY:
        rows = np.array([probabilities(class_scores(each, 1)[1][0])[0] for each in answers])
        return _Tried(way, told_apart(rows), rows.argmax(-1), float(rows.max(-1).mean()))
    best = [float(detections_of(purpose, each)[0].scores[:3].sum()) / 3 for each in answers]
    return _Tried(way, float(np.mean(best)), np.zeros(0))


def _outvoting(now: _Tried, tried: Sequence[_Tried]) -> _Tried | None:
    """Return the best of two that agree with each other, and not with what was given.

    A network answers much the same with any normalisation that is nearly right, and anything at all with a wrong one.
    """
    least = max(VOTING_SHARE * now.information, 0.4 * math.log(max(len(now.classes), 2)))
    voting = [each for each in tried if each.information >= least and each.agrees(now) <= 0.25 and each.classes.size]
    allied = [each for each in voting if any(each is not other and each.agrees(other) >= 0.5 for other in voting)]
    return max(allied, key=lambda each: each.information) if allied else None


def _keener(now: _Tried, tried: Sequence[_Tried]) -> _Tried | None:
    """Return ImageNet's normalisation if values of 0..1 were given and it is both surer and tells more apart.

    Networks work on 0..1 too, only worse, so neither figure jumps; but ranges of 0..1 are a quarter of the right ones.
    """
    unit, _, imagenet, *_ = NORMALISATIONS
    if now.way is not unit or now.confidence > SURE:
        return None
    for each in tried:
        surer = each.confidence >= KEENER * now.confidence and each.information >= KEENER * now.information
        if each.way is imagenet and surer and each.classes.size:
            return each
    return None


def _recognised(arrays: Sequence[Array]) -> Normalisation | None:
    """Return which of the usual normalisations values have, by their ends."""
    low, high = min(float(each.min()) for each in arrays), max(float(each.max()) for each in arrays)
    if high > 20:
        return NORMALISATIONS[3] if low >= -1 else NORMALISATIONS[4]
    if low >= -0.01:
        return NORMALISATIONS[0] if high <= 1.01 else None
    if low >= -1.01 and high <= 1.01:
        return NORMALISATIONS[1]
    return NORMALISATIONS[2] if low >= -2.7 and high <= 2.8 else None


@dataclass(frozen=True, eq=False)
class FirstBatchNorm:
    """The statistics that the first BatchNorm learned of its input in training."""

    value: str
    mean: Array
    variance: Array


def first_batch_norm(graph: ir.Graph) -> FirstBatchNorm | None:
    """Return the BatchNorm that reads an input of the model, or the first Conv behind one; None if there is none."""
    inputs = {value for value in graph.inputs if value.name not in graph.initializers}
    for node in graph:
        if node.op_type != "BatchNormalization" or node.inputs[0] is None:
            continue
        before = node.inputs[0].producer()
        source = node.inputs[0] if before is None else before.inputs[0] if before.op_type == "Conv" else None
        mean, variance = constant(node.inputs[3]), constant(node.inputs[4])
        if source in inputs and mean is not None and variance is not None and before is not None:
            return FirstBatchNorm(str(node.inputs[0].name), mean.astype(np.float64), variance.astype(np.float64))
        return None
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
        f"'{norm.value}'): the data is not normalised as the model expects. Check --mean and --std."
    )
