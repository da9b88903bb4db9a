"""Old import paths lead to today's modules.

Scripts import paths that the source has left. `import detent` puts a finder in place that gives such a path the very
module that it stands for, so classes keep their identity.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
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


def install() -> None:
    """Put the finder in place, once."""
    if _AliasFinder not in {type(finder) for finder in sys.meta_path}:
        sys.meta_path.append(_AliasFinder())
