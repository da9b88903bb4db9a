"""Bias correction: each layer's bias takes over what rounding changed in its answers.

A layer computes z = W x + b in the float model and z' = W' x' + b' in the quantized one. Behind it are the activations
f and f', which differ if the device has another one (HardSigmoid for Sigmoid). Each channel's bias is shifted by the d
that brings its answers closest,

    minimize over d   sum over rows of (f'(z' + d) - f(z))^2          Gauss-Newton: d += sum(s r) / sum(s^2)
                                                                      s = slope of f' at z' + d, r = what is left

and not by the difference of the means before the activation: where a few large values were cut off, that would shift
the whole channel for them, and lift what a Relu holds at zero.

What the samples do not settle is left out. With se the standard error of d, over samples because the rows of an image
are alike, the shift is d (1 - se^2 / d^2), or none if that is negative. A layer keeps its shifts only if the error
falls on samples that they were not made from. They are encoded with the plan's own parameters, if biases are encoded at
all: one that does not fit saturates, and a correction that is finer than their step changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.refinements.activations import Curve, activate_all, add_distances, add_pulls
from detent.refinements.layer_problem import Floats
from detent.refinements.refinement import Refinement

STEPS, SETTLED = 6, 1e-6  # the most Gauss-Newton steps, and the share of the largest error at which they end
HELD_OUT_EVERY = 4
LEAST_TO_HOLD_OUT = 8  # with fewer samples all are learned from: two or three tell nothing about the others


@dataclass(frozen=True)
class BiasCorrection(Refinement):
    """Each layer's bias takes over what its rounded weights and inputs changed in its answers."""

    samples: int = 32

    @property
    def rows_per_sample(self) -> int:
        """How many output positions of each sample a layer learns from."""
        return 32


@dataclass(frozen=True, eq=False)
class ChannelAnswers:
    """A layer's channels at the sampled positions, before the activation: sample by sample, (rows, channels).

    `wanted` are those of the float model and `found` those of the quantized one, with the activation of each.
    """

    wanted: Sequence[npt.NDArray[np.float32]]
    found: Sequence[npt.NDArray[np.float32]]
    float_curve: Curve
    curve: Curve

    def stacked(self, order: Sequence[int]) -> StackedAnswers:
        """Return the rows of samples one below the other, so that parts of them are views."""
        both = (np.concatenate([arrays[at] for at in order]) for arrays in (self.wanted, self.found))
        wanted, found = map(np.ascontiguousarray, both)  # loops are compiled anew for each order in memory
        target = np.empty(wanted.shape)
        activate_all(wanted, self.float_curve.numbers, target)
        return StackedAnswers(found, target, [len(self.found[at]) for at in order], self.curve)


@dataclass(frozen=True, eq=False)
class StackedAnswers:
    """The channels of the quantized layer, (rows, channels), and its activated targets. `counts`: rows of a sample."""

    answers: npt.NDArray[np.float32]
    target: Floats
    counts: Sequence[int]
    curve: Curve

    def of(self, samples: slice) -> StackedAnswers:
        """Return those of some samples."""
        ends = np.cumsum([0, *self.counts])[samples.start : None if samples.stop is None else samples.stop + 1]
        rows = slice(ends[0], ends[-1])
        return StackedAnswers(self.answers[rows], self.target[rows], self.counts[samples], self.curve)

    @property
    def power(self) -> float:
        """The mean square of the activated answers of the float model."""
        return float(np.einsum("rc,rc->", self.target, self.target)) / max(self.target.size, 1)

    def errors(self, shift: Floats | float) -> Floats:
        """Return each channel's mean squared error after its activation, if its bias is shifted."""
        return self._distances(shift)[0] / max(len(self.answers), 1)

    def shift(self) -> Floats:
        """Return the shift of each channel, as far as the samples settle it."""
        everything = np.array([len(self.answers)])
        shift = np.zeros(self.answers.shape[1])
        farthest = self._distances(0.0)[1]
        for _ in range(STEPS):
            weight, pull = self._pulls(shift, everything)
            before = shift
            shift = shift + np.divide(pull[0], weight, out=np.zeros_like(shift), where=weight > 0.0)
            # A channel that a Relu holds at zero but for one row says little: no step leads past the largest error.
            shift = np.clip(shift, -farthest, farthest)
            if (np.abs(shift - before) <= SETTLED * farthest).all():
                break
        return self._shrink(shift)

    def _shrink(self, shift: Floats) -> Floats:
        # With few samples the rows have to do, although those of one image are alike.
        counts = self.counts if len(self.counts) >= LEAST_TO_HOLD_OUT else [1] * len(self.answers)
        weight, parts = self._pulls(shift, np.cumsum(counts))
        variance = np.square(parts).sum(axis=0) * len(parts) / max(len(parts) - 1, 1)
        error = np.divide(variance, np.square(weight), out=np.zeros_like(shift), where=weight > 0.0)
        kept = 1.0 - np.divide(error, np.square(shift), out=np.ones_like(shift), where=shift != 0.0)
        return np.asarray(shift * np.maximum(kept, 0.0))

    def _distances(self, shift: Floats | float) -> tuple[Floats, Floats]:
        """Return the sum of squared errors and the largest error of each channel."""
        channels = self.answers.shape[1]
        squares, largest = np.zeros(channels), np.zeros(channels)
        each = np.broadcast_to(np.asarray(shift, np.float64), channels).copy()
        add_distances(self.answers, self.target, each, self.curve.numbers, squares, largest)
        return squares, largest

    def _pulls(self, shift: Floats, ends: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return sum(s^2), and sum(s r) of the rows up to each end, for each channel."""
        weight, pulls = np.zeros(len(shift)), np.zeros((len(ends), len(shift)))
        add_pulls(self.answers, self.target, shift, self.curve.numbers, ends, weight, pulls)
        return weight, pulls


@dataclass(frozen=True, eq=False)
class BiasShift:
    """What to add to each channel's bias, and the layer's error relative to float before and after, on other samples.

    `reason` says why nothing is added.
    """

    shift: Floats
    before: float
    after: float
    reason: str = ""


def find_shift(answers: ChannelAnswers) -> BiasShift:
    """Find the shift of every channel's bias, and drop it if it does not help on the samples that are held out."""
    count = len(answers.found)
    channels = answers.found[0].shape[1]
    if not all(np.isfinite(rows).all() for rows in (*answers.found, *answers.wanted)):
        return BiasShift(np.zeros(channels), 0.0, 0.0, "its output is not finite")
    if not sum(map(len, answers.found)):
        return BiasShift(np.zeros(channels), 0.0, 0.0, "its output has no rows")
    held = [at for at in range(count) if at % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
    if count < LEAST_TO_HOLD_OUT or not sum(len(answers.found[at]) for at in held):
        held = []
    learning = [at for at in range(count) if at not in held]
    rows = answers.stacked([*learning, *held])
    learned, judged = rows.of(slice(0, len(learning))), rows.of(slice(len(learning), None)) if held else rows
    shift, power = learned.shift(), judged.power or 1.0
    before, after = float(judged.errors(0.0).mean()) / power, float(judged.errors(shift).mean()) / power
    if after > before:
        return BiasShift(np.zeros(channels), before, before, "no other bias was better on the samples held out")
    # It helps: now from all samples.
    return BiasShift(rows.shift() if held else shift, before, after)
