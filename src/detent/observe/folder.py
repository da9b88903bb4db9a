"""Which files of a folder are data: all of one kind, found by their endings, without what cannot be read."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from detent.errors import DataError
from detent.graph.file_kinds import IMAGES, OTHER_IMAGES
from detent.observe.images import why_unreadable

DataKind = Literal["image", "npy", "npz"]

_KINDS: dict[str, DataKind] = {
    **dict.fromkeys(IMAGES, "image"),
    ".npy": "npy",
    ".npz": "npz",
}
_KIND_NAMES: dict[DataKind, str] = {"image": "images", "npy": ".npy files", "npz": ".npz files"}
_ALL_ENDINGS = ", ".join(_KINDS)

_BESIDE = "If it holds the labels, give the folder of the images. "
_GIVEN_AS_DATA = {
    **dict.fromkeys((".csv", ".txt", ".json"), _BESIDE),
    ".onnx": "It is a model, and a model is an argument of its own: detent quantize MODEL OUTPUT --calib FOLDER. ",
}

# So many images that cannot be read, or 5 % if that is more, are passed over; and how many of them are named.
FEW_BROKEN, MOST_NAMED = 3, 8

_EXPECTED = {".csv", ".json", ".toml", ".yaml", ".yml", ".xml", ".md", ".onnx", ".data", ".html", ".py", ".db", ".ini"}
"""Endings of what often lies beside data: labels, settings, models. Nobody needs to hear that it is not data."""


@dataclass(frozen=True)
class Found:
    """Data files of one kind: their paths relative to `folder`, sorted, and how to speak of where they are.

    `folder` is absolute: another process may read the files, from another working directory.
    """

    kind: DataKind
    folder: Path
    names: tuple[str, ...]
    place: str


def kind_of(name: str) -> DataKind | None:
    """Return what a file holds, by its ending; None for anything that is not data."""
    return _KINDS.get(Path(name).suffix.lower())


def find_files(path: Path) -> Found:
    """Return the data in a file or, recursively, in a folder. Hidden files are passed over, and so are others that are
    not data, but `place` says how many.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: there is no such file or folder.") from None
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror}).") from error
    if stat.S_ISREG(mode):
        kind = kind_of(path.name)
        if kind is None:
            other = _GIVEN_AS_DATA.get(path.suffix.lower(), "") or _advice_for([path.name])
            raise DataError(f"{path}: this is not a data file. {other}Expected one that ends in {_ALL_ENDINGS}.")
        return Found(kind, path.parent.absolute(), (path.name,), f"from {path}")
    if not stat.S_ISDIR(mode):
        raise DataError(f"{path} is a pipe or a device. Save the data as files first.")
    first: dict[DataKind, str] = {}
    skipped: list[str] = []
    names = sorted(_walk(path, "", frozenset(), skipped))
    for name in names:
        kind = kind_of(name)
        if kind is not None:
            first.setdefault(kind, name)
    if not first:
        raise DataError(
            f"{path}: there is no data in this folder{_said_of(skipped)}. {_advice_for(skipped)}"
            f"Looked for files that end in {_ALL_ENDINGS}."
        )
    if len(first) > 1:
        both = " and ".join(f"{_KIND_NAMES[kind]} ({name})" for kind, name in first.items())
        raise DataError(f"{path}: expected one kind of data in this folder, found {both}. Keep them in folders apart.")
    place = f"from {str(path).rstrip(os.sep)}/{_said_of(skipped)}"
    return Found(next(iter(first)), path.absolute(), tuple(names), place)


def without_broken(
    found: Found, chosen: Callable[[int], Sequence[int]] | None = None, *, strict: bool = False
) -> Found:
    """Return image files without those that cannot be read; `place` names them.

    Only those are looked at that `chosen` takes of so many files, by default all: a folder may hold a million. Raise
    DataError that names the broken ones if they are many, which is no accident, or with `strict` if there are any.
    """
    why: dict[str, str] = {}
    looked_at, names = set[str](), found.names
    while True:
        new = {names[at] for at in (range(len(names)) if chosen is None else chosen(len(names)))} - looked_at
        reasons = {name: reason for name in sorted(new) if (reason := why_unreadable(found.folder / name))}
        why, looked_at = why | reasons, looked_at | new
        broken, total = sorted(why), len(looked_at)
        named = f"{', '.join(broken[:MOST_NAMED])}{', ...' * (len(broken) > MOST_NAMED)}"
        if broken and (strict or len(broken) > max(min(FEW_BROKEN, total // 4), total // 20)):
            raise DataError(
                f"{len(broken)} of {total} images {found.place} cannot be read: {named}. The first: {why[broken[0]]}. "
                "Repair them or take them out of the data."
            )
        if not reasons:
            break
        names = tuple(name for name in names if name not in why)  # others may be chosen now
    if not why:
        return found
    said = f" ({len(broken)} image{'s' * (len(broken) > 1)} skipped that cannot be read: {named})"
    return replace(found, names=names, place=found.place + said)


def _advice_for(skipped: Sequence[str]) -> str:
    """Say what to do if there are images of kinds that are not read."""
    found = sorted({ending for name in skipped if (ending := Path(name).suffix.lower()) in OTHER_IMAGES})
    return f"Images in {' and '.join(found)} are not read: convert them to JPEG or PNG. " if found else ""


def _said_of(skipped: Sequence[str]) -> str:
    """Say how many files are not data, and of which kinds; labels and the like are not counted."""
    strange = [
        Path(name)
        for name in skipped
        if Path(name).suffix.lower() not in _EXPECTED and not re.search(r"(^|/)(labels|classes)\b", name)
    ]
    if not strange:
        return ""
    endings = sorted({path.suffix.lower() or path.name for path in strange})
    more = ", ..." if len(endings) > 4 else ""
    return f" ({len(strange)} file{'s' * (len(strange) > 1)} skipped: {', '.join(endings[:4])}{more})"


def _walk(folder: Path, prefix: str, above: frozenset[str], skipped: list[str]) -> Iterator[str]:
    """Yield relative paths of the data files below `folder`, and put the other files into `skipped`.

    Links to folders are followed, but not in circles.
    """
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    yield from _walk(folder / entry.name, f"{prefix}{entry.name}/", above | {real}, skipped)
                elif kind_of(entry.name) is not None:
                    yield prefix + entry.name
                else:
                    skipped.append(prefix + entry.name)
    except OSError as error:
        raise DataError(f"{folder}: this folder cannot be read ({error.strerror or error}).") from error
