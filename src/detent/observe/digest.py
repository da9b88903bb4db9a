"""A hash over plain values, arrays and files: what fingerprints of models and data are made of."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from detent.errors import DataError

WHOLE_FILE_LIMIT = 1 << 26
"""Files up to this many bytes are hashed whole."""

PAGE = 1 << 12
PAGE_STRIDE = 1 << 16
"""Of a larger file, one page of each stride is hashed, so an exchange of that many bytes is always noticed."""


class Digest:
    """A hash over a sequence of items. Each goes in with its kind and length, so no two sequences can look the same."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    @property
    def text(self) -> str:
        """The fingerprint of all that was added."""
        return self._hash.hexdigest()

    def add(self, *items: str | int | float | None) -> None:
        """Add plain values."""
        for item in items:
            encoded = repr(item).encode("utf-8", "backslashreplace")
            self._hash.update(b"v%d:" % len(encoded) + encoded)

    def add_plain(self, value: object) -> None:
        """Add nested lists and dicts of plain values; the order of keys does not matter."""
        self.add(json.dumps(value, sort_keys=True))

    def add_array(self, array: np.ndarray[Any, Any]) -> None:
        """Add an array: type, shape and contents. A contiguous one is not copied."""
        self.add("array", array.dtype.str if array.dtype.kind != "V" else array.dtype.name, *array.shape)
        if array.dtype.hasobject:
            self.add(*(repr(item) for item in array.reshape(-1)))
        else:
            self._hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def add_file(self, path: Path) -> None:
        """Add a file's size and contents (of a large one: a page of every stride, and the end). Not its name."""
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.add("file", size)
                if size <= WHOLE_FILE_LIMIT:
                    self._hash.update(file.read())
                    return
                for start in (*range(0, size - PAGE, PAGE_STRIDE), size - PAGE):
                    file.seek(start)
                    self._hash.update(file.read(PAGE))
        except OSError as error:
            raise DataError(f"{path}: this file cannot be read ({error.strerror or error}).") from error
