"""`detent.evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import onnx
import onnx_ir as ir

from detent.evaluation.candidate import as_models
from detent.evaluation.dataset import LabelsLike
from detent.evaluation.metric_file import Metric, as_metric
from detent.graph.session import DEFAULT_PROVIDERS
from detent.numerics.rounding import DeviceRounding
from detent.observe.preprocess import PreprocessOptions, preprocess_options
from detent.pipeline.evaluating import run_evaluation
from detent.pipeline.job import as_names
from detent.progress import Progress, silent
from detent.results.evaluated import Evaluation


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
    emulate: DeviceRounding | None = None,
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
        emulate: "half-even" or "dpu": compute all models but the first in integers, as the NPU does; a single model
            is compared with itself on onnxruntime.
        progress: called as progress(stage, done, total).

    Raises:
        DetentError: UsageError, ModelError or DataError.
    """
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
        providers=as_names(providers) or DEFAULT_PROVIDERS,
        emulate=emulate,
        progress=progress or silent,
    )
