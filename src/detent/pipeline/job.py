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
from detent.plan.select import Selection
from detent.progress import Progress, silent
from detent.recipe import Recipe
from detent.recipe_file import find_recipe
from detent.refine.refine import MEMORY
from detent.settings import parse_memory


@dataclass(frozen=True)
class Collecting:
    """How statistics are collected.

    `reuse` is a file of an earlier sweep and `save` one to write; `checkpoint` keeps what an interrupted sweep counted.
    `executor` counts on other workers than the threads of this process. With `measures`, it measures layers too, so
    that it has work even if nothing is counted.
    """

    reuse: Path | None = None
    save: Path | None = None
    checkpoint: Path | None = None
    executor: Any = None
    measures: bool = False
    threads: int = 0
    providers: Sequence[str] = DEFAULT_PROVIDERS

    def __post_init__(self) -> None:
        if self.reuse is not None and (self.must_count or self.save is not None):
            raise UsageError("With --stats nothing is counted: leave --save-stats, --workers and --dask out.")
        if self.executor is not None and tuple(self.providers) != DEFAULT_PROVIDERS:
            raise UsageError("--providers are those of this process; workers compute on their CPUs.")

    @property
    def needs_identity(self) -> bool:
        """Whether a file of statistics, which names the model by its fingerprint, is read or written."""
        return self.reuse is not None or self.save is not None

    @property
    def must_count(self) -> bool:
        """Whether there are workers that do nothing but count."""
        return self.executor is not None and not self.measures


def checkpoint_beside(output: Path) -> Path:
    """Return where an interrupted calibration keeps what it has counted."""
    return output.with_name(f"{output.name}.checkpoint")


def refinement_beside(output: Path) -> Path:
    """Return where an interrupted refinement keeps the layers that it has finished."""
    return output.with_name(f"{output.name}.refinement")


@dataclass(frozen=True)
class Job:
    """One quantization, complete: what to read, how to quantize it and where to write.

    `probes` is how many samples are kept at hand to measure layers with.
    """

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
    probes: int = 0
    progress: Progress = silent

    @property
    def refinement_file(self) -> Path | None:
        """Where an interrupted refinement keeps the layers that it has finished; None if it keeps none."""
        return refinement_beside(self.output) if self.output and self.collecting.checkpoint else None


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
