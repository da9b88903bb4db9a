"""Serve the modules of `tool_names`: always below `detent.compat`, and under their own names while a script runs.

`detent.compat.quark.onnx` can be imported at any time. While `other_tools` is open, `quark.onnx` is that very module
under another name in `sys.modules`. Installed packages of these names are set aside meanwhile and put back afterwards;
the rest of onnxruntime is untouched.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from detent.compat.tool_names import FAMILIES, MODULES, UNSUPPORTED, Unsupported, homes
from detent.errors import nearest

PACKAGE = "detent.compat"
ROOTS = {
    "quark": f"{PACKAGE}.quark",
    "vai_q_onnx": f"{PACKAGE}.vai_q_onnx",
    "onnxruntime.quantization": f"{PACKAGE}.onnxruntime_quantization",
}
_TOOLS = "quark.onnx.tools"


def _moved(name: str, roots: dict[str, str]) -> str | None:
    """Return the name with its root replaced; None unless it has one of these roots."""
    for root, other in roots.items():
        if name == root or name.startswith(f"{root}."):
            return other + name.removeprefix(root)
    return None


def _theirs(ours: str) -> str | None:
    return _moved(ours, {other: root for root, other in ROOTS.items()})


def _tools() -> Sequence[str]:
    from detent.compat.tools import TOOLS

    return tuple(TOOLS)


def _children(module: str) -> list[str]:
    """Return the modules inside a module of theirs."""
    found = [each.rpartition(".")[2] for each in MODULES if each.rpartition(".")[0] == module]
    return [*found, *_tools()] if module == _TOOLS else found


def _exists(module: str) -> bool:
    package, _, last = module.rpartition(".")
    return module in MODULES or (package == _TOOLS and last in _tools())


def counterpart(name: str) -> ModuleType:
    """Return our module for one of theirs; ModuleNotFoundError names what exists instead."""
    ours = _moved(name, ROOTS)
    if ours is None:
        raise ModuleNotFoundError(f"{name} is none of {', '.join(ROOTS)}.")
    if _exists(name):
        return importlib.import_module(ours)
    package, _, wanted = name.rpartition(".")
    parent = counterpart(package)  # first, because a parent that is missing is what the message is about
    names = sorted({*_children(package), *(each for each in dir(parent) if not each.startswith("_"))})
    # Without `name=`: Python would drop the message of an import that names its module.
    raise ModuleNotFoundError(
        f"Detent has no '{wanted}' in {package}.{nearest(wanted, names)} There is: {', '.join(names)}."
    )


class _Table(Loader):
    """Makes a module from its row of the table. What it holds is imported when it is first asked for."""

    def __init__(self, theirs: str) -> None:
        self.theirs = theirs

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module."""
        theirs = self.theirs
        listed = [*homes(theirs), *UNSUPPORTED.get(theirs, ())] if theirs in MODULES else []
        module.__doc__ = f"What scripts import from {theirs}."
        vars(module).update(
            __all__=sorted(listed),
            __getattr__=partial(_attribute, theirs),
            __dir__=lambda: sorted({*vars(module), *listed, *_children(theirs)}),
        )
        if theirs not in MODULES:
            from detent.compat.tools import run_tool

            vars(module)["main"] = partial(run_tool, theirs.rpartition(".")[2])


def _attribute(theirs: str, name: str) -> Any:
    """Find a name of a module; nothing is kept, because constants are made anew each time: scripts change them."""
    known = homes(theirs) if theirs in MODULES else {}
    if name in known:
        home, ours = known[name]
        return getattr(importlib.import_module(f".{home}", PACKAGE), ours)
    if name in UNSUPPORTED.get(theirs, ()):
        return Unsupported(name, UNSUPPORTED[theirs][name])
    if theirs in FAMILIES:
        made = getattr(importlib.import_module(f"{PACKAGE}.configs"), FAMILIES[theirs])(name)
        if made is not None:
            return made
    if name in _children(theirs):
        return counterpart(f"{theirs}.{name}")
    raise AttributeError(f"module '{theirs}' has no attribute '{name}'")


class _Alias(Loader):
    """Hands out a module that exists already."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._own_spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - the protocol's signature
        """Return the module itself."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Put its own specification back, which the import machinery has replaced; the module has run already."""
        module.__spec__ = self._own_spec


class _OurFinder(MetaPathFinder):
    """Finds the modules below `detent.compat` that exist in the table only."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        theirs = _theirs(fullname)
        if theirs is None or not _exists(theirs):
            return None
        is_package = bool(_children(theirs))
        return importlib.util.spec_from_loader(fullname, _Table(theirs), is_package=is_package)


class _TheirFinder(MetaPathFinder):
    """Finds the modules of the three packages, and no others."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        if _moved(fullname, ROOTS) is None:
            return None
        return importlib.util.spec_from_loader(fullname, _Alias(counterpart(fullname)))


def serve() -> None:
    """Let `detent.compat.quark` and its like be imported."""
    if not any(isinstance(each, _OurFinder) for each in sys.meta_path):
        # First: the folders that an older checkout leaves behind, with nothing but byte code, would count as packages.
        sys.meta_path.insert(0, _OurFinder())


@contextmanager
def other_tools() -> Iterator[None]:
    """While this is open, scripts that import other quantizers get Detent."""
    finder = _TheirFinder()
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
    found = {name: module for name, module in sys.modules.items() if _moved(name, ROOTS) is not None}
    for name in found:
        del sys.modules[name]
    _tell_parent(None)
    return found


def _tell_parent(quantization: ModuleType | None) -> None:
    """Set the attribute of onnxruntime: a package holds its submodules, beside sys.modules."""
    onnxruntime = sys.modules.get("onnxruntime")
    if onnxruntime is None:
        return
    if quantization is not None:
        onnxruntime.quantization = quantization  # type: ignore[attr-defined]
    else:
        vars(onnxruntime).pop("quantization", None)
