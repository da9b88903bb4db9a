"""The recipes that have a name."""

from __future__ import annotations

from detent.errors import UsageError, nearest
from detent.methods import MinMax
from detent.numerics.formats import IntegerFormat
from detent.recipe import Recipe

PRESETS: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="XINT8",
            description="8-bit activations, weights and biases, symmetric, power-of-two scales, MinMSE; for NPU CNNs",
        ),
        Recipe(
            name="A8W8",
            description="8-bit activations and weights, symmetric, float scales, MinMax; for NPUs with float scales",
            activations=IntegerFormat("int8"),
            weights=IntegerFormat("int8"),
            biases=IntegerFormat("int32"),
            method=MinMax(),
            target="npu-float-scale",
        ),
        Recipe(
            name="A16W8",
            description="16-bit activations and 8-bit weights, symmetric, float scales, MinMax; near float accuracy",
            activations=IntegerFormat("int16"),
            weights=IntegerFormat("int8"),
            biases=IntegerFormat("int32"),
            method=MinMax(),
            target="npu-float-scale",
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
