"""How long-running stages tell an observer where they are. The command line draws bars from it; tests may ignore it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called at the start of a stage (done = 0) and after every step of it. `total` is None if it is unknown."""

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Take note."""


def silent(stage: str, done: int, total: int | None) -> None:
    """Do nothing."""
