"""Least squares through the activation: weights with which the *activated* answers of a layer come closest to float.

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

import numpy as np
import numpy.typing as npt

from detent.refinements.layer_problem import Floats, LayerProblem
from detent.refinements.least_squares import RowMoments

STEPS = 14
BIAS_STEPS = 6
LONGER, SHORTER = 1.6, 0.4
# The mean squared slope of a channel counts as at least this: one that is hardly ever open says little.
LEAST_SLOPE = 0.05

Singles = npt.NDArray[np.float32]


def fit_through_activation(problem: LayerProblem, moments: RowMoments, damping: float) -> tuple[Floats, Floats]:
    """Return the weights and the bias (at the mean input) with the least damped error after the activation."""
    rows, start, wanted = problem.rows, problem.weight.astype(np.float32), problem.wanted()
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
        answers = np.matmul(rows, weights.swapaxes(1, 2))
        answers += (bias - np.matmul(weights, mean[..., None])[..., 0])[:, None, :]
        left = wanted - problem.curve(answers)
        error = np.square(left, dtype=np.float64).sum(axis=1) + added[:, None] * np.square(weights - start).sum(axis=2)
        better = error < best
        best = np.where(better, error, best)
        kept_weights, kept_bias = np.where(better[..., None], weights, kept_weights), np.where(better, bias, kept_bias)
        length = np.where(better, length * LONGER, length * SHORTER).astype(np.float32)
        slope = problem.curve.derivative(answers)
        left *= slope
        total = left.sum(axis=1)
        found = np.matmul(left.swapaxes(1, 2), rows) - total[..., None] * mean[:, None, :] - pull * (weights - start)
        found = np.matmul(found, inverse)
        step = total / np.maximum(np.square(slope).sum(axis=1), np.float32(LEAST_SLOPE * problem.samples))
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
    answers, wanted = np.matmul(problem.rows, weights.swapaxes(1, 2)), problem.wanted()
    bias = start.copy()
    for _ in range(BIAS_STEPS):
        there = answers + bias[:, None, :].astype(np.float32)
        slope = problem.curve.derivative(there)
        pull = (slope * (wanted - problem.curve(there))).sum(axis=1, dtype=np.float64)
        bias += pull / np.maximum(np.square(slope).sum(axis=1, dtype=np.float64), LEAST_SLOPE * problem.samples)
    return bias
