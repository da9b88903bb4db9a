"""Every layer is a matrix: rows of its input times its weights, group by group.

Conv, depthwise Conv, ConvTranspose, Gemm and MatMul with a constant weight all become

    output[row, g, c] = sum over k of rows[g, row, k] * weight[g, c, k]  +  bias[g, c]

with the rows taken at sampled output positions. An ordinary Conv has one group, a depthwise one a group per channel.

The inputs of a channel are its input channels times the kernel's positions, in this order. Numbers that share an
exponent or a scale lie along the input channels, so no output channel shares any with another and some channels can be
rounded without the rest. The blocks of a bias do run over the channels: when some biases are rounded, the others are
taken as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from detent.numerics import codec
from detent.numerics.blocks import BlockFormat
from detent.numerics.codec import Rounding
from detent.numerics.compiled import compiled
from detent.numerics.formats import holds_integers
from detent.numerics.interface import Params
from detent.refinements.activations import Activation, Curve

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Where = tuple[slice, slice]  # some channels of some groups

EVERYWHERE: Where = (slice(None), slice(None))
AT_ZERO = np.zeros((), np.int64)  # the zero point of codes that are counted as steps from zero

INPUT_CHANNELS = 2  # the axis of (groups, channels, input channels, positions) that blocks lie along


class Rounder(Protocol):
    """Rounds numbers of the shape (groups, channels, anything)."""

    def part(self, where: Where) -> Rounder:
        """Return the rounder of some channels."""

    def round(self, values: Floats) -> Floats:
        """Return the numbers that the file will hold."""

    def passes(self, values: Floats) -> Bools:
        """Tell where a small change of a number can change the rounded one: not where it saturates."""


@dataclass(frozen=True, eq=False)
class FormatRounder:
    """Weights as small floats, or in blocks along INPUT_CHANNELS."""

    params: Params
    positions: int = 1

    def part(self, where: Where) -> FormatRounder:  # noqa: ARG002
        """Return itself: it is the same for all channels."""
        return self

    def round(self, values: Floats) -> Floats:
        """Return the numbers that the format holds."""
        by_input_channel = values.reshape(*values.shape[:2], -1, self.positions)
        return self.params.stored(by_input_channel).reshape(values.shape).astype(np.float64)

    def passes(self, values: Floats) -> Bools:
        """Tell which are not beyond the greatest number."""
        return ~self.params.clipped(values)


@dataclass(frozen=True, eq=False)
class StepRounder:
    """Weights as integers, each with a scale and limits (as steps from zero) of its own."""

    scale: Floats
    low: Floats
    high: Floats
    bits: int = 8

    def part(self, where: Where) -> StepRounder:
        """Return that of some channels."""
        return replace(self, scale=self.scale[where], low=self.low[where], high=self.high[where])

    def steps(self, values: Floats) -> Floats:
        """Return how many times its scale each number becomes."""
        return np.asarray(np.clip(self._levels(values), self.low, self.high))

    def round(self, values: Floats) -> Floats:
        """Return multiples of the scales."""
        return np.asarray(self.steps(values) * self.scale)

    def passes(self, values: Floats) -> Bools:
        """Tell which have a code."""
        steps = self._levels(values)
        return np.asarray((steps >= self.low) & (steps <= self.high))

    def _levels(self, values: Floats) -> Floats:
        return codec.levels(values, self.scale, AT_ZERO, self.bits)


@dataclass(frozen=True, eq=False)
class BiasRounder:
    """The biases of some channels, (groups, channels, 1), amid those of the whole layer, (groups, channels)."""

    params: Params | None
    whole: Floats
    where: Where = EVERYWHERE

    def part(self, where: Where) -> BiasRounder:
        """Return that of some channels."""
        return replace(self, where=where)

    def round(self, values: Floats) -> Floats:
        """Return the biases that the layer will add."""
        return stored_bias(self._amid(values), self.params)[self.where][..., None]

    def passes(self, values: Floats) -> Bools:
        """Tell which are not beyond the greatest number."""
        if self.params is None:
            return np.ones(values.shape, np.bool_)
        biases = self._amid(values)
        return ~self.params.clipped(biases.reshape(-1)).reshape(biases.shape)[self.where][..., None]

    def _amid(self, values: Floats) -> Floats:
        biases = self.whole.copy()
        biases[self.where] = values[..., 0]
        return biases


def stored_bias(biases: Floats, params: Params | None) -> Floats:
    """Return all biases of a layer, (groups, channels), as it will add them; without parameters they stay float."""
    flat = biases.reshape(-1)
    stored = flat.astype(np.float32) if params is None else params.snap(flat)
    return stored.astype(np.float64).reshape(biases.shape)


def shorten_blocks(fmt: BlockFormat, length: int) -> BlockFormat:
    """Return the format with blocks that are no longer than the axis they lie along.

    They are filled up with zeros, which change nothing but the time: a depthwise Conv has blocks of one weight.
    """
    return fmt.replace(block_size=min(fmt.block_size, -(-length // fmt.unit) * fmt.unit))


def why_no_steps(params: Params) -> str | None:
    """Say why the weights of a channel are not multiples of one number between two limits for all, or return None."""
    if not holds_integers(params):
        return f"its weights are {params.format.label}"
    if params.block:
        return "its weights have a scale for each group"
    return "its weights have a zero point for each channel" if np.unique(params.zero_point).size > 1 else None


@dataclass(frozen=True, eq=False)
class LayerProblem:
    """One layer, with what goes into it in the quantized model and what should come out.

    `rows` is the input as the quantized prefix gives it, and `target` the output of the float model at the same
    positions, before the activation. Weights are those of the float model; `weight_scale` has one number for each
    output channel (group after group), and their codes are low..high. In formats where a channel has no such steps, a
    `rounder` rounds them; then the scale is 1, and what counts as a code is the rounded number itself. `bias_params`
    tells how the bias is stored, None that it stays float. `output_ties` are the results halfway between two codes.

    `activation` is what is fused behind the layer: its result is rounded. `gates` stand behind the rounded answers, in
    the float model and in the quantized one, which may have another: x * sigmoid(x) and x * hardsigmoid(x), say.
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
    float_rows: npt.NDArray[np.float32] | None = None  # `rows` as the float model gives them, to mix both
    free_bias: bool = True  # if False, `bias` is what the quantized layer adds
    rounder: Rounder | None = None
    output_ties: Rounding = "half_even"
    bits: int = 8  # of the codes of the weights
    gates: tuple[Curve, Curve] | None = None

    @property
    def samples(self) -> int:
        """The number of rows."""
        return int(self.rows.shape[1])

    def nearest(self) -> Floats:
        """Return the codes of weights that are rounded to the nearest."""
        return self.codes(self.weight)

    def codes(self, weights: Floats, where: Where = EVERYWHERE) -> Floats:
        """Return the codes that the weights of some channels are rounded to."""
        if self.rounder is not None:
            return self.rounder.part(where).round(weights)
        levels = codec.levels(weights, self.weight_scale[where][..., None], AT_ZERO, self.bits)
        return np.clip(levels, self.low, self.high)

    def grid(self) -> StepRounder:
        """Return the scale and the limits of every weight, if they are integers."""
        if self.rounder is not None:
            assert isinstance(self.rounder, StepRounder), f"the weights of '{self.name}' are not integers"
            return self.rounder
        shape = self.weight.shape
        scale = np.broadcast_to(self.weight_scale[..., None], shape)
        return StepRounder(scale, np.full(shape, self.low), np.full(shape, self.high), self.bits)

    def codes_of_steps(self, steps: Floats) -> Floats:
        """Return the codes of weights that are so many times their scale in `grid`."""
        return steps if self.rounder is None else np.asarray(steps * self.grid().scale)

    def stored_bias(self, bias: Floats) -> Floats:
        """Return biases as the quantized layer will add them."""
        return stored_bias(bias, self.bias_params) if self.free_bias else bias

    @cached_property
    def mean_input(self) -> Floats:
        """The mean of every input over the rows."""
        groups, samples, inputs = self.rows.shape
        total = np.zeros((groups, inputs))
        _add_rows(self.rows, total)
        return np.asarray(total / max(samples, 1))

    def mean_products(self, codes: Floats, mean_input: Floats) -> Floats:
        """Return what codes make of the mean input, for every channel."""
        weights = codes * self.weight_scale[..., None]
        return np.asarray(np.matmul(weights, mean_input[..., None])[..., 0], np.float64)

    def matching_bias(self, codes: Floats) -> Floats:
        """Return the bias with which codes give the mean of the target on the problem's own rows."""
        if not self.free_bias:
            return self.bias
        return np.asarray(self.target.mean(axis=0, dtype=np.float64) - self.mean_products(codes, self.mean_input))

    def relative_error(self, codes: Floats, bias: Floats) -> float:
        """Return the mean square error on the rows, after activation and saturation, relative to float."""
        stored = self.stored_bias(bias)
        weights = (codes * self.weight_scale[..., None]).astype(np.float32)
        with np.errstate(over="ignore"):  # what overflows has an infinite error
            found = np.matmul(self.rows, weights.swapaxes(1, 2))
        found += stored[:, None, :].astype(np.float32)
        wanted = self.wanted()
        error = float(np.square(self._finish(found) - wanted, dtype=np.float64).mean())
        power = float(np.square(wanted, dtype=np.float64).mean())
        return error / (power or 1.0)

    @property
    def curve(self) -> Curve:
        """What stands behind the quantized layer."""
        return self.activation if self.gates is None else self.gates[1]

    def wanted(self) -> npt.NDArray[np.float32]:
        """Return what the float model makes of each row after the activation: groups, samples, channels."""
        target = self.target.transpose(1, 0, 2)
        return self._saturated(self.activation(target)) if self.gates is None else self.gates[0](target)

    def _finish(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if self.gates is None:
            return self._saturated(self.activation(values))
        return self.gates[1](self._saturated(values))

    def _saturated(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if self.output is None:
            return values
        with np.errstate(over="ignore"):  # a bound that float32 does not reach
            return np.clip(values, *self.output.span)


@compiled
def _add_rows(rows: npt.NDArray[np.float32], total: Floats) -> None:
    """Add up the rows of each group in order. NumPy starts a loop for each row, which has nine numbers if depthwise."""
    for group in range(rows.shape[0]):
        into = total[group]
        for row in rows[group]:
            for at in range(row.size):
                into[at] += row[at]


@dataclass(frozen=True, eq=False)
class Solution:
    """Codes of the weights and a float bias (it is encoded once, at emission), and who found them."""

    codes: Floats  # groups, channels, inputs
    bias: Floats  # groups, channels
    method: str
