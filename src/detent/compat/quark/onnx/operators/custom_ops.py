"""The library of custom operators, which Detent's files do not need."""

from __future__ import annotations

from typing import NoReturn

from detent.errors import UsageError


def get_library_path(device: str = "CPU") -> NoReturn:
    """There is none."""
    raise UsageError(
        f"get_library_path('{device}'): what Detent writes runs on plain onnxruntime, without a library of custom "
        "operators. Delete the line register_custom_ops_library(...)."
    )
