"""Imports of `quark`, `vai_q_onnx` and `onnxruntime.quantization`, answered by Detent for as long as a script runs.

A module `quark.onnx` *is* then the module `detent.compat.quark.onnx`, under another name in `sys.modules`. Installed
packages of these names are set aside meanwhile and put back afterwards; the rest of onnxruntime is untouched.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from detent.errors import nearest

ROOTS = {
    "quark": "detent.compat.quark",
    "vai_q_onnx": "detent.compat.vai_q_onnx",
    "onnxruntime.quantization": "detent.compat.onnxruntime_quantization",
}


def _root_of(name: str) -> str | None:
    return next((root for root in ROOTS if name == root or name.startswith(f"{root}.")), None)


def counterpart(name: str) -> ModuleType:
    """The module of ours for one of theirs; ModuleNotFoundError, naming what exists, where there is none."""
    root = _root_of(name)
    if root is None:
        raise ModuleNotFoundError(f"{name} is none of {', '.join(ROOTS)}.")
    if name == root:
        return importlib.import_module(ROOTS[root])
    package, _, wanted = name.rpartition(".")
    parent = counterpart(package)  # first, because a parent that is missing is what the message is about
    ours = f"{parent.__name__}.{wanted}"
    if hasattr(parent, "__path__") and importlib.util.find_spec(ours) is not None:
        return importlib.import_module(ours)
    made = getattr(parent, wanted, None)  # some packages make their modules from a table
    if isinstance(made, ModuleType) and made.__name__ == ours:
        return made
    raise _missing(wanted, package, parent)


def _missing(wanted: str, package: str, parent: ModuleType) -> ModuleNotFoundError:
    """Without `name=`: Python would drop the message of an import that names its module."""
    modules = [found.name for found in pkgutil.iter_modules(getattr(parent, "__path__", []))]
    names = sorted({*modules, *(each for each in dir(parent) if not each.startswith("_"))})
    return ModuleNotFoundError(
        f"Detent has no '{wanted}' in {package}.{nearest(wanted, names)} There is: {', '.join(names)}."
    )


class _Alias(Loader):
    """Hands out a module that exists already."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._own_spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - the protocol's signature
        """The module itself."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """It has run already; only its own specification is put back where the import machinery replaced it."""
        module.__spec__ = self._own_spec


class _Finder(MetaPathFinder):
    """Finds the modules of the three packages, and no others."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if _root_of(fullname) is None:
            return None
        return importlib.util.spec_from_loader(fullname, _Alias(counterpart(fullname)))


@contextmanager
def other_tools() -> Iterator[None]:
    """While this is open, scripts that import other quantizers get Detent."""
    finder = _Finder()
    aside = _take_out()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _take_out()
        sys.modules.update(aside)
        _tell_parent(aside.get("onnxruntime.quantization"))


def _take_out() -> dict[str, ModuleType]:
    """Remove what is imported under these names, and return it."""
    found = {name: module for name, module in sys.modules.items() if _root_of(name) is not None}
    for name in found:
        del sys.modules[name]
    _tell_parent(None)
    return found


def _tell_parent(quantization: ModuleType | None) -> None:
    """A package holds its submodules as attributes, beside sys.modules."""
    onnxruntime = sys.modules.get("onnxruntime")
    if onnxruntime is None:
        return
    if quantization is not None:
        onnxruntime.quantization = quantization  # type: ignore[attr-defined]
    else:
        vars(onnxruntime).pop("quantization", None)
