"""A recipe in a few lines, for `print(config)`."""

from __future__ import annotations

import dataclasses
from typing import Any

from detent.numerics.formats import IntegerFormat
from detent.recipe import Recipe

_SHOWN = ("activations", "weights", "biases", "method", "target", "equalize", "refinement")
_HEADING = ("name", "description")


def describe(recipe: Recipe) -> str:
    """What decides most, and every field that is not as usual."""
    usual = Recipe("", "")
    lines = [f"Recipe {recipe.name}: {recipe.description}"]
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if field.name in _SHOWN or (field.name not in _HEADING and value != getattr(usual, field.name)):
            lines.append(f"  {field.name:12} {_text(value)}")
    return "\n".join(lines)


def _text(value: Any) -> str:
    if isinstance(value, IntegerFormat):
        kind = "symmetric" if value.symmetric else "asymmetric"
        return f"{value.dtype}, {kind}, {value.scale.replace('_', ' ')} scale, {value.granularity.replace('_', ' ')}"
    return "float" if value is None else str(value)
