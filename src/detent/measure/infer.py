"""What a model answers, saved sample by sample: a .npy file for each output, under the name of its sample.

    photos/cat/1.jpg  ->  out/cat/1.npy                 a model of one output
                          out/cat/1/boxes.npy  ...      of several
    data.npy, row 7   ->  out/data_7.npy

Arrays have the model's type and a batch axis of 1. Two folders of results can be compared file by file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detent.errors import DataError, OutputError
from detent.graph.save import output_errors, scratch_folder
from detent.graph.session import DEFAULT_PROVIDERS
from detent.measure.candidate import AnyModel, Candidate, rows_of
from detent.measure.dataset import Batch, open_dataset
from detent.measure.in_order import in_order
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import Array
from detent.progress import Progress, silent

STAGE = "infer"


def save_outputs(
    model: AnyModel,
    data: Any,
    out: Path,
    *,
    preprocess: PreprocessOptions | None = None,
    limit: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    providers: Sequence[str] = DEFAULT_PROVIDERS,
    progress: Progress = silent,
) -> tuple[list[Path], str]:
    """Run the model on all samples; returns the files that were written below `out`, and what the data was.

    The folder is there when all of it is, or not at all.
    """
    candidate = Candidate(model, providers)
    dataset = open_dataset(data, candidate.inputs, labels=None, preprocess=preprocess, limit=limit, batch=batch)
    _check_folder(out)
    names = {name: _stem(name) for item in dataset for name in item.names}
    _check_names(names)

    def look(item: Batch) -> dict[str, Array]:
        return candidate(item.pending.load())

    files: list[Path] = []
    progress(STAGE, 0, dataset.batches)
    with output_errors(out), scratch_folder(out) as scratch:
        results = scratch / out.name
        results.mkdir()
        for done, (item, outputs) in enumerate(in_order(look, dataset, threads), 1):
            for at, name in enumerate(item.names):
                files += _save(rows_of(outputs, at, len(item.names), item.pending.origin), results, names[name])
            progress(STAGE, done, dataset.batches)
        results.replace(out)
    return [out / file.relative_to(results) for file in files], dataset.described


def _save(outputs: Mapping[str, Array], folder: Path, stem: str) -> list[Path]:
    single = len(outputs) == 1
    files = {name: folder / (f"{stem}.npy" if single else f"{stem}/{_safe(name)}.npy") for name in outputs}
    for name, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, outputs[name], allow_pickle=False)
    return list(files.values())


def _stem(name: str) -> str:
    """The sample's name without its ending; a row's number behind an underscore."""
    row = re.fullmatch(r"(.*)\[(\d+)\]", name)
    path, number = (row[1], f"_{row[2]}") if row else (name, "")
    return str(Path(path).with_suffix("")) + number


def _safe(name: str) -> str:
    """An output's name as a file can have it."""
    return re.sub(r"[^\w.-]+", "_", name).strip("_") or "output"


def _check_names(names: Mapping[str, str]) -> None:
    first: dict[str, str] = {}
    for name, stem in names.items():
        other = first.setdefault(stem, name)
        if other != name:
            raise DataError(f"The outputs of {other} and {name} would both be called {stem}.npy. Rename one of them.")


def _check_folder(out: Path) -> None:
    """A folder that is new or empty: what is left of another run would be taken for results of this one."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"{out} exists and is not an empty folder. Give another --out, or empty it.")
    with output_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
