"""The minimum of a smooth convex function within bounds: projected gradient steps with memory (L-BFGS)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Function = Callable[[Floats], tuple[float, Floats]]
MEMORY = 10
SMALLEST = 1e-200  # what has an inverse that can be multiplied with


def minimise(function: Function, low: Floats, high: Floats, steps: int, tolerance: float) -> Floats:
    """The point within low..high where `function` (which returns its value and gradient) is least, from zero on.

    Ends after `steps`, or when one gains less than `tolerance` of the value.
    """
    point: Floats = np.clip(np.zeros_like(low), low, high)
    value, gradient = function(point)
    pairs: deque[tuple[Floats, Floats, float]] = deque(maxlen=MEMORY)
    for _ in range(steps):
        # At a bound, a step beyond it leads nowhere.
        free = ((point < high) | (gradient > 0)) & ((point > low) | (gradient < 0))
        direction = np.where(free, -_apply_inverse(pairs, np.where(free, gradient, 0.0)), 0.0)
        moved = _search(function, point, value, gradient, direction, (low, high))
        if moved is None:
            if not pairs:
                break
            pairs.clear()  # what was remembered has misled: once more along the gradient
            continue
        after, value_after, gradient_after = moved
        step, change = after - point, gradient_after - gradient
        curvature = float(step @ change)
        if curvature > max(1e-12 * float(step @ step), SMALLEST):
            pairs.append((step, change, 1.0 / curvature))
        gained = value - value_after
        point, value, gradient = after, value_after, gradient_after
        if gained < tolerance * value:
            break
    return point


def _search(
    function: Function,
    point: Floats,
    value: float,
    gradient: Floats,
    direction: Floats,
    bounds: tuple[Floats, Floats],
) -> tuple[Floats, float, Floats] | None:
    """The first of ever shorter steps that gains enough; None where none does."""
    length = 1.0
    for _ in range(30):
        after = np.clip(point + length * direction, *bounds)
        value_after, gradient_after = function(after)
        expected = float(gradient @ (after - point))
        if expected < 0 and value_after <= value + 1e-4 * expected:
            return after, value_after, gradient_after
        length *= 0.5
    return None


def _apply_inverse(pairs: deque[tuple[Floats, Floats, float]], gradient: Floats) -> Floats:
    """The gradient times the inverse of the second derivatives, as far as the remembered steps tell it."""
    if not pairs:
        largest = float(np.abs(gradient).max(initial=0.0))
        return gradient * (0.1 / largest) if largest > SMALLEST else gradient
    direction = gradient.copy()
    factors = []
    for step, change, inverse in reversed(pairs):
        factor = inverse * float(step @ direction)
        direction -= factor * change
        factors.append(factor)
    step, change, inverse = pairs[-1]
    direction *= 1.0 / (inverse * float(change @ change))
    for (step, change, inverse), factor in zip(pairs, reversed(factors), strict=True):
        direction += (factor - inverse * float(change @ direction)) * step
    return direction
