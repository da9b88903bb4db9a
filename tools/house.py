"""Measure the source, and fail where it breaks a habit of the house: python -m tools.house

- A room (a folder of src/detent, or "top" for the modules beside them) has at most the lines that lines.toml gives it.
  A feature that needs more raises its number there, in the same change.
- What a number format, parameter, method, refinement or equalization is, only its own room may ask by class.
- No function is longer than 60 lines; no two modules, and no two public classes, have the same name.
- No file holds the marks of an unfinished merge.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "detent"
LONGEST = 60

FAMILIES = {
    "numerics": (
        "IntegerFormat",
        "FloatFormat",
        "BlockFloat",
        "Microscaling",
        "QuantParams",
        "FloatParams",
        "BlockParams",
    ),
    "methods": ("MinMax", "Percentile", "LayerwisePercentile", "Entropy", "MinMSE", "NonOverflow", "Distribution"),
    "refinements": ("BiasCorrection", "Rounding", "Gptq", "AdaRound", "AdaQuant", "GradientSearch"),
    "equalizations": ("GlobalEqualization", "CrossLayer", "SmoothQuant"),
}
"""Classes that only their own room may test for."""

COMMON = ("__init__", "__main__")


@dataclass(frozen=True)
class Module:
    """One file of the source."""

    path: Path
    lines: list[str]
    tree: ast.Module

    @property
    def room(self) -> str:
        """The folder below src/detent, or "top"."""
        parts = self.path.relative_to(SOURCE).parts
        return parts[0] if len(parts) > 1 else "top"

    @property
    def name(self) -> str:
        """The path as messages show it."""
        return str(self.path.relative_to(ROOT))


def modules() -> list[Module]:
    """Read every file of the source."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text("utf-8")
        found.append(Module(path, text.splitlines(), ast.parse(text)))
    return found


def over_budget(source: list[Module], budget: dict[str, int]) -> Iterator[str]:
    """Tell which rooms have outgrown their lines, and which have none."""
    lines: dict[str, int] = defaultdict(int)
    for module in source:
        lines[module.room] += len(module.lines)
    for room, count in sorted(lines.items()):
        print(f"{count:6d} of {budget.get(room, 0):6d}  {room}")
        if count > budget.get(room, 0):
            allowed = budget.get(room, 0)
            yield f"{room} has {count} lines, and lines.toml allows {allowed}: shorten it, or say there what needs them"
    print(f"{sum(lines.values()):6d} lines in {len(source)} files")
    yield from (f"lines.toml names {room}, which is not there" for room in budget if room not in lines)


def class_tests(source: list[Module]) -> Iterator[str]:
    """Tell where a room asks for a class of another room's family."""
    for module in source:
        foreign = {name for room, names in FAMILIES.items() if room != module.room for name in names}
        for node in ast.walk(module.tree):
            tested: list[ast.expr] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                tested = node.args[1:]
            elif isinstance(node, ast.MatchClass):
                tested = [node.cls]
            named = {part.id for test in tested for part in ast.walk(test) if isinstance(part, ast.Name)}
            if named & foreign:
                yield f"{module.name}:{node.lineno}: asks whether something is a {', '.join(sorted(named & foreign))}"


def long_functions(source: list[Module]) -> Iterator[str]:
    """Tell which functions are too long to read at once."""
    for module in source:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONGEST:
                    yield f"{module.name}:{node.lineno}: {node.name} has {length} lines"


def same_names(source: list[Module]) -> Iterator[str]:
    """Tell which modules and public classes share a name."""
    named: dict[str, list[str]] = defaultdict(list)
    for module in source:
        if module.path.stem not in COMMON:
            named[f"module {module.path.stem}"].append(module.name)
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named[f"class {node.name}"].append(module.name)
    yield from (f"{what} is in {' and '.join(where)}" for what, where in named.items() if len(where) > 1)


def merge_marks() -> Iterator[str]:
    """Tell which text files still hold the marks of a merge that was not finished."""
    for pattern in ("*.md", "*.toml", "docs/*.md", "src/**/*.py", "tests/**/*.py", "benchmarks/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            if any(line.startswith(("<" * 7 + " ", ">" * 7 + " ")) for line in path.read_text("utf-8").splitlines()):
                yield f"{path.relative_to(ROOT)} has marks of a merge"


def shares(source: list[Module]) -> str:
    """Return the shares of import lines and of comments."""
    total = sum(len(module.lines) for module in source)
    comments = sum(line.lstrip().startswith("#") or "  # " in line for module in source for line in module.lines)
    imports = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in source
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    return f"imports {imports / total:.1%}, comments {comments / total:.1%} of all lines"


def main() -> int:
    """Print the measures; 1 if a habit is broken."""
    source = modules()
    budget = tomllib.loads((ROOT / "lines.toml").read_text("utf-8"))["rooms"]
    broken = [*over_budget(source, budget), *class_tests(source), *long_functions(source), *same_names(source)]
    broken += merge_marks()
    print(shares(source))
    for line in broken:
        print(line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
