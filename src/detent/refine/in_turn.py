"""Rounding in turn, which is GPTQ: each weight is rounded once, and those that follow make up for its error.

The error of weights w around their centre x is |(w - x) L|^2, with the factor H = L L^T of the second moments: its
term j has w_j and later ones only. So the last weight is rounded first, and then each one where its term is least,

    w_j <- round(x_j - sum over k > j of (w_k - x_k) L_kj / L_jj)

The same numbers come out if each error is fed to the weights that remain by the factor of the inverse, as GPTQ is often
written down; this way nothing is inverted. Weights are taken block by block: within one in a loop, and the errors of
the whole block then go to the weights that remain as one product of matrices.
"""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled
from detent.refine.descent import in_pieces
from detent.refine.problem import Floats
from detent.refine.rounders import StepRounder

Order = npt.NDArray[np.int64]
"""For each group its inputs, in the order in which they are rounded."""


def natural_order(second: Floats) -> Order:
    """From the first input to the last."""
    return np.broadcast_to(np.arange(second.shape[1]), second.shape[:2])


def order_by_activation(second: Floats) -> Order:
    """Inputs with large second moments first: there, errors cost most, and most weights remain to make up for them."""
    return np.argsort(-np.einsum("gkk->gk", second), axis=1, kind="stable")


def round_in_turn(
    centre: Floats, second: Floats, grid: StepRounder, order: Order, pool: Executor, block: int = 128
) -> Floats:
    """The steps of weights around `centre`. Raises LinAlgError where the second moments have no factor."""
    groups, channels, inputs = centre.shape
    backwards = order[:, None, ::-1]
    columns = np.take_along_axis(second, backwards, 2)
    lower: Floats = np.linalg.cholesky(np.take_along_axis(columns, backwards[:, 0, :, None], 1)).astype(np.float64)
    parts = [np.take_along_axis(part, backwards, 2) for part in (centre, grid.scale, grid.low, grid.high)]
    flat = [np.ascontiguousarray(part).reshape(-1, inputs) for part in parts]
    steps, errors, pulls = (np.zeros((groups * channels, inputs)) for _ in range(3))
    for last in range(inputs, 0, -block):
        first = max(last - block, 0)

        def round_piece(begin: int, end: int, span: tuple[int, int] = (first, last)) -> None:
            _round(flat[0], flat[1], flat[2], flat[3], lower, steps, errors, pulls, channels, *span, begin, end)

        in_pieces(groups * channels, round_piece, pool)
        for g in range(groups if first else 0):
            own = slice(g * channels, (g + 1) * channels)
            pulls[own, :first] += errors[own, first:last] @ lower[g, first:last, :first]
    found = np.empty_like(centre)
    np.put_along_axis(found, backwards, steps.reshape(centre.shape), 2)
    return found


@compiled
def _round(
    centre: npt.NDArray[np.float64],
    scale: npt.NDArray[np.float64],
    low: npt.NDArray[np.float64],
    high: npt.NDArray[np.float64],
    lower: npt.NDArray[np.float64],
    steps: npt.NDArray[np.float64],
    errors: npt.NDArray[np.float64],
    pulls: npt.NDArray[np.float64],
    channels: int,
    first: int,
    last: int,
    begin: int,
    end: int,
) -> None:
    """Round the weights first..last of the channels begin..end; `pulls` are the sums of the later errors times L."""
    for c in range(begin, end):
        factor = lower[c // channels]
        for j in range(last - 1, first - 1, -1):
            wanted = centre[c, j] - pulls[c, j] / factor[j, j]
            step = min(max(np.rint(wanted / scale[c, j]), low[c, j]), high[c, j])
            error = step * scale[c, j] - centre[c, j]
            steps[c, j], errors[c, j] = step, error
            row = factor[j]
            for k in range(first, j):
                pulls[c, k] += error * row[k]
