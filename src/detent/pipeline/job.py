"""What is asked for: one quantization, complete, from what a user says in whatever form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import onnx

from detent.errors import UsageError
from detent.graph.load import ModelLike
from detent.graph.session import DEFAULT_PROVIDERS
from detent.observe.preprocess import PreprocessOptions, preprocess_options
from detent.pipeline.calibrate import Collecting, checkpoint_beside
from detent.plan.select import Selection
from detent.progress import Progress, silent
from detent.recipe import Recipe
from detent.recipe_file import find_recipe
from detent.refine.refine import MEMORY
from detent.settings import parse_memory


@dataclass(frozen=True)
class Job:
    """One quantization, complete: what to read, how to quantize it and where to write."""

    model: ModelLike
    output: Path | None
    recipe: Recipe
    calibration: Any = None
    preprocess: PreprocessOptions | None = None
    selection: Selection = field(default_factory=Selection)
    fix_shapes: Mapping[str, Sequence[int]] | None = None
    limit: int | None = None
    seed: int | None = None
    batch: int | None = None
    collecting: Collecting = field(default_factory=Collecting)
    memory: int = MEMORY
    dry_run: bool = False
    progress: Progress = silent


def make_job(
    model: str | PathLike[str] | onnx.ModelProto,
    calibration: Any,
    recipe: str | PathLike[str] | Recipe,
    *,
    output: Path | None = None,
    preprocess: PreprocessOptions | Mapping[str, Any] | str | PathLike[str] | None = None,
    selection: Selection | None = None,
    fix_shapes: Mapping[str, Sequence[int]] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    executor: Any = None,
    providers: str | Sequence[str] = (),
    stats: str | PathLike[str] | None = None,
    save_stats: str | PathLike[str] | None = None,
    resume: bool = True,
    memory: int | str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Job:
    """The job of what `detent.quantize`, which describes it, and its relatives are given."""
    chosen = find_recipe(recipe)
    return Job(
        model=model if isinstance(model, onnx.ModelProto) else Path(model),
        output=output,
        recipe=chosen,
        calibration=calibration,
        preprocess=preprocess_options(preprocess),
        selection=selection or Selection(),
        fix_shapes=fix_shapes,
        limit=limit,
        seed=seed,
        batch=batch,
        collecting=Collecting(
            reuse=None if stats is None else Path(stats),
            save=None if save_stats is None else Path(save_stats),
            checkpoint=checkpoint_beside(output) if output and resume else None,
            executor=executor,
            threads=threads,
            providers=as_names(providers) or DEFAULT_PROVIDERS,
        ),
        memory=_memory(chosen, memory),
        dry_run=dry_run,
        progress=progress or silent,
    )


def as_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """One name, or several."""
    return (given,) if isinstance(given, str) else tuple(given)


def _memory(recipe: Recipe, given: int | str | None) -> int:
    """The bytes that the recipe's refinement may use; UsageError where there is none to use them."""
    if given is None:
        return MEMORY
    if recipe.refinement is None:
        raise UsageError(f"Recipe {recipe.name} refines nothing, so there is nothing to use memory for: leave it out.")
    return parse_memory(given) if isinstance(given, str) else given
