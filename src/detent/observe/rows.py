"""Data whose samples can be counted and read in any order: arrays in memory, files, generated numbers.

A row is one sample as it was stored. Where the inputs of the model share a batch axis, a row comes without that axis or
with an axis of length one, so that rows can be stacked. Where they do not, a row is a complete feed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from detent.errors import DataError, UsageError
from detent.observe.digest import Digest
from detent.observe.preprocess import InputSpec, Preprocess
from detent.observe.samples import Array, as_array, check_dtype, check_names, shares_batch

RANDOM_SAMPLES = 8


class Rows(Protocol):
    """Samples in a fixed order. `read` may be called from several threads at once."""

    @property
    def noun(self) -> str:
        """What the samples are, in the plural: "images"."""

    @property
    def place(self) -> str:
        """Where they come from: "from calib/"."""

    def __len__(self) -> int: ...

    def origin(self, row: int) -> str:
        """The name of one sample in messages."""

    def read(self, row: int) -> Mapping[str, Array]:
        """The arrays of one sample by input name, not checked yet."""

    def identify(self, rows: Sequence[int], digest: Digest) -> None:
        """Add to `digest` what tells these samples from others: names and contents, not where they are."""


@dataclass(frozen=True)
class Part:
    """One file, or one set of arrays. `count` is the number of rows along the first axis; None: it is one sample.

    `fetch` reads one row; it is given None to read the whole. `identify` adds the contents to a digest.
    """

    origin: str
    count: int | None
    fetch: Callable[[int | None], Mapping[str, Array]]
    identify: Callable[[Digest], None]


class PartRows:
    """The rows of several parts, one after the other."""

    def __init__(self, parts: Sequence[Part], place: str) -> None:
        self.noun = "samples"
        self.place = place
        self._parts = tuple(parts)
        self._ends = tuple(accumulate(1 if part.count is None else part.count for part in parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def origin(self, row: int) -> str:
        """The part's name, with the row in brackets if it has several."""
        part, inner = self._locate(row)
        return part.origin if part.count in (None, 1) else f"{part.origin}[{inner}]"

    def read(self, row: int) -> Mapping[str, Array]:
        """The arrays of one row."""
        part, inner = self._locate(row)
        return part.fetch(None if part.count is None else inner)

    def identify(self, rows: Sequence[int], digest: Digest) -> None:
        """The parts that these rows are in, each as a whole."""
        for part in dict.fromkeys(self._locate(row)[0] for row in rows):
            digest.add(part.origin, part.count)
            part.identify(digest)

    def _locate(self, row: int) -> tuple[Part, int]:
        at = bisect_right(self._ends, row)
        return self._parts[at], row - (self._ends[at - 1] if at else 0)


@dataclass(frozen=True)
class ImageRows:
    """Image files for a model of one input. `names` are paths relative to `folder`."""

    folder: Path
    names: Sequence[str]
    input_name: str
    recipe: Preprocess
    place: str
    noun: str = "images"

    def __len__(self) -> int:
        return len(self.names)

    def origin(self, row: int) -> str:
        """The file's path within the folder."""
        return self.names[row]

    def read(self, row: int) -> Mapping[str, Array]:
        """Decode one image."""
        return {self.input_name: self.recipe.load(self.folder / self.names[row])}

    def identify(self, rows: Sequence[int], digest: Digest) -> None:
        """How images are read, and the files of these rows."""
        digest.add_plain(self.recipe.to_dict())
        for row in rows:
            digest.add(self.names[row])
            digest.add_file(self.folder / self.names[row])


@dataclass(frozen=True)
class RandomRows:
    """Numbers without meaning, to try a model without data: standard normal, or 0 and 1 for integers.

    Every row has its own generator, so that neither order nor threads change the numbers.
    """

    inputs: tuple[InputSpec, ...]
    seed: int
    count: int
    noun: str = "samples"

    @property
    def place(self) -> str:
        """Says loudly that nothing was measured."""
        return f"of RANDOM numbers (seed {self.seed}): no data was given, so ranges and accuracy mean nothing"

    def __len__(self) -> int:
        return self.count

    def origin(self, row: int) -> str:
        """The number of the sample."""
        return f"random sample {row}"

    def read(self, row: int) -> Mapping[str, Array]:
        """Generate one sample."""
        feeds = {}
        for position, (spec, shape) in enumerate(zip(self.inputs, self._shapes(), strict=True)):
            generator = np.random.default_rng((self.seed, row, position))
            feeds[spec.name] = _random(generator, spec.dtype, shape)
        return feeds

    def _shapes(self) -> list[tuple[int, ...]]:
        """With a shared batch axis rows are stacked, so each has a batch of one; else they are complete feeds."""
        batched = shares_batch(self.inputs)
        firsts = [1 if batched else spec.shape[0] or 1 if spec.shape else None for spec in self.inputs]
        return [
            () if first is None else (first, *(dim or 1 for dim in spec.shape[1:]))
            for first, spec in zip(firsts, self.inputs, strict=True)
        ]

    def identify(self, rows: Sequence[int], digest: Digest) -> None:  # noqa: ARG002  (all rows follow from the seed)
        """The seed and the shapes, which decide every number."""
        digest.add("random", self.seed)
        digest.add_plain([list(shape) for shape in self._shapes()])


def _random(generator: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if dtype.kind in "iub":
        return np.asarray(generator.integers(0, 2, shape)).astype(dtype)
    return np.asarray(generator.standard_normal(shape)).astype(dtype)


def random_rows(inputs: Sequence[InputSpec], seed: int) -> RandomRows:
    """Eight feeds of random numbers. Only the batch axis may be dynamic: nobody can guess the others."""
    for spec in inputs:
        if None in spec.shape[1:]:
            raise UsageError(
                f"input '{spec.name}' has the shape {spec.shape_text}, so random data needs to know its dynamic "
                "dimensions. Give --fix-shape, or data."
            )
        if spec.dtype.kind not in "fiub":
            raise UsageError(f"input '{spec.name}' takes {spec.dtype.name}: there is no random data for it. Give data.")
    per_feed = (inputs[0].shape[0] or 1) if shares_batch(inputs) else 1
    return RandomRows(tuple(inputs), seed, RANDOM_SAMPLES * per_feed)


def array_rows(data: object, inputs: Sequence[InputSpec]) -> PartRows:
    """Rows of one array in memory, or of a mapping from input names to arrays."""
    if isinstance(data, Mapping):
        origin, place = "dict", "from a dict of arrays"
        check_names(data, inputs, "the dict")
        arrays = {name: as_array(value, f"the dict: input '{name}'") for name, value in data.items()}
    else:
        origin, place = "array", "from an array"
        only = single_input(inputs, "one array", "a dict {input name: array}")
        arrays = {only.name: as_array(data, "the array")}
    for spec in inputs:
        check_dtype(arrays[spec.name].dtype, spec, f"the {origin}: input '{spec.name}'")
    count = count_rows({name: array.shape for name, array in arrays.items()}, inputs, f"the {origin}")
    return PartRows([Part(origin, count, partial(take_row, arrays), partial(_add_arrays, arrays))], place)


def _add_arrays(arrays: Mapping[str, Array], digest: Digest) -> None:
    for name, array in sorted(arrays.items()):
        digest.add(name)
        digest.add_array(array)


def take_row(arrays: Mapping[str, Array], row: int | None) -> Mapping[str, Array]:
    """Row `row` of each array, or the arrays themselves."""
    return arrays if row is None else {name: np.asarray(array[row]) for name, array in arrays.items()}


def single_input(inputs: Sequence[InputSpec], what: str, instead: str) -> InputSpec:
    """The only input of the model, or a `DataError` that says why `what` cannot feed it."""
    if len(inputs) != 1:
        names = ", ".join(f"'{spec.name}'" for spec in inputs)
        raise DataError(f"The model has {len(inputs)} inputs ({names}): {what} cannot feed it. Give {instead}.")
    return inputs[0]


def count_rows(shapes: Mapping[str, tuple[int, ...]], inputs: Sequence[InputSpec], origin: str) -> int | None:
    """How many samples lie along the first axis of these arrays, or None if together they are just one.

    For inputs that share a batch axis: arrays of the input's rank hold rows, arrays of one rank less are one sample.
    Otherwise arrays of the input's rank are one sample, and an axis more in any of them makes rows of them all.
    """
    extra = {len(shapes[spec.name]) - len(spec.shape) for spec in inputs}
    counts = {spec.name: shapes[spec.name][0] for spec in inputs if shapes[spec.name]}
    same = len(counts) == len(inputs) and len(set(counts.values())) == 1
    if extra == {-1}:
        return None
    if not shares_batch(inputs):
        return next(iter(counts.values())) if extra <= {0, 1} and 1 in extra and same else None
    for spec in inputs:
        shape = shapes[spec.name]
        if len(shape) - len(spec.shape) not in (0, -1):
            raise DataError(
                f"{origin}: input '{spec.name}' expects shape {spec.shape_text}, or samples of it along the first "
                f"axis, found {list(shape)}: {len(shape)} axes instead of {len(spec.shape)}."
            )
    full = [shapes[spec.name][0] for spec in inputs if len(shapes[spec.name]) == len(spec.shape)]
    if extra == {-1, 0} and set(full) == {1}:
        return None
    if extra != {0} or not same:
        found = ", ".join(f"'{name}' {count}" for name, count in counts.items())
        raise DataError(f"{origin}: the inputs must have the same number of samples, found {found}.")
    if full[0] == 0:
        raise DataError(f"{origin}: expected samples along the first axis, found an empty batch (0 samples).")
    return full[0]
