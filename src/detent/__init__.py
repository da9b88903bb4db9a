"""Detent quantizes trained ONNX models for NPUs.

import detent
report = detent.quantize("model.onnx", "model_int8.onnx", calibration="images/", recipe="XINT8")
print(report)
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from detent.errors import DataError, DetentError, ModelError, OutputError, UsageError
from detent.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    import onnx
    import onnx_ir as ir

    from detent.measure.dataset import LabelsLike
    from detent.measure.device_check import DeviceCheck
    from detent.measure.evaluate import Evaluator
    from detent.measure.metric_file import Metric
    from detent.methods import MinMSE, NonOverflow
    from detent.observe.preprocess import PreprocessOptions
    from detent.progress import Progress
    from detent.recipe import Override, Recipe
    from detent.recipe_file import find_recipe
    from detent.report.evaluation import Evaluation
    from detent.report.page import write_page
    from detent.report.report import Report
    from detent.report.sensitivity_view import SensitivityReport
    from detent.report.tuning import Tuning
    from detent.tuning.tune import tune

_LAZY = {
    "Evaluation": "detent.report.evaluation",
    "Evaluator": "detent.measure.evaluate",
    "Metric": "detent.measure.metric_file",
    "DeviceCheck": "detent.measure.device_check",
    "MinMSE": "detent.methods",
    "NonOverflow": "detent.methods",
    "Override": "detent.recipe",
    "PreprocessOptions": "detent.observe.preprocess",
    "Recipe": "detent.recipe",
    "Report": "detent.report.report",
    "SensitivityReport": "detent.report.sensitivity_view",
    "Tuning": "detent.report.tuning",
    "find_recipe": "detent.recipe_file",
    "tune": "detent.tuning.tune",
    "write_page": "detent.report.page",
}
"""Public names whose modules are imported when they are first asked for, so that `import detent` stays quick."""

__all__ = [
    "DataError",
    "DetentError",
    "DeviceCheck",
    "Evaluation",
    "Evaluator",
    "Metric",
    "MinMSE",
    "ModelError",
    "NonOverflow",
    "OutputError",
    "Override",
    "PreprocessOptions",
    "Recipe",
    "Report",
    "SensitivityReport",
    "Tuning",
    "UsageError",
    "__version__",
    "check",
    "evaluate",
    "find_recipe",
    "quantize",
    "sensitivity",
    "tune",
    "write_page",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'detent' has no attribute '{name}'")
    return getattr(importlib.import_module(_LAZY[name]), name)


def check(model: str | PathLike[str] | onnx.ModelProto, target: str = "npu-xint8") -> DeviceCheck:
    """Whether a device takes a float or quantized `model`, node by node, and why not. Nothing is run or changed.

    Args:
        model: a path, or a ModelProto.
        target: "npu-xint8", "npu-a8w8", "npu-a16w8", "npu-bf16" or "cpu".

    Raises:
        DetentError: UsageError for an unknown target, ModelError for what is no model.
    """
    import onnx

    from detent.measure.device_check import check as run

    return run(model if isinstance(model, onnx.ModelProto) else Path(model), target)


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


def evaluate(
    models: str
    | PathLike[str]
    | onnx.ModelProto
    | ir.Model
    | Sequence[str | PathLike[str] | onnx.ModelProto | ir.Model],
    data: Any,
    *,
    metric: str | PathLike[str] | Metric | None = None,
    labels: LabelsLike = "find",
    label_offset: int = 0,
    preprocess: PreprocessOptions | Mapping[str, Any] | str | PathLike[str] | None = None,
    limit: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    providers: str | Sequence[str] = (),
    progress: Progress | None = None,
) -> Evaluation:
    """Measure models on the same data, and what each lost against the first, paired sample by sample.

    Args:
        models: paths, ModelProtos or onnx_ir models; the first (normally float) is what the others are compared with.
        data: a folder of images, .npy or .npz; a file; an array; `{input: array}`.
        metric: a Python file that defines score(outputs, sample) or metric(outputs, labels), or a Metric. Without, the
            accuracy on labels; without labels, how far the outputs are from those of the first model.
        labels: "find": those in the folder (class folders, labels.csv or labels.txt), if there are any; or a file of
            them; one for each sample in order; {name: label}; None: compare outputs only.
        label_offset: added to every label; 1 where class 0 of the model is its background.
        preprocess: how images become arrays, as for `quantize`.
        limit: use at most this many samples, evenly spaced.
        batch: samples per inference.
        threads: worker threads; 0: one per core.
        providers: onnxruntime's execution providers; default: the CPU.
        progress: called as progress(stage, done, total).

    Raises:
        DetentError: UsageError, ModelError or DataError.
    """
    from detent.evaluating import run_evaluation
    from detent.graph.session import DEFAULT_PROVIDERS
    from detent.measure.candidate import as_models
    from detent.measure.metric_file import as_metric
    from detent.observe.preprocess import preprocess_options
    from detent.progress import silent

    return run_evaluation(
        as_models(models),
        data,
        labels=labels,
        label_offset=label_offset,
        metric=as_metric(metric),
        preprocess=preprocess_options(preprocess),
        limit=limit,
        batch=batch,
        threads=threads,
        providers=((providers,) if isinstance(providers, str) else tuple(providers)) or DEFAULT_PROVIDERS,
        progress=progress or silent,
    )


def sensitivity(
    model: str | PathLike[str] | onnx.ModelProto,
    calibration: Any = None,
    recipe: str | PathLike[str] | Recipe = "XINT8",
    *,
    max_error: float | None = None,
    propose: Literal["exclude", "a16"] = "exclude",
    samples: int = 32,
    exact: bool = False,
    preprocess: PreprocessOptions | Mapping[str, Any] | str | PathLike[str] | None = None,
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
        propose: "exclude" leaves layers float, "a16" gives activations 16 bits.
        samples: measure on up to this many samples.
        exact: measure on all of them, also what each layer gains when it alone is left float.
        preprocess, limit, seed, batch, threads, executor, stats, progress: as in `quantize`; for the calibration.

    Raises:
        DetentError: UsageError, ModelError or DataError.
    """
    import onnx

    from detent.calibrate import Collecting
    from detent.observe.preprocess import preprocess_options
    from detent.opening import Job
    from detent.probing import probe
    from detent.progress import silent
    from detent.recipe_file import find_recipe

    job = Job(
        model=model if isinstance(model, onnx.ModelProto) else Path(model),
        output=None,
        recipe=find_recipe(recipe),
        calibration=calibration,
        preprocess=preprocess_options(preprocess),
        limit=limit,
        seed=seed,
        batch=batch,
        collecting=Collecting(reuse=None if stats is None else Path(stats), executor=executor, threads=threads),
        progress=progress or silent,
    )
    return probe(job, count=samples, exact=exact, wanted=max_error, way=propose)
