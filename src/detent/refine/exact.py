"""The best steps of all, for a channel with few weights: a search that leaves out what cannot be better.

With G = S H S for scales S = diag(s), its factor G = L L^T, and x the steps that would be best if they need not be
whole, the error of steps q is, but for a constant,

    |(q - x) L|^2  =  sum over j of (L_jj (q_j - c_j))^2          c_j = x_j - sum over k > j of (q_k - x_k) L_kj / L_jj

Term j depends on q_j and later ones only. So the last step is chosen first, each from its centre c_j outwards, and a
branch ends as soon as its terms add up to more than the best that is known. All steps between low and high are covered.
"""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled
from detent.refine.descent import in_pieces
from detent.refine.moments import Quadratic
from detent.refine.problem import Floats
from detent.refine.rounders import StepRounder

FEW_INPUTS = 12
"""Up to so many weights a channel is searched: a depthwise kernel of 3 x 3 has nine."""

_PRECISION = 1e-9
"""Branches that are better by less than this share are not worth a change. A pivot below it counts as none."""


def search(start: Floats, error: Quadratic, box: StepRounder, pool: Executor) -> Floats:
    """The best steps within the limits of `box`; `start`, which is within them, stays where nothing is better.

    So it does in groups whose second moments cannot be inverted.
    """
    shape = start.shape
    parts = (start.copy(), error.cross, box.scale, box.low, box.high)
    flat = [np.ascontiguousarray(part).reshape(-1, shape[2]) for part in parts]

    def search_piece(first: int, last: int) -> None:
        _search(flat[0], flat[1], flat[2], flat[3], flat[4], error.second, shape[1], first, last)

    in_pieces(shape[0] * shape[1], search_piece, pool)
    return flat[0].reshape(shape)


@compiled
def _factor(second: npt.NDArray[np.float64], scale: npt.NDArray[np.float64], lower: npt.NDArray[np.float64]) -> bool:
    """L of S H S; whether there is one."""
    for i in range(scale.size):
        for j in range(i + 1):
            rest = scale[i] * second[i, j] * scale[j]
            for k in range(j):
                rest -= lower[i, k] * lower[j, k]
            if i != j:
                lower[i, j] = rest / lower[j, j]
            elif rest <= _PRECISION * scale[i] * second[i, i] * scale[i]:
                return False
            else:
                lower[i, i] = np.sqrt(rest)
    return True


@compiled
def _unrounded(
    lower: npt.NDArray[np.float64], cross: npt.NDArray[np.float64], scale: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """x, where L L^T x = S r."""
    x = cross * scale
    for i in range(x.size):
        for k in range(i):
            x[i] -= lower[i, k] * x[k]
        x[i] /= lower[i, i]
    for i in range(x.size - 1, -1, -1):
        for k in range(i + 1, x.size):
            x[i] -= lower[k, i] * x[k]
        x[i] /= lower[i, i]
    return x


@compiled
def _centre(lower: npt.NDArray[np.float64], x: npt.NDArray[np.float64], q: npt.NDArray[np.float64], j: int) -> float:
    pull = 0.0
    for k in range(j + 1, x.size):
        pull += (q[k] - x[k]) * lower[k, j]
    return float(x[j] - pull / lower[j, j])


@compiled
def _improve(
    steps: npt.NDArray[np.float64],
    x: npt.NDArray[np.float64],
    lower: npt.NDArray[np.float64],
    low: npt.NDArray[np.float64],
    high: npt.NDArray[np.float64],
) -> None:
    """Replace the steps of one channel by the best ones."""
    inputs = steps.size
    bound = 0.0
    for j in range(inputs):
        bound += (lower[j, j] * (steps[j] - _centre(lower, x, steps, j))) ** 2
    bound *= 1.0 - _PRECISION
    trial, cost = np.empty(inputs), np.zeros(inputs + 1)  # cost[j]: the terms from j on
    centre, below, above = np.empty(inputs), np.empty(inputs), np.empty(inputs)
    j, entered = inputs - 1, True
    while j < inputs:
        if entered:
            centre[j] = _centre(lower, x, trial, j)
            below[j] = min(np.floor(centre[j]), high[j])
            above[j] = max(np.floor(centre[j]) + 1.0, low[j])
            entered = False
        if below[j] >= low[j] and (above[j] > high[j] or centre[j] - below[j] <= above[j] - centre[j]):
            trial[j] = below[j]
            below[j] -= 1.0
        elif above[j] <= high[j]:
            trial[j] = above[j]
            above[j] += 1.0
        else:
            j += 1
            continue
        total = cost[j + 1] + (lower[j, j] * (trial[j] - centre[j])) ** 2
        if total >= bound:  # and so are all steps that are further from the centre
            j += 1
        elif j > 0:
            cost[j] = total
            j -= 1
            entered = True
        else:
            bound = total
            steps[:] = trial


@compiled
def _search(
    steps: npt.NDArray[np.float64],
    cross: npt.NDArray[np.float64],
    scale: npt.NDArray[np.float64],
    low: npt.NDArray[np.float64],
    high: npt.NDArray[np.float64],
    second: npt.NDArray[np.float64],
    channels: int,
    first: int,
    last: int,
) -> None:
    """The best steps of the rows first..last, in place."""
    lower = np.zeros((steps.shape[1], steps.shape[1]))
    for c in range(first, last):
        if _factor(second[c // channels], scale[c], lower):
            _improve(steps[c], _unrounded(lower, cross[c], scale[c]), lower, low[c], high[c])
