"""How imports are answered while Detent is loaded: old paths lead to today's modules, and heavy modules wait.

Scripts import paths that the source has left. `import detent` puts a finder in place that gives such a path the very
module that it stands for, so classes keep their identity.

onnx_ir computes with symbolic dimensions in sympy, which takes half a second and 35 MB to import. Detent lets onnx
infer shapes, and never needs it: such modules are loaded when something is first read from them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

# The path of a module, and the one that it has now.
ALIASES = {
    "detent.presets": "detent.recipe.recipe",
    "detent.recipe_file": "detent.recipe.file",
    "detent.measure": "detent.evaluation",
    "detent.measure.scores": "detent.results.evaluated",
}

# Names that such a module had, and what they are called now.
RENAMED = {"detent.measure.scores": {"compare": "compare_scores"}}


class _AliasFinder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(name, self) if name in ALIASES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that the path stands for."""
        module = importlib.import_module(ALIASES[spec.name])
        if spec.name in RENAMED:
            renamed = {old: getattr(module, new) for old, new in RENAMED[spec.name].items()}
            copy = ModuleType(spec.name, module.__doc__)
            copy.__dict__.update({**vars(module), **renamed})
            module = copy
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back: the import system has put that of the alias in its place."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


DEFERRED = ("sympy", "onnx_ir._symbolic_shapes")  # the second reads from the first as soon as it is loaded


class _DeferringFinder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return a spec that loads at the first use, for the modules of the list that are installed."""
        spec = PathFinder.find_spec(name, path, target) if name in DEFERRED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def install() -> None:
    """Put both finders in place, once."""
    known = {type(finder) for finder in sys.meta_path}
    if _AliasFinder not in known:
        sys.meta_path.append(_AliasFinder())
    if _DeferringFinder not in known:
        sys.meta_path.insert(0, _DeferringFinder())
