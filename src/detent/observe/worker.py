"""What happens inside a worker process: the model is loaded once, and shard after shard is done with it."""

from __future__ import annotations

import pickle
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime

from detent.errors import ModelError, UsageError
from detent.graph.save import save
from detent.observe.shards import Shard
from detent.version import __version__

MODEL_FILE, WORK_FILE = "model.onnx", "work.pickle"

Doing = Callable[[Shard], Any]
"""Work that has begun: the model is loaded and ready to run. Worker threads share one."""


@dataclass(frozen=True)
class Ticket:
    """Which work a task belongs to, and the versions that it was made with.

    Every work has its own, even over the same model and files: between two of them the files may have changed.
    """

    work: str = field(default_factory=lambda: uuid.uuid4().hex)
    detent: str = __version__
    onnxruntime: str = onnxruntime.__version__

    def check(self) -> None:
        """Raise UsageError in a worker that would compute with other code than the parent would."""
        for package, wanted, found in (
            ("detent", self.detent, __version__),
            ("onnxruntime", self.onnxruntime, onnxruntime.__version__),
        ):
            if wanted != found:
                raise UsageError(
                    f"A worker has {package} {found}, but this machine has {wanted}: they would not compute the same "
                    "numbers. Install the same versions on all."
                )


class _LastWork:
    """The work that this process did last. One, because a model may take most of the memory."""

    def __init__(self) -> None:
        self.loads = 0
        self._ticket: Ticket | None = None
        self._loaded: Doing | None = None
        self._lock = threading.Lock()

    def get(self, ticket: Ticket, load: Callable[[], Doing]) -> Doing:
        with self._lock:
            if self._loaded is None or self._ticket != ticket:
                self._loaded = None  # before the next one takes its memory
                self._loaded = load()
                self._ticket = ticket
                self.loads += 1
            return self._loaded

    def forget(self) -> None:
        with self._lock:
            self._loaded = self._ticket = None


last_work = _LastWork()


def do_from_folder(folder: str, ticket: Ticket, shard: Shard) -> Any:
    """The result of a shard, with the model and the work in a folder that the parent made."""
    ticket.check()
    return last_work.get(ticket, lambda: _load_folder(Path(folder)))(shard)


def do_from_bytes(work: bytes, model: bytes, ticket: Ticket, shard: Shard) -> Any:
    """The result of a shard, with the model and the work as they were sent."""
    ticket.check()
    return last_work.get(ticket, lambda: _begin(work, _parse(model)))(shard)


@contextmanager
def shared_folder(work: bytes, model: ir.Model) -> Iterator[tuple[str, Ticket]]:
    """A folder with the model and the work, for the time of the block; it is made where TMPDIR says."""
    with tempfile.TemporaryDirectory(prefix="detent-", ignore_cleanup_errors=True) as folder:
        save(model, Path(folder) / MODEL_FILE)
        (Path(folder) / WORK_FILE).write_bytes(work)
        yield folder, Ticket()


def _begin(work: bytes, model: ir.Model) -> Doing:
    doing: Doing = pickle.loads(work).begin(model)
    return doing


def _load_folder(folder: Path) -> Doing:
    try:
        return _begin((folder / WORK_FILE).read_bytes(), ir.load(folder / MODEL_FILE))
    except FileNotFoundError:
        raise ModelError(
            f"A worker cannot see the folder {folder} with the model. Workers on other machines need a folder that all "
            "share: set TMPDIR to one before you start."
        ) from None


def _parse(model: bytes) -> ir.Model:
    proto = onnx.ModelProto()
    proto.ParseFromString(model)
    return ir.from_proto(proto)
