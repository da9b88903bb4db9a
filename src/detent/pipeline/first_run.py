"""Compile the loops of the default path in processes of their own, while the first run loads its model and images.

Numba takes about ten seconds for them, and holds the interpreter meanwhile. It keeps the machine code, so this happens
once for an installation: two children fill the cache, and a loop that is needed before it is there is waited for
(`numerics/compiled.py`). A note beside the cache says that it was done; later runs only load Numba in a thread beside
the model. Nothing depends on it: a loop, or types, that are missing here are compiled where they are first called.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

from detent.numerics.compiled import another_compiles, home

_CURVE = "Tuple((int64, float64, float64, float64))"

# Loops, by module and name, and the types of their arguments; a child for each half, in the order in which they are
# needed. The halves take equally long.
LOOPS: tuple[dict[str, tuple[str, ...]], ...] = (
    {
        "detent.equalizations.global_equalization:_add_noise": (
            "int64[:,::1], int64[:,::1], Array(float32, 3, 'C', True), float64, " + "float64[:,::1], " * 5
            + "float64, float64[::1], float64[::1], float64[::1]",
        ),
        "detent.methods.method:squared_error": ("float64[::1], float64[::1], float64[::1], float64, float64, float64",),
        "detent.numerics.formats:snap_error": ("float32[::1], float64, float64, float64",),
        "detent.refinements.activations:activate_all": (f"float32[:,::1], {_CURVE}, float64[:,::1]",),
        "detent.refinements.layer_problem:_add_rows": (
            *(f"{rows}, float64[:,::1]" for rows in ("float32[:,:,::1]", "float32[:,:,:]")),
        ),
        "detent.refinements.quick_rounding:_round_blocks": (
            *(
                f"{rows}, bool, float64[:,::1], float64[:,:,::1], float64[:,::1], float64, int64, int64, int64"
                for rows in ("float32[:,:,::1]", "float32[:,:,:]")
            ),
        ),
        "detent.refinements.activations:add_distances": (
            f"float32[:,::1], float64[:,::1], float64[::1], {_CURVE}, float64[::1], float64[::1]",
        ),
    },
    {
        "detent.equalize.moments:_add_up": ("float32[:,:,::1], int64, float32[:,::1], float64[:,::1]",),
        "detent.equalizations.global_equalization:_look_at_taps": (
            "Array(float32, 4, 'C', True), float32[:,:,::1], float64[:,::1]",
        ),
        "detent.observe.counting:count_tensors": (
            "int64[::1], int64[::1], int64[::1], float32[::1], int64[::1], int64[:,::1], int32[:,::1], uint16[::1], "
            "uint32[:,::1]",
        ),
        "detent.numerics.formats:_encode": ("float32[::1], float32, float32, float32, int64, uint8[::1]",),
        "detent.refine.layers:gather": (
            "uint8[:,:,::1], float32, float32, int64[::1], int64[:,::1], float32[:,:,::1], int64",
        ),
        "detent.refinements.activations:add_pulls": (
            f"float32[:,::1], float64[:,::1], float64[::1], {_CURVE}, int64[::1], float64[::1], float64[:,::1]",
        ),
        "detent.numerics.formats:_decode": ("uint8[::1], float32, float32, float32[::1]",),
        "detent.evaluation.fidelity:error_sums": ("float32[::1], float32[::1], float64[::1], int64, int64",),
    },
)  # fmt: skip

_started = threading.Lock()


def compile_ahead() -> None:
    """Start to compile what is not in the cache yet, once in a process, or to load Numba; return at once."""
    if not _started.acquire(blocking=False) or (os.cpu_count() or 1) < 2 or getattr(sys, "frozen", False):
        return
    note = _note()
    if note is None or not sys.executable or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return
    with contextlib.suppress(OSError, RuntimeError):  # no process or thread is to be had: who calls a loop compiles it
        if note.exists():
            threading.Thread(target=_load_first).start()
            return
        children = [_start(half) for half in range(len(LOOPS))]
        threading.Thread(target=_finish, args=(children, note), daemon=True).start()


def _load_first() -> None:
    """Load a loop that every calibration needs, and Numba with it, while files are read and sessions are opened."""
    name = "detent.observe.counting:count_tensors"
    (types,) = next(half[name] for half in LOOPS if name in half)
    # Whoever calls the loop meets these errors as well, and reports them.
    with contextlib.suppress(OSError, ImportError, MemoryError):
        _load(name, types)


def _load(name: str, types: str) -> None:
    module, _, loop = name.partition(":")
    getattr(importlib.import_module(module), loop).compile(f"({types},)")


def _start(half: int) -> subprocess.Popen[str]:
    given = {"path": sys.path, "half": half}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__)), json.dumps(given)],
        stdin=subprocess.PIPE,  # its end tells the child that nobody waits any more
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    another_compiles(list(LOOPS[half]), process.stdout)
    return process


def _finish(children: list[subprocess.Popen[str]], note: Path) -> None:
    """Leave the note where all went well."""
    if all(child.wait() == 0 for child in children):
        with contextlib.suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()


def _note() -> Path | None:
    """Return the file that stands for a filled cache of just these sources; None where no folder can be written."""
    modules = {name.partition(":")[0] for half in LOOPS for name in half}
    root = Path(__file__).parents[1]
    files = [root.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in sorted(modules)]
    found = importlib.util.find_spec("numba")
    if found is None or found.origin is None:
        return None
    stamps = [(str(file), (stat := file.stat()).st_mtime_ns, stat.st_size) for file in [Path(found.origin), *files]]
    digest = hashlib.sha256(repr((sys.implementation.cache_tag, LOOPS, stamps)).encode()).hexdigest()[:16]
    for folder in _folders(root):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):  # asked for rights, Windows says yes for folders of the system
                return folder / f"detent-loops-{digest}"
    return None


def _folders(root: Path) -> list[Path]:
    """Return where Numba keeps machine code, or a folder of the user's that can be written where Numba's can."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(chosen)]
    own = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME")
    if own is None and (user := home()):
        own = str(user / ".cache")
    return [root / "numerics" / "__pycache__", *([] if own is None else [Path(own) / "detent"])]


def _compile(half: int, alive: IO[str]) -> None:
    """Compile one half, as a child: print the name of each loop that is in the cache now."""
    asking = threading.Thread(target=alive.read, daemon=True)
    asking.start()
    for name, kinds in LOOPS[half].items():
        if not asking.is_alive():
            sys.exit(1)
        for types in kinds:
            _load(name, types)
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _given = json.loads(sys.argv[1])
    sys.path[:] = _given["path"]  # as the asking process has it; a script's own folder is not to be searched
    _compile(_given["half"], sys.stdin)
