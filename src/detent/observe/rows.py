"""Samples that can be counted and read in any order: arrays in memory, files, generated numbers.

A row is one sample as it was stored. Where the inputs of the model share a batch axis, a row comes without that axis or
with an axis of length one, so that rows can be stacked. Otherwise a row is a complete feed.

Opening files reads only the headers of .npy and .npz files, to count their samples. Pickled data is never loaded. The
rows of a .npy file are read one by one through a memory map that is closed at once, so that thousands of files need no
open handles; a .npz file is decompressed whole, and the last ones used are kept.
"""

from __future__ import annotations

import math
import threading
import tokenize
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from detent.errors import DataError, UsageError, nearest
from detent.observe.folder import Found
from detent.observe.preprocess import InputSpec, Preprocess
from detent.observe.samples import Array, as_array, check_dtype, check_names, shares_batch, without_text
from detent.observe.store import Digest

RANDOM_SAMPLES = 8  # random data says nothing, so a few are enough

# Images whose pixels are kept between the stages of a run, and the most bytes that they may take.
KEPT_IMAGES, KEPT_BYTES = 128, 24 << 20


class Rows(Protocol):
    """Samples in a fixed order. `read` may be called from several threads at once."""

    @property
    def noun(self) -> str:
        """What the samples are, in the plural: "images"."""

    @property
    def place(self) -> str:
        """Where they come from: "from calib/"."""

    @property
    def in_memory(self) -> bool:
        """Whether they are arrays of this process, which no other can read."""

    def __len__(self) -> int: ...

    def origin(self, row: int) -> str:
        """Return the name of one sample in messages."""

    def read(self, row: int) -> Mapping[str, Array]:
        """Return the arrays of one sample by input name, not checked yet."""

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

    def __init__(self, parts: Sequence[Part], place: str, *, in_memory: bool = False) -> None:
        self.noun = "samples"
        self.place, self.in_memory = place, in_memory
        self._parts = tuple(parts)
        self._ends = tuple(accumulate(1 if part.count is None else part.count for part in parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def origin(self, row: int) -> str:
        """Return the part's name, with the row in brackets if it has several."""
        part, inner = self._locate(row)
        return part.origin if part.count in (None, 1) else f"{part.origin}[{inner}]"

    def read(self, row: int) -> Mapping[str, Array]:
        part, inner = self._locate(row)
        return part.fetch(None if part.count is None else inner)

    def identify(self, rows: Sequence[int], digest: Digest) -> None:
        """Add the parts that these rows are in, each as a whole."""
        for part in dict.fromkeys(self._locate(row)[0] for row in rows):
            digest.add(part.origin, part.count)
            part.identify(digest)

    def _locate(self, row: int) -> tuple[Part, int]:
        at = bisect_right(self._ends, row)
        return self._parts[at], row - (self._ends[at - 1] if at else 0)


@dataclass(frozen=True)
class _ImageRows:
    """Image files for a model of one input. `names` are paths relative to `folder`.

    The pixels of the first images are kept: stage after stage looks at these.
    """

    folder: Path
    names: Sequence[str]
    input_name: str
    recipe: Preprocess
    place: str
    noun: str = "images"
    in_memory: bool = False
    kept: dict[int, Array] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.names)

    def __getstate__(self) -> dict[str, object]:
        # What is kept is not sent to other processes.
        return {**self.__dict__, "kept": {}}

    def origin(self, row: int) -> str:
        return self.names[row]

    def read(self, row: int) -> Mapping[str, Array]:
        pixels = self.kept.get(row)
        if pixels is None:
            pixels = self.recipe.pixels(self.folder / self.names[row])
            before = list(self.kept.values())
            if len(before) < KEPT_IMAGES and sum(each.nbytes for each in before) + pixels.nbytes <= KEPT_BYTES:
                self.kept[row] = pixels
        return {self.input_name: self.recipe.normalise(pixels)}

    def identify(self, rows: Sequence[int], digest: Digest) -> None:
        digest.add_plain(self.recipe.to_dict())
        for row in rows:
            digest.add(self.names[row])
            digest.add_file(self.folder / self.names[row])


def image_rows(found: Found, inputs: Sequence[InputSpec], recipe: Preprocess) -> Rows:
    """Return the rows of image files, read as `recipe` says."""
    return _ImageRows(found.folder, found.names, inputs[0].name, recipe, found.place)


@dataclass(frozen=True)
class _RandomRows:
    """Numbers without meaning, to try a model without data: standard normal, or 0 and 1 for integers.

    Every row has its own generator, so that neither order nor threads change the numbers.
    """

    inputs: tuple[InputSpec, ...]
    seed: int
    count: int
    noun: str = "samples"
    in_memory: bool = False

    @property
    def place(self) -> str:
        return f"of RANDOM numbers (seed {self.seed}): no data was given, so ranges and accuracy mean nothing"

    def __len__(self) -> int:
        return self.count

    def origin(self, row: int) -> str:
        return f"random sample {row}"

    def read(self, row: int) -> Mapping[str, Array]:
        feeds = {}
        for position, (spec, shape) in enumerate(zip(self.inputs, self._shapes(), strict=True)):
            generator = np.random.default_rng((self.seed, row, position))
            whole = spec.dtype.kind in "iub"
            values = generator.integers(0, 2, shape) if whole else generator.standard_normal(shape)
            feeds[spec.name] = np.asarray(values).astype(spec.dtype)
        return feeds

    def _shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of a row: a batch of one if rows are stacked along a shared batch axis, else a feed."""
        batched = shares_batch(self.inputs)
        firsts = [1 if batched else spec.shape[0] or 1 if spec.shape else None for spec in self.inputs]
        return [
            () if first is None else (first, *(dim or 1 for dim in spec.shape[1:]))
            for first, spec in zip(firsts, self.inputs, strict=True)
        ]

    def identify(self, rows: Sequence[int], digest: Digest) -> None:  # noqa: ARG002  (all rows follow from the seed)
        digest.add("random", self.seed)
        digest.add_plain([list(shape) for shape in self._shapes()])


MOST_RANDOM = 1 << 28  # elements of an input, beyond which random data would take the machine's memory


def cannot_be_random(inputs: Sequence[InputSpec]) -> str:
    """Return why there is no random data for these inputs, or nothing: only the batch axis can be guessed."""
    for spec in inputs:
        if None in spec.shape[1:]:
            return (
                f"input '{spec.name}' has the shape {spec.shape_text}, so random data needs to know its dynamic "
                "dimensions. Give --fix-shape, or data."
            )
        if spec.dtype.kind not in "fiub":
            kind = spec.type_text
            return f"input '{spec.name}' takes {kind}: there is no random data for it. Give data."
        if math.prod(size or 1 for size in spec.shape) > MOST_RANDOM:
            return f"input '{spec.name}' has the shape {spec.shape_text}, too large for random data. Give data."
    return ""


def random_rows(inputs: Sequence[InputSpec], seed: int) -> Rows:
    """Return eight feeds of random numbers; UsageError if there is none for these inputs."""
    if reason := cannot_be_random(inputs):
        raise UsageError(reason)
    per_feed = (inputs[0].shape[0] or 1) if shares_batch(inputs) else 1
    return _RandomRows(tuple(inputs), seed, RANDOM_SAMPLES * per_feed)


def array_rows(data: object, inputs: Sequence[InputSpec]) -> Rows:
    """Return the rows of one array in memory, or of a mapping from input names to arrays."""
    if isinstance(data, Mapping):
        origin, place = "dict", f"from a dict of arrays{without_text(check_names(data, inputs, 'the dict'))}"
        arrays = {spec.name: as_array(data[spec.name], f"the dict: input '{spec.name}'") for spec in inputs}
    else:
        origin, place = "array", "from an array"
        only = single_input(inputs, "one array", "a dict {input name: array}")
        arrays = {only.name: as_array(data, "the array")}
    for spec in inputs:
        check_dtype(arrays[spec.name].dtype, spec, f"the {origin}: input '{spec.name}'")
    count = count_rows({name: array.shape for name, array in arrays.items()}, inputs, f"the {origin}")
    part = Part(origin, count, partial(take_row, arrays), partial(_add_arrays, arrays))
    return PartRows([part], place, in_memory=True)


def _add_arrays(arrays: Mapping[str, Array], digest: Digest) -> None:
    for name, array in sorted(arrays.items()):
        digest.add(name)
        digest.add_array(array)


def take_row(arrays: Mapping[str, Array], row: int | None) -> Mapping[str, Array]:
    """Return row `row` of each array, or the arrays themselves."""
    return {name: np.asarray(array[... if row is None else row]) for name, array in arrays.items()}


def single_input(inputs: Sequence[InputSpec], what: str, instead: str) -> InputSpec:
    """Return the only input of the model. Raise `DataError` that says why `what` cannot feed several."""
    if len(inputs) != 1:
        names = ", ".join(f"'{spec.name}'" for spec in inputs)
        raise DataError(f"The model has {len(inputs)} inputs ({names}): {what} cannot feed it. Give {instead}.")
    return inputs[0]


def count_rows(shapes: Mapping[str, tuple[int, ...]], inputs: Sequence[InputSpec], origin: str) -> int | None:
    """Return how many samples lie along the first axis of these arrays, or None if together they are just one.

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


def npy_rows(found: Found, inputs: Sequence[InputSpec]) -> Rows:
    """Return the rows of .npy files; for several inputs, from a sub-folder for each with the same file names."""
    if len(found.names) == 1:
        single_input(inputs, found.names[0], "a .npz file with the input names as keys")
    if len(inputs) == 1:
        sets = {name: {inputs[0].name: found.folder / name} for name in found.names}
    else:
        sets = _sets_by_input(found, inputs)
    return PartRows([_npy_part(origin, paths, inputs) for origin, paths in sets.items()], found.place)


def _sets_by_input(found: Found, inputs: Sequence[InputSpec]) -> dict[str, dict[str, Path]]:
    known = [spec.name for spec in inputs]
    sets: dict[str, dict[str, Path]] = {}
    for name in found.names:
        # An input name may itself contain slashes, so it is matched as a prefix and the longest wins.
        owner = max((one for one in known if name.startswith(f"{one}/")), key=len, default=None)
        if owner is None:
            hint = nearest(name.split("/")[0], known) if "/" in name else ""
            raise DataError(
                f"{found.folder}: {name} belongs to no input.{hint} A model of several inputs needs one sub-folder "
                f"of .npy files for each: {', '.join(f'{one}/' for one in known)}."
            )
        sets.setdefault(name[len(owner) + 1 :], {})[owner] = found.folder / name
    for name, paths in sets.items():
        for one in known:
            if one not in paths:
                raise DataError(
                    f"{found.folder}: {next(iter(paths))}/{name} has no counterpart for input '{one}'. "
                    f"Expected {one}/{name}."
                )
    return dict(sorted(sets.items()))


def _npy_part(origin: str, paths: Mapping[str, Path], inputs: Sequence[InputSpec]) -> Part:
    shapes = {name: open_npy(path).shape for name, path in paths.items()}
    return Part(origin, count_rows(shapes, inputs, origin), partial(_fetch_npy, paths), partial(_add_files, paths))


def _add_files(paths: Mapping[str, Path], digest: Digest) -> None:
    for name, path in sorted(paths.items()):
        digest.add(name)
        digest.add_file(path)


def _fetch_npy(paths: Mapping[str, Path], row: int | None) -> dict[str, Array]:
    # Copied, so that the map (and the file handle it holds) goes away with this call.
    return {name: np.array(open_npy(path)[... if row is None else row]) for name, path in paths.items()}


# What numpy raises on files that are not arrays.
ARRAY_ERRORS: tuple[type[Exception], ...] = (
    *(OSError, ValueError, EOFError, KeyError, TypeError, OverflowError, MemoryError),
    *(SyntaxError, RecursionError, tokenize.TokenError, AttributeError),  # of a header, which is parsed as Python
    *(NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error),  # of an archive; one may be encrypted
)

# numpy parses the header of a .npy file as Python, and two threads of Python 3.11 that do so at once may fail.
_header_lock = threading.Lock()


def open_npy(path: Path) -> Array:
    """Return the array in a .npy file, memory-mapped for reading. Raise `DataError` naming the file."""
    try:
        _refuse_empty(path)
        with _header_lock:
            return np.lib.format.open_memmap(path, mode="r")
    except ARRAY_ERRORS as error:
        raise DataError(f"{path}: this .npy file cannot be read ({_why(error)}).") from error


class _LastArchives:
    """Loads .npz files and keeps the last two. What it keeps stays behind when it is pickled.

    Rows of one file are mostly read one after the other: without this, each would decompress it again. Two, because
    threads that work in parallel may be in neighbouring files.
    """

    def __init__(self) -> None:
        self._load = lru_cache(maxsize=2)(load_npz)

    def row(self, path: Path, names: frozenset[str], row: int | None) -> Mapping[str, Array]:
        return take_row(self._load(path, names), row)

    def __reduce__(self) -> tuple[type[_LastArchives], tuple[()]]:
        return _LastArchives, ()


def npz_rows(found: Found, inputs: Sequence[InputSpec]) -> Rows:
    """Return the rows of .npz files whose keys are the names of the inputs. Other arrays in them are not read."""
    archives, names = _LastArchives(), frozenset(spec.name for spec in inputs)
    parts, others = [], list[str]()
    for name in found.names:
        path = found.folder / name
        shapes = npz_shapes(path, names)
        others += check_names(shapes, inputs, name)
        count = count_rows(shapes, inputs, name)
        parts.append(Part(name, count, partial(archives.row, path, names), partial(_add_files, {"": path})))
    return PartRows(parts, found.place + without_text(others))


# Bytes, and how many times its own size an archive beyond them may unpack to.
LARGE_ARCHIVE, MOST_UNPACKED = 500 << 20, 20


def npz_shapes(path: Path, names: Collection[str] | None = None) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays in a .npz file, from their headers alone; () for one not in `names`."""
    try:
        _refuse_empty(path)
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            unpacked = sum(member.file_size for member in members)
            if unpacked > max(LARGE_ARCHIVE, MOST_UNPACKED * path.stat().st_size):
                raise ValueError(f"its {path.stat().st_size:,} bytes unpack to {unpacked:,}; save it as .npy files")
            shapes = {}
            for member in members:
                name = member.filename.removesuffix(".npy")
                with archive.open(member) as stream:
                    shapes[name] = _read_shape(stream, member.file_size) if names is None or name in names else ()
            return shapes
    except ARRAY_ERRORS as error:
        raise DataError(f"{path}: this .npz file cannot be read ({_why(error)}).") from error


def _read_shape(stream: IO[bytes], held: int) -> tuple[int, ...]:
    """Return the shape that a header declares. Raise ValueError if that is more than the bytes that are held."""
    version = np.lib.format.read_magic(stream)
    # Version 3 is written for named fields only, which no input of a model has.
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"format version {version} is not supported")
    shape, _, dtype = readers[version](stream)
    if dtype.hasobject:
        raise ValueError("Python objects in dtype")
    declared = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or declared > held:
        raise ValueError(f"an array of shape {list(shape)} is declared, {declared:,} bytes, of which it holds {held:,}")
    return tuple(shape)


def load_npz(path: Path, names: Collection[str] | None = None) -> Mapping[str, Array]:
    """Return the arrays in a .npz file: those of these names, or all."""
    try:
        with _header_lock, np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files if names is None or name in names}
    except ARRAY_ERRORS as error:
        raise DataError(f"{path}: this .npz file cannot be read ({_why(error)}).") from error


def _refuse_empty(path: Path) -> None:
    if path.stat().st_size == 0:
        raise EOFError("the file is empty")  # numpy speaks of magic strings


def _why(error: BaseException) -> str:
    text = str(error)
    if "Python objects" in text or "Object arrays" in text:
        return "it holds Python objects, which are never loaded; save a plain numeric array"
    return text or type(error).__name__
