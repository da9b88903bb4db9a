"""Least-squares rounding: the codes with which a layer, fed its quantized input, comes closest to its float output.

The damped error (see `moments`) is minimised over the steps within some of each weight. Channels of few weights are
searched, and have the best steps of all. The others come down from two starts, and each takes the better end: from the
nearest steps, and from those that rounding in turn finds around the weights that would be best without rounding.
"""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np

from detent.refine.descent import descend
from detent.refine.exact import FEW_INPUTS, search
from detent.refine.in_turn import order_by_activation, round_in_turn
from detent.refine.moments import Moments, Quadratic
from detent.refine.problem import Floats, LayerProblem, Solution
from detent.refine.rounders import StepRounder
from detent.refinements import Rounding

DAMPINGS = (1.0, 3.0, 10.0)
"""Times that of the settings: which is best depends on the layer, and the held-out rows tell."""

FEW_ROWS_DAMPINGS = (10.0, 30.0, 100.0)
"""Where there are fewer than twice as many rows as inputs."""

MOST_TURNED = 2048
"""With more inputs, the second start is not worth the memory and time of factoring their second moments."""


def dampings(problem: LayerProblem, settings: Rounding) -> list[float]:
    """The dampings to try."""
    few = problem.samples < 2 * problem.weight.shape[2]
    return [settings.damping * factor for factor in (FEW_ROWS_DAMPINGS if few else DAMPINGS)]


def round_layer(
    problem: LayerProblem, moments: Moments, damping: float, settings: Rounding, pool: Executor
) -> Solution:
    """The solution for a damping."""
    error = moments.to_output(problem.weight, damping)
    codes = problem.codes_of_steps(best_steps(problem, error, settings, pool))
    return Solution(codes, moments.bias(problem, codes), f"rounding, damping {damping:g}")


def best_steps(problem: LayerProblem, error: Quadratic, settings: Rounding, pool: Executor) -> Floats:
    """The steps of the least error that is found, no further than the span from the weights."""
    grid = problem.grid()
    nearest, box = grid.steps(problem.weight), box_around(problem.weight, grid, settings.span)
    found = descend(nearest, error, box, settings.sweeps, pool)
    if problem.weight.shape[2] <= FEW_INPUTS:
        return search(found, error, box, pool)
    start = turned(error, box, pool) if problem.weight.shape[2] <= MOST_TURNED else None
    if start is None:
        return found
    other = descend(start, error, box, settings.sweeps, pool)
    better = error.errors(other * grid.scale) < error.errors(found * grid.scale)
    return np.where(better[..., None], other, found)


def box_around(weight: Floats, grid: StepRounder, span: int) -> StepRounder:
    """The grid with limits around each weight: `span` steps below and above it, and always the nearest step."""
    nearest, below = grid.steps(weight), np.floor(weight / grid.scale)
    low = np.minimum(np.maximum(below - (span - 1), grid.low), nearest)
    return StepRounder(grid.scale, low, np.maximum(np.minimum(below + span, grid.high), nearest))


def turned(error: Quadratic, box: StepRounder, pool: Executor) -> Floats | None:
    """What rounding in turn makes of the best real weights; None where the second moments cannot be inverted."""
    try:
        centre: Floats = np.linalg.solve(error.second, error.cross.swapaxes(1, 2)).swapaxes(1, 2).astype(np.float64)
        return round_in_turn(centre, error.second, box, order_by_activation(error.second), pool)
    except np.linalg.LinAlgError:
        return None
