"""Open the data to evaluate models on: samples in a fixed order with names and labels, the same in every pass."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DataError, UsageError
from detent.evaluation.labels import Labels, find_labels, read_label_file
from detent.execute.inference import Batch, named_batches
from detent.observe.preprocess import InputSpec, Preprocess, PreprocessOptions
from detent.observe.sources import RowSource, open_source

FIND = "find"
"""Take the labels in the data's folder, if there are any."""

LabelsLike = str | Path | Sequence[int] | npt.NDArray[Any] | Mapping[str, int] | None


@dataclass(frozen=True)
class Dataset:
    """Samples to iterate over; every iteration is a pass over the same ones.

    `labels` has an entry for each row of the source, used or not, with `label_offset` added. `assumed_classes` is the
    number of class folders, if only their order says which class each of them is.
    """

    source: RowSource
    folder: Path | None
    labels: npt.NDArray[np.int64] | None
    labelled_by: str | None
    assumed_classes: int | None
    label_offset: int = 0

    @property
    def described(self) -> str:
        """Describe the data in a line, such as "128 images from photos/, labels from labels.csv"."""
        labelled = f", labels from {self.labelled_by}" if self.labelled_by else ""
        return f"{self.source.describe}{labelled}"

    @property
    def note(self) -> str:
        """Tell what was guessed about the preprocessing."""
        return self.source.note

    @property
    def preprocess(self) -> Preprocess | None:
        """Return how images are read; None if the data is not images."""
        return self.source.preprocess

    @property
    def batches(self) -> int:
        """Return the number of inferences in a pass."""
        return self.source.length

    def __len__(self) -> int:
        return self.source.selection.used

    def __iter__(self) -> Iterator[Batch]:
        if self.labels is None:
            yield from named_batches(self.source)
            return
        for item, (rows, _) in zip(named_batches(self.source), self.source.groups(), strict=True):
            yield replace(item, labels=self.labels[list(rows)])

    def used_labels(self) -> dict[str, int]:
        """Return the labels of the samples in a pass, by name."""
        if self.labels is None:
            return {}
        return {self.source.rows.origin(row): int(self.labels[row]) for row in self.source.selection.rows}

    def path(self, name: str) -> Path | None:
        """Return the file of a sample; None for a row of an array."""
        file = None if self.folder is None else self.folder / name
        return file if file is not None and file.is_file() else None


def open_dataset(
    data: Any,
    inputs: Sequence[InputSpec],
    *,
    labels: LabelsLike = FIND,
    label_offset: int = 0,
    preprocess: PreprocessOptions | None = None,
    limit: int | None = None,
    batch: int | None = None,
) -> Dataset:
    """Open data for models with these `inputs`.

    `data` is a folder or file, an array or a dict {input: array}. `labels` are those in the folder (`FIND`), a file, a
    list in the order of the samples, {name: label}, or None to use none; `label_offset` is added to each.
    """
    is_path = isinstance(data, (str, os.PathLike))
    path = Path(data) if is_path else None
    found, data = _labels(labels, path, data, [spec.name for spec in inputs])
    source = None if data is None else open_source(data, inputs, preprocess=preprocess, limit=limit, batch=batch)
    if not isinstance(source, RowSource):
        raise UsageError(
            "Models are compared on the same samples, read once for each model: give a folder, a file, an array or a "
            f"dict of arrays, not {type(data).__name__}."
        )
    folder = None if path is None else data if data.is_dir() else data.parent
    if found is None:
        if label_offset:
            raise UsageError(f"--label-offset {label_offset}: there are no labels {source.rows.place}.")
        return Dataset(source, folder, None, None, None)
    names = [source.rows.origin(row) for row in range(len(source.rows))]
    assigned = found.assign(names, source.rows.place) + label_offset
    return Dataset(source, folder, assigned, found.described, found.assumed_classes, label_offset)


def _labels(labels: LabelsLike, path: Path | None, data: Any, inputs: Sequence[str]) -> tuple[Labels | None, Any]:
    """Return the labels, and the data without them."""
    find = isinstance(labels, str) and labels == FIND
    if path is not None and find:
        folder = find_labels(path, inputs)
        return folder.labels, folder.data
    data = data if path is None else path
    if labels is None or find:
        return None, data
    if isinstance(labels, (str, Path)):
        file = Path(labels)
        return read_label_file(file, path if path is not None else file.parent), data
    if isinstance(labels, Mapping):
        return Labels({name: int(label) for name, label in labels.items()}, (), "the given dict of labels"), data
    numbers = np.asarray(labels)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise DataError(f"Labels must be one whole number for each sample, found {numbers.dtype} {numbers.shape}.")
    return Labels(None, numbers.tolist(), "the given list"), data
