"""Tell from the float model's answers whether images are normalised as in training.

A network that gets 0..1 instead of ImageNet's mean and deviation still answers, only worse, and ranges that are learned
from it are a quarter of the right ones. So the images are normalised in the other usual ways, and the float model
answers them too. Of each answer, with z the scores of all classes:

    sharpness    log((max z - mean z) / deviation of z): how far the top class stands out. It does not change if all
                 scores double, so larger pixels alone do not raise it, as they raise every probability
    confidence   log of the top probability

Both are compared sample by sample: t is the mean of the differences in units of its standard error. Pixels of a larger
span have to be better in both, of a smaller span in sharpness. The first few samples choose the most likely rival; it
then gets more of them, until it is certain or ruled out.

Two findings need no t: the samples are told apart much better (see data_check.py); or two other ways agree on the
classes, and not with what was given. A network answers much the same with any normalisation that is nearly right, and
anything at all with a wrong one. Detectors are compared by the scores of their three best boxes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.evaluation.box_answers import detections_of, head_of
from detent.evaluation.row_answers import class_scores, probabilities
from detent.tasks import Task
from detent.tasks.purpose import Purpose

STEPS = (6, 12, 20, 32)  # samples after which each rival is judged

# The evidence below which a rival is ruled out, and at which it is believed; another order of channels costs less.
POSSIBLE, CERTAIN, CERTAIN_OF_ORDER = -0.3, 3.3, 4.5

# The evidence that the most likely rival needs to get more samples. The first step is lenient, since a true rival may
# lag behind on six samples; after that it has to be on its way: evidence grows as the root of their number.
LEADS = (POSSIBLE, 0.5, 1.0)

LEAST_GAIN = 0.03
BOTH = 0.8
BETTER_BY, BETTER_TIMES = 0.5, 1.5
VOTING_SHARE, ALLIED, APART = 0.6, 0.5, 0.2
SURE_BOXES, BETTER_BOXES, BOX_GAIN, BOX_SAMPLES, SATURATED = 0.7, 1.2, 0.12, 3, 0.99
MANY_BOXES, TOO_SURE = 10, 0.95  # no photograph has so many objects that a network is so sure of, let alone each
NO_BOXES = 0.1  # a mean of the best scores at which a detector has found nothing

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class Normalisation:
    """One of the usual ways to turn pixels of 0..1 into what a model takes, and the flags that ask for it."""

    name: str
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    flags: str
    bgr: bool = False

    def apply(self, unit: Array, axis: int) -> Array:
        """Return pixels of 0..1 in the order RGB as the model would get them."""
        pixels = np.flip(unit, axis) if self.bgr else unit
        values = pixels * _along(self.scale, pixels, axis) + _along(self.shift, pixels, axis)
        return np.ascontiguousarray(values, np.float32)

    def undo(self, values: Array, axis: int) -> Array:
        """Return what a model got as pixels of 0..1 in the order RGB."""
        unit = (values - _along(self.shift, values, axis)) / _along(self.scale, values, axis)
        return np.asarray(np.clip(np.flip(unit, axis) if self.bgr else unit, 0, 1), np.float32)

    @property
    def swapped(self) -> Normalisation:
        """The same with the channels in the other order."""
        flags = "the other --order (RGB or BGR)"
        return replace(self, name="the channels in the other order", bgr=not self.bgr, flags=flags)


def _along(numbers: Sequence[float], array: Array, axis: int) -> Array:
    """Return a number for each channel, to broadcast against an array."""
    shape = [1] * array.ndim
    shape[axis] = -1
    return np.resize(np.array(numbers, np.float32), array.shape[axis]).reshape(shape)


MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
UNIT = Normalisation("0..1", (1.0,), (0.0,), "--mean 0 --std 255")
SIGNED = Normalisation("-1..1", (2.0,), (-1.0,), "--mean 127.5 --std 127.5")
IMAGENET = Normalisation(
    "ImageNet's mean and deviation",
    tuple(1 / each for each in DEVIATION),
    tuple(-mean / deviation for mean, deviation in zip(MEAN, DEVIATION, strict=True)),
    "--mean 123.675,116.28,103.53 --std 58.395,57.12,57.375",
)
RAW = Normalisation("0..255", (255.0,), (0.0,), "--mean 0 --std 1")
CENTRED = Normalisation(
    "0..255 less the mean, in BGR",
    (255.0,),
    (-103.94, -116.78, -123.68),
    "--mean 103.94,116.78,123.68 --std 1 --order BGR",
    bgr=True,
)
SMALL, LARGE = (UNIT, SIGNED, IMAGENET), (RAW, CENTRED)
NORMALISATIONS = (*SMALL, *LARGE)


def recognised(arrays: Sequence[Array]) -> Normalisation | None:
    """Return which of the usual normalisations values have, by their ends; None if none."""
    low, high = min(float(each.min()) for each in arrays), max(float(each.max()) for each in arrays)
    # No usual normalisation of floats reaches 20, and no photograph in 0..255 stays below it.
    if high > 20:
        return RAW if low >= -1 else CENTRED
    if low >= -0.01:
        return UNIT if high <= 1.01 else None
    if low >= -1.01 and high <= 1.01:
        return SIGNED
    # Black and white pixels become -2.12 and 2.64; resizing with bicubic overshoots a little.
    return IMAGENET if low >= -2.7 and high <= 2.8 else None


@dataclass(frozen=True, eq=False)
class ImageSamples:
    """Samples with an image each: `row` reads one, and `answer` runs the float model on it.

    `name` is the input with the image and `axis` where its channels are. `given` answers a sample as it is.
    """

    purpose: Purpose
    row: Callable[[int], Mapping[str, Array]]
    count: int
    name: str
    axis: int
    answer: Callable[[Mapping[str, Array]], Outputs]
    given: Callable[[int], Outputs]


class NormalisationTrial:
    """What the float model makes of samples under one normalisation; each is answered when it is first asked for."""

    def __init__(self, way: Normalisation, given: Normalisation, samples: ImageSamples) -> None:
        self.way = way
        self._given = given
        self._samples = samples
        self._known: list[Floats] = []

    def take(self, answers: Sequence[Outputs]) -> None:
        """Use answers that are known."""
        self._known = [self._figures(each) for each in answers]

    def first(self, count: int) -> list[Floats]:
        """Return the scores of all classes, or of the best boxes, for each of the first samples."""
        samples = self._samples
        for index in range(len(self._known), min(count, samples.count)):
            if self.way is self._given:
                self._known.append(self._figures(samples.given(index)))
                continue
            row = samples.row(index)
            pixels = self._given.undo(row[samples.name], samples.axis)
            row = {**row, samples.name: self.way.apply(pixels, samples.axis)}
            self._known.append(self._figures(samples.answer(row)))
        return self._known[:count]

    def _figures(self, outputs: Outputs) -> Floats:
        if self._samples.purpose.task is Task.DETECT:
            best = detections_of(self._samples.purpose, outputs)[0].scores[:MANY_BOXES]
            return np.pad(best.astype(np.float64), (0, MANY_BOXES - len(best)))
        return np.asarray(class_scores(self._samples.purpose.heads, outputs, 1)[0], np.float64)

    def boxes(self, count: int) -> Floats:
        """Return the mean score of the three best boxes of each sample."""
        return np.array([each[:3].mean() for each in self.first(count)])

    def plausible_boxes(self, count: int) -> float:
        """Return the mean of these; 0 if many are nearly certain in every sample, as pixels far too large make them."""
        drowned = all(float(each[-1]) >= TOO_SURE for each in self.first(count))
        return 0.0 if drowned else float(self.boxes(count).mean())

    def chances(self, count: int) -> Floats:
        """Return the probabilities of all classes."""
        return np.array([probabilities(each) for each in self.first(count)])

    def classes(self, count: int) -> npt.NDArray[np.int64]:
        """Return the top class of each sample."""
        return np.array([int(each.argmax()) for each in self.first(count)])

    def sharpness(self, count: int) -> Floats:
        """Return by how many deviations the top class stands out, as a logarithm."""
        return np.array([_sharpness(each) for each in self.first(count)])

    def confidence(self, count: int) -> Floats:
        """Return the logarithm of the top probability."""
        return np.asarray(np.log(np.maximum(self.chances(count).max(-1), 1e-30)))


def _sharpness(scores: Floats) -> float:
    shares = float(scores.min()) >= 0.0 and float(scores.max()) <= 1.001
    # Models with and without a Softmax at the end are judged alike.
    logits = np.log(np.maximum(scores, 1e-12)) if shares else scores
    deviation = float(logits.std())
    return math.log((float(logits.max()) - float(logits.mean())) / deviation) if deviation else -10.0


def told_apart(rows: Array) -> float:
    """Return the mutual information of sample and class, in nats. Rows are the probabilities of samples."""
    shares = rows / np.maximum(rows.sum(-1, keepdims=True), 1e-30)

    def entropy(p: Array) -> Array:
        return np.asarray(-(p * np.log(np.maximum(p, 1e-30))).sum(-1))

    return max(0.0, float(entropy(shares.mean(0)) - entropy(shares).mean()))


@dataclass(frozen=True, eq=False)
class Rivals:
    """The normalisation that was given against the others."""

    samples: ImageSamples
    given: Normalisation
    answers: Sequence[Outputs]

    @cached_property
    def now(self) -> NormalisationTrial:
        trial = NormalisationTrial(self.given, self.given, self.samples)
        trial.take(self.answers)
        return trial

    @cached_property
    def others(self) -> list[NormalisationTrial]:
        """The ways that are worth a try.

        Pixels 255 times too small or too large leave hardly any information, so else they are not tried.
        """
        # Each rival costs inferences of the float model, so only those that the data has not ruled out are run.
        near = SMALL if self.given in SMALL else NORMALISATIONS
        ways = [way for way in (near if self.tells else NORMALISATIONS) if way is not self.given]
        ways = [way for way in ways if self.coloured or len(way.shift) == 1]  # grey has one mean
        return [NormalisationTrial(way, self.given, self.samples) for way in ways]

    @cached_property
    def tells(self) -> bool:
        """Whether the samples as given are told apart, by half of what is possible."""
        if self.samples.purpose.task is Task.DETECT:
            return float(self.now.boxes(BOX_SAMPLES).mean()) >= 0.25
        rows = self.now.chances(len(self.answers))
        return told_apart(rows) >= 0.5 * math.log(min(rows.shape))

    def best(self) -> tuple[Normalisation, str] | None:
        """Return a way that is better than the given one, and in which respect; None if there is none."""
        if self.samples.purpose.task is Task.DETECT:
            return self._better_boxes()
        # With so few samples differences of sharpness are noise; only answers that tell nothing at all are evidence.
        if self.samples.count < STEPS[1]:
            return self._telling()
        return self._telling() or self._outvoting() or self._sharper()

    def _better_boxes(self) -> tuple[Normalisation, str] | None:
        before = self.now.boxes(BOX_SAMPLES)
        # A detector that is this sure of its boxes got what it was trained on, whatever the others would say.
        if before.mean() >= SURE_BOXES:
            return None
        # Where nothing is found, the first few samples may hold nothing: more of them, until one does.
        count = BOX_SAMPLES if before.mean() >= NO_BOXES else STEPS[1]
        before = self.now.boxes(count)
        others = self.others
        if head_of(self.samples.purpose, self.answers[0]).classes == 1:
            # Photographs may hold none of the one class, and then larger inputs alone raise what scores there are.
            others = [each for each in others if each.way in LARGE or max(each.way.scale) <= max(self.given.scale)]
        best = max(others, key=lambda each: each.plausible_boxes(count))
        after, mean = best.boxes(count), best.plausible_boxes(count)
        if mean < BETTER_BOXES * before.mean() or mean - before.mean() < BOX_GAIN or (after > before).mean() < 0.6:
            return None
        return best.way, f"the mean of the best scores is {before.mean():.2f}, with {best.way.name} {mean:.2f}"

    def _telling(self) -> tuple[Normalisation, str] | None:
        if self.tells:
            return None
        count = len(self.answers)
        before = told_apart(self.now.chances(count))
        best = max(self.others, key=lambda each: told_apart(each.chances(count)))
        after = told_apart(best.chances(count))
        if after < BETTER_TIMES * before or after - before < BETTER_BY:
            return None
        figures = f"{before:.2f} nats, with {best.way.name} by {after:.2f}"
        return best.way, f"the float model's answers tell the samples apart by {figures}"

    def _outvoting(self) -> tuple[Normalisation, str] | None:
        for count in STEPS[:2]:
            allies = self._allies(count)
            if not allies:
                return None
        best = max(allies, key=lambda each: told_apart(each.chances(STEPS[1])))
        return best.way, f"the float model gives other classes, on which {best.way.name} and another one agree"

    def _allies(self, count: int) -> list[NormalisationTrial]:
        """Return the ways that agree with another one, and not with what was given."""
        least = max(VOTING_SHARE * told_apart(self.now.chances(count)), 0.4 * math.log(max(2, count)))
        small = [each for each in self.others if each.way in SMALL]
        voting = [
            each
            for each in small
            if (each.classes(count) == self.now.classes(count)).mean() <= APART
            and told_apart(each.chances(count)) >= least
        ]
        agreed = ((one, other) for one in voting for other in voting if one is not other)
        return [one for one, other in agreed if (one.classes(count) == other.classes(count)).mean() >= ALLIED]

    @cached_property
    def coloured(self) -> bool:
        """Whether images have three channels."""
        return bool(self.samples.row(0)[self.samples.name].shape[self.samples.axis] == 3)

    def _sharper(self) -> tuple[Normalisation, str] | None:
        swapped = (
            [NormalisationTrial(self.given.swapped, self.given, self.samples)]
            if self.coloured and self.given in SMALL
            else []
        )
        rivals = [*self.others, *swapped]
        best = max(rivals, key=lambda each: self.evidence(each, STEPS[0]))
        certain = CERTAIN_OF_ORDER if best in swapped else CERTAIN
        for (before, count), least in zip(itertools.pairwise(STEPS), LEADS, strict=True):
            if self.evidence(best, before) < least or self.samples.count < count:
                return None
            gain = float((best.sharpness(count) - self.now.sharpness(count)).mean())
            if gain >= LEAST_GAIN and self.evidence(best, count) >= certain:
                named = best if best in swapped else max(self.others, key=lambda each: each.sharpness(count).mean())
                return named.way, f"the float model's top classes stand out more with {named.way.name}"
        return None

    def evidence(self, other: NormalisationTrial, count: int) -> float:
        """Return how certain it is that another way is better: a sum of two t."""
        sharper = _t(other.sharpness(count) - self.now.sharpness(count))
        # Larger inputs make larger logits and so more confidence by themselves: against a rival with smaller ones,
        # confidence says nothing.
        if max(other.way.scale) < max(self.given.scale):
            return 1.5 * sharper
        surer = _t(other.confidence(count) - self.now.confidence(count))
        least = BOTH if count > STEPS[0] else POSSIBLE
        both = min(sharper, surer)
        return sharper + surer if both > least else both - 0.5


def _t(differences: Floats) -> float:
    """Return the mean in units of its standard error."""
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return float(differences.mean()) / max(error, 1e-9)
