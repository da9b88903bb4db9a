"""What a layer's rows say about its weights: means, second and cross moments, and the error as a quadratic form.

With X the rows of the quantized input and Y the float output, both centred where a bias takes the means, weights w of a
channel have the error

    |X w - y|^2  =  w H w^T - 2 r w^T + |y|^2          H = X^T X,   r = y^T X

A damping of lam, a share of the mean of H's diagonal, adds lam |w - float w|^2: it draws the weights to the float ones
where the rows say little, and H + lam I can be inverted wherever any input is alive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detent.refine.problem import Floats, LayerProblem


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The error w H w^T - 2 r w^T of every channel, but for a constant."""

    second: Floats  # H: groups, inputs, inputs
    cross: Floats  # r: groups, channels, inputs

    def residual(self, weights: Floats) -> Floats:
        """Half the slope of the error, downwards: r - w H."""
        return np.asarray(self.cross - np.matmul(weights, self.second))

    def errors(self, weights: Floats) -> Floats:
        """The error of each channel."""
        return np.asarray(-(weights * (self.cross + self.residual(weights))).sum(axis=2))


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

    def to_output(self, weight: Floats, damping: float) -> Quadratic:
        """The damped error against the float output, whatever the quantized input is."""
        second, added = self._damped(damping)
        return Quadratic(second, self.cross + added[:, None, None] * weight)

    def to_weights(self, weight: Floats, damping: float) -> Quadratic:
        """The damped error against what the float weights make of the same quantized input."""
        second, _ = self._damped(damping)
        return Quadratic(second, np.matmul(weight, second))

    def _damped(self, damping: float) -> tuple[Floats, Floats]:
        power = np.einsum("gkk->gk", self.second).mean(axis=1)
        added = np.where(power > 0.0, damping * power, 1.0)  # a group that sees nothing but zeros keeps its weights
        second = self.second.copy()
        np.einsum("gkk->gk", second)[...] += added[:, None]
        return second, added


def input_means(problem: LayerProblem) -> Floats:
    """The mean of every input over the rows, as one product for each group."""
    share = np.full(problem.samples, 1.0 / max(problem.samples, 1), np.float32)
    return np.array([share @ rows for rows in problem.rows], np.float64)


def mean_products(problem: LayerProblem, codes: Floats, input_mean: Floats) -> Floats:
    """What codes make of the mean input, for every channel."""
    weights = codes * problem.weight_scale[..., None]
    return np.asarray(np.matmul(weights, input_mean[..., None])[..., 0], np.float64)
