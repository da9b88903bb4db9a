"""What tuning keeps beside its output, so that the same command continues after an interruption.

A folder `OUTPUT.tuning` holds `steps.detent`, with the outcome of every step that is done, and `best.onnx`, the best
model so far. Both are complete or absent. They belong to one model, recipe, data and measure: the `key` tells.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from detent.errors import DataError, OutputError
from detent.graph.load import load
from detent.graph.save import save
from detent.observe.store import TUNING, read_sealed, write_sealed

STEPS, BEST = "steps.detent", "best.onnx"
_OLD_STEPS = "ladder.json"  # plain JSON, as earlier versions wrote it


def folder_beside(output: Path) -> Path:
    """Return where an interrupted tuning keeps what it has found."""
    return output.with_name(f"{output.name}.tuning")


def key_of(parts: Mapping[str, Any]) -> str:
    """Return a text that differs if any part does."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def contents_of(data: object) -> object:
    """Return what tells one folder or file from another without reading all of it: names, sizes and times.

    Arrays are told apart by their bytes. Of a stream nobody can know, so it is never the same as before.
    """
    if data is None:
        return None
    if isinstance(data, Mapping):
        return {str(name): contents_of(array) for name, array in data.items()}
    if isinstance(data, np.ndarray):
        return [str(data.dtype), data.shape, hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()]
    if not isinstance(data, (str, Path)):
        return secrets.token_hex()
    path = Path(data)
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(str(file), file.stat()) for file in files if file.is_file()]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


@dataclass
class Record:
    """The outcomes of steps by name, as plain values; empty, and never written, without a folder."""

    folder: Path | None
    key: str
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    best: str | None = None

    @classmethod
    def open(cls, output: Path | None, key: str, *, resume: bool) -> Record:
        """Return what an earlier run left, if it was about the same; else an empty record."""
        if output is None or not resume:
            return cls(None, key)
        folder = folder_beside(output)
        found = _read(folder)
        if found.get("key") != key or (found.get("best") is not None and not (folder / BEST).exists()):
            return cls(folder, key)
        return cls(folder, key, found["rungs"], found["best"])

    def add(self, name: str, outcome: dict[str, Any], best: onnx.ModelProto | None) -> None:
        """Keep the outcome of a step, and its model if that is the best so far."""
        self.steps[name] = outcome
        if best is not None:
            self.best = name
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"Cannot make the folder {self.folder}: {error.strerror}.") from error
        if best is not None:
            save(ir.from_proto(best), self.folder / BEST)
        plain = {"key": self.key, "rungs": self.steps, "best": self.best}
        write_sealed(self.folder / STEPS, TUNING, json.dumps(plain).encode())

    def best_model(self) -> onnx.ModelProto:
        """Load the best model of an earlier run."""
        assert self.folder is not None
        return ir.to_proto(load(self.folder / BEST))

    def remove(self) -> None:
        """Forget everything: the output is written."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _read(folder: Path) -> dict[str, Any]:
    try:
        old = folder / _OLD_STEPS
        found = json.loads(old.read_bytes() if old.exists() else read_sealed(folder / STEPS, TUNING))
    except (OSError, ValueError, DataError):
        return {}  # there is none, or one that cannot be read: it is made anew
    return found if isinstance(found, dict) else {}
