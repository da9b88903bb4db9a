"""Which format each tensor gets, of several: as few bits as a wanted error allows, or as little error as bits allow.

Noise powers add, and so do bits. With a price on noise, each tensor has one best format, whatever the others have:

    minimise  bits + price * error                    for each tensor alone

As the price rises from 0, the formats of a tensor follow each other along the lower convex hull of (bits, error), each
step at the price where it pays. So the steps of all tensors are made in the order of the error that they take away for
a bit, and the last one is that which reaches what was wanted. Between two steps there may be a better choice, but never
by more than one step is worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from detent.errors import UsageError
from detent.results.searched import Choice, FormatOption

ROUNDS = 4
"""How often formats are assigned at most before the finest are taken."""


def assign(
    options: Mapping[str, Sequence[FormatOption]], *, max_error: float | None = None, max_bits: float | None = None
) -> Choice:
    """Return the format of each tensor. Exactly one of the two bounds is given: on the sum of errors, or of bits.

    If the bound cannot be met, the choice is the one that comes nearest.
    """
    if (max_error is None) == (max_bits is None):
        raise UsageError("Give one of a wanted error and a wanted size: the other one follows.")
    hulls = {name: hull(each) for name, each in options.items()}
    chosen = {name: each[0] for name, each in hulls.items()}
    steps = [(_rate(before, after), name, after) for name, each in hulls.items() for before, after in pairwise(each)]
    # On a hull rates fall from step to step, so the order of all keeps that of each; names settle ties.
    for _, name, after in sorted(steps, key=lambda step: (-step[0], step[1], step[2].bits)):
        if max_error is not None and error_of(chosen) <= max_error:
            break
        if max_bits is not None and bits_of(chosen) + after.bits - chosen[name].bits > max_bits:
            break
        chosen[name] = after
    return chosen


def assign_measured(
    options: Mapping[str, Sequence[FormatOption]], measure: Callable[[Choice], float], wanted: float
) -> tuple[Choice, float]:
    """Assign formats so that the measured error of all together is at most `wanted`; also return that error.

    Errors add only nearly. If the whole misses what is wanted, the next assignment aims lower by as much as it was
    missed; in the end it is the finest one.
    """
    aim = wanted
    for attempt in range(ROUNDS + 1):
        choice = assign(options, max_error=aim if attempt < ROUNDS else 0.0)
        error = measure(choice)
        if error <= wanted:
            break
        aim *= wanted / error
    return choice, error


def hull(options: Sequence[FormatOption]) -> list[FormatOption]:
    """Return the options that are best at some price, from the fewest bits on."""
    found: list[FormatOption] = []
    for option in sorted(options, key=lambda each: (each.bits, each.error)):
        if found and option.error >= found[-1].error:
            continue
        while len(found) > 1 and _rate(found[-2], found[-1]) <= _rate(found[-1], option):
            found.pop()
        found.append(option)
    return found


def _rate(before: FormatOption, after: FormatOption) -> float:
    """Return the error that a step takes away for each bit that it adds."""
    added = after.bits - before.bits
    return (before.error - after.error) / added if added else math.inf


def error_of(choice: Choice) -> float:
    """Add up the errors."""
    return sum(option.error for option in choice.values())


def bits_of(choice: Choice) -> int:
    """Add up the bits."""
    return sum(option.bits for option in choice.values())
