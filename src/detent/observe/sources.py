"""Open calibration or evaluation data, whatever its form, as a `Source` of samples.

    source = open_source("calib/", inputs, limit=128, hold_out=16)
    for pending in source:
        sample = pending.load()

Files and arrays can be counted, so their samples are spread over all the data, held out evenly and stacked into
batches. Streams are taken as they come. Without data there are random numbers, and the source says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detent.errors import DataError, ModelError, UsageError
from detent.observe import samples
from detent.observe.folder import find_files, without_broken
from detent.observe.loaders import LoaderRows, is_loader
from detent.observe.preprocess import Answer, DeclaredImages, InputSpec, Preprocess, PreprocessOptions, guess_preprocess
from detent.observe.rows import Rows, array_rows, image_rows, npy_rows, npz_rows, random_rows, single_input
from detent.observe.store import Digest
from detent.observe.streams import ShardedSource, StreamSource, is_shard_reader, reader_passes

if TYPE_CHECKING:
    import onnx_ir as ir  # reading data does not load onnx


Shape = tuple[int | None, ...]
Sides = tuple[int | None, ...]  # height and width

STRIDES = (8, 16, 32, 64)  # of the grids that common detectors predict on
FEWEST_GRIDS = 3  # of a detector
OBJECT, MOST_OBJECTS = 6, 1000  # corners, score and class of each object that a network chose itself
_MOVING = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "QuantizeLinear", "DequantizeLinear")


def input_specs(model: ir.Model) -> tuple[InputSpec, ...]:
    """Return name, type and shape of every graph input. Raise ModelError for one without a tensor type or a shape."""
    from detent.observe.exporters import declared_images  # it needs onnx, which reading data does not

    declared = declared_images(model)
    return tuple(_spec(value, declared, model.graph.outputs) for value in model.graph.inputs)


def cells_of(image: tuple[int, int]) -> dict[int, int]:
    """Return how many cells the grid of each stride has."""
    return {stride: -(-image[0] // stride) * -(-image[1] // stride) for stride in STRIDES}


def anchors_of(image: tuple[int, int]) -> dict[int, tuple[int, ...]]:
    """Return which strides give how many cells: {8400: (8, 16, 32)} and others, for one anchor to a cell."""
    cells = list(cells_of(image).values())
    return {
        sum(cells[low:high]): STRIDES[low:high]
        for low in range(len(STRIDES))
        for high in range(low + 1, len(STRIDES) + 1)
    }


def _sizes(value: ir.Value) -> Shape:
    return () if value.shape is None else tuple(dim if isinstance(dim, int) else None for dim in value.shape)


def _image_sides(shape: Shape) -> Sides | None:
    """Return height and width of a value that may be an image in colour, by its shape; None if it is not one."""
    if len(shape) != 4 or 3 not in (shape[1], shape[3]):
        return None
    return shape[2:] if shape[1] == 3 else shape[1:3]


def _answer(sides: Sides | None, answers: Sequence[Shape]) -> Answer:
    """Return what a model answers an image of these sides with, by the shapes of its outputs; "" for all else."""
    if sides is None:
        return ""
    for image in filter(None, map(_image_sides, answers)):
        # As large as the image, or larger: several times, or a bit less than that without padding.
        if all(one is None or (own is not None and one >= own) for own, one in zip(sides, image, strict=True)):
            return "image"
    rows = [shape[1:] for shape in answers if len(shape) == 3]
    if len(rows) != 1 or None in sides or None in rows[0]:
        return ""
    first, second = (int(size or 0) for size in rows[0])
    count = {cells: len(strides) for cells, strides in anchors_of((int(sides[0] or 0), int(sides[1] or 0))).items()}
    if second > first >= 5 and count.get(second, 0) >= FEWEST_GRIDS:
        return "yolo"
    if second == OBJECT and first <= MOST_OBJECTS and first not in count:
        return "yolo"
    if first > second >= 6 and max(count.get(first, 0), count.get(first // 3, 0) * (first % 3 == 0)) >= FEWEST_GRIDS:
        return "yolox" if first in count else "yolo"
    return ""


def _of_rows(output: ir.Value) -> Answer:
    """Return which detector writes such rows, one for each cell, by the first and last columns that a Concat joins.

    NanoDet's are scores of classes, then unbounded numbers; all others begin with boxes. YOLOX leaves these as its
    layers compute them, or decodes them together with the scores; YOLO's kind decodes boxes apart from scores.
    """
    node = output.producer()
    while node is not None and node.inputs and node.op_type in ("Concat", *_MOVING):
        first, last = (_kind(node.inputs[at]) for at in (0, -1))
        if node.op_type == "Concat" and first == "Sigmoid" != last:
            return "nanodet"
        if node.op_type == "Concat" and first in ("Mul", "Div") and last == "Sigmoid":
            return "yolo"
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return "yolox"


def _kind(value: ir.Value | None) -> str:
    """Return the operator that computes a value, before what only moves it; "" for none."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type in _MOVING:
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return "" if node is None else node.op_type


def _spec(value: ir.Value, declared: DeclaredImages | None, outputs: Sequence[ir.Value]) -> InputSpec:
    # Types that are not known have the element type 0.
    if not value.dtype or value.shape is None:
        raise ModelError(
            f"Input '{value.name}' has no tensor type or no shape, so no data can be checked against it. "
            "Export the model with typed inputs."
        )
    shape = _sizes(value)
    answer = _answer(_image_sides(shape), [_sizes(output) for output in outputs])
    if answer == "yolox":
        answer = next(filter(lambda rows: rows != "yolox", map(_of_rows, outputs)), answer)
    # NumPy's str, of any length, needs no pickles in files, as Python objects would.
    dtype = value.dtype.numpy()
    return InputSpec(str(value.name), np.dtype(str) if dtype.kind == "O" else dtype, shape, declared, answer)


@dataclass(frozen=True)
class RowSource(samples.Source):
    """Samples from rows that can be counted, stacked into batches of `batch`, all full where `whole`."""

    rows: Rows
    inputs: tuple[InputSpec, ...]
    selection: samples.RowSelection
    batch: int
    whole: bool
    random: bool = False
    preprocess: Preprocess | None = None
    note: str = ""

    @property
    def length(self) -> int:
        """Number of batches in a pass."""
        return samples.batch_count(self.selection, self.batch, whole=self.whole)

    @property
    def describe(self) -> str:
        """One line for the terminal."""
        chosen, held, counted = self.selection.used, len(self.selection.held_out), self.selection.counted
        total = len(self.rows)
        count = str(chosen) if counted or chosen + held + self.selection.dropped == total else f"{chosen} of {total}"
        noun = self.rows.noun if total != 1 else self.rows.noun.removesuffix("s")
        text = f"{count} {noun} {self.rows.place}"
        if held:
            text += f", {held} {'judged by too' if counted else 'more held out'}"
        if self.batch > 1:
            text += f", in batches of {self.batch}"
        if self.selection.dropped:
            text += f" ({self.selection.dropped} left over and not used)"
        return text

    @property
    def fingerprint(self) -> str:
        """The inputs, the rows used (their contents too), those held out, and how they are batched."""
        digest = Digest()
        digest.add_plain([[spec.name, spec.dtype.name] for spec in self.inputs])
        held_out = [] if self.selection.counted else sorted(self.selection.held_out)
        digest.add_plain([list(self.selection.rows), held_out, self.batch])
        digest.add_plain(self.whole and self.batch > 1)  # what is left over is not used
        self.rows.identify(self.selection.rows, digest)
        return digest.text

    def __iter__(self) -> Iterator[samples.PendingSample]:
        return (self.sample(index, group, held_out) for index, (group, held_out) in enumerate(self.groups()))

    def groups(self) -> Iterator[tuple[tuple[int, ...], bool]]:
        """Return the rows of each sample of a pass, and whether it is held out."""
        return samples.batches(self.selection, self.batch, whole=self.whole)

    def sample(self, index: int, group: tuple[int, ...], held_out: bool) -> samples.PendingSample:
        """Return sample number `index` of a pass, made of the rows in `group`."""
        counted = held_out and self.selection.counted
        read = partial(self._read, group)
        return samples.PendingSample(index, self._origin(group), held_out, read, len(group), counted)

    def _origin(self, group: tuple[int, ...]) -> str:
        first = self.rows.origin(group[0])
        return first if len(group) == 1 else f"{first} … {self.rows.origin(group[-1])}"

    def _read(self, group: tuple[int, ...]) -> Mapping[str, samples.Array]:
        # Checked one by one, so that a complaint names the sample and not the batch it is in.
        inputs = samples.without_batch(self.inputs) if samples.shares_batch(self.inputs) else self.inputs
        feeds = [samples.check_feeds(self.rows.read(row), inputs, self.rows.origin(row)) for row in group]
        return feeds[0] if len(feeds) == 1 else self._stack(feeds, group)

    def _stack(self, feeds: list[dict[str, samples.Array]], group: tuple[int, ...]) -> dict[str, samples.Array]:
        for spec in self.inputs:
            for feed, row in zip(feeds, group, strict=True):
                expected, found = list(feeds[0][spec.name].shape), list(feed[spec.name].shape)
                if expected != found:
                    raise DataError(
                        f"{self.rows.origin(row)}: input '{spec.name}' expects shape {expected} to be in one batch "
                        f"with {self.rows.origin(group[0])}, found {found}. Use a batch of 1, or data of one shape."
                    )
        return {spec.name: np.concatenate([feed[spec.name] for feed in feeds]) for spec in self.inputs}


def open_source(
    data: Any,
    inputs: Sequence[InputSpec],
    *,
    preprocess: PreprocessOptions | None = None,
    limit: int | None = None,
    hold_out: samples.HoldOut = 0,
    seed: int | None = None,
    batch: int | None = None,
    strict: bool = False,
) -> samples.Source:
    """Return the samples for a model with these `inputs`.

    `data` is a path (an image, .npy or .npz file or a folder of one kind of these), an array, a dict {input: array}, an
    iterable of arrays or of such dicts, a data loader, a calibration data reader (it has get_next()), a shard reader
    (it has shard(index, count)), or None for random numbers. `limit` is the most samples to read, `hold_out` says
    how many of them are held out, `seed` chooses at random instead of evenly, and `batch` stacks that many samples of
    files and arrays into one. A few images that cannot be read are passed over, unless `strict`.

    Raise `UsageError` for options that contradict the model and `DataError` for data that does not fit it.
    """
    _check_numbers(limit, hold_out, seed, batch)
    if not inputs:
        raise DataError("The model has no inputs: there is nothing to feed.")
    if seed is not None and limit is None and data is not None:
        raise UsageError("--seed chooses which samples are used, so it needs --limit N.")
    options = preprocess or PreprocessOptions()
    recipe, note = None, ""
    rows: Rows
    size, whole = _batch_size(inputs, batch)
    chosen = partial(samples.select, limit=limit, hold_out=hold_out, seed=seed, whole=size if whole else 1)
    if data is None:
        rows = random_rows(inputs, 0 if seed is None else seed)
    elif isinstance(data, (str, os.PathLike)):
        found = find_files(Path(data))
        if found.kind == "image":
            spec = single_input(inputs, "an image", ".npz files with the input names as keys")
            recipe, note = guess_preprocess(spec, options)
            found = without_broken(found, lambda total: chosen(total).rows, strict=strict)
            rows = image_rows(found, inputs, recipe)
        else:
            rows = (npy_rows if found.kind == "npy" else npz_rows)(found, inputs)
    elif isinstance(data, LoaderRows):
        rows = data
    elif isinstance(data, Mapping) or samples.is_array_like(data):
        rows = array_rows(data, inputs)
    else:
        _refuse_options(options)
        if seed is not None:
            raise UsageError("--seed cannot choose from a stream, whose items are taken as they come.")
        return _open_stream(data, inputs, samples.StreamSelection.of(limit, hold_out), batch)
    if recipe is None:
        _refuse_options(options)
    selection = chosen(len(rows))
    if selection.used == 0:
        have = len(rows) if limit is None else min(limit, len(rows))
        raise DataError(
            f"The model takes batches of {size}, but there are only {have} {rows.noun} {rows.place} to calibrate with."
        )
    return RowSource(rows, tuple(inputs), selection, size, whole, data is None, recipe, note)


def _open_stream(
    data: Any, inputs: Sequence[InputSpec], selection: samples.StreamSelection, batch: int | None
) -> StreamSource | ShardedSource:
    if batch not in (None, 1) and inputs[0].shape[0] is None:
        raise UsageError(
            f"--batch {batch} stacks samples of files and arrays; items of a stream are used as they come."
        )
    if is_shard_reader(data):
        return ShardedSource(data, inputs, selection)
    make = partial(StreamSource, inputs=inputs, selection=selection)
    if callable(getattr(data, "get_next", None)):
        rewinds = callable(getattr(data, "rewind", None))
        return make(reader_passes(data), noun="reader", repeatable=rewinds, total=None)
    if isinstance(data, (bytes, bytearray)) or not isinstance(data, Iterable):
        raise UsageError(
            f"Expected data as a path, an array, a dict of arrays, an iterable or a reader with get_next(), "
            f"found {type(data).__name__}."
        )
    # An iterator hands out itself, used up or not; anything else starts afresh.
    once = isinstance(data, Iterator)
    noun, count = (type(data).__name__, _samples_of(data)) if is_loader(data) else ("iterable", "")
    return make(partial(iter, data), noun=noun, repeatable=not once, total=_length(data), count=count)


def _samples_of(loader: Any) -> str:
    """Say how many samples a DataLoader gives: its own length is in batches."""
    if loader.batch_size is None:
        return ""
    count = len(loader.sampler)
    return f"{count - count % loader.batch_size if loader.drop_last else count} samples"


def _length(data: object) -> int | None:
    try:
        return len(data)  # type: ignore[arg-type]  # not every iterable has a length: that is the question
    except (TypeError, NotImplementedError):
        return None


def _batch_size(inputs: Sequence[InputSpec], batch: int | None) -> tuple[int, bool]:
    """Return how many samples are stacked into a feed, and whether the model takes exactly that many and no fewer."""
    if not samples.shares_batch(inputs):
        if batch not in (None, 1):
            shapes = ", ".join(f"'{spec.name}' {spec.shape_text}" for spec in inputs)
            raise UsageError(f"--batch {batch}: the inputs do not share a batch axis ({shapes}).")
        return 1, False
    spec, static = inputs[0], inputs[0].shape[0]
    if static is None:
        return batch or 1, False
    if static < 1:
        raise ModelError(
            f"Input '{spec.name}' of shape {spec.shape_text} takes batches of {static} samples, which hold nothing. "
            "Export the model with a batch of 1, or an open one."
        )
    if batch not in (None, static):
        raise UsageError(
            f"--batch {batch}: input '{spec.name}' of shape {spec.shape_text} takes batches of {static} only."
        )
    return static, True


def _refuse_options(options: PreprocessOptions) -> None:
    given = options.given()
    if given:
        flags = ", ".join("--preprocess" if name == "file" else f"--{name}" for name in given)
        raise UsageError(f"{flags}: only images are preprocessed. Arrays are used as they are, and so is random data.")


def _check_numbers(limit: int | None, hold_out: samples.HoldOut, seed: int | None, batch: int | None) -> None:
    held = hold_out if isinstance(hold_out, int) else None
    for name, value, least in (("limit", limit, 1), ("hold-out", held, 0), ("seed", seed, 0), ("batch", batch, 1)):
        if value is not None and value < least:
            raise UsageError(f"--{name} must be at least {least}, not {value}.")
