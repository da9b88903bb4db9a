"""AdaRound: for each weight, down or up, learned by gradient descent on a soft version of the choice.

    weight = scale * clip(floor(w / scale) + h, low, high)      h = clip(1.2 sigmoid(alpha) - 0.1, 0, 1)
    loss = error + penalty * sum of (1 - |2h - 1|^beta)

alpha starts where h is the fraction that rounding cuts off, so that the soft weights are those of the float model. A
large beta leaves the middle of 0..1 flat; as it falls, each h is pushed to the end that it is nearer to. What is still
between at the end goes up where alpha is not negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from detent.errors import UsageError
from detent.numerics.interface import Params
from detent.refinements.gradient import GradientSearch
from detent.refinements.gradient_loops import GAMMA, ZETA, Doubles, Singles, rounding_step
from detent.refinements.layer_problem import Floats, LayerProblem, Where, why_no_steps

# What a weight in the middle costs, as a multiple of its share in the error of weights rounded to the nearest.
PENALTY = 10.0


@dataclass(frozen=True)
class AdaRound(GradientSearch):
    """Each weight learns whether to round down or up, so that the layer's activated output is closest to float.

    The loss is the squared error, a sum over channels and mean over rows, plus `penalty` [RegParam, there 0.01] times
    what weights between two codes add up to; None weighs it for each channel by the channel's error, so that layers
    with large and with small outputs decide alike. The penalty sets in after `warm_start` [WarmStart] of the
    iterations, and its exponent goes from the first to the second of `beta` [BetaRange]: at first only weights near a
    code are held there, then all are. Biases stay as they are [UpdateBias is for AdaQuant].
    """

    integer_weights_only: ClassVar[bool] = True

    penalty: float | None = None
    beta: tuple[float, float] = (20.0, 2.0)
    warm_start: float = 0.2

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        self._share("warm_start")
        if self.penalty is not None:
            self._not_negative("penalty")
        if not all(1.0 <= beta < math.inf for beta in self.beta):
            raise UsageError(f"beta of AdaRound is {self.beta}: both numbers must be at least 1, such as (20, 2).")

    @property
    def warm_steps(self) -> float:
        """The share of the steps that are never cut short."""
        return self.warm_start

    def why_not(self, weights: Params) -> str | None:
        """Say why the weights of a channel are not the multiples of one number between two limits for all."""
        return why_no_steps(weights)

    def start(self, problem: LayerProblem, where: Where, errors: Floats) -> RoundingVariables:
        """Return the alphas of some channels, with which the soft weights are those of the float model."""
        return RoundingVariables(problem, self, where, errors)

    def exponent(self, step: int) -> float | None:
        """Return the beta of a step, counted from 1: along half a cosine; None before the penalty sets in."""
        warm = self.warm_start * self.iterations
        if step <= warm:
            return None
        first, last = self.beta
        return last + (first - last) * (1.0 + math.cos(math.pi * (step - warm) / (self.iterations - warm))) / 2.0


class RoundingVariables:
    """The alphas of some channels; `errors` are those with weights rounded to the nearest."""

    def __init__(self, problem: LayerProblem, options: AdaRound, where: Where, errors: Floats) -> None:
        self._problem, self._options = problem, options
        if options.penalty is None:
            self.penalty = PENALTY / problem.weight.shape[2] * errors
        else:
            self.penalty = np.full_like(errors, options.penalty)
        self._no_penalty = np.zeros_like(errors)
        self._scale = problem.weight_scale[where].copy()
        steps = problem.weight[where] / self._scale[..., None]
        # Below the lowest code there is nothing to round down to.
        floors = np.clip(np.floor(steps), problem.low, problem.high)
        fraction = np.clip(steps - floors, 0.0, 1.0)
        self._floors = floors.astype(np.float32)
        self.alpha = -np.log((ZETA - GAMMA) / (fraction - GAMMA) - 1.0).astype(np.float32)
        self.soft = fraction.astype(np.float32)
        self._mean, self._square = np.zeros_like(self.alpha), np.zeros_like(self.alpha)
        soft_codes = (floors + fraction).clip(problem.low, problem.high)
        self.weights: Singles = (self._scale[..., None] * soft_codes).astype(np.float32)
        self.bias: Doubles = problem.stored_bias(problem.bias)[where].copy()
        self._float_bias = problem.bias[where]

    def step(self, step: int, rate: float, loss: float, gradient: Singles, bias_gradient: Doubles) -> float:  # noqa: ARG002
        """Make a step; return the sum that the penalty multiplies."""
        beta = self._options.exponent(step)
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
        """Return codes from the signs of alpha."""
        codes = np.clip(self._floors + (self.alpha >= 0), self._problem.low, self._problem.high).astype(np.float64)
        return codes, self._float_bias
