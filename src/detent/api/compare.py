"""`detent.compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from detent.comparison.folders import compare_folders
from detent.comparison.models import compare_models
from detent.errors import UsageError
from detent.evaluation.candidate import as_models
from detent.graph.session import DEFAULT_PROVIDERS
from detent.observe.preprocess import PreprocessOptions, preprocess_options
from detent.pipeline.job import as_names
from detent.progress import Progress, silent
from detent.results.compared import FolderComparison, ModelComparison


def compare(
    before: str | PathLike[str] | onnx.ModelProto | ir.Model,
    after: str | PathLike[str] | onnx.ModelProto | ir.Model,
    data: Any = None,
    *,
    inner: bool = False,
    preprocess: PreprocessOptions | Mapping[str, Any] | str | PathLike[str] | None = None,
    limit: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    providers: str | Sequence[str] = (),
    progress: Progress | None = None,
) -> ModelComparison | FolderComparison:
    """Compare two models tensor by tensor on data, or without data two folders of results file by file.

    Args:
        before: a model (a path, a ModelProto or an onnx_ir model), or a folder.
        after: another one of the same kind.
        data: for models: a folder of images, .npy or .npz; a file; an array; `{input: array}`.
        inner: also compare what a layer gives to the activation function behind it.
        preprocess: how images become arrays, as for `quantize`.
        limit: use at most this many samples, evenly spaced.
        batch: samples per inference.
        threads: worker threads; 0: one per core.
        providers: onnxruntime's execution providers; default: the CPU.
        progress: called as progress(stage, done, total).

    Raises:
        DetentError: UsageError, ModelError or DataError.
    """
    both = [*as_models(before), *as_models(after)]
    options = preprocess_options(preprocess)
    folders = [model for model in both if isinstance(model, Path) and model.is_dir()]
    if folders:
        if len(folders) == 1:
            raise UsageError(f"{folders[0]} is a folder, and the other is not: give two models or two folders.")
        if data is not None or limit or batch or inner or threads or providers or options.given():
            raise UsageError("Two folders of results are compared as they are: give only the folders.")
        return compare_folders(folders[0], folders[1])
    if data is None:
        missing = [model for model in both if isinstance(model, Path) and not model.exists()]
        if missing:
            raise UsageError(f"There is no {missing[0]}: give two models, or two folders of results.")
        raise UsageError("Give data (--data DIR) to run both models on.")
    return compare_models(
        both[0],
        both[1],
        data,
        preprocess=options,
        limit=limit,
        batch=batch,
        threads=threads,
        providers=as_names(providers) or DEFAULT_PROVIDERS,
        inner=inner,
        progress=progress or silent,
    )
