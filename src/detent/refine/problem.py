"""Every layer is a matrix: rows of its input times its weights, group by group.

Conv, depthwise Conv, ConvTranspose, Gemm and MatMul with a constant weight all become

    output[row, g, c] = sum over k of rows[g, row, k] * weight[g, c, k]  +  bias[g, c]

with the rows taken at sampled output positions. An ordinary Conv has one group, a depthwise one a group per channel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.numerics.interface import Params
from detent.numerics.rounding import Rounding
from detent.refine.rounders import Rounder, StepRounder, Where, stored_bias

Floats = npt.NDArray[np.float64]
EVERYWHERE: Where = (slice(None), slice(None))


@dataclass(frozen=True, eq=False)
class Activation:
    """What follows the layer before its result is quantized: x below `low` becomes slope * x + (1 - slope) * low,
    and above `high` it stays at high. Relu is (0, inf, 0), nothing is (-inf, inf, 0), LeakyRelu is (0, inf, slope).
    """

    low: float = -np.inf
    high: float = np.inf
    slope: float = 0.0

    def __call__(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The activation of all values."""
        if self.slope:
            below = self.slope * values + (1 - self.slope) * self.low
            return np.where(values < self.low, below, np.minimum(values, self.high)).astype(np.float32)
        return np.clip(values, self.low, self.high)


@dataclass(frozen=True, eq=False)
class LayerProblem:
    """One layer, with what goes into it in the quantized model and what should come out.

    `rows` is the input as the quantized prefix gives it, and `target` the output of the float model at the same
    positions, before the activation. Weights are those of the float model; `weight_scale` has one number for each
    output channel (group after group), and their codes are low..high. In formats where a channel has no such steps, a
    `rounder` rounds them; then the scale is 1, and what counts as a code is the rounded number itself. `bias_params`
    tells how the bias is stored, None that it stays float. `output_ties` are the results halfway between two codes.
    """

    name: str
    weight: Floats  # groups, channels, inputs
    bias: Floats  # groups, channels
    rows: npt.NDArray[np.float32]  # groups, samples, inputs
    target: npt.NDArray[np.float32]  # samples, groups, channels
    weight_scale: Floats  # groups, channels (broadcast where it is the same for all)
    low: float
    high: float
    bias_params: Params | None
    activation: Activation
    output: Params | None
    float_rows: npt.NDArray[np.float32] | None = None  # `rows` as the float model gives them, for who mixes both
    free_bias: bool = True  # where not, `bias` is what the quantized layer adds
    rounder: Rounder | None = None
    output_ties: Rounding = "half_even"

    @property
    def samples(self) -> int:
        """The number of rows."""
        return int(self.rows.shape[1])

    def nearest(self) -> Floats:
        """The codes of weights that are rounded to the nearest."""
        return self.codes(self.weight)

    def codes(self, weights: Floats, where: Where = EVERYWHERE) -> Floats:
        """The codes that the weights of a part are rounded to."""
        if self.rounder is not None:
            return self.rounder.part(where).round(weights)
        return np.clip(np.rint(weights / self.weight_scale[where][..., None]), self.low, self.high)

    def grid(self) -> StepRounder:
        """The scale and the limits of every weight, where they are integers."""
        if self.rounder is not None:
            assert isinstance(self.rounder, StepRounder), f"the weights of '{self.name}' are no integers"
            return self.rounder
        shape = self.weight.shape
        scale = np.broadcast_to(self.weight_scale[..., None], shape)
        return StepRounder(scale, np.full(shape, self.low), np.full(shape, self.high))

    def codes_of_steps(self, steps: Floats) -> Floats:
        """The codes of weights that are so many times their scale in `grid`."""
        return steps if self.rounder is None else np.asarray(steps * self.grid().scale)

    def stored_bias(self, bias: Floats) -> Floats:
        """Biases as the quantized layer will add them."""
        return stored_bias(bias, self.bias_params) if self.free_bias else bias


@dataclass(frozen=True, eq=False)
class Solution:
    """Codes of the weights and a float bias (it is encoded once, at emission), and who found them."""

    codes: Floats  # groups, channels, inputs
    bias: Floats  # groups, channels
    method: str
