"""GPTQ: each weight is rounded once, and those that follow make up for its error on the layer's quantized input.

The error of weights w around their center x is |(w - x) L|^2, with the factor H = L L^T of the second moments: its
term j has w_j and later ones only. So the last weight is rounded first, and then each one where its term is least,

    w_j <- round(x_j - sum over k > j of (w_k - x_k) L_kj / L_jj)

The same numbers come out if each error is fed to the weights that remain by the factor of the inverse, as GPTQ is often
written down; this way nothing is inverted. Weights are taken block by block: within one in a loop, and the errors of
the whole block then go to the weights that remain as one product of matrices.

The center is the float weights, as in the original: what the input itself lost is not made up for, except in the mean
of every channel. `Rounding` does make up for it, and takes this as one of its starts.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError
from detent.numerics.compiled import compiled
from detent.refinements.layer_problem import Floats, LayerProblem, Solution, StepRounder
from detent.refinements.least_squares import CONSTANT_INPUTS, RowMoments, flat_rows, in_pieces
from detent.refinements.refinement import Contest, WeightRefinement

Order = npt.NDArray[np.int64]  # for each group its inputs, in the order in which they are rounded


@dataclass(frozen=True)
class Gptq(WeightRefinement):
    """Weights are rounded one input after the other, and those that follow make up for the error (GPTQ).

    `damping` [PercDamp] is a share of the mean second moment of the inputs. The `order` is "natural" or by
    "activation" [ActOrder]: inputs with large values first. A larger `block` [BlockSize] takes fewer and larger
    products of matrices.
    """

    integer_weights_only: ClassVar[bool] = True

    damping: float = 0.01
    block: int = 128
    order: str = "activation"

    def __post_init__(self) -> None:
        """Check the settings."""
        self._at_least_one("samples", "rows", "block")
        self._not_negative("damping")
        if self.order not in _ORDERS:
            raise UsageError(f"order of Gptq is '{self.order}': choose {' or '.join(_ORDERS)}.")

    def solve(self, problem: LayerProblem, contest: Contest, pool: Executor) -> str | None:
        """Offer the one solution there is, unless the damped second moments cannot be inverted."""
        moments = RowMoments.of(problem)
        if not moments.vary:
            return CONSTANT_INPUTS
        solution = self.round_layer(problem, moments, pool)
        if solution is None:
            return "the second moments of its inputs are singular: raise the damping"
        contest.offer(solution, problem.free_bias)
        return None

    def round_layer(self, problem: LayerProblem, moments: RowMoments, pool: Executor) -> Solution | None:
        """Return the solution; None if the damped second moments cannot be inverted."""
        error = moments.to_weights(problem.weight, self.damping)
        order = _ORDERS[self.order](error.second)
        try:
            steps = round_in_order(problem.weight, error.second, problem.grid(), order, pool, self.block)
        except np.linalg.LinAlgError:
            return None
        codes = problem.codes_of_steps(steps)
        return Solution(codes, moments.bias(problem, codes), "gptq")


def natural_order(second: Floats) -> Order:
    """Take inputs from the first to the last."""
    return np.broadcast_to(np.arange(second.shape[1]), second.shape[:2])


def order_by_activation(second: Floats) -> Order:
    """Take inputs with large second moments first: errors cost most there, and most weights remain to compensate."""
    return np.argsort(-np.einsum("gkk->gk", second), axis=1, kind="stable")


_ORDERS = {"natural": natural_order, "activation": order_by_activation}


def round_in_order(
    center: Floats, second: Floats, grid: StepRounder, order: Order, pool: Executor, block: int = 128
) -> Floats:
    """Return the steps of weights around `center`. Raises LinAlgError if the second moments have no factor."""
    groups, channels, inputs = center.shape
    backwards = order[:, None, ::-1]
    columns = np.take_along_axis(second, backwards, 2)
    lower: Floats = np.linalg.cholesky(np.take_along_axis(columns, backwards[:, 0, :, None], 1)).astype(np.float64)
    turned = [flat_rows(np.take_along_axis(part, backwards, 2)) for part in (grid.scale, grid.low, grid.high)]
    around, box = flat_rows(np.take_along_axis(center, backwards, 2)), np.stack(turned)
    steps, errors, pulls = (np.zeros((groups * channels, inputs)) for _ in range(3))
    for last in range(inputs, 0, -block):
        first = max(last - block, 0)

        def round_piece(begin: int, end: int, span: tuple[int, int] = (first, last)) -> None:
            _round(around, box, lower, steps, errors, pulls, channels, span, begin, end)

        in_pieces(groups * channels, round_piece, pool)
        for g in range(groups if first else 0):
            own = slice(g * channels, (g + 1) * channels)
            pulls[own, :first] += errors[own, first:last] @ lower[g, first:last, :first]
    found = np.empty_like(center)
    np.put_along_axis(found, backwards, steps.reshape(center.shape), 2)
    return found


@compiled
def _round(
    center: Floats,
    box: Floats,
    lower: Floats,
    steps: Floats,
    errors: Floats,
    pulls: Floats,
    channels: int,
    span: tuple[int, int],
    begin: int,
    end: int,
) -> None:
    """Round the weights in `span` of the channels begin..end; `pulls` are the sums of the later errors times L.

    `box` has the scales, least and greatest steps.
    """
    scale, low, high = box[0], box[1], box[2]
    first, last = span
    for c in range(begin, end):
        factor = lower[c // channels]
        for j in range(last - 1, first - 1, -1):
            wanted = center[c, j] - pulls[c, j] / factor[j, j]
            step = min(max(np.rint(wanted / scale[c, j]), low[c, j]), high[c, j])
            error = step * scale[c, j] - center[c, j]
            steps[c, j], errors[c, j] = step, error
            row = factor[j]
            for k in range(first, j):
                pulls[c, k] += error * row[k]
