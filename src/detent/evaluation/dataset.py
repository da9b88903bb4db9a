"""Open the data to evaluate models on: samples in a fixed order with names and labels, the same in every pass.

Labels are found in folders as people keep them:

    photos/cat/1.jpg  photos/dog/7.jpg              a folder for each class
    photos/images/1.jpg  photos/labels.csv          lines of file,label; the images below `images`
    photos/1.jpg  photos/labels.txt                 lines of file and label; the images beside it

    photos/1.jpg  photos/labels.csv                 lines of file and several labels, or a column of 0 and 1 for each
    photos/images/1.jpg  photos/labels/1.txt        boxes of objects, in YOLO's form
    photos/images/1.jpg  photos/annotations.json    boxes of objects, in COCO's form
    photos/images/1.jpg  photos/masks/1.png         the class of each pixel
    pairs.npz                                       first, second and score: how alike two samples are

A label is the index of a class. With a `classes.txt` beside the class folders, class k is the folder on its line k
(counted from 0). Otherwise folders whose names are all whole numbers are those classes, and any others are 0, 1, 2, ...
in the order of their sorted names, which is only right if every class of the model has its folder. A labels file of
numbers alone, one to a line, labels the samples in the order of their sorted names.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DataError, UsageError
from detent.execute.inference import Batch, named_batches
from detent.observe.folder import find_files
from detent.observe.loaders import LoaderRows, is_loader
from detent.observe.preprocess import InputSpec, Preprocess, PreprocessOptions
from detent.observe.sources import RowSource, open_source
from detent.tasks import labels as label_files

LABEL_FILES = ("labels.csv", "labels.txt")
CLASS_FILE = "classes.txt"
IMAGE_FOLDER = "images"
BOX_FOLDER, MASK_FOLDER = "labels", "masks"
COCO_FILES = ("annotations.json", "_annotations.coco.json", "instances*.json", "annotations/instances*.json")
FILE_COLUMNS = ("file", "filename", "image", "path")
LABEL_COLUMNS = ("label", "class", "class_id")
TAG_COLUMNS = ("labels", "tags", "classes")

FIND = "find"  # take the labels in the data's folder, if there are any

LabelsLike = str | Path | Sequence[int] | npt.NDArray[Any] | Mapping[str, int] | None


@dataclass(frozen=True)
class Labels:
    """Classes by the name of the sample, or in the order of the samples. `described` says where they come from.

    `assumed_classes` is the number of class folders, if only their order says which class each of them is.
    """

    by_name: Mapping[str, int] | None
    in_order: Sequence[int]
    described: str
    assumed_classes: int | None = None

    def assign(self, names: Sequence[str], place: str) -> npt.NDArray[np.int64]:
        """Return the label of each of these samples. Raise DataError for a sample or a label without its partner."""
        if self.by_name is None:
            if len(names) != len(self.in_order):
                raise DataError(
                    f"{self.described} has {len(self.in_order)} labels, but there are {len(names)} samples {place}. "
                    "A list of labels needs exactly one for each sample, in the order of their sorted names."
                )
            return np.array(self.in_order, np.int64)
        # A row of an array, `cat/many.npy[3]`, has the label of its file where it has none of its own.
        keys = [name if name in self.by_name else name.rpartition("[")[0] or name for name in names]
        missing = [name for name, key in zip(names, keys, strict=True) if key not in self.by_name]
        label_files.check_partners(missing, set(self.by_name) - set(keys), self.described, place)
        return np.array([self.by_name[key] for key in keys], np.int64)


@dataclass(frozen=True)
class LabelledFolder:
    """The path of the samples, and their labels if there are any."""

    data: Path
    labels: Labels | label_files.TaskLabels | None


def find_labels(path: Path, inputs: Collection[str] = ()) -> LabelledFolder:
    """Look for labels in a folder. A single file has none; folders named like the model's `inputs` are not classes."""
    if not path.is_dir():
        return LabelledFolder(path, None)
    files = [path / name for name in LABEL_FILES if (path / name).is_file()]
    if len(files) > 1:
        raise DataError(f"{path} has both {files[0].name} and {files[1].name}. Keep the one that is right.")
    # Training tools keep images/ beside labels/, masks/ or a list: only images/ holds samples then.
    data = path / IMAGE_FOLDER if (path / IMAGE_FOLDER).is_dir() else path
    if files:
        return LabelledFolder(data, read_label_file(files[0], data))
    found = _find_task_labels(path)
    if found is not None:
        return LabelledFolder(data, found)
    return LabelledFolder(path, class_folders(path, inputs))


def _find_task_labels(path: Path) -> label_files.TaskLabels | None:
    """Look for labels of boxes or pixels, as they are kept beside a folder of images."""
    listed = [file for pattern in COCO_FILES for file in sorted(path.glob(pattern))]
    if len(listed) > 1:
        both = " and ".join(file.relative_to(path).as_posix() for file in listed[:2])
        raise DataError(f"{path} has both {both}. Say which holds the labels of these images: --labels FILE.")
    if listed:
        return label_files.read_coco(listed[0])
    if not (path / IMAGE_FOLDER).is_dir():
        return None
    if (path / BOX_FOLDER).is_dir():
        return read_task_folder(path / BOX_FOLDER)
    return label_files.read_masks(path / MASK_FOLDER) if (path / MASK_FOLDER).is_dir() else None


def read_task_folder(folder: Path) -> label_files.TaskLabels:
    """Read a folder of labels: boxes if there is any text file in it, else masks."""
    has_text = next(folder.rglob("*.txt"), None) is not None
    return label_files.read_yolo(folder) if has_text else label_files.read_masks(folder)


def read_label_file(file: Path, data: Path) -> Labels | label_files.TagLabels:
    """Read the labels in `file`; samples are named relative to `data`, or to the folder of `file` above it."""
    rows = _rows(file)
    if all(len(cells) == 1 for _, cells in rows):
        return Labels(None, [_label(cells[0], file, line) for line, cells in rows], file.name)
    prefix = f"{IMAGE_FOLDER}/" if data == file.parent / IMAGE_FOLDER else ""
    tags = _tags_by_column(rows, file, prefix)
    if tags is not None:
        return tags
    name_at, label_at, rows = _columns(rows, file)
    by_name: dict[str, list[int]] = {}
    for line, cells in rows:
        if len(cells) <= max(name_at, label_at):
            raise DataError(f"{file}, line {line}: expected file,label, found '{','.join(cells)}'.")
        name = _sample_name(cells[name_at], prefix)
        if name in by_name:
            raise DataError(f"{file}, line {line}: '{name}' has a label already. Put all of a sample in one line.")
        by_name[name] = [_label(each, file, line) for each in re.split(r"[\s|;,]+", cells[label_at]) if each]
    bare = next((name for name, each in by_name.items() if not each), None)
    if any(len(each) > 1 for each in by_name.values()):
        return label_files.TagLabels(f"{file.name} (several to a sample)", by_name)
    if bare is not None:  # a sample may have no tag, but it has a class
        raise DataError(f"{file}: '{bare}' has no label. Add what is missing, or take the line out.")
    return Labels({name: each[0] for name, each in by_name.items()}, (), file.name)


def _sample_name(text: str, prefix: str) -> str:
    """Return a name as samples have it. Lists are written on Windows too, and may name files from the folder above."""
    return text.replace("\\", "/").removeprefix("./").removeprefix(prefix)


def _tags_by_column(rows: list[tuple[int, list[str]]], file: Path, prefix: str) -> label_files.TagLabels | None:
    """Read a table with a column of 0 and 1 for each tag, and a header; None if it is another."""
    (_, heads), *body = rows
    count = len(heads) - 1
    if count < 2 or not body or not all(len(cells) == len(heads) for _, cells in body):
        return None
    named = {head.strip().lower() for head in heads}  # a column of labels beside a fold, or no header at all
    if named & {*LABEL_COLUMNS, *TAG_COLUMNS} or all(head in ("0", "1") for head in heads[1:]):
        return None
    if not all(cell in ("0", "1") for _, cells in body for cell in cells[1:]):
        return None
    tags: dict[str, list[int]] = {}
    for line, cells in body:
        name = _sample_name(cells[0], prefix)
        if name in tags:
            raise DataError(f"{file}, line {line}: '{name}' has tags already. Keep one of the lines.")
        tags[name] = [at for at, cell in enumerate(cells[1:]) if cell == "1"]
    return label_files.TagLabels(f"{file.name} (a column for each of {count} tags)", tags, count)


def class_folders(path: Path, inputs: Collection[str] = ()) -> Labels | None:
    """Return the labels that the names of sub-folders stand for; None if there are no class folders."""
    names = find_files(path).names
    if not all("/" in name for name in names):
        return None
    folders = sorted({name.split("/")[0] for name in names})
    listing = path / CLASS_FILE
    listed = listing.is_file()
    if set(folders) <= set(inputs) or (len(folders) < 2 and not listed):
        return None
    assumed = None
    if listed:
        numbers, described = _listed(folders, listing), f"{len(folders)} class folders, numbered by {CLASS_FILE}"
    elif all(folder.isdecimal() for folder in folders):
        numbers, described = {folder: int(folder) for folder in folders}, f"{len(folders)} numbered class folders"
        if len(set(numbers.values())) < len(numbers):
            raise DataError(f"{path}: two class folders have the same number ({', '.join(folders)}). Rename one.")
    else:
        numbers = {folder: index for index, folder in enumerate(folders)}
        described = f"{len(folders)} class folders, numbered from 0 in sorted order"
        assumed = len(folders)
    return Labels({name: numbers[name.split("/")[0]] for name in names}, (), described, assumed)


def _listed(folders: Sequence[str], listing: Path) -> dict[str, int]:
    """Find each folder in a list of classes: as a whole line or its first word, as in lists of ImageNet's classes."""
    lines = [line.strip() for line in label_files.label_text(listing).splitlines()]
    positions = {line.split()[0]: index for index, line in enumerate(lines) if line}
    positions |= {line: index for index, line in enumerate(lines) if line}
    missing = [folder for folder in folders if folder not in positions]
    if missing:
        raise DataError(
            f"{listing} has no line for the class folder{'s' * (len(missing) > 1)} {label_files.some(missing)}."
        )
    return {folder: positions[folder] for folder in folders}


def _rows(file: Path) -> list[tuple[int, list[str]]]:
    """Split the lines that are not empty into cells: at commas, semicolons or tabs, else before the last word."""
    lines = [(number, line) for number, line in enumerate(label_files.label_text(file).splitlines(), 1) if line.strip()]
    if not lines:
        raise DataError(f"{file} is empty. Expected a line file,label for each sample.")
    separator = next((each for each in ",;\t" if each in lines[0][1]), None)
    if separator is None:
        return [(number, line.strip().rsplit(None, 1)) for number, line in lines]
    rows = []
    for number, line in lines:
        try:
            rows.append((number, [cell.strip() for cell in next(csv.reader([line], delimiter=separator))]))
        except csv.Error as error:
            raise DataError(f"{file}, line {number}: it cannot be split into cells ({error}).") from error
    return rows


def _columns(rows: list[tuple[int, list[str]]], file: Path) -> tuple[int, int, list[tuple[int, list[str]]]]:
    """Return which cells are the file and the label, and the rows without the header, if there is one."""
    _, first = rows[0]
    heads = [cell.lower() for cell in first]
    names = [heads.index(head) for head in FILE_COLUMNS if head in heads]
    labels = [heads.index(head) for head in (*LABEL_COLUMNS, *TAG_COLUMNS) if head in heads]
    if names and labels:
        return names[0], labels[0], rows[1:]
    if len(first) != 2 or not _is_whole(first[1]):
        raise DataError(
            f"{file}, line {rows[0][0]}: expected the header file,label or a file and its label (a whole number, the "
            f"index of its class), found '{','.join(first)}'. For classes by name, give each class a folder."
        )
    return 0, 1, rows


def _label(text: str, file: Path, line: int) -> int:
    if not _is_whole(text):
        raise DataError(
            f"{file}, line {line}: the label '{text}' is not a whole number. A label is the index of a class: 0 for "
            "the model's first."
        )
    return int(text)


def _is_whole(text: str) -> bool:
    return len(text) < 19 and text.removeprefix("-").isdecimal()  # longer ones do not fit 64 bits


@dataclass(frozen=True)
class Dataset:
    """Samples to iterate over; every iteration is a pass over the same ones.

    `labels` has an entry for each row of the source, used or not, with `label_offset` added. `assumed_classes` is the
    number of class folders, if only their order says which class each of them is. `truths` are labels of other things
    than classes; there are never both.
    """

    source: RowSource
    folder: Path | None
    labels: npt.NDArray[np.int64] | None
    labelled_by: str | None
    assumed_classes: int | None
    label_offset: int = 0
    truths: label_files.TaskLabels | None = None

    @property
    def described(self) -> str:
        """Describe the data in a line, such as "128 images from photos/, labels from labels.csv"."""
        labelled = f", labels from {self.labelled_by}" if self.labelled_by else ""
        return f"{self.source.describe}{labelled}"

    @property
    def note(self) -> str:
        """Tell what was guessed about the preprocessing, and how labels are understood."""
        return " ".join(filter(None, (self.source.note, "" if self.truths is None else self.truths.note)))

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

    `data` is a folder or file, an array, a dict {input: array} or a DataLoader. `labels` are those in the folder or the
    loader (`FIND`), a file or folder, a list in the order of the samples, {name: label}, or None to use none;
    `label_offset` is added to each.
    """
    path = Path(data) if isinstance(data, (str, os.PathLike)) else None
    if path is not None and labels is not None and label_files.is_pair_file(path):
        return _open_pairs(path, inputs, limit, batch)
    if is_loader(data):
        rows = LoaderRows(data, inputs)
        read = open_source(rows, inputs, preprocess=preprocess, limit=limit, batch=batch)
        assert isinstance(read, RowSource)
        return _of_loader(read, rows, labels, label_offset)
    found, data = _labels(labels, path, data, [spec.name for spec in inputs])
    # A figure of labelled data is of all of it, so what cannot be read is not passed over.
    opened = partial(open_source, preprocess=preprocess, limit=limit, batch=batch, strict=found is not None)
    source = None if data is None else opened(data, inputs)
    if not isinstance(source, RowSource):
        raise UsageError(
            "Models are compared on the same samples, read once for each model: give a folder, a file, an array, a "
            f"dict of arrays or a DataLoader of a dataset with numbered items, not this {type(data).__name__}."
        )
    folder = None if path is None else data if data.is_dir() else data.parent
    if label_offset and not isinstance(found, Labels):
        why = f"there are no labels {source.rows.place}" if found is None else f"{found.described} are no classes"
        raise UsageError(f"--label-offset {label_offset}: {why}.")
    names = [source.rows.origin(row) for row in range(len(source.rows))]
    if found is None:
        return Dataset(source, folder, None, None, None)
    if not isinstance(found, Labels):
        return Dataset(source, folder, None, found.described, None, 0, found.assign(names, source.rows.place))
    assigned = found.assign(names, source.rows.place) + label_offset
    return Dataset(source, folder, assigned, found.described, found.assumed_classes, label_offset)


def _of_loader(source: RowSource, rows: LoaderRows, labels: LabelsLike, label_offset: int) -> Dataset:
    """Return the samples of a DataLoader. Its own labels are used if the samples that are used have them."""
    if not (isinstance(labels, str) and labels == FIND):
        found, _ = _labels(labels, None, rows, [spec.name for spec in rows.inputs])
        if found is None:
            if label_offset:
                raise UsageError(f"--label-offset {label_offset}: there are no labels {rows.place}.")
            return Dataset(source, None, None, None, None)
        if not isinstance(found, Labels):
            raise UsageError(f"{found.described} name files, and the samples {rows.place} have none. Give classes.")
        origins = [rows.origin(row) for row in range(len(rows))]
        return Dataset(
            source, None, found.assign(origins, rows.place) + label_offset, found.described, None, label_offset
        )
    used = list(source.selection.rows)
    if rows.label(used[0]) is None:
        if label_offset:
            raise UsageError(f"--label-offset {label_offset}: there are no labels {rows.place}.")
        return Dataset(source, None, None, None, None)
    assigned = np.zeros(len(rows), np.int64)  # samples that are not used are not read
    for row in used:
        label = rows.label(row)
        if label is None:
            raise DataError(f"{rows.origin(row)} {rows.place} has no label, but {rows.origin(used[0])} has one.")
        assigned[row] = label + label_offset
    return Dataset(source, None, assigned, "the loader", None, label_offset)


def _open_pairs(path: Path, inputs: Sequence[InputSpec], limit: int | None, batch: int | None) -> Dataset:
    """Open a file that holds pairs of samples with their scores. A limit counts pairs."""
    pairs = label_files.read_pairs(path)
    if not pairs.holds_samples:
        raise DataError(
            f"{path} names pairs of samples by their numbers: give the samples as data, and it as --labels."
        )
    count = len(pairs.score)
    used = count if limit is None else min(limit, count)
    # Evenly spaced, not the first: such files are often sorted by score.
    kept = [at * count // used for at in range(used)]
    labels = pairs.labels(kept)
    source = open_source(_pair_feeds(pairs.samples(kept), inputs, path), inputs, batch=batch)
    assert isinstance(source, RowSource)
    return Dataset(source, None, None, labels.described, None, 0, labels)


def _pair_feeds(samples: npt.NDArray[Any], inputs: Sequence[InputSpec], path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs of a model for samples: as they are or, if they are tokens, with their mask and types."""
    if len(inputs) == 1:
        return {inputs[0].name: samples.astype(inputs[0].dtype)}
    # BERT's tokenizers pad with 0. The order matters: "token_type_ids" holds "ids" too.
    made = {"mask": samples != 0, "type": np.zeros_like(samples), "ids": samples}
    feeds = {}
    for spec in inputs:
        kind = next((kind for kind in made if kind in spec.name.lower()), None)
        if kind is None or samples.dtype.kind not in "iu":
            raise DataError(
                f"{path}: the model has several inputs, and '{spec.name}' is not known how to be made from a pair's "
                "tokens; known are input_ids, attention_mask and token_type_ids."
            )
        feeds[spec.name] = made[kind].astype(spec.dtype)
    return feeds


def _labels(
    labels: LabelsLike, path: Path | None, data: Any, inputs: Sequence[str]
) -> tuple[Labels | label_files.TaskLabels | None, Any]:
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
        task_labels = _read_task_labels(file)
        if task_labels is not None:
            inside = path is not None and (path / IMAGE_FOLDER).is_dir()
            return task_labels, path / IMAGE_FOLDER if inside and path is not None else data
        return read_label_file(file, path if path is not None else file.parent), data
    if isinstance(labels, Mapping):
        return Labels({name: int(label) for name, label in labels.items()}, (), "the given dict of labels"), data
    numbers = np.asarray(labels)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise DataError(f"Labels must be one whole number for each sample, found {numbers.dtype} {numbers.shape}.")
    return Labels(None, numbers.tolist(), "the given list"), data


def _read_task_labels(given: Path) -> label_files.TaskLabels | None:
    """Read labels of objects, pixels or pairs; None for a file of classes."""
    if given.is_dir():
        return read_task_folder(given)
    ending = given.suffix.lower()
    if ending == ".json":
        return label_files.read_coco(given)
    if ending == ".npz":
        pairs = label_files.read_pairs(given)
        if pairs.holds_samples:
            raise UsageError(f"{given} holds the samples of its pairs: give it as the data, without --labels.")
        return pairs.labels()
    return None
