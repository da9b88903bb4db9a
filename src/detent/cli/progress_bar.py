"""Progress in the terminal: a bar with an estimate for every stage that takes longer than a second, else nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from detent.progress import Progress, silent

PATIENCE = 1.0  # seconds


@contextmanager
def progress_bar(console: Console) -> Iterator[Progress]:
    """Yield an observer that draws on `console`, or is silent if that is no terminal."""
    if not console.is_terminal:
        yield silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        stages = _Stages(bars)
        try:
            yield stages
        finally:
            stages.close()


class _Stages:
    """One bar at a time, shown when its stage has lasted long enough."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._name: str | None = None
        self._timer: threading.Timer | None = None

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """See `detent.progress.Progress`."""
        if stage != self._name:
            self.close()
            self._name = stage
            self._task = self._bars.add_task(stage, total=total, visible=False)
            self._timer = threading.Timer(PATIENCE, self._bars.update, (self._task,), {"visible": True})
            self._timer.daemon = True
            self._timer.start()
        self._bars.update(self._task, completed=done, total=total)

    def close(self) -> None:
        """Take the current bar away."""
        if self._timer is not None:
            self._timer.cancel()
            self._bars.update(self._task, visible=False)
