"""Serve the modules of `tool_names`: always below `detent.compat`, and under their own names while a script runs.

`detent.compat.quark.onnx` can be imported at any time, and while `other_tools` is open so can `quark.onnx`, which has
the same objects. Installed packages of these names are set aside and put back afterwards; the rest of onnxruntime is
untouched. A module or a name of its quantizer that the table does not have is served from what was set aside.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from detent.compat.tool_names import (
    CONSTANTS,
    ELSEWHERE,
    INSIDES,
    MODULES,
    UNSUPPORTED,
    VERSIONS,
    Unsupported,
    anywhere,
    homes,
)
from detent.errors import nearest

PACKAGE = "detent.compat"
_COMPAT_ROOTS = {
    f"{PACKAGE}.quark": "quark",
    f"{PACKAGE}.vai_q_onnx": "vai_q_onnx",
    f"{PACKAGE}.onnxruntime_quantization": "onnxruntime.quantization",
}
TOOL_ROOTS = {root: root for root in _COMPAT_ROOTS.values()}
_TOOLS = ("quark.onnx.tools", "vai_q_onnx.tools")
_QUANTIZER = "onnxruntime.quantization"
_CONSTANTS = "quark.onnx.quantization.config.custom_config"
_PART = "It is a part of the other tool that Detent has no counterpart of. ModelQuantizer and quantize_static quantize."


def tool_module(name: str, roots: Mapping[str, str]) -> str | None:
    """Return the name of the tool's module that a name stands for; None unless it is below one of the roots."""
    for root, tool in roots.items():
        if name == root or name.startswith(f"{root}."):
            return tool + name.removeprefix(root)
    return None


def _tools() -> Sequence[str]:
    from detent.compat.tools import TOOLS

    return tuple(TOOLS)


def _children(module: str) -> list[str]:
    """Return the modules inside a tool's module."""
    found = [each.rpartition(".")[2] for each in MODULES if each.rpartition(".")[0] == module]
    return [*found, *_tools()] if module in _TOOLS else found


class _Table(Loader):
    """Makes a module from its row of the table. What it holds is imported when it is first asked for."""

    def __init__(self, tool: str) -> None:
        self.tool = tool

    def get_code(self, name: str) -> Any:
        """Return what `runpy.run_module` runs: the tool of that name, on the arguments of the command line."""
        return compile(f"from detent.compat.script_runner import run_tool_module as run; run('{name}')", name, "exec")

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module."""
        tool = self.tool
        listed = [*homes(tool), *UNSUPPORTED.get(tool, ())]
        if tool == _CONSTANTS:  # for `import *`, which asks nobody for names that are not listed
            listed += importlib.import_module(f"{PACKAGE}.configs").CONSTANT_NAMES
        module.__doc__ = f"What scripts import from {tool}."
        vars(module).update(
            __all__=sorted(listed),
            __getattr__=partial(_attribute, tool, module.__name__),
            __dir__=lambda: sorted({*vars(module), *listed, *_children(tool)}),
        )
        if tool not in MODULES and _elsewhere(tool) is None:
            from detent.compat.tools import functions_of

            vars(module).update(functions_of(tool.rpartition(".")[2]))


def _attribute(tool: str, module: str, name: str) -> Any:
    """Find a name of a module; nothing is kept, because constants are made anew each time: scripts change them."""
    instead = _elsewhere(tool)
    if instead is not None and not name.startswith("_"):
        return Unsupported(f"{tool}.{name}", instead)
    known = homes(tool)
    if name in known:
        home, ours = known[name]
        return getattr(importlib.import_module(f".{home}", PACKAGE), ours)
    if name in UNSUPPORTED.get(tool, ()):
        return Unsupported(name, UNSUPPORTED[tool][name])
    if name in _children(tool):
        return importlib.import_module(f"{module}.{name}")
    package = tool.partition(".")[0]
    if name == "__version__" and package in VERSIONS:
        return VERSIONS[package][1]
    if package == "quark" and name in CONSTANTS:
        return copy.copy(CONSTANTS[name])
    if package in VERSIONS and name in anywhere(package):
        home, ours = anywhere(package)[name]
        return getattr(importlib.import_module(f".{home}", PACKAGE), ours)
    if name.endswith("CONFIG") and (made := importlib.import_module(f"{PACKAGE}.configs").any_constant(name)):
        return made
    public = not name.startswith("_")
    # What the other tools have of onnxruntime's quantizer, they have from there.
    own = tool_module(tool, {_QUANTIZER: ""}) is not None
    owner = tool if own else f"{_QUANTIZER}.quant_utils"
    if (public or (own and not name.startswith("__"))) and hasattr(original(owner), name):
        return getattr(original(owner), name)
    if public and (tool in INSIDES or tool not in MODULES):
        return Unsupported(f"{tool}.{name}", _PART)
    raise AttributeError(f"module '{tool}' has no attribute '{name}'.{nearest(name, names_served(tool))}")


def _elsewhere(tool: str) -> str | None:
    """Return what to do instead of using a package that is served whole; None for any other module."""
    return next((ELSEWHERE[root] for root in ELSEWHERE if f"{tool}.".startswith(f"{root}.")), None)


def names_of(tool: str) -> list[str]:
    """Return the public names of a tool's module, as far as the table has them."""
    return sorted({*_children(tool), *UNSUPPORTED.get(tool, ()), *homes(tool)})


def names_served(tool: str) -> list[str]:
    """Return these, and the names of other modules that this one serves, too."""
    package = tool.partition(".")[0]
    return sorted({*names_of(tool), *(anywhere(package) if package in VERSIONS else ())})


class _Original(Loader):
    """Serves a module as its owner wrote it."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that was set aside."""
        return original(str(tool_module(spec.name, {**_COMPAT_ROOTS, **TOOL_ROOTS})))

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: it is complete."""

    def get_code(self, name: str) -> Any:
        """Return what `runpy.run_module` runs: the module's own code."""
        return original(name).__loader__.get_code(name)  # type: ignore[union-attr]


_aside: dict[str, ModuleType] = {}  # the modules that Detent's stand in for while a script runs


def original(name: str) -> ModuleType:
    """Import a module of onnxruntime's quantizer as if Detent were not there."""
    finders = [each for each in sys.meta_path if isinstance(each, _Finder)]
    ours = _take_out(_QUANTIZER)
    sys.modules.update(_aside)
    sys.meta_path[:] = [each for each in sys.meta_path if each not in finders]
    try:
        return importlib.import_module(name)
    finally:
        sys.meta_path[:0] = finders
        found = _take_out(_QUANTIZER)
        # While Detent's stand in, the originals stay aside, even if none of Detent's has been imported so far.
        if any(each.roots is TOOL_ROOTS for each in finders):
            _aside.update(found)
            sys.modules.update(ours)
        else:
            sys.modules.update(ours or found)
        _tell_parent(sys.modules.get(_QUANTIZER))


def is_original(name: str) -> bool:
    """Return whether a module is one of onnxruntime's quantizer that the table does not have."""
    if tool_module(name, {_QUANTIZER: ""}) is None or name in MODULES:
        return False
    try:
        original(name)
    except ModuleNotFoundError:
        return False
    return True


class _Finder(MetaPathFinder):
    """Finds the modules of the table below these roots."""

    def __init__(self, roots: Mapping[str, str]) -> None:
        self.roots = roots

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        tool = tool_module(fullname, self.roots)
        if tool is None:
            return None
        package, _, last = tool.rpartition(".")
        whole = _elsewhere(tool) is not None
        if whole or tool in MODULES or last in _children(package):
            is_package = whole or bool(_children(tool))
            return importlib.util.spec_from_loader(fullname, _Table(tool), is_package=is_package)
        if is_original(tool):
            # `python -m` puts the file into sys.argv.
            return importlib.util.spec_from_loader(fullname, _Original(), origin=original(tool).__file__)
        names = names_of(package)
        # With `name`, `from package import x` goes on to say that x cannot be imported.
        raise ModuleNotFoundError(
            f"Detent has no '{last}' in {package}.{nearest(last, names)} There is: {', '.join(names)}.", name=fullname
        )

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        """Yield the tools whose names are served as their own."""
        wanted = (context.name or "").lower().replace("_", "-")
        served = VERSIONS.values() if self.roots is TOOL_ROOTS else ()
        return (_Installed(*each) for each in served if wanted in ("", each[0]))


class _Installed(Distribution):
    """Answers scripts that ask which version of a tool is installed."""

    def __init__(self, name: str, version: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        """Return the metadata, the only file."""
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        """Return the path itself."""
        return Path(path)


def serve() -> None:
    """Let `detent.compat.quark` and its like be imported."""
    if not any(isinstance(each, _Finder) and each.roots is _COMPAT_ROOTS for each in sys.meta_path):
        # First: the folders that an older checkout leaves behind, with nothing but byte code, would count as packages.
        sys.meta_path.insert(0, _Finder(_COMPAT_ROOTS))


def stand_in() -> MetaPathFinder:
    """Serve the names to the end of this process, which a script has started, and return what does."""
    sys.meta_path.insert(0, _Finder(TOOL_ROOTS))
    return sys.meta_path[0]  # type: ignore[return-value]  # typeshed knows a part of what is in it


@contextmanager
def other_tools() -> Iterator[None]:
    """While this is open, scripts that import other quantizers get Detent."""
    finder = _Finder(TOOL_ROOTS)
    _aside.update(_take_out(*TOOL_ROOTS))
    sys.meta_path.insert(0, finder)
    try:
        with _libraries_that_are_not_needed():
            yield
    finally:
        sys.meta_path.remove(finder)
        _take_out(*TOOL_ROOTS)
        sys.modules.update(_aside)
        _tell_parent(_aside.get(_QUANTIZER))
        _aside.clear()


@contextmanager
def _libraries_that_are_not_needed() -> Iterator[None]:
    """Let sessions take what `get_library_path` returns: files that Detent writes need no library."""
    from detent.compat.entry_points import get_library_path
    from detent.graph.runtime import onnxruntime  # when a script runs: `detent --help` does not need it

    register = onnxruntime.SessionOptions.register_custom_ops_library

    def accept(options: Any, path: str) -> None:
        if str(path) != get_library_path():
            register(options, path)

    onnxruntime.SessionOptions.register_custom_ops_library = accept
    try:
        yield
    finally:
        onnxruntime.SessionOptions.register_custom_ops_library = register


def _take_out(*roots: str) -> dict[str, ModuleType]:
    """Remove what is imported under these names, and return it."""
    below = dict.fromkeys(roots, "")
    found = {name: module for name, module in sys.modules.items() if tool_module(name, below) is not None}
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
