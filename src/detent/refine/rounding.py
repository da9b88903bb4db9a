"""Least-squares rounding: the codes with which a layer, fed its quantized input, comes closest to its float output.

With X the rows of the quantized input, Y the float output and s the scale, both centred where a bias takes the means,

    H = X^T X + lam I       R = Y^T X + lam W       lam = damping * mean(diag(X^T X))

and the codes Q of a channel minimise s^2 Q H Q^T - 2 s R Q^T within some steps of the rounded weight. `lam` draws them
to the float weight where the rows say little. Coordinate descent is exact in each coordinate:

    q_k <- round(q_k + r_k / (s H_kk)),        r = R - s Q H
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled
from detent.refine.problem import Floats, LayerProblem, Solution
from detent.refinements import Rounding

DAMPINGS = (1.0, 3.0, 10.0)
"""Times that of the settings: which is best depends on the layer, and the held-out rows tell."""

FEW_ROWS_DAMPINGS = (10.0, 30.0, 100.0)
"""Where there are fewer than twice as many rows as inputs."""

_PIECES = 16


@dataclass(frozen=True, eq=False)
class Moments:
    """The means of input and output, the second moments of the input and the cross moments with the output."""

    input_mean: Floats  # groups, inputs
    output_mean: Floats  # groups, channels
    second: Floats  # groups, inputs, inputs
    cross: Floats  # groups, channels, inputs

    @classmethod
    def of(cls, problem: LayerProblem) -> Moments:
        """The moments of a layer's rows: centred where its bias is free to take the means."""
        groups, _, inputs = problem.weight.shape
        input_mean, output_mean = np.zeros((groups, inputs)), problem.bias
        if problem.free_bias:
            input_mean, output_mean = input_means(problem), problem.target.mean(axis=0, dtype=np.float64)
        second, cross = np.empty((groups, inputs, inputs)), np.empty(problem.weight.shape)
        targets = np.ascontiguousarray(problem.target.transpose(1, 2, 0))
        for g in range(groups):  # one at a time: a copy of one group's rows is small
            rows = problem.rows[g] - input_mean[g].astype(np.float32)
            target = targets[g] - output_mean[g].astype(np.float32)[:, None]
            second[g], cross[g] = rows.T @ rows, target @ rows
        return cls(input_mean, output_mean, second, cross)

    def bias(self, problem: LayerProblem, codes: Floats) -> Floats:
        """The bias with which codes give the right mean; the layer's own where it is not free."""
        if not problem.free_bias:
            return problem.bias
        return self.output_mean - mean_products(problem, codes, self.input_mean)


def input_means(problem: LayerProblem) -> Floats:
    """The mean of every input over the rows, as one product for each group."""
    share = np.full(problem.samples, 1.0 / max(problem.samples, 1), np.float32)
    return np.array([share @ rows for rows in problem.rows], np.float64)


def mean_products(problem: LayerProblem, codes: Floats, input_mean: Floats) -> Floats:
    """What codes make of the mean input, for every channel."""
    weights = codes * problem.weight_scale[..., None]
    return np.asarray(np.matmul(weights, input_mean[..., None])[..., 0], np.float64)


def dampings(problem: LayerProblem, settings: Rounding) -> list[float]:
    """The dampings to try."""
    few = problem.samples < 2 * problem.weight.shape[2]
    return [settings.damping * factor for factor in (FEW_ROWS_DAMPINGS if few else DAMPINGS)]


def round_layer(problem: LayerProblem, settings: Rounding, pool: Executor) -> Iterator[Solution]:
    """A solution for each damping."""
    if not (np.isfinite(problem.rows).all() and np.isfinite(problem.target).all()):
        return
    moments = Moments.of(problem)
    for damping in dampings(problem, settings):
        codes = descend(problem, moments, damping, settings, pool)
        yield Solution(codes, moments.bias(problem, codes), f"rounding, damping {damping:g}")


def descend(problem: LayerProblem, moments: Moments, damping: float, settings: Rounding, pool: Executor) -> Floats:
    """Codes by coordinate descent from the nearest ones."""
    groups, channels, inputs = problem.weight.shape
    diagonal = np.einsum("gkk->gk", moments.second)
    added = damping * diagonal.mean(axis=1)
    second = moments.second.copy()
    np.einsum("gkk->gk", second)[...] += added[:, None]
    scale = np.broadcast_to(problem.weight_scale, (groups, channels))[..., None]
    codes, exact = problem.nearest(), problem.weight / scale
    low = np.minimum(np.maximum(np.floor(exact) - (settings.span - 1), problem.low), codes)
    high = np.maximum(np.minimum(np.floor(exact) + settings.span, problem.high), codes)
    residual = moments.cross + added[:, None, None] * problem.weight - np.matmul(scale * codes, second)
    flat = [np.ascontiguousarray(part).reshape(groups * channels, inputs) for part in (codes, residual, low, high)]
    scales = np.ascontiguousarray(scale).reshape(-1)
    edges = np.linspace(0, groups * channels, min(_PIECES, groups * channels) + 1).astype(int)

    def descend_piece(first: int, last: int) -> None:
        _descend(flat[0], flat[1], flat[2], flat[3], second, scales, channels, settings.sweeps, first, last)

    list(pool.map(descend_piece, edges[:-1], edges[1:]))
    return flat[0].reshape(problem.weight.shape)


@compiled
def _descend(
    codes: npt.NDArray[np.float64],
    residual: npt.NDArray[np.float64],
    low: npt.NDArray[np.float64],
    high: npt.NDArray[np.float64],
    second: npt.NDArray[np.float64],
    scales: npt.NDArray[np.float64],
    channels: int,
    sweeps: int,
    first: int,
    last: int,
) -> None:
    """Coordinate descent of the rows first..last of `codes`, in place. An input that is always zero keeps its code."""
    inputs = codes.shape[1]
    for c in range(first, last):
        moments, scale, r = second[c // channels], scales[c], residual[c]
        for _ in range(sweeps):
            moved = False
            for k in range(inputs):
                curvature = scale * moments[k, k]
                if curvature <= 0.0:
                    continue
                code = min(max(np.rint(codes[c, k] + r[k] / curvature), low[c, k]), high[c, k])
                step = code - codes[c, k]
                if step != 0.0:
                    codes[c, k] = code
                    moved = True
                    change = scale * step
                    row = moments[k]
                    for j in range(inputs):
                        r[j] -= change * row[j]
            if not moved:
                break
