"""Detent quantizes trained ONNX models for NPUs.

import detent
report = detent.quantize("model.onnx", "model_int8.onnx", calibration="images/", recipe="XINT8")
print(report)
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detent.errors import DataError, DetentError, ModelError, OutputError, UsageError
from detent.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    import onnx

    from detent.measure.emulation import Emulation
    from detent.measure.emulator import EmulatedRounding, Emulator
    from detent.methods import MinMSE, NonOverflow
    from detent.observe.preprocess import PreprocessOptions
    from detent.progress import Progress
    from detent.recipe import Override, Recipe
    from detent.recipe_file import find_recipe
    from detent.report.report import Report

_LAZY = {
    "Emulation": "detent.measure.emulation",
    "Emulator": "detent.measure.emulator",
    "MinMSE": "detent.methods",
    "NonOverflow": "detent.methods",
    "Override": "detent.recipe",
    "PreprocessOptions": "detent.observe.preprocess",
    "Recipe": "detent.recipe",
    "Report": "detent.report.report",
    "find_recipe": "detent.recipe_file",
}
"""Public names whose modules are imported when they are first asked for, so that `import detent` stays quick."""

__all__ = [
    "DataError",
    "DetentError",
    "Emulation",
    "Emulator",
    "MinMSE",
    "ModelError",
    "NonOverflow",
    "OutputError",
    "Override",
    "PreprocessOptions",
    "Recipe",
    "Report",
    "UsageError",
    "__version__",
    "emulate",
    "find_recipe",
    "quantize",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'detent' has no attribute '{name}'")
    return getattr(importlib.import_module(_LAZY[name]), name)


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
        target: the device, if another than the recipe's: "npu-cnn", "npu-float-scale", "npu-vaiml", "npu-bf16"
            or "cpu".
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
        resume: keep what an interrupted calibration counted beside the output, and continue from it.
        dry_run: only decide; run and write nothing.
        progress: called as progress(stage, done, total).

    Raises:
        DetentError: UsageError, ModelError, DataError or OutputError; no output is left behind.
    """
    import onnx

    from detent.calibrate import Collecting, checkpoint_beside
    from detent.graph.session import DEFAULT_PROVIDERS
    from detent.observe.preprocess import preprocess_options
    from detent.opening import Job
    from detent.pipeline import run
    from detent.plan.select import Selection
    from detent.progress import silent
    from detent.recipe_file import find_recipe

    chosen = find_recipe(recipe)
    patterns = ((one,) if isinstance(one, str) else tuple(one) for one in (include, exclude, op_types, start, end))
    target_file = None if output is None else Path(output)
    collecting = Collecting(
        reuse=None if stats is None else Path(stats),
        save=None if save_stats is None else Path(save_stats),
        checkpoint=checkpoint_beside(target_file) if target_file and resume else None,
        executor=executor,
        threads=threads,
        providers=((providers,) if isinstance(providers, str) else tuple(providers)) or DEFAULT_PROVIDERS,
    )
    report = run(
        Job(
            model=model if isinstance(model, onnx.ModelProto) else Path(model),
            output=target_file,
            recipe=chosen if target is None else chosen.replace(target=target),
            calibration=calibration,
            preprocess=preprocess_options(preprocess),
            selection=Selection(*patterns),
            fix_shapes=fix_shapes,
            limit=limit,
            seed=seed,
            batch=batch,
            collecting=collecting,
            dry_run=dry_run,
            progress=progress or silent,
        )
    )
    if report.calibration is not None and report.calibration.random and report.calibration.samples:
        warnings.warn("Calibrated with random data: the accuracy of this model is not real.", stacklevel=2)
    return report


def emulate(
    model: str | PathLike[str] | onnx.ModelProto,
    data: Any = None,
    output: str | PathLike[str] | None = None,
    *,
    rounding: EmulatedRounding = "half-even",
    preprocess: PreprocessOptions | Mapping[str, Any] | str | PathLike[str] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
) -> Emulation:
    """Run an XINT8 model in integers, as the NPU does; returns how its answers differ from onnxruntime's.

    Args:
        model: a quantized model in QDQ form, 8 bits with power-of-two scales; a path, or a ModelProto.
        data: as the calibration data of `quantize`; None for random data.
        output: a folder to write each answer into, as .npy; None: none is written.
        rounding: "half-even", as the file says, or "dpu": ties upwards.
        preprocess: how images become arrays, as for `quantize`.
        limit: use at most this many samples.
        seed: choose them at random with this seed, instead of evenly spaced.
        batch: samples per run.
        progress: called as progress(stage, done, total).

    For single runs, and the codes of every tensor, there is `detent.Emulator`.

    Raises:
        DetentError: UsageError, ModelError, DataError or OutputError.
    """
    import onnx

    from detent.measure.emulation import emulate as run_emulation
    from detent.observe.preprocess import preprocess_options
    from detent.progress import silent

    return run_emulation(
        model if isinstance(model, onnx.ModelProto) else Path(model),
        data,
        rounding=rounding,
        output=None if output is None else Path(output),
        preprocess=preprocess_options(preprocess),
        limit=limit,
        seed=seed,
        batch=batch,
        progress=progress or silent,
    )
