"""What the file will hold of a layer's weights and biases, in every format.

Weights are (groups, channels, inputs), and the inputs of a channel are its input channels times the kernel's positions,
in this order. Numbers that share an exponent or a scale lie along the input channels: no output channel shares any with
another, so some channels can be rounded without the rest. The blocks of a bias do run over the channels: for them the
biases outside of a part are taken as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from detent.numerics.blocks import BlockFormat, BlockParams
from detent.numerics.floats import FloatParams
from detent.numerics.formats import QuantParams
from detent.numerics.interface import Params
from detent.refine.codes import stored_constant

Floats = npt.NDArray[np.float64]
Where = tuple[slice, slice]
"""Some channels of some groups."""

INPUT_CHANNELS = 2
"""The axis of (groups, channels, input channels, positions) that blocks lie along."""


class Rounder(Protocol):
    """Rounds numbers of the shape (groups, channels, anything)."""

    def part(self, where: Where) -> Rounder:
        """The rounder of a part."""

    def round(self, values: Floats) -> Floats:
        """The numbers that the file will hold."""

    def passes(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Where a small change of a number can change the rounded one: not where it saturates."""


@dataclass(frozen=True, eq=False)
class FormatRounder:
    """Weights as small floats, or in blocks along INPUT_CHANNELS."""

    params: FloatParams | BlockParams
    positions: int = 1

    def part(self, where: Where) -> FormatRounder:  # noqa: ARG002
        """Itself: it is the same for all channels."""
        return self

    def round(self, values: Floats) -> Floats:
        """The numbers that the format holds."""
        by_input_channel = values.reshape(*values.shape[:2], -1, self.positions)
        return stored_constant(by_input_channel, self.params).reshape(values.shape).astype(np.float64)

    def passes(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Where they are not beyond the greatest number."""
        return ~self.params.clipped(values)


@dataclass(frozen=True, eq=False)
class StepRounder:
    """Weights as integers, each with a scale and limits (as steps from zero) of its own."""

    scale: Floats
    low: Floats
    high: Floats

    def part(self, where: Where) -> StepRounder:
        """That of some channels."""
        return StepRounder(self.scale[where], self.low[where], self.high[where])

    def steps(self, values: Floats) -> Floats:
        """How many times its scale each number becomes."""
        return np.asarray(np.clip(np.rint(values / self.scale), self.low, self.high))

    def round(self, values: Floats) -> Floats:
        """The multiples of the scales."""
        return np.asarray(self.steps(values) * self.scale)

    def passes(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Where their codes exist."""
        steps = np.rint(values / self.scale)
        return np.asarray((steps >= self.low) & (steps <= self.high))


@dataclass(frozen=True, eq=False)
class BiasRounder:
    """The biases of a part, (groups, channels, 1), amid those of the whole layer, (groups, channels)."""

    params: Params | None
    whole: Floats
    where: Where = (slice(None), slice(None))

    def part(self, where: Where) -> BiasRounder:
        """That of some channels."""
        return replace(self, where=where)

    def round(self, values: Floats) -> Floats:
        """The biases that the layer will add."""
        biases = self.whole.copy()
        biases[self.where] = values[..., 0]
        return stored_bias(biases, self.params)[self.where][..., None]

    def passes(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Where they are not beyond the greatest number."""
        if self.params is None:
            return np.ones(values.shape, np.bool_)
        biases = self.whole.copy()
        biases[self.where] = values[..., 0]
        return ~self.params.clipped(biases.reshape(-1)).reshape(biases.shape)[self.where][..., None]


def stored_bias(biases: Floats, params: Params | None) -> Floats:
    """All biases of a layer, (groups, channels), as it will add them; without parameters they stay float."""
    flat = biases.reshape(-1)
    stored = params.snap(flat) if isinstance(params, QuantParams) else stored_constant(flat, params)
    return stored.astype(np.float64).reshape(biases.shape)


def shortened(fmt: BlockFormat, length: int) -> BlockFormat:
    """The format with blocks that are no longer than the axis they lie along.

    They are filled up with zeros, which change nothing but the time: a depthwise Conv has blocks of one weight.
    """
    return fmt.replace(block_size=min(fmt.block_size, -(-length // fmt.unit) * fmt.unit))
