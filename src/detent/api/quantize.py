"""`detent.quantize`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import onnx

from detent.observe.preprocess import PreprocessOptions
from detent.pipeline.job import as_names, make_job
from detent.pipeline.run import Run
from detent.plan.select import Selection
from detent.progress import Progress
from detent.recipe import Recipe
from detent.recipe_file import find_recipe
from detent.results.quantized import Report


def quantize(
    model: str | PathLike[str] | onnx.ModelProto,
    output: str | PathLike[str] | None = None,
    calibration: Any = None,
    recipe: str | PathLike[str] | Recipe = "XINT8",
    *,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    op_types: str | Sequence[str] = (),
    start: str | Sequence[str] = (),
    end: str | Sequence[str] = (),
    target: str | None = None,
    preprocess: PreprocessOptions | Mapping[str, Any] | str | PathLike[str] | None = None,
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
) -> Report:
    """Quantize `model` and write it to `output`; returns what was done and what it cost.

    Args:
        model: a path, or a ModelProto. Never modified.
        output: where to write; None: the quantized model is `report.model`.
        calibration: a folder of images, .npy or .npz; a file; an array; `{input: array}`; any iterable of these; a
            torch DataLoader; an onnxruntime CalibrationDataReader; None for random data (the accuracy is not real).
        recipe: a name, such as "XINT8", the path of a .toml file, or a Recipe.
        include: quantize only nodes whose names match one of these patterns (`*` and `?` as in file names).
        exclude: leave the nodes that match float.
        op_types: quantize only these operator types.
        start: quantize only what depends on these nodes, themselves included.
        end: quantize only what these nodes depend on, themselves included.
        target: the device, if another than the recipe's: "npu-xint8", "npu-a8w8", "npu-a16w8", "npu-vaiml",
            "npu-bf16" or "cpu".
        preprocess: how images become arrays, as {"size": 224, "mean": [...], "std": [...]}, the path of a JSON file
            with that, or PreprocessOptions. What is not said is guessed from the model's input, and reported.
        fix_shapes: input shapes to write into the model, such as {"input": (1, 3, 224, 224)}.
        limit: use at most this many samples.
        seed: choose them at random with this seed, instead of evenly spaced.
        batch: samples per inference.
        threads: worker threads; 0: one per core.
        executor: a concurrent.futures.Executor or a dask Client to calibrate on. The data must be files, random, or an
            object with shard(index, count).
        providers: onnxruntime's execution providers to calibrate on; default: the CPU.
        stats: statistics that an earlier run saved, instead of calibrating. With `calibration` beside it, the result
            is measured; without, it is not.
        save_stats: keep the statistics in this file.
        resume: keep what an interrupted calibration counted, and the layers that an interrupted refinement finished,
            beside the output, and continue from there.
        memory: what the refinement may use, as "2GB" (the default) or a number of bytes; with less, it looks at fewer
            samples.
        dry_run: only decide; run and write nothing.
        progress: called as progress(stage, done, total).

    Raises:
        DetentError: UsageError, ModelError, DataError or OutputError; no output is left behind.
    """
    chosen = find_recipe(recipe)
    job = make_job(
        model,
        calibration,
        chosen if target is None else chosen.replace(target=target),
        output=None if output is None else Path(output),
        preprocess=preprocess,
        selection=Selection(*(as_names(patterns) for patterns in (include, exclude, op_types, start, end))),
        fix_shapes=fix_shapes,
        limit=limit,
        seed=seed,
        batch=batch,
        threads=threads,
        executor=executor,
        providers=providers,
        stats=stats,
        save_stats=save_stats,
        resume=resume,
        memory=memory,
        dry_run=dry_run,
        progress=progress,
    )
    report = Run(job).report()
    if report.calibration is not None and report.calibration.random and report.calibration.samples:
        warnings.warn("Calibrated with random data: the accuracy of this model is not real.", stacklevel=2)
    return report
