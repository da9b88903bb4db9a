"""Bias correction: each layer's bias takes over what its rounded weights and inputs changed in the means.

A layer computes W x + b in the float model and W' x' + b' in the quantized one. The bias that makes the mean of each
channel right again is

    b' = b' before + mean(W x + b) - mean(W' x' + b' before)

over all samples and positions, before the activation. It is encoded with the plan's own parameters, if it is encoded at
all: a bias that does not fit them saturates, and a correction that is finer than their step changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.numerics.loops import Array
from detent.refinements.refinement import Refinement


@dataclass(frozen=True)
class BiasCorrection(Refinement):
    """Each layer's bias takes over what its rounded weights and inputs changed in the mean of every channel."""

    samples: int = 32


@dataclass(frozen=True, eq=False)
class ChannelSums:
    """The sum of every channel over positions, their number, and the sum of all squares. Two add up."""

    sums: npt.NDArray[np.float64]
    count: int
    squares: float = 0.0

    @classmethod
    def of(cls, maps: Array) -> ChannelSums:
        """Sum up (batch, channels, positions)."""
        flat = maps.reshape(-1)
        with np.errstate(over="ignore"):  # near the largest float32 sums are infinite, and the layer is left alone
            sums = maps.sum(axis=2).sum(axis=0, dtype=np.float64)
            return cls(sums, maps.shape[0] * maps.shape[2], float(np.dot(flat, flat)))

    @classmethod
    def total(cls, parts: Sequence[ChannelSums]) -> ChannelSums:
        """Add up all of them."""
        return cls(
            np.sum([part.sums for part in parts], axis=0),
            sum(part.count for part in parts),
            sum(part.squares for part in parts),
        )

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """The mean of every channel; 0 if there are no values."""
        return self.sums / max(self.count, 1)

    @property
    def power(self) -> float:
        """The mean square of all elements."""
        return self.squares / max(self.count * self.sums.size, 1)

    def correction_of(self, found: ChannelSums) -> npt.NDArray[np.float64] | None:
        """Return what has to be added to each channel's bias, so that what was found has these means.

        None if a mean is not finite.
        """
        with np.errstate(invalid="ignore"):
            difference = self.mean - found.mean
        return difference if np.isfinite(difference).all() else None
