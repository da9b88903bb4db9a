"""The time that tuning may take."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from detent.errors import UsageError
from detent.progress import Progress

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class OutOfTimeError(Exception):
    """The budget is used up. Whoever set it catches this."""


def parse_duration(text: str | float) -> float:
    """Seconds, from a number of them or from `90s`, `10m`, `1h30m`."""
    if isinstance(text, (int, float)):
        seconds = float(text)
    else:
        parts = re.findall(r"([0-9]*\.?[0-9]+)\s*([smh]?)", text.lower())
        if not parts or "".join(number + unit for number, unit in parts) != re.sub(r"\s", "", text.lower()):
            raise UsageError(f"'{text}' is no duration. Write 90s, 10m or 1h30m.")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0.0 < seconds < math.inf:
        raise UsageError(f"The budget is {text}: it must be some time, such as 10m.")
    return seconds


@dataclass
class Clock:
    """Counts from when it is made. Without a budget it never runs out."""

    budget: float | None = None
    now: Callable[[], float] = time.perf_counter
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.now()

    @property
    def elapsed(self) -> float:
        """Seconds since it was made."""
        return self.now() - self._start

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up."""
        return self.budget is not None and self.elapsed >= self.budget

    def watching(self, progress: Progress) -> Progress:
        """The observer, with OutOfTimeError raised at the first step after the budget is used up."""

        def step(stage: str, done: int, total: int | None) -> None:
            if self.is_over:
                raise OutOfTimeError
            progress(stage, done, total)

        return step
