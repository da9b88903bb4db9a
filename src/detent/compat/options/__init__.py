"""What becomes of every option that other quantizers have: one table, for the translation and for the manual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detent.compat.options import (
    accuracy,
    calibration,
    floats,
    hardware,
    layout,
    numbers,
    preparation,
    runtime,
    selection,
)
from detent.compat.options.base import Option
from detent.compat.request import Request
from detent.errors import UsageError, nearest

SECTIONS: dict[str, tuple[Option, ...]] = {
    "Numbers": numbers.OPTIONS,
    "The float model": preparation.OPTIONS,
    "Which nodes": selection.OPTIONS,
    "Where Q/DQ pairs go": layout.OPTIONS,
    "Calibration": calibration.OPTIONS,
    "The device": hardware.OPTIONS,
    "bfloat16, blocks, language models": floats.OPTIONS,
    "Accuracy": accuracy.OPTIONS,
    "Runtime": runtime.OPTIONS,
}
"""In the order in which they are applied, whatever order a script gives them in."""

OPTIONS: dict[str, Option] = {option.name: option for section in SECTIONS.values() for option in section}


def apply_options(request: Request, options: Mapping[str, Any]) -> Request:
    """The request with all options applied. Raises UsageError for the first that is unknown or refused."""
    for name in options:
        if name not in OPTIONS:
            raise UsageError(f"There is no option '{name}'.{nearest(name, OPTIONS)} docs/options.md lists them all.")
    for name, option in OPTIONS.items():
        if name in options:
            request = option.apply(request, options[name])
    return request
