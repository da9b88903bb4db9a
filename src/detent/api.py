"""The verbs: what users call, and what the commands of the same names call.

Arguments come in every form that users have them in; here they are settled for the rooms that do the work. What does
the work is imported inside the functions, so that `import detent` and `detent --help` stay quick.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from typing_extensions import Unpack

from detent import options as opt
from detent.errors import UsageError
from detent.graph.guard import guarded

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from detent.convert.splitting import Pipeline, Split
    from detent.numerics.codec import DeviceRounding
    from detent.results.checked import DeviceCheck
    from detent.results.compared import Emulation, FolderComparison, ModelComparison
    from detent.results.evaluated import Evaluation
    from detent.results.quantized import Report
    from detent.results.searched import PrecisionReport, SensitivityReport, Tuning

    FloatModel = str | PathLike[str] | onnx.ModelProto | Any  # Any: torch's types, which are not required
    AnyModel = str | PathLike[str] | onnx.ModelProto | ir.Model | Pipeline


Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def _verb(kind: Any, *models: str) -> Callable[[Callable[Given, Answer]], Callable[Given, Answer]]:
    """Check what a verb is given, and let its model files be tried in another process while it starts (graph/guard.py).

    `kind` is the class of its options, which its docstring gets, too; `models` are the names of its models' arguments.
    """

    def wrap(verb: Callable[Given, Answer]) -> Callable[Given, Answer]:
        parameters = signature(verb).parameters
        if kind is not None:
            verb = opt.documented(kind)(verb)

        @wraps(verb)
        def run(*args: Given.args, **options: Given.kwargs) -> Answer:
            given = {**dict(zip(parameters, args, strict=False)), **options}
            opt.check_arguments(parameters, given)
            if kind is not None:
                opt.settled(kind, {name: value for name, value in options.items() if name not in parameters})
            named = [given.get(name) for name in models]
            files = [file for each in named for file in (each if isinstance(each, (list, tuple)) else [each])]
            with guarded(*files, trust=bool(given.get("trust"))):
                return verb(*args, **options)

        return run

    return wrap


@_verb(opt.QuantizeOptions, "model")
def quantize(
    model: FloatModel,
    output: str | PathLike[str] | None = None,
    calibration: Any = None,
    recipe: opt.RecipeLike | None = None,
    **options: Unpack[opt.QuantizeOptions],
) -> Report:
    """Quantize `model` and write it to `output`; return what was done and what it cost.

    Args:
        model: a path, a ModelProto, a PyTorch module or exported program. Never modified.
        output: where to write; None: the quantized model is `report.model`.
        calibration: a folder of images, .npy or .npz; a file; an array; `{input: array}`; any iterable of these; a
            torch DataLoader; an onnxruntime CalibrationDataReader; None for random data (the accuracy is not real).
        recipe: a name, such as "XINT8", the path of a .toml file, or a Recipe; None: XINT8, for a
            model with attention or SiLU A8W8, or what suits the `device`.
        options: as listed below; the command line has them under the same names.

    Raises:
        DetentError: UsageError, ModelError, DataError or OutputError; no output is left behind.
    """
    from detent.pipeline.first_run import compile_ahead

    compile_ahead()
    from detent.pipeline.job import make_job
    from detent.pipeline.run import Run
    from detent.pipeline.trials import with_better_steps, with_trials

    with _workers(options):
        run = with_better_steps(Run(make_job(model, calibration, recipe, output, **options)))
        report = with_trials(run, run.report()) if run.job.options["try_advice"] else run.report()
    if report.calibration is not None and report.calibration.random and report.calibration.samples:
        warnings.warn("Calibrated with random data: the accuracy of this model is not real.", stacklevel=3)
    return report


@_verb(opt.TuneOptions, "model")
def tune(
    model: FloatModel,
    output: str | PathLike[str] | None = None,
    calibration: Any = None,
    recipe: opt.RecipeLike | None = None,
    **options: Unpack[opt.TuneOptions],
) -> Tuning:
    """Try better and better ways to quantize `model`, and stop at the first that loses little enough.

    The first is the recipe as it is; the result never loses more than that.

    Args:
        model: a path, or a ModelProto. Never modified.
        output: where to write the result; None: it is `tuning.model`.
        calibration: as for `quantize`.
        recipe: what to start from: its number formats and target are kept, but for layers that are spared at the end.
        options: as listed below. `max_drop` is in points of top-1 with labels, in units of the metric with one, else
            in points that the task is expected to lose against the float model's answers (or in percent of output
            error, if the task has no such figure). Without `evaluation` data, the samples that `quantize` would hold
            out of calibration judge, but at least 4.

    Raises:
        DetentError: UsageError, ModelError, DataError or OutputError; no output is left behind.
    """
    from detent.pipeline.job import make_job
    from detent.tuning import run_tuning

    given = opt.settled(opt.TuneOptions, options)
    job = make_job(model, calibration, recipe, **_shared(given))
    return run_tuning(job, None if output is None else Path(output), given)


@_verb(opt.MixOptions, "model")
def mix(
    model: FloatModel,
    calibration: Any = None,
    recipe: opt.RecipeLike = "A8W8",
    **options: Unpack[opt.MixOptions],
) -> PrecisionReport:
    """Choose for each layer's weights, or for each activation, one of several formats; nothing is written.

    Args:
        model: a path, or a ModelProto. Never modified.
        calibration: data as in `quantize`; it must be given.
        recipe: a name, the path of a .toml file, or a Recipe: all but the formats that are chosen.
        options: as listed below. `max_error` is noise power over signal power at the outputs. `candidates` that are
            names take their scales and granularity from the recipe; an IntegerFormat has its own.

    Raises:
        DetentError: UsageError, ModelError or DataError.
    """
    from detent.graph.load import name_of
    from detent.option_values import noise_of
    from detent.pipeline.job import make_job
    from detent.results.searched import PrecisionReport
    from detent.search.mixed_precision import parse_candidates, search_precision

    with _workers(options):
        given = opt.settled(opt.MixOptions, options)
        job = make_job(model, calibration, recipe, **_shared(given))
        formats = parse_candidates(given["candidates"], job.recipe, given["what"])
        wanted, bits = noise_of(given["max_error"]), given["mean_bits"]
        count = given["samples"]
        found = search_precision(job, formats, what=given["what"], max_error=wanted, mean_bits=bits, count=count)
    return PrecisionReport(name_of(job.model), job.recipe, found, wanted, bits)


@_verb(opt.SensitivityOptions, "model")
def sensitivity(
    model: FloatModel,
    calibration: Any = None,
    recipe: opt.RecipeLike | None = None,
    **options: Unpack[opt.SensitivityOptions],
) -> SensitivityReport:
    """Measure, for each layer, what quantizing it alone does to the outputs; nothing is written.

    Args:
        model: a path, or a ModelProto. Never modified.
        calibration: data as in `quantize`; it must be given.
        recipe: as in `quantize`. Its refinement is left out.
        options: as listed below. With `max_error`, noise power over signal power, a recipe that reaches it is proposed.

    Raises:
        DetentError: UsageError, ModelError or DataError.
    """
    from detent.option_values import noise_of
    from detent.pipeline.job import make_job
    from detent.search import probe

    with _workers(options) as executor:
        given = opt.settled(opt.SensitivityOptions, options)
        shared = _shared(given)
        shared["executor"] = None  # it measures as well as counts, so `probe` has it
        job = make_job(model, calibration, recipe, **shared)
        return probe(
            job,
            count=given["samples"],
            exact=given["exact"],
            wanted=noise_of(given["max_error"]),
            way=given["propose"],
            executor=executor,
        )


@_verb(opt.EvaluateOptions, "models")
def evaluate(models: AnyModel | Sequence[AnyModel], data: Any, **options: Unpack[opt.EvaluateOptions]) -> Evaluation:
    """Measure models on the same data, and what each lost against the first, paired sample by sample.

    Args:
        models: paths, ModelProtos, onnx_ir models or PyTorch modules; the first (normally float) is what the others are
            compared with.
        data: a folder of images, .npy or .npz; a file; an array; `{input: array}`; a torch DataLoader.
        options: as listed below. Without a `metric`, the accuracy on labels is measured; without labels, how far the
            outputs are from those of the first model. Labels are found in the folder (class folders, labels.csv,
            labels.txt, a folder `labels` of YOLO's boxes, COCO's annotations.json, a folder `masks`) if none are given.
            With `emulate`, a single model is compared with itself on onnxruntime.

    Raises:
        DetentError: UsageError, ModelError or DataError.
    """
    from detent.evaluation.candidate import as_models
    from detent.evaluation.evaluator import run_evaluation
    from detent.evaluation.metric_file import as_metric

    given = opt.settled(opt.EvaluateOptions, options)
    if given["no_labels"] and given["labels"] not in ("find", None):
        raise UsageError("--labels and --no-labels contradict each other. Give one of them.")
    return run_evaluation(
        as_models(models, given["tail"], data),
        data,
        labels=None if given["no_labels"] else given["labels"],
        label_offset=given["label_offset"],
        metric=as_metric(given["metric"]),
        emulate=given["emulate"] or _emulated_for(given["device"]),
        task=given["task"],
        **_running(given),
    )


@_verb(opt.EvaluateOptions, "models")
def compare_candidates(
    models: Sequence[AnyModel], data: Any, *, estimate_for: str = "stx", **options: Unpack[opt.EvaluateOptions]
) -> Evaluation:
    """Measure several ways to quantize one model side by side: size, estimated time on a device, accuracy.

    Args:
        models: as for `evaluate`; the first (normally float) is what the others are compared with.
        data: as for `evaluate`.
        estimate_for: the device whose time is estimated: phx, hpt, stx, krk or strix-halo.
        options: as listed below.

    Raises:
        DetentError: UsageError, ModelError or DataError.
    """
    from dataclasses import replace

    import onnx

    from detent.device_check import check
    from detent.evaluation.candidate import as_models
    from detent.graph.load import given_model

    models = as_models(models, data=data)
    files = (str, PathLike, onnx.ModelProto)  # of others, the device's file is not known
    checks = [check(given_model(model), estimate_for) if isinstance(model, files) else None for model in models]
    options["trust"] = True  # the trials of those that are files have ended: they were read for their checks
    measured = evaluate(models, data, **options)
    timed = [
        replace(result, cost=None if found is None or found.verdict == "rejected" else found.cost)
        for result, found in zip(measured.models, checks, strict=True)
    ]
    return replace(measured, models=timed)


@_verb(opt.CompareOptions, "before", "after")
def compare(
    before: AnyModel, after: AnyModel, data: Any = None, **options: Unpack[opt.CompareOptions]
) -> ModelComparison | FolderComparison:
    """Compare two models tensor by tensor on data, or without data two folders of results file by file.

    Args:
        before: a model (a path, a ModelProto or an onnx_ir model), or a folder.
        after: another one of the same kind.
        data: for models: a folder of images, .npy or .npz; a file; an array; `{input: array}`.
        options: as listed below.

    Raises:
        DetentError: UsageError, ModelError or DataError.
    """
    from detent.comparison import compare_models
    from detent.comparison.folders import compare_folders
    from detent.evaluation.candidate import as_models

    given = opt.settled(opt.CompareOptions, options)
    both = as_models([before, after], given["tail"], data)
    running = _running(given)
    folders = [model for model in both if isinstance(model, Path) and model.is_dir()]
    if folders:
        if len(folders) == 1:
            raise UsageError(f"{folders[0]} is a folder, and the other is not: give two models or two folders.")
        others = [value for name, value in given.items() if name not in ("progress", "preprocess")]
        if data is not None or running["preprocess"].given() or any(others):
            raise UsageError("Two folders of results are compared as they are: give only the folders.")
        return compare_folders(folders[0], folders[1])
    if data is None:
        missing = [model for model in both if isinstance(model, Path) and not model.exists()]
        if missing:
            raise UsageError(f"There is no {missing[0]}: give two models, or two folders of results.")
        raise UsageError("Give data (--data DIR) to run both models on.")
    return compare_models(both[0], both[1], data, inner=given["inner"], **running)


@_verb(opt.InferOptions, "model")
def infer(model: AnyModel, data: Any, output: str | PathLike[str], **options: Unpack[opt.InferOptions]) -> list[Path]:
    """Run a model on data and save each output as .npy, under the name of its sample; return the files.

    Args:
        model: float or quantized; a path, a ModelProto or an onnx_ir model. It runs in exact arithmetic.
        data: a folder of images, .npy or .npz; a file; an array; `{input: array}`.
        output: a new or empty folder. It is complete in the end, or absent.
        options: as listed below.

    Raises:
        DetentError: UsageError, ModelError, DataError or OutputError.
    """
    from detent.comparison.folders import save_outputs
    from detent.evaluation.candidate import as_models

    given = opt.settled(opt.InferOptions, options)
    return save_outputs(as_models(model, given["tail"], data)[0], data, Path(output), **_running(given))


def _running(given: Any) -> dict[str, Any]:
    """Return how models are run on samples, from the options of a verb that does (see RunningOptions)."""
    from detent.option_values import image_options, providers_of
    from detent.progress import silent

    return {
        "preprocess": image_options(given),
        "limit": given["limit"],
        "batch": given["batch"],
        "threads": given["threads"],
        "providers": providers_of(given["providers"], given["provider_options"]),
        "progress": given["progress"] or silent,
    }


def _emulated_for(device: str | None) -> DeviceRounding | None:
    """Return the rounding to compute in integers with, for a device that rounds otherwise than the file says."""
    from detent.devices.catalog import find_device

    rounding = "half-even" if device is None else find_device(device).rounding
    return None if rounding == "half-even" else rounding


@_verb(opt.EmulateOptions, "model")
def emulate(
    model: FloatModel,
    data: Any = None,
    output: str | PathLike[str] | None = None,
    **options: Unpack[opt.EmulateOptions],
) -> Emulation:
    """Run an XINT8 model in integers, as the NPU does; return how its answers differ from onnxruntime's.

    Args:
        model: a quantized model in QDQ form, 8 bits with power-of-two scales; a path, or a ModelProto.
        data: as the calibration data of `quantize`; None for random data.
        output: a folder to write each answer into, as .npy; None: none is written.
        options: as listed below.

    For single runs, and the codes of every tensor, there is `detent.Emulator`.

    Raises:
        DetentError: UsageError, ModelError, DataError or OutputError.
    """
    from detent.emulator import emulate as run_emulation
    from detent.graph.load import given_model
    from detent.option_values import image_options
    from detent.progress import silent

    given = opt.settled(opt.EmulateOptions, options)
    return run_emulation(
        given_model(model),
        data,
        rounding=given["rounding"] or _emulated_for(given["device"]) or "half-even",  # type: ignore[arg-type]  # any text
        output=None if output is None else Path(output),
        preprocess=image_options(given),
        limit=given["limit"],
        seed=given["seed"],
        batch=given["batch"],
        progress=given["progress"] or silent,
    )


@_verb(None, "model")
def check(
    model: FloatModel, device: str | None = None, *, software: str = "", target: str | None = None
) -> DeviceCheck:
    """Say whether a device takes a float or quantized `model`, node by node, and why not. Nothing is run or changed.

    Args:
        model: a path, or a ModelProto.
        device: "phx", "hpt", "stx", "krk", "strix-halo" or "cpu"; or "npu-xint8", "npu-a8w8", "npu-a16w8", "npu-bf16";
            None: that of these four that the file's numbers are for.
        software: the version of Ryzen AI Software, "1.6", "1.7" or "1.8"; without one, what any of them was seen to do.
        target: the earlier name of `device`.

    Raises:
        DetentError: UsageError for an unknown device or version, ModelError for a file that is not a model.
    """
    from detent.device_check import check as run_check
    from detent.graph.load import given_model

    return run_check(given_model(model), device if target is None else target, software)


@_verb(opt.SplitOptions, "model")
def split(
    model: FloatModel, body: str | PathLike[str], tail: str | PathLike[str], **options: Unpack[opt.SplitOptions]
) -> Split:
    """Cut `model` in two files: a body for the device, and a tail that computes the outputs from what the body gives.

    Args:
        model: float or quantized; a path, or a ModelProto. Never modified.
        body: where to write the first part.
        tail: where to write the second part.
        options: as listed below. `detent.Pipeline(body, tail)` runs the two as one.

    Raises:
        DetentError: UsageError for a place where no cut can be, ModelError or OutputError; no output is left behind.
    """
    from detent.convert.splitting import split as run_split
    from detent.graph.load import given_model
    from detent.option_values import names_of, shapes_of

    given = opt.settled(opt.SplitOptions, options)
    return run_split(given_model(model), Path(body), Path(tail), names_of(given["at"]), shapes_of(given["fix_shape"]))


def _shared(given: Any) -> opt.QuantizeOptions:
    """Return the options that a verb shares with `quantize`."""
    return {name: value for name, value in given.items() if name in opt.declared(opt.QuantizeOptions)}  # type: ignore[return-value]


@contextmanager
def _workers(options: Any) -> Iterator[Any]:
    """Open the workers that `workers` or `dask` ask for, as the option `executor`, for the time of the block."""
    workers, dask = options.pop("workers", None), options.pop("dask", None)
    if workers is None and dask is None:
        yield options.get("executor")
        return
    from detent.observe.executors import open_executor

    if options.get("executor") is not None:
        raise UsageError("executor has workers of its own: leave workers and dask out.")
    with open_executor(workers, dask) as executor:
        options["executor"] = executor
        yield executor
