"""Levels: where between two powers of two the channels of a value lie, which factors common to all of them decide.

Where the channels of a value can be rescaled, all of them can be multiplied by the same number. To a float scale that
makes no difference: it follows. A scale that is a power of two follows in leaps, and a value whose largest magnitude
is just above 127 steps is rounded twice as coarsely as one just below. So after each channel got its share, the common
factors are chosen by which the largest magnitudes of activations, weights and biases come to lie just below the edge
127 * 2^-p. With u the logarithm to base 2 of magnitude / 127, the noise that rounding adds is 4^(ceil(u) - u) times
that of a float scale. What is minimised is the noise of all layers, by one common factor after another.

A value that a Clip cuts off at b uses its codes best where the edge is at b. Then the end of the codes is the Clip, and
the device may compute a Relu instead; where the edge is lower, the same holds. So the channels of a Clip are placed
such that there is an edge between the largest value that was observed and b.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.equalize.channels import ChannelMap

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CANDIDATES = 32
"""Levels that are tried between two powers of two."""

ROUNDS = 10
EXACT = 1e-9
KEPT = -1
"""The level of channels that stay where they are."""


@dataclass(frozen=True)
class Part:
    """The noise that a tensor would add at a float scale, and its `size`.

    Its level is `up` less `down`: a weight grows with its output channels, and shrinks where its input channels grow.
    """

    noise: float
    size: float
    up: int
    down: int = KEPT


@dataclass(frozen=True)
class Limit:
    """A Clip: an edge must lie between the largest value observed, `least`, and the bound, `most` (both as sizes)."""

    level: int
    least: float
    most: float


def find_levels(channels: ChannelMap) -> tuple[int, Ints]:
    """The number of levels, and the level of each variable: channels that share a value share it."""
    parents = list(range(channels.count + 1))

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    for variables in channels.of_value.values():
        for number in np.unique(variables).tolist():
            # FIXED, which is -1, is the last one: who shares a value with it stays where it is.
            parents[root(number % (channels.count + 1))] = root(int(variables[0]) % (channels.count + 1))
    roots = [root(number) for number in range(channels.count)]
    free = sorted(set(roots) - {root(channels.count)})
    number_of = {each: number for number, each in enumerate(free)}
    return len(free), np.array([number_of.get(each, KEPT) for each in roots] + [KEPT], np.int64)


def size_of(array: Floats, codes: int) -> float:
    """The logarithm to base 2 of the largest magnitude over the number of codes."""
    return float(np.log2(max(float(np.abs(array).max(initial=0.0)), 1e-30) / codes))


def level_of(variables: Ints, levels: Ints) -> int:
    """The level of a value, from the variables of its channels."""
    return int(levels[variables.reshape(-1)[0]]) if variables.size else KEPT


def choose_levels(count: int, parts: Sequence[Part], limits: Sequence[Limit]) -> Floats:
    """The power of two (a fraction) by which each level is multiplied."""
    chosen = np.zeros(count + 1)
    touching: dict[int, list[Part]] = {level: [] for level in range(count)}
    for part in parts:
        for level in {part.up, part.down} - {KEPT}:
            touching[level].append(part)
    allowed = {level: _candidates([limit for limit in limits if limit.level == level]) for level in range(count)}
    for _ in range(ROUNDS):
        before = chosen.copy()
        for level in range(count):
            candidates = allowed[level]
            noise = [sum(_noise(part, chosen, level, each) for part in touching[level]) for each in candidates]
            chosen[level] = candidates[int(np.argmin(noise))]
        if (before == chosen).all():
            break
    return chosen[:count]


def _noise(part: Part, chosen: Floats, level: int, candidate: float) -> float:
    up = candidate if part.up == level else float(chosen[part.up])
    down = candidate if part.down == level else float(chosen[part.down])
    size = part.size + up - down
    coarser: float = 4.0 ** (math.ceil(size - EXACT) - size)
    return part.noise * coarser


def _candidates(limits: Sequence[Limit]) -> list[float]:
    """Levels to try. 0 is always one, since the Clips can stay as they are; it is first, and so wins among equals."""
    even = [each / CANDIDATES for each in range(CANDIDATES)]
    ends = [float(np.ceil(end) - end) for limit in limits for end in (limit.least, limit.most)]
    return [each for each in (*even, *ends) if each == 0.0 or all(_fits(limit, each) for limit in limits)]


def _fits(limit: Limit, level: float) -> bool:
    """Whether there is an edge between the two ends."""
    return bool(np.floor(limit.most + level + EXACT) >= limit.least + level - EXACT)
