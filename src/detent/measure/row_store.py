"""Rows of numbers that are put away in a temporary file as they come, and read back as one array."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

from detent.errors import OutputError
from detent.observe.samples import Array


class RowStore:
    """An array that grows along its first axis. It takes no memory; the file has no name and goes with the object."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._dtype = dtype
        self._count = 0
        self._file = tempfile.TemporaryFile(prefix="detent-")  # noqa: SIM115  (lives as long as the object)

    def append(self, rows: Array) -> None:
        """Put rows of the store's shape and type behind those before."""
        try:
            self._file.write(np.ascontiguousarray(rows, self._dtype).tobytes())
        except OSError as error:
            raise OutputError(
                f"Cannot keep the model's outputs in {tempfile.gettempdir()}: {error.strerror}. Set TMPDIR to a folder "
                "with more room, or use fewer samples (--limit)."
            ) from error
        self._count += len(rows)

    def rows(self) -> Array:
        """All rows, mapped into memory as they are read. What is written to the array does not reach the file."""
        shape = (self._count, *self.shape)
        if 0 in shape:
            return np.empty(shape, self._dtype)
        self._file.flush()
        return np.memmap(self._file, self._dtype, "c", shape=shape)

    def __del__(self) -> None:
        self._file.close()
