"""Least-squares rounding: the codes with which a layer, fed its quantized input, comes closest to its float output.

The damped error (see `least_squares`) is minimized over the steps within some of each weight. Channels of few weights
are searched, and have the best steps of all. The others come down from two starts, and each takes the better end: from
the nearest steps, and from those that GPTQ finds around the weights that would be best without rounding.

A layer with an activation is fitted through it first: its *activated* answers come closest to float.

With x' the quantized input, z the float answers, f the activation of the float model and f' that of the quantized one,

    minimize over W, b    sum over rows of |f'(W x' + b) - f(z)|^2  +  lam |W - float W|^2

Where f' is flat, as a Relu is below zero, answers need not be right: what the weights gain there goes to the rows that
count. And where f' is another function than f, as x * hardsigmoid(x) is for x * sigmoid(x), weights and bias make up
for the difference as far as a layer can.

Gauss-Newton with one matrix for all channels: with s the slope of f' at the answers and r what is left of the error,

    dW = (sum over rows of s r x' - lam (W - float W)) (H + lam I)^-1          H = sum over rows of x' x'^T

The slopes are left out of H, which would otherwise have to be inverted for every channel. Each channel has a step
length of its own instead: it grows as long as the error falls, and is halved when it does not.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from detent.refinements.activations import pull_answers
from detent.refinements.gptq import order_by_activation, round_in_order
from detent.refinements.layer_problem import Floats, LayerProblem, Solution, StepRounder
from detent.refinements.least_squares import (
    CONSTANT_INPUTS,
    FEW_INPUTS,
    Quadratic,
    RowMoments,
    descend,
    search_exhaustively,
)
from detent.refinements.refinement import Contest, WeightRefinement

STEPS = 14
BIAS_STEPS = 6
LONGER, SHORTER = 1.6, 0.4  # of the step length of a channel, after a success and a failure
# The mean squared slope of a channel counts as at least this: one that is hardly ever open says little.
LEAST_SLOPE = 0.05

Singles = npt.NDArray[np.float32]


def fit_through_activation(problem: LayerProblem, moments: RowMoments, damping: float) -> tuple[Floats, Floats]:
    """Return the weights and the bias (at the mean input) with the least damped error after the activation."""
    rows, start, wanted = problem.rows, problem.weight.astype(np.float32), np.ascontiguousarray(problem.wanted())
    mean = moments.input_mean.astype(np.float32)
    second, added = moments.damped(damping)
    inverse = np.linalg.inv(second).astype(np.float32)
    pull = added.astype(np.float32)[:, None, None]
    weights, bias = start.copy(), moments.output_mean.astype(np.float32)
    best = np.full(bias.shape, np.inf)
    kept_weights, kept_bias = weights.copy(), bias.copy()
    length = np.ones(bias.shape, np.float32)
    direction, bias_direction = np.zeros_like(weights), np.zeros_like(bias)
    for _ in range(STEPS):
        left = np.matmul(rows, weights.swapaxes(1, 2))
        sums = np.zeros((3, *bias.shape))
        pull_answers(left, bias - np.matmul(weights, mean[..., None])[..., 0], wanted, problem.curve.numbers, sums)
        error = sums[0] + added[:, None] * np.square(weights - start).sum(axis=2)
        better = error < best
        best = np.where(better, error, best)
        kept_weights, kept_bias = np.where(better[..., None], weights, kept_weights), np.where(better, bias, kept_bias)
        length = np.where(better, length * LONGER, length * SHORTER).astype(np.float32)
        total = sums[1].astype(np.float32)
        found = np.matmul(left.swapaxes(1, 2), rows) - total[..., None] * mean[:, None, :] - pull * (weights - start)
        found = np.matmul(found, inverse)
        step = total / np.maximum(sums[2], LEAST_SLOPE * problem.samples)
        direction = np.where(better[..., None], found, direction)
        bias_direction = np.where(better, step, bias_direction)
        weights = (kept_weights + length[..., None] * direction).astype(np.float32)
        bias = (kept_bias + np.minimum(length, 1.0) * bias_direction).astype(np.float32)
    return kept_weights.astype(np.float64), kept_bias.astype(np.float64)


def fit_bias(problem: LayerProblem, codes: Floats, start: Floats) -> Floats:
    """Return the bias with which codes come closest to float after the activation, from a bias to start from."""
    if not problem.free_bias:
        return problem.bias
    weights = (codes * problem.weight_scale[..., None]).astype(np.float32)
    answers, wanted = np.matmul(problem.rows, weights.swapaxes(1, 2)), np.ascontiguousarray(problem.wanted())
    bias = start.copy()
    for _ in range(BIAS_STEPS):
        sums = np.zeros((3, *bias.shape))
        pull_answers(answers.copy(), bias.astype(np.float32), wanted, problem.curve.numbers, sums)
        bias += sums[1] / np.maximum(sums[2], LEAST_SLOPE * problem.samples)
    return bias


# Times that of the settings: which is best depends on the layer, and the held-out rows tell.
DAMPINGS = (1.0, 3.0, 10.0)

FEW_ROWS_DAMPINGS = (10.0, 30.0, 100.0)  # the same for fewer than twice as many rows as inputs

# With more inputs, the second start is not worth the memory and time of factoring their second moments.
MOST_FACTORED = 2048


@dataclass(frozen=True)
class Rounding(WeightRefinement):
    """Weights are rounded so that the layer's output, given its quantized input, is closest to float.

    A quadratic problem on the second moments of the input, solved exactly for kernels of few weights and else by
    coordinate descent from two starts: codes move at most `span` steps from the weight, and `damping` (a share of the
    mean second moment) keeps them near it where the data says little. With `rescale`, other scales of the weights are
    tried too: better on most layers by themselves, and not always on the whole network.
    """

    integer_weights_only: ClassVar[bool] = True

    span: int = 2
    damping: float = 0.3
    sweeps: int = 20
    rescale: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        self._at_least_one("samples", "rows", "span", "sweeps")
        self._not_negative("damping")

    @property
    def tries_scales(self) -> bool:
        """Whether other scales of the weights are tried."""
        return self.rescale

    def solve(self, problem: LayerProblem, contest: Contest, pool: Executor) -> str | None:
        """Offer every damping with the present scale, and every other scale with the damping that was best."""
        moments = RowMoments.of(problem)
        if not moments.vary:
            return CONSTANT_INPUTS
        best, *_ = dampings = self.dampings(problem)
        for damping in dampings:
            if contest.offer(self.round_layer(problem, moments, damping, pool), problem.free_bias):
                best = damping
        through = not problem.curve.changes_nothing and problem.weight.shape[2] <= MOST_FACTORED
        if through:
            contest.offer(self.round_through(problem, moments, best, pool), problem.free_bias)
        for scale in contest.scales:
            rescaled = scale.of(problem)
            contest.offer(self.round_layer(rescaled, moments, best, pool), problem.free_bias, scale)
            if through:
                contest.offer(self.round_through(rescaled, moments, best, pool), problem.free_bias, scale)
        return None

    def dampings(self, problem: LayerProblem) -> list[float]:
        """Return the dampings to try."""
        few = problem.samples < 2 * problem.weight.shape[2]
        return [self.damping * factor for factor in (FEW_ROWS_DAMPINGS if few else DAMPINGS)]

    def round_layer(self, problem: LayerProblem, moments: RowMoments, damping: float, pool: Executor) -> Solution:
        """Return the solution for a damping."""
        error = moments.to_output(problem.weight, damping)
        codes = problem.codes_of_steps(self.best_steps(problem, error, pool))
        return Solution(codes, moments.bias(problem, codes), f"rounding, damping {damping:g}")

    def round_through(self, problem: LayerProblem, moments: RowMoments, damping: float, pool: Executor) -> Solution:
        """Return the solution whose activated answers are closest, for a damping."""
        weights, _ = fit_through_activation(problem, moments, damping)
        centered = replace(problem, weight=weights)
        steps = self.best_steps(centered, moments.to_weights(weights, damping), pool)
        codes = problem.codes_of_steps(steps)
        bias = fit_bias(problem, codes, moments.bias(problem, codes))
        return Solution(codes, bias, f"rounding through the activation, damping {damping:g}")

    def best_steps(self, problem: LayerProblem, error: Quadratic, pool: Executor) -> Floats:
        """Return the steps of the least error that is found, no further than the span from the weights."""
        grid = problem.grid()
        nearest, box = grid.steps(problem.weight), box_around(problem.weight, grid, self.span)
        found = descend(nearest, error, box, self.sweeps, pool)
        if problem.weight.shape[2] <= FEW_INPUTS:
            return search_exhaustively(found, error, box, pool)
        start = gptq_start(error, box, pool) if problem.weight.shape[2] <= MOST_FACTORED else None
        if start is None:
            return found
        other = descend(start, error, box, self.sweeps, pool)
        better = error.errors(other * grid.scale) < error.errors(found * grid.scale)
        return np.where(better[..., None], other, found)


def box_around(weight: Floats, grid: StepRounder, span: int) -> StepRounder:
    """Return the grid with limits around each weight: `span` steps below and above it, and always the nearest step."""
    nearest, below = grid.steps(weight), np.floor(weight / grid.scale)
    low = np.minimum(np.maximum(below - (span - 1), grid.low), nearest)
    return replace(grid, low=low, high=np.maximum(np.minimum(below + span, grid.high), nearest))


def gptq_start(error: Quadratic, box: StepRounder, pool: Executor) -> Floats | None:
    """Return what GPTQ makes of the best real weights; None if the second moments cannot be inverted."""
    try:
        center: Floats = np.linalg.solve(error.second, error.cross.swapaxes(1, 2)).swapaxes(1, 2).astype(np.float64)
        return round_in_order(center, error.second, box, order_by_activation(error.second), pool)
    except np.linalg.LinAlgError:
        return None
