"""Recipes: what decides how a model is quantized, the ones that have a name, and recipes as text."""

from __future__ import annotations

from detent.recipe.recipe import Override, Recipe

__all__ = ["Override", "Recipe"]
