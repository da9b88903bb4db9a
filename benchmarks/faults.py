"""Faults at every point of a command: afterwards the old output, the new one or none is there, and nothing else.

    python -m benchmarks.faults                                # every call of the file system, every session, in turn
    python -m benchmarks.faults --kinds kill --kills 1000      # signals at random moments, and full disks
    python -m benchmarks.faults --commands quantize deploy

A command runs in a process of its own, forked when all is imported. Of a fault it may not print a traceback; what it
leaves behind is compared with the output of a run without one; then the same command runs again, and its output must
be that of the first run, byte for byte. Linux and macOS only.
"""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import detent
import detent.cli
from detent.demo import CALIBRATION, FOLDER, MODEL, PREPROCESS
from detent.graph import taps

SECONDS = 120.0
KEPT = "m.onnx.tuning"  # what tuning goes on from, and removes at its end
DATA = ("--preprocess", PREPROCESS, "--limit", "8")
ALLOCATIONS = ("zeros", "concatenate")
CALLS: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("fsync", "replace", "rename", "mkdir", "link")),
    (io, "open"),
    (onnxruntime.InferenceSession, "__init__"),
    *((np, name) for name in ALLOCATIONS),
)


def commands(scratch: Path) -> dict[str, list[Any]]:
    """Return the arguments of each command; what it writes is in the current folder's `out`."""
    quantized = scratch / "quantized.onnx"
    detent.quantize(MODEL, quantized, CALIBRATION, preprocess=PREPROCESS, limit=8)
    calib = ("--calib", CALIBRATION, *DATA)
    return {
        "quantize": ["quantize", MODEL, "out/m.onnx", *calib, "--report", "out/r.json", "--html", "out/p.html"],
        "statistics": ["quantize", MODEL, "out/m.onnx", *calib, "--save-stats", "out/s.stats", "--refine", "none"],
        "tune": ["tune", MODEL, "out/m.onnx", *calib, "--max-drop", "50", "--eval", FOLDER],
        "convert": ["convert", quantized, "out/f.onnx", "--to", "float"],
        "evaluate": ["evaluate", MODEL, quantized, "--data", CALIBRATION, *DATA, "--report", "out/r.json"],
        "infer": ["infer", quantized, "--data", CALIBRATION, *DATA, "--out", "out/answers"],
        "deploy": ["deploy", quantized, "out/d", "--device", "stx", "--force", "--data", CALIBRATION],
    }


def fork(arguments: list[Any], log: Path, before: Callable[[], object] = lambda: None) -> int:
    """Run a command in a fork of this process, and return that one's id."""
    process = os.fork()
    if process:
        return process
    code = 99
    try:
        os.setsid()
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        before()
        sys.argv = ["detent", *map(str, arguments)]
        detent.cli.main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:  # noqa: BLE001 - this is what is searched for
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def wait(process: int, seconds: float = SECONDS) -> int | None:
    """Return the exit code, below 0 for a signal; None if it had to be ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def contents(folder: Path) -> dict[str, bytes]:
    """Return what is in a folder; of JSON, pages and archives, which name times, only that they are whole."""
    found = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = file.read_bytes()
        if file.suffix == ".json":
            json.loads(data)
            data = b"json"
        elif file.suffix == ".html":
            data = b"page" if data.rstrip().endswith(b"</html>") else b"torn"
        elif file.suffix == ".npz":
            data = b"".join(array.tobytes() for array in np.load(file).values())
        found[str(file.relative_to(folder))] = data
    return found


class Faults:
    """Let the n-th of some calls fail."""

    def __init__(self, fail_at: int, count_file: Path) -> None:
        self.calls, self.fail_at, self.lock = 0, fail_at, threading.Lock()
        self.file = os.open(count_file, os.O_WRONLY | os.O_CREAT)  # now: to open it later would be a call

    def install(self) -> None:
        """Wrap the calls, in a process that ends soon."""
        for owner, name in CALLS:
            if hasattr(owner, name):
                setattr(owner, name, self._wrapped(getattr(owner, name), name))

    def _wrapped(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            mode = options.get("mode", args[1] if len(args) > 1 else "r")
            if name == "open" and not any(letter in str(mode) for letter in "wxa+"):
                return real(*args, **options)
            with self.lock:
                self.calls += 1
                os.pwrite(self.file, b"%08d" % self.calls, 0)
                fails = self.calls == self.fail_at
            if fails:
                if name == "__init__":
                    raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : injected")
                if name in ALLOCATIONS:
                    raise MemoryError("injected")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **options)

        return call


class Trial:
    """One command, and what its folder may hold after a fault."""

    def __init__(self, name: str, arguments: list[Any], scratch: Path) -> None:
        self.name, self.arguments, self.log = name, arguments, scratch / "log"
        self.tops: set[str] = set()
        self.holds_folder = False
        self.folder = Path("out")
        self.empty(old=False)
        start = time.monotonic()
        if wait(fork(arguments, self.log)) != 0:
            raise SystemExit(f"{name} fails without a fault: {self.log.read_text()}")
        self.seconds = time.monotonic() - start
        self.wanted = contents(self.folder)
        self.slow = self._without_rewriting()
        self.tops = {path.name for path in self.folder.iterdir()}
        self.holds_folder = any(path.is_dir() for path in self.folder.iterdir())

    def _without_rewriting(self) -> dict[str, bytes]:
        """Return what is written where onnxruntime's rewritten model cannot be had, and that is told: sums of the same
        numbers, in another order."""
        self.empty(old=False)
        wait(fork(self.arguments, self.log, lambda: setattr(taps, "_promising", lambda *_: False)))
        return contents(self.folder)

    def empty(self, *, old: bool) -> dict[str, bytes]:
        """Empty the folder, or leave an older output there; return what is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if old and not self.holds_folder:
            for name in self.tops:
                (self.folder / name).write_bytes(b'"old"')
        return contents(self.folder)

    def problems(self, code: int | None, before: dict[str, bytes], *, killed: bool) -> Iterator[str]:
        """Yield what is wrong after a fault, and after the command that follows it."""
        said = self.log.read_text(errors="replace")
        slow = self.slow if "in another order" in " ".join(said.split()) else {}
        # What was counted is kept, as of an interrupted run, and told: the next one, with fewer threads, continues.
        killed = killed or ("not enough memory" in said and "kept in" in said)
        if code is None:
            yield "hang"
        if "Traceback" in said or code in (1, 99):
            yield f"traceback: {said[-600:]}"
        try:
            found = contents(self.folder)
        except ValueError as error:
            yield f"torn: {error}"
            return
        for name, data in found.items():
            hidden = Path(name).parts[0] not in self.tops
            if hidden and not killed and not name.startswith(f"{KEPT}/"):
                yield f"left behind: {name}"
            elif not hidden and data not in (self.wanted.get(name), slow.get(name), before.get(name)):
                yield f"torn: {name}"
        if code == 0 and any(found.get(name) not in (data, slow.get(name)) for name, data in self.wanted.items()):
            yield "exit code 0 without the output"

    def again(self) -> Iterator[str]:
        """Run the command once more, without a fault."""
        if self.holds_folder and contents(self.folder) == self.wanted:
            return  # a folder of results is not overwritten
        if wait(fork(self.arguments, self.log)) != 0:
            yield f"does not succeed afterwards: {self.log.read_text(errors='replace')[-600:]}"
            return
        found = contents(self.folder)
        for name in sorted({*found, *self.wanted}):
            if found.get(name) != self.wanted.get(name):
                yield f"another output afterwards, or left behind: {name}"


def every_call(trial: Trial, scratch: Path) -> Iterator[tuple[str, str]]:
    """Let the n-th call fail, for every n."""
    counter, number = scratch / "count", 0
    while True:
        number += 1
        before = trial.empty(old=number % 2 == 0)
        counter.write_bytes(b"0")
        faults = Faults(number, counter)
        code = wait(fork(trial.arguments, trial.log, faults.install))
        os.close(faults.file)
        yield from ((f"call {number}", problem) for problem in trial.problems(code, before, killed=False))
        yield from ((f"call {number}", problem) for problem in (trial.again() if number % 5 == 0 else ()))
        yield f"call {number}", ""
        if code == 0 and int(counter.read_bytes()) < number:
            return


def moments(trial: Trial, count: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Send signals at random moments, and allow files of random sizes."""
    for number in range(count):
        before = trial.empty(old=number % 2 == 0)
        kind = rng.choice(("SIGKILL", "SIGTERM", "SIGINT", "full disk"))
        if kind == "full disk":
            most = int(10 ** rng.uniform(1, 5.5))
            code = wait(fork(trial.arguments, trial.log, lambda most=most: _limit_files(most)))  # type: ignore[misc]
            what = f"files of {most} bytes"
        else:
            process, delay = fork(trial.arguments, trial.log), rng.uniform(0, 1.1 * trial.seconds)
            what = f"{kind} after {delay:.3f} s"
            time.sleep(delay)
            os.kill(process, getattr(signal, kind))
            code = wait(process)
        killed = kind != "full disk"  # what an interrupted sweep or tuning keeps, the next run takes up and removes
        yield from ((what, problem) for problem in trial.problems(code, before, killed=killed))
        yield from ((what, problem) for problem in (trial.again() if number % 4 == 0 else ()))
        yield what, ""


def _limit_files(most: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", nargs="+")
    parser.add_argument("--kinds", nargs="+", default=["call", "kill"], choices=["call", "kill"])
    parser.add_argument("--kills", type=int, default=20, help="of each command")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["DETENT_TRUST"] = "1"  # the trial in another process has tests of its own
    total = failures = 0
    with tempfile.TemporaryDirectory(prefix="detent-faults-") as folder:
        scratch = Path(folder)
        os.chdir(scratch)
        for name, arguments in commands(scratch).items():
            if given.commands and name not in given.commands:
                continue
            trial = Trial(name, arguments, scratch)
            runs = []
            if "call" in given.kinds:
                runs.append(every_call(trial, scratch))
            if "kill" in given.kinds:
                runs.append(moments(trial, given.kills, random.Random(given.seed)))
            done = 0
            for what, problem in (pair for run in runs for pair in run):
                done += not problem
                if problem:
                    failures += 1
                    print(f"{name}, {what}: {problem}", flush=True)
            total += done
            print(f"{name}: {done} faults", flush=True)
    print(f"{total} faults, {failures} problems")
    sys.exit(min(failures, 1))


if __name__ == "__main__":
    main()
