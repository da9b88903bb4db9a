"""Finds the data files in a folder and opens them as rows: images, .npy and .npz.

Nothing is read at this point but the headers of .npy and .npz files, to count their samples. Pickled data is never
loaded. The rows of a .npy file are read one by one through a memory map that is closed at once, so that thousands of
files need no open handles; a .npz file is decompressed whole, and the last ones used are kept.
"""

from __future__ import annotations

import os
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from detent.errors import DataError, nearest
from detent.observe.digest import Digest
from detent.observe.preprocess import InputSpec
from detent.observe.rows import Part, PartRows, count_rows, single_input, take_row
from detent.observe.samples import Array, check_names

Kind = Literal["image", "npy", "npz"]

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
_KIND_NAMES: dict[Kind, str] = {"image": "images", "npy": ".npy files", "npz": ".npz files"}
_ALL_ENDINGS = ", ".join((*IMAGE_ENDINGS, ".npy", ".npz"))


@dataclass(frozen=True)
class Found:
    """Data files of one kind: their paths relative to `folder`, sorted, and how to speak of where they are.

    `folder` is absolute: another process may read the files, from another working directory.
    """

    kind: Kind
    folder: Path
    names: tuple[str, ...]
    place: str


def kind_of(name: str) -> Kind | None:
    """What a file holds, by its ending; None for anything that is not data."""
    ending = Path(name).suffix.lower()
    if ending in IMAGE_ENDINGS:
        return "image"
    if ending == ".npy":
        return "npy"
    return "npz" if ending == ".npz" else None


def find_files(path: Path) -> Found:
    """The data in a file or, recursively, in a folder. Hidden files and files of other kinds are passed over."""
    if path.is_file():
        kind = kind_of(path.name)
        if kind is None:
            raise DataError(f"{path}: this is not a data file. Expected one that ends in {_ALL_ENDINGS}.")
        return Found(kind, path.parent.absolute(), (path.name,), f"from {path}")
    if not path.is_dir():
        raise DataError(f"{path}: there is no such file or folder.")
    first: dict[Kind, str] = {}
    names = sorted(_walk(path, "", frozenset()))
    for name in names:
        kind = kind_of(name)
        if kind is not None:
            first.setdefault(kind, name)
    if not first:
        raise DataError(f"{path}: there is no data in this folder. Looked for files that end in {_ALL_ENDINGS}.")
    if len(first) > 1:
        both = " and ".join(f"{_KIND_NAMES[kind]} ({name})" for kind, name in first.items())
        raise DataError(f"{path}: expected one kind of data in this folder, found {both}. Keep them in folders apart.")
    return Found(next(iter(first)), path.absolute(), tuple(names), f"from {str(path).rstrip(os.sep)}/")


def _walk(folder: Path, prefix: str, above: frozenset[str]) -> Iterator[str]:
    """Relative paths of the data files below `folder`. Links to folders are followed, but not in circles."""
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    yield from _walk(folder / entry.name, f"{prefix}{entry.name}/", above | {real})
                elif kind_of(entry.name) is not None:
                    yield prefix + entry.name
    except OSError as error:
        raise DataError(f"{folder}: this folder cannot be read ({error.strerror or error}).") from error


def npy_rows(found: Found, inputs: Sequence[InputSpec]) -> PartRows:
    """Rows of .npy files: for several inputs, from one sub-folder per input with the same file names in each."""
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
    return {name: np.array(array if row is None else array[row]) for name, array in _maps(paths)}


def _maps(paths: Mapping[str, Path]) -> Iterator[tuple[str, Array]]:
    for name, path in paths.items():
        yield name, open_npy(path)


_header_lock = threading.Lock()
"""numpy parses the header of a .npy file as Python, and two threads of Python 3.11 that do so at once may fail."""


def open_npy(path: Path) -> Array:
    """The array in a .npy file, memory-mapped for reading. Raises `DataError` naming the file."""
    try:
        with _header_lock:
            return np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError, SyntaxError, TypeError, OverflowError) as error:
        raise DataError(f"{path}: this .npy file cannot be read ({_why(error)}).") from error


class _LastArchives:
    """Loads .npz files and keeps the last two. What it keeps stays behind when it is pickled.

    Rows of one file are mostly read one after the other: without this, each would decompress it again. Two, because
    threads that work in parallel may be in neighbouring files.
    """

    def __init__(self) -> None:
        self._load = lru_cache(maxsize=2)(load_npz)

    def __call__(self, path: Path) -> Mapping[str, Array]:
        return self._load(path)

    def __reduce__(self) -> tuple[type[_LastArchives], tuple[()]]:
        return _LastArchives, ()


def npz_rows(found: Found, inputs: Sequence[InputSpec]) -> PartRows:
    """Rows of .npz files whose keys are the names of the inputs."""
    load = _LastArchives()
    parts = []
    for name in found.names:
        path = found.folder / name
        shapes = npz_shapes(path)
        check_names(shapes, inputs, name)
        count = count_rows(shapes, inputs, name)
        parts.append(Part(name, count, partial(_fetch_npz, load, path), partial(_add_files, {"": path})))
    return PartRows(parts, found.place)


def _fetch_npz(load: Callable[[Path], Mapping[str, Array]], path: Path, row: int | None) -> Mapping[str, Array]:
    return take_row(load(path), row)


_NPZ_ERRORS = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    SyntaxError,
    NotImplementedError,
    RuntimeError,  # an encrypted archive
    zipfile.BadZipFile,
    zlib.error,
)


def npz_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays in a .npz file, from their headers alone."""
    try:
        with zipfile.ZipFile(path) as archive:
            shapes = {}
            for member in archive.namelist():
                with archive.open(member) as stream:
                    shapes[member.removesuffix(".npy")] = _read_shape(stream)
            return shapes
    except _NPZ_ERRORS as error:
        raise DataError(f"{path}: this .npz file cannot be read ({_why(error)}).") from error


def _read_shape(stream: IO[bytes]) -> tuple[int, ...]:
    version = np.lib.format.read_magic(stream)
    read: Callable[[IO[bytes]], tuple[Any, ...]]
    if version == (1, 0):
        read = np.lib.format.read_array_header_1_0
    elif version == (2, 0):
        read = np.lib.format.read_array_header_2_0
    else:
        # Version 3 is written for named fields only, which no input of a model has.
        raise ValueError(f"format version {version} is not supported")
    shape, _, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("Python objects in dtype")
    return tuple(shape)


def load_npz(path: Path) -> Mapping[str, Array]:
    """All arrays of a .npz file."""
    try:
        with _header_lock, np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except _NPZ_ERRORS as error:
        raise DataError(f"{path}: this .npz file cannot be read ({_why(error)}).") from error


def _why(error: BaseException) -> str:
    text = str(error)
    if "Python objects" in text or "Object arrays" in text:
        return "it holds Python objects, which are never loaded; save a plain numeric array"
    return text or type(error).__name__
