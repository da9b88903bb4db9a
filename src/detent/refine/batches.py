"""A layer's rows cut into batches, and the layer's squared error and gradient on them.

    error = mean over rows of the sum over channels of (act(weight . row + bias) - act(target))^2

Without an activation the error is a quadratic form. With d the change of the weights and e that of the bias,
H = mean(x x^T), m = mean(x), and r what was wrong before the change:

    error = d H d^T + 2 d . (mean(r x) + e m) + e^2 + 2 e mean(r) + mean(r^2)

so moments of the inputs say all about it, over all rows at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from detent.numerics.formats import QuantParams
from detent.refine.kernels import SHORT, Doubles, Singles, dots_of_groups, forward
from detent.refine.problem import LayerProblem

Indices = npt.NDArray[np.int64]

IDENTITY = np.array([-np.inf, np.inf, 0.0])
UNROUNDED = np.zeros(4)


@dataclass(frozen=True, eq=False)
class Batches:
    """Rows and targets of some groups and channels, batch after batch, the last one filled up with zeros.

    `by_sample` holds the rows again in the other order of axes, as products over inputs read them (it is by_input where
    inputs are few). `act` and `grid` are the activation and the output's rounding in the form of the compiled loops.
    """

    by_input: Singles  # batches, groups, inputs, rows
    by_sample: Singles  # batches, groups, rows, inputs
    target: Singles  # batches, groups, channels, rows; after the activation
    counts: Indices  # the rows of each batch
    act: Doubles
    grid: Doubles

    @property
    def linear(self) -> bool:
        """Whether the output is the weighted sum itself."""
        return bool(np.array_equal(self.act, IDENTITY) and self.grid[0] == 0)

    def part(self, groups: slice, channels: slice) -> Batches:
        """The same rows for some of the groups and of their channels."""
        target = np.ascontiguousarray(self.target[:, groups, channels])
        return replace(self, by_input=self.by_input[:, groups], by_sample=self.by_sample[:, groups], target=target)

    def errors(self, weights: Singles, bias: Doubles) -> Doubles:
        """Each channel's mean squared error over all rows."""
        squares, sums, total = np.empty_like(bias), np.empty_like(bias), np.zeros_like(bias)
        scratch = np.empty(self.target.shape[1:], np.float32)
        for batch in range(len(self.counts)):
            self._forward(batch, weights, bias, scratch, squares, sums)
            total += squares
        total /= float(self.counts.sum())
        return total

    def _forward(
        self, batch: int, weights: Singles, bias: Doubles, derivatives: Singles, squares: Doubles, sums: Doubles
    ) -> None:
        rows, columns = self.by_sample[batch], self.by_input[batch]
        count = self.counts[batch]
        forward(
            rows, columns, self.target[batch], count, weights, bias, self.act, self.grid, derivatives, squares, sums
        )


def batches_of(problem: LayerProblem, order: Indices, size: int, rows: Singles, *, round_output: bool) -> Batches:
    """The rows with the indices `order`, in that order, in batches of at most `size`, of about the same size."""
    groups, _, inputs = rows.shape
    number = -(-len(order) // size)
    size = -(-len(order) // number)
    counts = np.minimum(size, len(order) - size * np.arange(number, dtype=np.int64))
    padded = np.zeros((groups, number * size, inputs), np.float32)
    padded[:, : len(order)] = rows[:, order]
    by_sample = padded.reshape(groups, number, size, inputs).swapaxes(0, 1)
    target = np.zeros((number * size, *problem.target.shape[1:]), np.float32)
    target[: len(order)] = problem.activation(problem.target[order])
    act = problem.activation
    grid = UNROUNDED
    if round_output and isinstance(problem.output, QuantParams):
        grid = np.array([float(problem.output.scale), *problem.output.span, problem.output_ties == "half_up"])
    by_input = np.ascontiguousarray(by_sample.swapaxes(2, 3))
    return Batches(
        by_input=by_input,
        by_sample=by_input if inputs < SHORT else np.ascontiguousarray(by_sample),
        target=np.ascontiguousarray(target.reshape(number, size, *target.shape[1:]).transpose(0, 2, 3, 1)),
        counts=counts,
        act=np.array([act.low, act.high, act.slope]),
        grid=grid,
    )


class BatchGradient:
    """Error and gradient on one batch after the other."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        shape = batches.target.shape[1:]
        self._derivatives = np.empty(shape, np.float32)
        self._squares = np.empty(shape[:2])

    def __call__(self, batch: int, weights: Singles, bias: Doubles, gradient: Singles, bias_gradient: Doubles) -> float:
        """Fill in the gradients; the error."""
        batches = self._batches
        batches._forward(batch, weights, bias, self._derivatives, self._squares, bias_gradient)
        dots_of_groups(self._derivatives, batches.by_input[batch], gradient)
        share = 2.0 / float(batches.counts[batch])
        gradient *= np.float32(share)
        bias_gradient *= share
        return float(self._squares.sum()) * share / 2.0


@dataclass(frozen=True, eq=False)
class InputMoments:
    """The means of x and of x x^T over all rows."""

    mean: Singles  # groups, inputs
    square: Singles  # groups, inputs, inputs

    @classmethod
    def of(cls, batches: Batches) -> InputMoments:
        """The moments of the batches' rows."""
        _, groups, inputs, _ = batches.by_input.shape
        square = np.zeros((groups, inputs, inputs))
        product = np.empty((groups, inputs, inputs), np.float32)
        for columns in batches.by_input:
            dots_of_groups(columns, columns, product)
            square += product
        rows = batches.counts.sum()
        mean = batches.by_input.sum(axis=3, dtype=np.float64).sum(axis=0) / rows
        return cls(mean.astype(np.float32), (square / rows).astype(np.float32))

    def part(self, groups: slice) -> InputMoments:
        """Those of some of the groups."""
        return InputMoments(self.mean[groups], self.square[groups])


class MomentGradient:
    """Error and gradient over all rows, for a layer without activation; `weights` and `bias` are where it starts."""

    def __init__(self, batches: Batches, moments: InputMoments, weights: Singles, bias: Doubles) -> None:
        self._moments, self._weights, self._bias = moments, weights.copy(), bias.copy()
        at_start = BatchGradient(batches)
        self._cross = np.zeros(weights.shape)
        self._residual = np.zeros(bias.shape)
        self._error = 0.0
        gradient, bias_gradient = np.empty_like(weights), np.empty_like(bias)
        rows = float(batches.counts.sum())
        for batch, count in enumerate(batches.counts):
            share = float(count) / rows
            self._error += share * at_start(batch, weights, bias, gradient, bias_gradient)
            self._cross += share / 2.0 * gradient
            self._residual += share / 2.0 * bias_gradient

    def __call__(
        self, _batch: int, weights: Singles, bias: Doubles, gradient: Singles, bias_gradient: Doubles
    ) -> float:
        """Fill in the gradients; the error."""
        change, shift = weights - self._weights, bias - self._bias
        dots_of_groups(change, self._moments.square, gradient)
        pull = self._cross + shift[..., None] * self._moments.mean[:, None]
        quadratic = float((change * (gradient + 2.0 * pull)).sum())
        gradient += pull
        gradient *= np.float32(2.0)
        bias_gradient[:] = 2.0 * (self._residual + shift + (change * self._moments.mean[:, None]).sum(axis=2))
        return quadratic + float((shift * (shift + 2.0 * self._residual)).sum()) + self._error
