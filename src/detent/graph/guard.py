"""A crash of native code on a model file is an error message: what was not tried yet is tried in another process.

onnx's checker, converter and shape inference, and onnxruntime, are C++ that a model file can crash, send into a long
loop or make ask for all memory. So before they see a file in this process they see it in a child with limits
(trial.py). A verb begins the trial before it does anything else, and it is waited for where the file is loaded: with
the imports in between it costs next to nothing.

Files that are trusted are not tried: `--trust`, `trust=True`, or DETENT_TRUST=1 in the environment for all of them.
A ModelProto is in this process already.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from detent.errors import ModelError
from detent.graph.trial import OUT_OF_MEMORY

ENVIRONMENT = "DETENT_TRUST"
SECONDS, SECONDS_PER_BYTE = 60.0, 1e-7  # of processor time: on a busy machine one of them takes many
PATIENCE = 10  # seconds to wait for one of them
MEMORY, MEMORY_PER_BYTE = 4 << 30, 6  # several copies of the weights are alive at once
OPSET = 17

_begun: dict[Path, subprocess.Popen[bytes]] = {}
_trusting = [False]
_lock = threading.Lock()


@contextlib.contextmanager
def guarded(*models: object, trust: bool = False) -> Iterator[None]:
    """Try the model files among `models` while the block runs; `finish_trial` waits for a verdict.

    All blocks inside a block that trusts its models do so, too.
    """
    trust = trust or _trusting[0] or os.environ.get(ENVIRONMENT) == "1"
    begun = [] if trust else [path for each in models if (path := _begin(each))]
    before, _trusting[0] = _trusting[0], trust
    try:
        yield
    finally:
        _trusting[0] = before
        for path in begun:
            _end(path)


def try_message(message: bytes, name: str) -> None:
    """Try a model that was made here, and that native code has not seen yet; `name` is for the error."""
    if _trusting[0]:
        return
    # On Windows a trial that was just ended may still have the file open.
    with tempfile.TemporaryDirectory(prefix="detent-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(message)
        with guarded(path):
            finish_trial(path, name)


def finish_trial(path: Path, name: str = "") -> None:
    """Wait for the trial of a file, if one runs. Raise ModelError if it crashed, hung or took too much memory."""
    path = path.absolute()
    with _lock:
        process = _begun.get(path)
    if process is None:
        return
    told = name or str(path)
    try:
        seconds = _seconds(path)
        printed, _ = process.communicate(timeout=PATIENCE * seconds)
    except OSError:  # the file went away; loading it says so
        _end(path)
        return
    except subprocess.TimeoutExpired:
        raise ModelError(_message(told, _end(path), f"took more than {seconds:.0f} seconds")) from None
    _end(path)  # not before: if this process is interrupted while it waits, `guarded` ends the other one
    code = process.returncode
    if code == -getattr(signal, "SIGXCPU", 0):
        raise ModelError(_message(told, printed, f"took more than {seconds:.0f} seconds"))
    if code == OUT_OF_MEMORY:
        raise ModelError(_message(told, printed, "asked for more than 4 GB of memory"))
    if code == -getattr(signal, "SIGKILL", 0):
        raise ModelError(
            f"{told} could not be tried: {_step(printed)}, a process of its own was killed, which happens when memory "
            "runs out. Close other programs and run it again; --trust goes on without this trial."
        )
    if code not in (0, 1):  # 1: Python could not start it, which says nothing about the model
        raise ModelError(_message(told, printed, f"crashed (exit code {code})"))


def _end(path: Path) -> bytes:
    """Forget the trial of a file, if there is one; end it if it still runs, and return what it printed."""
    with _lock:
        process = _begun.pop(path, None)
    if process is None or process.stdout is None or process.stdout.closed:  # closed: all of it was read, to its end
        return b""
    process.kill()
    return process.communicate()[0]


def _step(printed: bytes) -> str:
    """Return the step that a trial was at."""
    return (printed.decode(errors="replace").splitlines() or ["reading it"])[-1]


def _message(name: str, printed: bytes, what: str) -> str:
    return (
        f"{name} is not safe to work with: {_step(printed)}, in a process of its own, {what}. The file is damaged, or "
        "it meets a fault of onnx or onnxruntime. Export it again, with opset 17 or newer; --trust goes on without "
        "this trial."
    )


def _seconds(path: Path) -> float:
    return SECONDS + SECONDS_PER_BYTE * path.stat().st_size


def _begin(model: object) -> Path | None:
    """Start the trial of a file; None if it is not a file, or if this process cannot start another Python."""
    if not isinstance(model, (str, PathLike)) or getattr(sys, "frozen", False) or not sys.executable:
        return None
    path = Path(model).absolute()
    if not path.is_file():
        return None
    with _lock:
        if path in _begun:
            return None
    given = {
        "path": sys.path,
        "parent": os.getpid(),
        "model": str(path),
        "opset": OPSET,
        "memory": MEMORY + MEMORY_PER_BYTE * path.stat().st_size,
        "seconds": _seconds(path),
    }
    script = str(Path(__file__).with_name("trial.py"))
    process = subprocess.Popen(
        [sys.executable, script, json.dumps(given)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    with _lock:
        _begun[path] = process
    return path
