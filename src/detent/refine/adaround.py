"""AdaRound: for each weight, down or up, learned by gradient descent on a soft version of the choice.

    weight = scale * clip(floor(w / scale) + h, low, high)      h = clip(1.2 sigmoid(alpha) - 0.1, 0, 1)
    loss = error + penalty * sum of (1 - |2h - 1|^beta)

alpha starts where h is the fraction that rounding cuts off, so that the soft weights are those of the float model. A
large beta leaves the middle of 0..1 flat; as it falls, each h is pushed to the end that it is nearer to. What is still
between at the end goes up where alpha is not negative.
"""

from __future__ import annotations

import math

import numpy as np

from detent.refine.kernels import GAMMA, ZETA, Doubles, Singles, rounding_step
from detent.refine.problem import Floats, LayerProblem, Solution
from detent.refine.search import Part, Search
from detent.refinements import AdaRound

PENALTY = 10.0
"""What a weight in the middle costs, as a multiple of its share in the error of weights rounded to the nearest."""


def adaround(problem: LayerProblem, options: AdaRound) -> Solution:
    """The codes next to each weight, below or above, that bring the layer's output closest to the target."""
    bias = problem.stored_bias(problem.bias)

    def start(part: Part, errors: Floats) -> RoundingVariables:
        return RoundingVariables(problem, options, part, bias, errors)

    return Search(problem, options, start, options.warm_start).solve("adaround")


def exponent(options: AdaRound, step: int) -> float | None:
    """The beta of a step, counted from 1: along half a cosine; none before the penalty sets in."""
    warm = options.warm_start * options.iterations
    if step <= warm:
        return None
    first, last = options.beta
    return last + (first - last) * (1.0 + math.cos(math.pi * (step - warm) / (options.iterations - warm))) / 2.0


class RoundingVariables:
    """The alphas of one part; `errors` are those of its channels, rounded to the nearest."""

    def __init__(self, problem: LayerProblem, options: AdaRound, part: Part, bias: Doubles, errors: Floats) -> None:
        self._problem, self._options = problem, options
        if options.penalty is None:
            self.penalty = PENALTY / problem.weight.shape[2] * errors
        else:
            self.penalty = np.full_like(errors, options.penalty)
        self._no_penalty = np.zeros_like(errors)
        self._scale = problem.weight_scale[part.where].copy()
        steps = problem.weight[part.where] / self._scale[..., None]
        # Below the lowest code there is nothing to round down to.
        floors = np.clip(np.floor(steps), problem.low, problem.high)
        fraction = np.clip(steps - floors, 0.0, 1.0)
        self._floors = floors.astype(np.float32)
        self.alpha = -np.log((ZETA - GAMMA) / (fraction - GAMMA) - 1.0).astype(np.float32)
        self.soft = fraction.astype(np.float32)
        self._mean, self._square = np.zeros_like(self.alpha), np.zeros_like(self.alpha)
        soft_codes = (floors + fraction).clip(problem.low, problem.high)
        self.weights: Singles = (self._scale[..., None] * soft_codes).astype(np.float32)
        self.bias: Doubles = bias[part.where].copy()
        self._float_bias = problem.bias[part.where]

    def step(self, step: int, rate: float, loss: float, gradient: Singles, bias_gradient: Doubles) -> float:  # noqa: ARG002
        """Make a step; the sum that the penalty multiplies."""
        beta = exponent(self._options, step)
        return rounding_step(
            gradient,
            self._scale,
            self._floors,
            self._problem.low,
            self._problem.high,
            self.alpha,
            self.soft,
            self._mean,
            self._square,
            step,
            rate,
            self._no_penalty if beta is None else self.penalty,
            beta or 1.0,
            self.weights,
        )

    def settled(self) -> tuple[Floats, Floats]:
        """Codes from the signs of alpha."""
        codes = np.clip(self._floors + (self.alpha >= 0), self._problem.low, self._problem.high).astype(np.float64)
        return codes, self._float_bias
