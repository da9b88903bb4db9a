"""AdaQuant: weights and biases follow the gradient that their rounded selves have (a straight-through estimate).

    weight = round(w)          d error / d w := d error / d weight, and 0 where w saturates

`round` is what the file holds: of integers scale * clip(rint(w / scale), low, high), in other formats what a `Rounder`
says. A small learning rate lets the gradients of many batches add up before a weight crosses into the next code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from detent.numerics.formats import holds_integers
from detent.refinements.gradient import GradientSearch
from detent.refinements.gradient_loops import Doubles, Singles, adam_step, straight_through_step
from detent.refinements.layer_problem import BiasRounder, Floats, LayerProblem, Rounder, Where


@dataclass(frozen=True)
class AdaQuant(GradientSearch):
    """Weights, and with `update_bias` [UpdateBias] biases, move as if they were not rounded, while the error is that of
    the rounded ones. They may move by more than a step. The learning rate is in the units of the weights.
    """

    learning_rate: float = 1e-5
    update_bias: bool = True

    def start(self, problem: LayerProblem, where: Where, errors: Floats) -> MovingVariables:  # noqa: ARG002
        """Return the weights and biases of some channels, as they are in the float model."""
        return MovingVariables(problem, self, where)


class ChannelGrid(NamedTuple):
    """Integers: each channel has a scale, and a least and a greatest code as steps from zero."""

    scale: Doubles
    low: Doubles
    high: Doubles


Number = TypeVar("Number", np.float32, np.float64)


class Moving(Generic[Number]):
    """Numbers that learn (groups, channels, inputs), with Adam's means, and what they are rounded to.

    Integers are moved and rounded in one compiled loop, any other format by its rounder.
    """

    def __init__(self, values: Doubles, rounding: ChannelGrid | Rounder, rounded: npt.NDArray[Number]) -> None:
        self.values = values.copy()
        self.rounded: npt.NDArray[Number] = rounded
        self._rounding = rounding
        self._mean, self._square = np.zeros_like(values), np.zeros_like(values)
        self.move(0, 0.0, rounded)

    def move(self, step: int, rate: float, gradient: npt.NDArray[Number]) -> None:
        """Make a step of Adam, and round; step 0 only rounds."""
        values, mean, square, rounding = self.values, self._mean, self._square, self._rounding
        if isinstance(rounding, ChannelGrid):
            scale, low, high = rounding
            straight_through_step(gradient, scale, low, high, values, mean, square, step, rate, self.rounded)
            return
        if step:
            adam_step(gradient, rounding.passes(values), values, mean, square, step, rate)
        self.rounded[...] = rounding.round(values)


class MovingVariables:
    """The weights and biases of some channels."""

    def __init__(self, problem: LayerProblem, options: AdaQuant, where: Where) -> None:
        self._problem, self._where = problem, where
        self._moves_bias = options.update_bias and problem.free_bias
        weight, bias = problem.weight[where], problem.bias[where]
        self._weight = Moving(weight, weight_rounding(problem, where), np.empty(weight.shape, np.float32))
        self._bias = Moving(bias[..., None], bias_rounding(problem, where), np.empty((*bias.shape, 1)))
        self.weights: Singles = self._weight.rounded
        self.bias: Doubles = self._bias.rounded[..., 0] if problem.free_bias else bias.copy()

    def step(self, step: int, rate: float, loss: float, gradient: Singles, bias_gradient: Doubles) -> float:
        """Make a step; return the error before it."""
        self._weight.move(step, rate, gradient)
        if self._moves_bias:
            self._bias.move(step, rate, bias_gradient[..., None])
        return loss

    def settled(self) -> tuple[Floats, Floats]:
        """Return the codes of the weights as they are now, and the biases."""
        return self._problem.codes(self._weight.values, self._where), self._bias.values[..., 0]


def weight_rounding(problem: LayerProblem, where: Where) -> ChannelGrid | Rounder:
    """Return how the weights of some channels are rounded."""
    if problem.rounder is not None:
        return problem.rounder.part(where)
    scale = problem.weight_scale[where].copy()
    return ChannelGrid(scale, np.full_like(scale, problem.low), np.full_like(scale, problem.high))


def bias_rounding(problem: LayerProblem, where: Where) -> ChannelGrid | Rounder:
    """Return how the biases of some channels are rounded."""
    params = problem.bias_params
    if not holds_integers(params):
        return BiasRounder(params, problem.bias, where)

    def spread(numbers: npt.ArrayLike) -> Doubles:
        flat = np.broadcast_to(np.asarray(numbers, np.float64).reshape(-1), (problem.bias.size,))
        return flat.reshape(problem.bias.shape)[where].copy()

    low, high = params.format.low - params.zero_point, params.format.high - params.zero_point
    return ChannelGrid(spread(params.scale), spread(low), spread(high))
