"""`detent.infer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from detent.comparison.dump import save_outputs
from detent.evaluation.candidate import as_models
from detent.graph.session import DEFAULT_PROVIDERS
from detent.observe.preprocess import PreprocessOptions, preprocess_options
from detent.pipeline.job import as_names
from detent.progress import Progress, silent


def infer(
    model: str | PathLike[str] | onnx.ModelProto | ir.Model,
    data: Any,
    output: str | PathLike[str],
    *,
    preprocess: PreprocessOptions | Mapping[str, Any] | str | PathLike[str] | None = None,
    limit: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    providers: str | Sequence[str] = (),
    progress: Progress | None = None,
) -> list[Path]:
    """Run a model on data and save each output as .npy, under the name of its sample; returns the files.

    Args:
        model: float or quantized; a path, a ModelProto or an onnx_ir model. It runs in exact arithmetic.
        data: a folder of images, .npy or .npz; a file; an array; `{input: array}`.
        output: a new or empty folder. It is there when all of it is, or not at all.
        preprocess: how images become arrays, as for `quantize`.
        limit: use at most this many samples, evenly spaced.
        batch: samples per inference.
        threads: worker threads; 0: one per core.
        providers: onnxruntime's execution providers; default: the CPU.
        progress: called as progress(stage, done, total).

    Raises:
        DetentError: UsageError, ModelError, DataError or OutputError.
    """
    return save_outputs(
        as_models(model)[0],
        data,
        Path(output),
        preprocess=preprocess_options(preprocess),
        limit=limit,
        batch=batch,
        threads=threads,
        providers=as_names(providers) or DEFAULT_PROVIDERS,
        progress=progress or silent,
    )
