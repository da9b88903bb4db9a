"""Modules that a library imports at once and hardly ever uses: loaded when something is first read from them.

onnx_ir computes with symbolic dimensions in sympy, which takes half a second and 35 MB to import. Detent lets onnx
infer shapes, and never needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

DEFERRED = ("sympy", "onnx_ir._symbolic_shapes")  # the second reads from the first as soon as it is loaded


class _DeferringFinder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return a spec that loads at the first use, for the modules of the list that are installed."""
        spec = PathFinder.find_spec(name, path, target) if name in DEFERRED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def install() -> None:
    """Defer the modules of the list, once."""
    if not any(isinstance(finder, _DeferringFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DeferringFinder())
