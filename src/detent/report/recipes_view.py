"""The recipes in the terminal: what each one means and costs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detent.methods import MinMax
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat
from detent.numerics.interface import NumberFormat
from detent.recipe import Recipe
from detent.recipe_file import to_toml

TWINS = ("_ADAROUND", "_ADAQUANT")

LEGEND = """
asym: the zero point follows the data   2^n: power-of-two scales   a/b: b in part of the model
Plain recipes take seconds, fine-tuned ones (A8W8_ADAROUND) minutes; names also work with _CONFIG.

One in full:  detent recipes XINT8
To edit:      detent recipes XINT8 --toml > my.toml; detent quantize MODEL OUTPUT --recipe my.toml
One field:    detent quantize MODEL OUTPUT --recipe A8W8 --set weights.granularity=per_channel"""


def print_recipes(recipes: Sequence[Recipe], console: Console) -> None:
    """A line for each recipe, by target; fine-tuned twins are named beside the recipe that they are of."""
    names = {recipe.name for recipe in recipes}
    shown = [recipe for recipe in recipes if not _is_twin(recipe, names)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("recipe", "activations", "weights", "calibration", "fine-tuned"):
        table.add_column(title, overflow="fold")
    for target in dict.fromkeys(recipe.target for recipe in shown):
        table.add_section()
        table.add_row(Text(f"for {target}", "dim"))
        for recipe in (recipe for recipe in shown if recipe.target == target):
            formats = (_formats(recipe, role) for role in ("activations", "weights"))
            table.add_row(recipe.name, *formats, _calibration(recipe), _tuning(recipe, names))
    console.print(table)
    console.print(Text(LEGEND))


def _is_twin(recipe: Recipe, names: Collection[str]) -> bool:
    return any(recipe.name.endswith(twin) and recipe.name.removesuffix(twin) in names for twin in TWINS)


def _formats(recipe: Recipe, role: str) -> str:
    """The format of a role, and those of parts of the model behind a slash."""
    parts = [getattr(override, role) for override in recipe.overrides]
    return "/".join(describe(fmt) for fmt in (recipe.formats[role], *(fmt for fmt in parts if fmt is not None)))


def _calibration(recipe: Recipe) -> str:
    if recipe.dynamic:
        return "at run time"
    averaged = isinstance(recipe.method, MinMax) and recipe.method.moving_average
    return ("mean " if averaged else "") + type(recipe.method).__name__ if _calibrates(recipe) else "none"


def _tuning(recipe: Recipe, names: Collection[str]) -> str:
    """The endings of the names of twins; or the refinement that the recipe has itself."""
    own = recipe.refinement.name if recipe.refinement is not None and recipe.refinement.learns_by_gradient else ""
    return " ".join(twin for twin in TWINS if recipe.name + twin in names) or own


def print_recipe(recipe: Recipe, console: Console) -> None:
    """One recipe: a sentence, what it does and all of its fields."""
    console.print(Text(f"{recipe.name}: {recipe.description}", "bold"))
    steps = [] if recipe.equalize is None else ["equalize channels"]
    steps = ["equalize layer by layer"] if recipe.equalize is not None and recipe.equalize.by_layers else steps
    steps = ["absorb biases", *steps] if recipe.equalize is not None and recipe.equalize.absorb else steps
    steps += [f"smooth activations ({recipe.smooth:g})"] if recipe.smooth is not None else []
    steps += [] if recipe.dynamic or not _calibrates(recipe) else [f"calibrate with {type(recipe.method).__name__}"]
    refinement = recipe.refinement
    if refinement is not None:
        steps.append(refinement.name if refinement.learns_weights else "correct biases")
    console.print(Text(f"Steps: {', '.join([*steps, f'write as {recipe.format}'])}. Target: {recipe.target}."))
    console.print(Text("\n" + to_toml(recipe)), end="", soft_wrap=True)


def describe(fmt: NumberFormat | None) -> str:
    """A format in a few words: `int8 2^n`."""
    if fmt is None:
        return "float"
    if not isinstance(fmt, IntegerFormat):
        return fmt.label
    scale = {"power_of_two": " 2^n", "int16": " M/2^N", "float": ""}[fmt.scale]
    spread = "" if fmt.granularity == "per_tensor" else f" {fmt.granularity}"
    return fmt.dtype + ("" if fmt.symmetric else " asym") + scale + spread


def _calibrates(recipe: Recipe) -> bool:
    formats = [recipe.activations, *(override.activations for override in recipe.overrides)]
    return any(isinstance(fmt, IntegerFormat) or (isinstance(fmt, FloatFormat) and fmt.scaled) for fmt in formats)
