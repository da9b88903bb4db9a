"""What a script asks for, in Detent's terms: a recipe, and what `detent.quantize` is told beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detent.compat.mixed_search import MixedSearch
from detent.recipe import Override, Recipe


@dataclass(frozen=True)
class RandomData:
    """Random calibration data: shapes for dynamic inputs and ranges, as RandomDataReader takes them."""

    shapes: Any = None
    ranges: Any = None


@dataclass(frozen=True)
class Request:
    """One quantization.

    `patterns` are regular expressions of nodes to leave float. `always_random` means that data is not even looked at
    where it is given. `search` chooses layers before anything is quantized. `conversions` are steps of `detent convert`
    that the result goes through.
    """

    recipe: Recipe
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    limit: int | None = None
    threads: int = 0
    providers: tuple[str, ...] = ()
    fix_shapes: Mapping[str, Sequence[int]] | None = None
    statistics: Path | None = None
    random: RandomData = RandomData()
    always_random: bool = False
    search: MixedSearch | None = None
    conversions: tuple[str, ...] = ()
    external_data: bool = False
    summary: bool = True

    def replace(self, **changes: Any) -> Request:
        """The same with some fields changed."""
        return dataclasses.replace(self, **changes)

    def with_recipe(self, **changes: Any) -> Request:
        """The same with some fields of the recipe changed."""
        return self.replace(recipe=self.recipe.replace(**changes))

    def with_override(self, override: Override) -> Request:
        """The same with one more override."""
        return self.with_recipe(overrides=(*self.recipe.overrides, override))
