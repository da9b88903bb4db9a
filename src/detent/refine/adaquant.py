"""AdaQuant: weights and biases follow the gradient that their rounded selves have (a straight-through estimate).

    weight = scale * clip(rint(w / scale), low, high)          d error / d w := d error / d weight inside low..high

A small learning rate lets the gradients of many batches add up before a weight crosses into the next code.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from detent.refine.kernels import Doubles, Singles, straight_through_step
from detent.refine.problem import Floats, LayerProblem, Solution
from detent.refine.search import Part, Search
from detent.refinements import AdaQuant


def adaquant(problem: LayerProblem, options: AdaQuant) -> Solution:
    """Codes and biases that bring the layer's output closer to the target."""
    return Search(problem, options, lambda part, _: MovingVariables(problem, options, part)).solve("adaquant")


Number = TypeVar("Number", np.float32, np.float64)


class Moving(Generic[Number]):
    """Numbers on their way (groups, channels, inputs), with Adam's means, and what they are rounded to."""

    def __init__(
        self, values: Doubles, scale: Doubles, low: Doubles, high: Doubles, rounded: npt.NDArray[Number]
    ) -> None:
        self.values = values.copy()
        self._grid = scale, low, high
        self._mean, self._square = np.zeros_like(values), np.zeros_like(values)
        self.rounded: npt.NDArray[Number] = rounded
        self.move(0, 0.0, rounded)

    def move(self, step: int, rate: float, gradient: npt.NDArray[Number]) -> None:
        """Make a step; step 0 only rounds."""
        state = self.values, self._mean, self._square
        straight_through_step(gradient, *self._grid, *state, step, rate, self.rounded)


class MovingVariables:
    """The weights and biases of one part."""

    def __init__(self, problem: LayerProblem, options: AdaQuant, part: Part) -> None:
        self._moves_bias = options.update_bias and problem.free_bias
        weight, bias = problem.weight[part.where], problem.bias[part.where]
        scale = problem.weight_scale[part.where].copy()
        bounds = np.full(bias.shape, float(problem.low)), np.full(bias.shape, float(problem.high))
        self._scale, self._low, self._high = scale[..., None], problem.low, problem.high
        self._weight = Moving(weight, scale, *bounds, np.empty(weight.shape, np.float32))
        self._bias = Moving(bias[..., None], *bias_grid(problem, part), np.empty((*bias.shape, 1)))
        self.weights: Singles = self._weight.rounded
        self.bias: Doubles = self._bias.rounded[..., 0] if problem.free_bias else bias.copy()

    def step(self, step: int, rate: float, loss: float, gradient: Singles, bias_gradient: Doubles) -> float:
        """Make a step; the error before it."""
        self._weight.move(step, rate, gradient)
        if self._moves_bias:
            self._bias.move(step, rate, bias_gradient[..., None])
        return loss

    def settled(self) -> tuple[Floats, Floats]:
        """The codes of the weights where they are now, and the biases."""
        return np.clip(np.rint(self._weight.values / self._scale), self._low, self._high), self._bias.values[..., 0]


def bias_grid(problem: LayerProblem, part: Part) -> tuple[Doubles, Doubles, Doubles]:
    """The scale of each bias, and its least and greatest code as steps from zero."""
    params, shape = problem.bias_params, problem.bias.shape

    def spread(numbers: npt.ArrayLike) -> Doubles:
        flat = np.broadcast_to(np.asarray(numbers, np.float64).reshape(-1), (problem.bias.size,))
        return flat.reshape(shape)[part.where].copy()

    low, high = params.format.low - params.zero_point, params.format.high - params.zero_point
    return spread(params.scale), spread(low), spread(high)
