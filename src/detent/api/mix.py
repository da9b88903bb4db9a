"""`detent.mix`: mixed precision by search: a float model, data and the names of formats in, a recipe out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import onnx

from detent.errors import UsageError, nearest
from detent.graph.load import name_of
from detent.numerics.formats import INTEGER_TYPES, IntegerFormat
from detent.observe.preprocess import PreprocessOptions
from detent.pipeline.job import make_job
from detent.progress import Progress
from detent.recipe import Recipe
from detent.recipe_file import parse_format
from detent.results.searched import PrecisionReport, SearchedRole
from detent.search.precision import ROLES, search_precision
from detent.search.probing import SAMPLES


def mix(
    model: str | PathLike[str] | onnx.ModelProto,
    calibration: Any = None,
    recipe: str | PathLike[str] | Recipe = "A8W8",
    *,
    candidates: str | Sequence[str | IntegerFormat] = ("int4", "int8"),
    what: SearchedRole = "weights",
    max_error: float | None = None,
    mean_bits: float | None = None,
    samples: int = SAMPLES,
    preprocess: PreprocessOptions | Mapping[str, Any] | str | PathLike[str] | None = None,
    fix_shapes: Mapping[str, Sequence[int]] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    executor: Any = None,
    stats: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> PrecisionReport:
    """Choose for each layer's weights, or for each activation, one of several formats; nothing is written.

    Args:
        model: a path, or a ModelProto. Never modified.
        calibration: data as in `quantize`; it must be given.
        recipe: a name, the path of a .toml file, or a Recipe: all but the formats that are chosen.
        candidates: names of integer formats, such as "int4,int8"; scales and granularity are those of the recipe. Or
            IntegerFormats, which say all of it themselves.
        what: whose formats are chosen: "weights" or "activations".
        max_error: as few bits as keep the error at the outputs, noise power over signal power, below this.
        mean_bits: or as little error as this many bits for a number on average allow.
        samples: measure on up to this many samples.
        preprocess, fix_shapes, limit, seed, batch, threads, executor, stats, progress: as in `quantize`.

    Raises:
        DetentError: UsageError, ModelError or DataError.
    """
    if what not in ROLES:
        raise UsageError(f"There are no {what!r} to choose formats for. Choose from {', '.join(ROLES)}.")
    job = make_job(
        model,
        calibration,
        recipe,
        preprocess=preprocess,
        fix_shapes=fix_shapes,
        limit=limit,
        seed=seed,
        batch=batch,
        threads=threads,
        executor=executor,
        stats=stats,
        progress=progress,
    )
    formats = parse_candidates(candidates, job.recipe, what)
    found = search_precision(job, formats, what=what, max_error=max_error, mean_bits=mean_bits, count=samples)
    return PrecisionReport(name_of(job.model), job.recipe, found, max_error, mean_bits)


def parse_candidates(
    candidates: str | Sequence[str | IntegerFormat], recipe: Recipe, what: SearchedRole
) -> list[IntegerFormat]:
    """The formats: names take their scales and granularity from the recipe's format."""
    given = [name.strip() for name in candidates.split(",")] if isinstance(candidates, str) else candidates
    return [each if isinstance(each, IntegerFormat) else _named(each, recipe, what) for each in given]


def _named(name: str, recipe: Recipe, what: SearchedRole) -> IntegerFormat:
    fmt = parse_format(name, recipe.formats[what], "candidates") if name in INTEGER_TYPES else None
    if not isinstance(fmt, IntegerFormat):
        listed = ", ".join(INTEGER_TYPES)
        raise UsageError(
            f"candidates: '{name}' is no integer format.{nearest(name, INTEGER_TYPES)} Choose from {listed}."
        )
    return fmt
