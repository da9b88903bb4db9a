"""The recipes in the terminal: what each one means and costs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detent.numerics.formats import IntegerFormat
from detent.numerics.params import NumberFormat
from detent.recipe import Recipe
from detent.recipe_file import to_toml
from detent.refinements import BiasCorrection

TWINS = ("_ADAROUND", "_ADAQUANT")


def print_recipes(recipes: Sequence[Recipe], console: Console) -> None:
    """A line for each recipe; fine-tuned twins are named beside the recipe that they are of."""
    names = {recipe.name for recipe in recipes}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("recipe", "activations", "weights", "biases", "for", "what it is"):
        table.add_column(title, overflow="fold")
    for recipe in recipes:
        if any(recipe.name.removesuffix(twin) in names - {recipe.name} for twin in TWINS):
            continue
        twins = [twin for twin in TWINS if recipe.name + twin in names]
        described = recipe.description + (f" (also {', '.join(twins)})" if twins else "")
        roles = (
            describe(fmt, dynamic=recipe.dynamic and role == "activations") for role, fmt in recipe.formats.items()
        )
        table.add_row(recipe.name, *roles, recipe.target, described)
    console.print(table)
    console.print(
        Text(
            "Plain recipes take seconds; those that fine-tune minutes; float types need no calibration. Names also "
            "work with _CONFIG.\nOne in full, to edit: detent recipes XINT8 --toml > my.toml; then --recipe my.toml. "
            "One field: --set weights.granularity=per_channel."
        )
    )


def print_recipe(recipe: Recipe, console: Console) -> None:
    """One recipe: a sentence, what it does and all of its fields."""
    console.print(Text(f"{recipe.name}: {recipe.description}", "bold"))
    steps = ["equalize channels"] if recipe.equalize else []
    steps += [f"smooth activations ({recipe.smooth:g})"] if recipe.smooth is not None else []
    steps += [] if recipe.dynamic or not _calibrates(recipe) else [f"calibrate with {type(recipe.method).__name__}"]
    refinement = recipe.refinement
    if refinement is not None:
        steps.append("correct biases" if isinstance(refinement, BiasCorrection) else type(refinement).__name__)
    console.print(Text(f"{', then '.join([*steps, f'write as {recipe.format}'])}; for {recipe.target}."))
    console.print(Text("\n" + to_toml(recipe)), end="")


def describe(fmt: NumberFormat | None, *, dynamic: bool = False) -> str:
    """A format in a few words: `int8 sym 2^n`."""
    if fmt is None:
        return "float"
    if not isinstance(fmt, IntegerFormat):
        return fmt.label
    scale = {"power_of_two": " 2^n", "int16": " M/2^N", "float": ""}[fmt.scale]
    spread = "" if fmt.granularity == "per_tensor" else f" {fmt.granularity}"
    return fmt.dtype + (" sym" if fmt.symmetric else " asym") + scale + spread + (" at run time" if dynamic else "")


def _calibrates(recipe: Recipe) -> bool:
    formats = [recipe.activations, *(override.activations for override in recipe.overrides)]
    return any(isinstance(fmt, IntegerFormat) for fmt in formats)
