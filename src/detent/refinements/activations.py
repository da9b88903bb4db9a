"""Activations as curves: what stands behind a layer, elementwise, with its slope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Numbers = TypeVar("Numbers", npt.NDArray[np.float32], npt.NDArray[np.float64])


class Curve(Protocol):
    """An activation, elementwise."""

    @property
    def changes_nothing(self) -> bool:
        """Whether the layer's result is its answer."""

    def __call__(self, values: Numbers) -> Numbers:
        """Activate all values."""

    def derivative(self, values: Numbers) -> Numbers:
        """Return the slope at each value."""


@dataclass(frozen=True, eq=False)
class Activation:
    """What follows the layer before its result is quantized: x below `low` becomes slope * x + (1 - slope) * low,
    and above `high` it stays at high. Relu is (0, inf, 0), nothing is (-inf, inf, 0), LeakyRelu is (0, inf, slope).
    """

    low: float = -np.inf
    high: float = np.inf
    slope: float = 0.0

    def __call__(self, values: Numbers) -> Numbers:
        """Activate all values."""
        if self.slope:
            below = self.slope * values + (1 - self.slope) * self.low
            return np.where(values < self.low, below, np.minimum(values, self.high)).astype(values.dtype)
        return np.clip(values, self.low, self.high)

    def derivative(self, values: Numbers) -> Numbers:
        """Return the slope at each value."""
        inside = np.where(values > self.high, 0.0, 1.0)
        return np.where(values < self.low, self.slope, inside).astype(values.dtype)

    @property
    def changes_nothing(self) -> bool:
        """Whether the layer's result is its answer."""
        return self.low == -np.inf and self.high == np.inf


@dataclass(frozen=True)
class Gate:
    """sigmoid(z), or z * sigmoid(z) if `gated`. A `hard` one is clip(alpha z + beta, 0, 1)."""

    gated: bool
    hard: bool = False
    alpha: float = 1 / 6
    beta: float = 0.5

    changes_nothing: ClassVar[bool] = False

    def __call__(self, values: Numbers) -> Numbers:
        """Activate all values."""
        open_share = self._open_share(values)
        return values * open_share if self.gated else open_share

    def derivative(self, values: Numbers) -> Numbers:
        """Return the slope at each value."""
        share = self._open_share(values)
        inside = np.where((share > 0.0) & (share < 1.0), self.alpha, 0.0)
        slope = (inside if self.hard else share * (1.0 - share)).astype(values.dtype)
        return np.asarray(share + values * slope, values.dtype) if self.gated else slope

    def _open_share(self, values: Numbers) -> Numbers:
        if self.hard:
            share = np.clip(self.alpha * values + self.beta, 0.0, 1.0)
        else:
            share = 1.0 / (1.0 + np.exp(-np.clip(values, -60.0, 60.0)))
        return np.asarray(share, values.dtype)
