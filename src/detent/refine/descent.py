"""Coordinate descent on a layer's quadratic error, over steps of a grid between two limits.

It is exact in each coordinate. With s the scale of a weight, q its step and r the residual of its channel,

    q_k <- round(q_k + r_k / (s_k H_kk))          within low_k .. high_k

and it ends where no single step of any weight makes the error smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled
from detent.refine.moments import Quadratic
from detent.refine.problem import Floats
from detent.refine.rounders import StepRounder

_PIECES = 16

Pieces = Callable[[int, int], None]


def descend(start: Floats, error: Quadratic, box: StepRounder, sweeps: int, pool: Executor) -> Floats:
    """The steps that `start` comes to within the limits of `box`. An input that is always zero keeps its step."""
    shape = start.shape
    residual = error.residual(start * box.scale)
    steps = start.copy()
    flat = [
        np.ascontiguousarray(part).reshape(-1, shape[2]) for part in (steps, residual, box.scale, box.low, box.high)
    ]

    def descend_piece(first: int, last: int) -> None:
        _descend(flat[0], flat[1], flat[2], flat[3], flat[4], error.second, shape[1], sweeps, first, last)

    in_pieces(shape[0] * shape[1], descend_piece, pool)
    return flat[0].reshape(shape)


def in_pieces(count: int, task: Pieces, pool: Executor) -> None:
    """Call `task` with the first and last of some channels, for all of them, in all threads."""
    edges = np.linspace(0, count, min(_PIECES, count) + 1).astype(int)
    list(pool.map(task, edges[:-1], edges[1:]))


@compiled
def _descend(
    steps: npt.NDArray[np.float64],
    residual: npt.NDArray[np.float64],
    scale: npt.NDArray[np.float64],
    low: npt.NDArray[np.float64],
    high: npt.NDArray[np.float64],
    second: npt.NDArray[np.float64],
    channels: int,
    sweeps: int,
    first: int,
    last: int,
) -> None:
    """Coordinate descent of the rows first..last of `steps`, in place."""
    inputs = steps.shape[1]
    for c in range(first, last):
        moments, r = second[c // channels], residual[c]
        for _ in range(sweeps):
            moved = False
            for k in range(inputs):
                curvature = scale[c, k] * moments[k, k]
                if curvature <= 0.0:
                    continue
                step = min(max(np.rint(steps[c, k] + r[k] / curvature), low[c, k]), high[c, k])
                change = step - steps[c, k]
                if change != 0.0:
                    steps[c, k] = step
                    moved = True
                    change *= scale[c, k]
                    row = moments[k]
                    for j in range(inputs):
                        r[j] -= change * row[j]
            if not moved:
                break
