"""`detent.sensitivity`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import onnx

from detent.observe.preprocess import PreprocessOptions
from detent.pipeline.job import make_job
from detent.progress import Progress
from detent.recipe import Recipe
from detent.results.searched import SensitivityReport
from detent.search.probing import probe


def sensitivity(
    model: str | PathLike[str] | onnx.ModelProto,
    calibration: Any = None,
    recipe: str | PathLike[str] | Recipe = "XINT8",
    *,
    max_error: float | None = None,
    propose: Literal["exclude", "a16", "w8"] = "exclude",
    samples: int = 32,
    exact: bool = False,
    preprocess: PreprocessOptions | Mapping[str, Any] | str | PathLike[str] | None = None,
    fix_shapes: Mapping[str, Sequence[int]] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    executor: Any = None,
    stats: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> SensitivityReport:
    """Measure, for each layer, what quantizing it alone does to the outputs; nothing is written.

    Args:
        model: a path, or a ModelProto. Never modified.
        calibration: data as in `quantize`; it must be given.
        recipe: a name, the path of a .toml file, or a Recipe. Its refinement is left out.
        max_error: also propose a recipe that brings the error, noise power over signal power, below this.
        propose: "exclude" leaves layers float, "a16" gives activations 16 bits, "w8" gives 4-bit weights 8.
        samples: measure on up to this many samples.
        exact: measure on all of them, also what each layer gains when it alone is left float.
        executor: count and measure on the workers of a concurrent.futures.Executor or a dask Client, which read the
            data themselves, instead of in threads here. The result is the same.
        preprocess, fix_shapes, limit, seed, batch, threads, stats, progress: as in `quantize`.

    Raises:
        DetentError: UsageError, ModelError or DataError.
    """
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
        stats=stats,
        progress=progress,
    )
    return probe(job, count=samples, exact=exact, wanted=max_error, way=propose, executor=executor)
