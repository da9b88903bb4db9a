"""AdaQuant: weights and biases follow the gradient that their rounded selves have (a straight-through estimate).

    weight = round(w)          d error / d w := d error / d weight, and 0 where w saturates

`round` is what the file holds: of integers scale * clip(rint(w / scale), low, high), in other formats what a `Rounder`
says. A small learning rate lets the gradients of many batches add up before a weight crosses into the next code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from detent.numerics.formats import holds_integers
from detent.refinements.gradient import GradientSearch
from detent.refinements.gradient_loops import Doubles, Singles, adam_step, straight_through_step
from detent.refinements.layer_problem import BiasRounder, Floats, LayerProblem, Rounder, Where

AnyFloats = npt.NDArray[np.floating]


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


class Stepper(Protocol):
    """One step of Adam on `values`, in place, and their rounding; step 0 only rounds."""

    def __call__(
        self,
        gradient: AnyFloats,
        values: Doubles,
        mean: Doubles,
        square: Doubles,
        step: int,
        rate: float,
        rounded: AnyFloats,
    ) -> None:
        """All are (groups, channels, inputs)."""


@dataclass(frozen=True, eq=False)
class OverSteps:
    """For integers: each channel has a scale, and a least and a greatest code as steps from zero."""

    scale: Doubles
    low: Doubles
    high: Doubles

    def __call__(
        self,
        gradient: AnyFloats,
        values: Doubles,
        mean: Doubles,
        square: Doubles,
        step: int,
        rate: float,
        rounded: AnyFloats,
    ) -> None:
        """In one compiled loop."""
        straight_through_step(gradient, self.scale, self.low, self.high, values, mean, square, step, rate, rounded)


@dataclass(frozen=True, eq=False)
class ThroughRounder:
    """For any other format."""

    rounder: Rounder

    def __call__(
        self,
        gradient: AnyFloats,
        values: Doubles,
        mean: Doubles,
        square: Doubles,
        step: int,
        rate: float,
        rounded: AnyFloats,
    ) -> None:
        """Step, then round the part at once."""
        if step:
            adam_step(gradient, self.rounder.passes(values), values, mean, square, step, rate)
        rounded[...] = self.rounder.round(values)


Number = TypeVar("Number", np.float32, np.float64)


class Moving(Generic[Number]):
    """Numbers on their way (groups, channels, inputs), with Adam's means, and what they are rounded to."""

    def __init__(self, values: Doubles, stepper: Stepper, rounded: npt.NDArray[Number]) -> None:
        self.values = values.copy()
        self._stepper = stepper
        self._mean, self._square = np.zeros_like(values), np.zeros_like(values)
        self.rounded: npt.NDArray[Number] = rounded
        self.move(0, 0.0, rounded)

    def move(self, step: int, rate: float, gradient: npt.NDArray[Number]) -> None:
        """Make a step; step 0 only rounds."""
        self._stepper(gradient, self.values, self._mean, self._square, step, rate, self.rounded)


class MovingVariables:
    """The weights and biases of one part."""

    def __init__(self, problem: LayerProblem, options: AdaQuant, where: Where) -> None:
        self._problem, self._where = problem, where
        self._moves_bias = options.update_bias and problem.free_bias
        weight, bias = problem.weight[where], problem.bias[where]
        self._weight = Moving(weight, weight_stepper(problem, where), np.empty(weight.shape, np.float32))
        self._bias = Moving(bias[..., None], bias_stepper(problem, where), np.empty((*bias.shape, 1)))
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
        return self._problem.codes(self._weight.values, self._where), self._bias.values[..., 0]


def weight_stepper(problem: LayerProblem, where: Where) -> Stepper:
    """How the weights of a part move."""
    if problem.rounder is not None:
        return ThroughRounder(problem.rounder.part(where))
    scale = problem.weight_scale[where].copy()
    return OverSteps(scale, np.full_like(scale, problem.low), np.full_like(scale, problem.high))


def bias_stepper(problem: LayerProblem, where: Where) -> Stepper:
    """How the biases of a part move."""
    if holds_integers(problem.bias_params):
        return OverSteps(*bias_grid(problem, where))
    return ThroughRounder(BiasRounder(problem.bias_params, problem.bias, where))


def bias_grid(problem: LayerProblem, where: Where) -> tuple[Doubles, Doubles, Doubles]:
    """The scale of each bias, where they are integers, and its least and greatest code as steps from zero."""
    params, shape = problem.bias_params, problem.bias.shape
    assert holds_integers(params), f"the biases of '{problem.name}' are no integers"

    def spread(numbers: npt.ArrayLike) -> Doubles:
        flat = np.broadcast_to(np.asarray(numbers, np.float64).reshape(-1), (problem.bias.size,))
        return flat.reshape(shape)[where].copy()

    low, high = params.format.low - params.zero_point, params.format.high - params.zero_point
    return spread(params.scale), spread(low), spread(high)
