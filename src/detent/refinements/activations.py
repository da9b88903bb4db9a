"""Activations as curves: what stands behind a layer, elementwise, with its slope.

Compiled loops know a curve by what kind it is and three numbers. They are all in this file: the machine code that numba
keeps for a loop is not renewed if a loop that it calls changes in another file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled

Numbers = TypeVar("Numbers", npt.NDArray[np.float32], npt.NDArray[np.float64])
Floats = npt.NDArray[np.float64]
CurveNumbers = tuple[int, float, float, float]

# Kinds of curves in compiled loops; GATED is added to the kind of one that multiplies its own input.
LINES, HARD_SIGMOID, SIGMOID, TWO_GATES, GATED = 0, 1, 2, 3, 10


class Curve(Protocol):
    """An activation, elementwise."""

    @property
    def numbers(self) -> CurveNumbers:
        """What compiled loops know it by."""

    @property
    def changes_nothing(self) -> bool:
        """Whether the layer's result is its answer."""

    def __call__(self, values: Numbers) -> Numbers:
        """Activate all values."""

    def derivative(self, values: Numbers) -> Numbers:
        """Return the slope at each value."""


@dataclass(frozen=True, eq=False)
class Activation:
    """What follows the layer before its result is quantized: x below `low` becomes slope * x + (1 - slope) * low,
    and above `high` it stays at high. Relu is (0, inf, 0), nothing is (-inf, inf, 0), LeakyRelu is (0, inf, slope).
    """

    low: float = -np.inf
    high: float = np.inf
    slope: float = 0.0

    def __call__(self, values: Numbers) -> Numbers:
        """Activate all values."""
        if self.slope:
            below = self.slope * values + (1 - self.slope) * self.low
            return np.where(values < self.low, below, np.minimum(values, self.high)).astype(values.dtype)
        return np.clip(values, self.low, self.high)

    def derivative(self, values: Numbers) -> Numbers:
        """Return the slope at each value."""
        inside = np.where(values > self.high, 0.0, 1.0)
        return np.where(values < self.low, self.slope, inside).astype(values.dtype)

    @property
    def numbers(self) -> CurveNumbers:
        """What compiled loops know it by."""
        return LINES, float(self.low), float(self.high), float(self.slope)

    @property
    def changes_nothing(self) -> bool:
        """Whether the layer's result is its answer."""
        return self.low == -np.inf and self.high == np.inf


@dataclass(frozen=True)
class Gate:
    """sigmoid(z), or z * sigmoid(z) if `gated`. A `hard` one is clip(alpha z + beta, 0, 1)."""

    gated: bool
    hard: bool = False
    alpha: float = 1 / 6
    beta: float = 0.5

    changes_nothing: ClassVar[bool] = False

    def __call__(self, values: Numbers) -> Numbers:
        """Activate all values."""
        open_share = self._open_share(values)
        return values * open_share if self.gated else open_share

    def derivative(self, values: Numbers) -> Numbers:
        """Return the slope at each value."""
        share = self._open_share(values)
        inside = np.where((share > 0.0) & (share < 1.0), self.alpha, 0.0)
        slope = (inside if self.hard else share * (1.0 - share)).astype(values.dtype)
        return np.asarray(share + values * slope, values.dtype) if self.gated else slope

    @property
    def numbers(self) -> CurveNumbers:
        """What compiled loops know it by."""
        kind = (HARD_SIGMOID if self.hard else SIGMOID) + (GATED if self.gated else 0)
        return kind, float(self.alpha), float(self.beta), 0.0

    def _open_share(self, values: Numbers) -> Numbers:
        if self.hard:
            share = np.clip(self.alpha * values + self.beta, 0.0, 1.0)
        else:
            share = 1.0 / (1.0 + np.exp(-np.clip(values, -60.0, 60.0)))
        return np.asarray(share, values.dtype)


@dataclass(frozen=True)
class TwoGates:
    """z times the mean of two HardSigmoids, of `steep` z and `flat` z: as a device computes SiLU that has no other."""

    steep: float
    flat: float

    changes_nothing: ClassVar[bool] = False

    def __call__(self, values: Numbers) -> Numbers:
        """Activate all values."""
        steep, flat = self._parts()
        return np.asarray((steep(values) + flat(values)) / 2, values.dtype)

    def derivative(self, values: Numbers) -> Numbers:
        """Return the slope at each value."""
        steep, flat = self._parts()
        return np.asarray((steep.derivative(values) + flat.derivative(values)) / 2, values.dtype)

    @property
    def numbers(self) -> CurveNumbers:
        """What compiled loops know it by."""
        return TWO_GATES + GATED, float(self.steep / 6), float(self.flat / 6), 0.0

    def _parts(self) -> tuple[Gate, Gate]:
        return Gate(True, hard=True, alpha=self.steep / 6), Gate(True, hard=True, alpha=self.flat / 6)


@compiled
def _follow(values: Floats, curve: CurveNumbers, activated: Floats, slopes: Floats) -> None:
    """Fill in the activation of each value and the slope there: of kind LINES by `low`, `high` and `slope`, else by
    `alpha` and `beta`, or by the slopes of two gates.

    Each kind has a loop of its own without branches, which the processor does for several values at once.
    """
    kind, low, high, slope = curve
    if kind == LINES and slope:
        offset = (1.0 - slope) * low
        for i in range(values.size):
            value = values[i]
            activated[i] = slope * value + offset if value < low else min(value, high)
            slopes[i] = slope if value < low else (0.0 if value > high else 1.0)
        return
    if kind == LINES:
        for i in range(values.size):
            value = values[i]
            activated[i] = low if value < low else min(value, high)
            slopes[i] = 1.0 if (value >= low) & (value <= high) else 0.0
        return
    if kind % GATED == HARD_SIGMOID:
        for i in range(values.size):
            share = min(max(low * values[i] + high, 0.0), 1.0)
            activated[i] = share
            slopes[i] = low if (share > 0.0) & (share < 1.0) else 0.0
    elif kind % GATED == TWO_GATES:
        for i in range(values.size):
            steep, flat = low * values[i], high * values[i]
            activated[i] = (min(max(steep + 0.5, 0.0), 1.0) + min(max(flat + 0.5, 0.0), 1.0)) / 2.0
            slopes[i] = ((low if abs(steep) < 0.5 else 0.0) + (high if abs(flat) < 0.5 else 0.0)) / 2.0
    else:
        for i in range(values.size):
            share = 1.0 / (1.0 + math.exp(-min(max(values[i], -60.0), 60.0)))
            activated[i], slopes[i] = share, share * (1.0 - share)
    if kind >= GATED:
        for i in range(values.size):
            slopes[i] = activated[i] + values[i] * slopes[i]
            activated[i] = values[i] * activated[i]


@compiled
def activate_all(values: npt.NDArray[np.float32], curve: CurveNumbers, activated: Floats) -> None:
    """Fill in the activated values."""
    wide, slopes = np.empty(values.shape[1]), np.empty(values.shape[1])
    for row in range(values.shape[0]):
        wide[:] = values[row]
        _follow(wide, curve, activated[row], slopes)


@compiled
def add_distances(
    answers: npt.NDArray[np.float32], target: Floats, shift: Floats, curve: CurveNumbers, squares: Floats, most: Floats
) -> None:
    """Add each channel's squared errors, and raise `most` to its largest one."""
    channels = answers.shape[1]
    values, activated, slopes = np.empty(channels), np.empty(channels), np.empty(channels)
    for row in range(answers.shape[0]):
        for channel in range(channels):
            values[channel] = np.float64(answers[row, channel]) + shift[channel]
        _follow(values, curve, activated, slopes)
        for channel in range(channels):
            distance = activated[channel] - target[row, channel]
            squares[channel] += distance * distance
            most[channel] = max(most[channel], abs(distance))


@compiled
def add_pulls(
    answers: npt.NDArray[np.float32],
    target: Floats,
    shift: Floats,
    curve: CurveNumbers,
    ends: npt.NDArray[np.int64],
    weight: Floats,
    pulls: Floats,
) -> None:
    """Add each channel's squared slopes to `weight`, and its slopes times what is left to the part of its row."""
    channels = answers.shape[1]
    values, activated, slopes = np.empty(channels), np.empty(channels), np.empty(channels)
    row = 0
    for part in range(len(ends)):
        into = pulls[part]
        while row < ends[part]:
            for channel in range(channels):
                values[channel] = np.float64(answers[row, channel]) + shift[channel]
            _follow(values, curve, activated, slopes)
            for channel in range(channels):
                weight[channel] += slopes[channel] * slopes[channel]
                into[channel] += slopes[channel] * (target[row, channel] - activated[channel])
            row += 1


@compiled
def pull_answers(
    answers: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
    wanted: npt.NDArray[np.float32],
    curve: CurveNumbers,
    sums: Floats,
) -> None:
    """Replace answers without their bias (groups, rows, channels) by slopes times what is left, in place.

    Add each channel's squared errors, slopes times what is left, and squared slopes to `sums` (3, groups, channels).
    """
    channels = answers.shape[2]
    values, activated, slopes = np.empty(channels), np.empty(channels), np.empty(channels)
    for group in range(answers.shape[0]):
        errors, pulls, squares = sums[0, group], sums[1, group], sums[2, group]
        for row in range(answers.shape[1]):
            for channel in range(channels):
                values[channel] = np.float64(answers[group, row, channel]) + np.float64(bias[group, channel])
            _follow(values, curve, activated, slopes)
            for channel in range(channels):
                left, slope = np.float64(wanted[group, row, channel]) - activated[channel], slopes[channel]
                answers[group, row, channel] = slope * left
                errors[channel] += left * left
                pulls[channel] += slope * left
                squares[channel] += slope * slope
