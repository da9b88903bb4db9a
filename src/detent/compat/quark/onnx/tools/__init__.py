"""Quark's command-line tools: `detent run -m quark.onnx.tools.NAME ARGUMENTS`.

Those that convert a model are modules with a `main` each, made from one table.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType

from detent.compat.tools import TOOLS, run_tool


def __getattr__(name: str) -> ModuleType:
    """The tool of that name."""
    if name not in TOOLS:
        raise AttributeError(f"module 'quark.onnx.tools' has no attribute '{name}'")
    module = ModuleType(f"{__name__}.{name}", f"Quark's {name}.")
    vars(module)["main"] = partial(run_tool, name)
    return module


def __dir__() -> list[str]:
    return [*TOOLS, "evaluate"]
