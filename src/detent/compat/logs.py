"""What scripts take from Quark to log with."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any


class ScreenLogger:
    """A logger that writes to the screen."""

    def __init__(self, name: str = "quark", *_: Any, **__: Any) -> None:
        self._logger = logging.getLogger(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)


def log_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function: errors are told once, at the end."""
    return function
