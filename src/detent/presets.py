"""The recipes that have a name."""

from __future__ import annotations

from detent.errors import UsageError, nearest
from detent.methods import MinMax
from detent.numerics.formats import IntegerFormat
from detent.recipe import Recipe

_A8W8 = Recipe(
    name="A8W8",
    description="8-bit activations and weights, symmetric, float scales, MinMax; for NPUs with float scales",
    activations=IntegerFormat("int8"),
    weights=IntegerFormat("int8"),
    biases=IntegerFormat("int32"),
    method=MinMax(),
    target="npu-float-scale",
)

PRESETS: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="XINT8",
            description="8-bit activations, weights and biases, symmetric, power-of-two scales, MinMSE; for NPU CNNs",
        ),
        _A8W8,
        _A8W8.replace(
            name="A16W8",
            description="A8W8 with 16-bit activations",
            activations=IntegerFormat("int16"),
        ),
    )
}


def find_recipe(recipe: str | Recipe) -> Recipe:
    """The named recipe, or the given one. Upper and lower case are the same, and a `_CONFIG` ending is ignored."""
    if isinstance(recipe, Recipe):
        return recipe
    name = recipe.upper().removesuffix("_CONFIG")
    if name not in PRESETS:
        raise UsageError(f"There is no recipe '{recipe}'.{nearest(name, PRESETS)} Known: {', '.join(PRESETS)}.")
    return PRESETS[name]
