"""The range of real numbers that a method chooses for a tensor."""

from __future__ import annotations

from typing import NamedTuple


class Range(NamedTuple):
    """All from low to high."""

    low: float
    high: float

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high, 0.0)
