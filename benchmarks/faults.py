"""Faults at every point of a command: afterwards the old output, the new one or none is there, and nothing else.

    python -m benchmarks.faults                                # every call, signals, full disks, company: in turn
    python -m benchmarks.faults --kinds kill --count 1000      # signals at random moments, and full disks
    python -m benchmarks.faults --commands tune mix --kinds call --calls 100

What goes wrong is of four kinds:

    call      the n-th call of the file system, of numpy's allocation or of onnxruntime fails, for every n, or for
              as many as --calls says, drawn anew for each --seed
    kill      SIGKILL, SIGTERM or SIGINT at a random moment; or files may not grow past a random size
    company   the same command runs beside it, and may be killed; names change slowly; the clock jumps; nobody reads
              what is printed any more; a process that it started, if any, is killed
    disk      the output's file system is full, before its end or just behind it; Linux, and only for root

A command runs in a process of its own, forked when all is imported and compiled, on the smallest model that has every
stage. Of a fault it may not print a traceback; what it leaves behind is compared with the output of a run without one;
then the same command runs again, and its output must be that of the first run, byte for byte. Linux and macOS only.
"""

from __future__ import annotations

import argparse
import builtins
import errno
import io
import json
import mmap
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from fuzz.seeds import SHAPE, models

import detent.cli
from detent.graph.guard import ENVIRONMENT
from detent.observe.statistics_file import STATISTICS
from detent.observe.store import read_sealed

SECONDS = 120.0
KEPT = "m.onnx.tuning"  # what tuning goes on from, and removes at its end
KINDS = ("call", "kill", "company", "disk")
PAGE = 4096  # bytes of a file system in memory that are given at a time
MODEL, DATA, QUANTIZED = "../m.onnx", "../x.npy", "../quantized.onnx"  # beside the folder that a job works in
SYSTEM_ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EDQUOT)
FILE_CALLS = ("fsync", "replace", "rename", "mkdir", "link")
ALLOCATIONS = ("zeros", "empty", "ones", "full", "concatenate", "stack")
SESSION_CALLS = ("__init__", "run", "run_with_ort_values")
CALLS: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in FILE_CALLS),
    (io, "open"),
    (builtins, "open"),
    *((onnxruntime.InferenceSession, name) for name in SESSION_CALLS),
    *((np, name) for name in ALLOCATIONS),
)


def commands() -> dict[str, list[str]]:
    """Return the arguments of each command; what it writes is in the current folder's `out`."""
    calib = ["--calib", DATA]
    tune = ["tune", MODEL, "out/m.onnx", *calib, "--hold-out", "16"]
    return {
        "quantize": ["quantize", MODEL, "out/m.onnx", *calib, "--report", "out/r.json", "--html", "out/p.html"],
        "statistics": ["quantize", MODEL, "out/m.onnx", *calib, "--save-stats", "out/s.stats", "--refine", "none"],
        "workers": ["quantize", MODEL, "out/m.onnx", *calib, "--workers", "2", "--refine", "none"],
        "refine": ["quantize", MODEL, "out/m.onnx", *calib, "--recipe", "A8W8", "--refine", "GPTQ"],
        "bfloat16": ["quantize", MODEL, "out/m.onnx", *calib, "--recipe", "BF16"],
        "tune": [*tune, "--max-drop", "50"],
        "tune-on": [*tune, "--max-drop", "0.001"],
        "mix": ["mix", MODEL, *calib, "--max-error", "-30dB", "--toml", "out/r.toml"],
        "sensitivity": ["sensitivity", MODEL, *calib, "--max-error", "-30dB", "--toml", "out/r.toml"],
        "convert": ["convert", QUANTIZED, "out/f.onnx", "--to", "float"],
        "split": ["split", MODEL, "out/body.onnx", "out/tail.onnx", "--at", "r"],
        "evaluate": ["evaluate", MODEL, QUANTIZED, "--data", DATA, "--report", "out/r.json"],
        "compare": ["compare", MODEL, QUANTIZED, "--data", DATA, "--html", "out/p.html"],
        "infer": ["infer", QUANTIZED, "--data", DATA, "--out", "out/answers"],
        "emulate": ["emulate", QUANTIZED, "--data", DATA, "--out", "out/answers"],
        "dump": ["dump", QUANTIZED, "--data", DATA, "--out", "out/codes"],
        "deploy": ["deploy", QUANTIZED, "out/d", "--device", "stx", "--force", "--data", DATA],
    }


def prepare(folder: Path) -> None:
    """Write what the commands read, and import and compile what they need: forks begin with all of it."""
    os.chdir(folder)
    Path("m.onnx").write_bytes(models()[1])
    np.save("x.npy", np.random.default_rng(0).standard_normal((24, *SHAPE[1:])).astype(np.float32))
    Path("warm/out").mkdir(parents=True)
    os.chdir("warm")
    detent.quantize(MODEL, QUANTIZED, DATA)
    screens = os.dup(1), os.dup(2)
    for name, arguments in commands().items():
        shutil.rmtree("out")
        Path("out").mkdir()
        _print_into(Path("log"))
        code = run_command(arguments)
        sys.stdout.flush()
        for number, screen in enumerate(screens, start=1):
            os.dup2(screen, number)
        if code != 0:
            raise SystemExit(f"{name} fails without a fault: {Path('log').read_text()}")
    for ending in detent.cli.ENDINGS:  # which a command ignores in the end
        signal.signal(ending, signal.SIG_DFL)
    os.chdir("..")


def run_command(arguments: list[str]) -> int:
    sys.argv = ["detent", *arguments]
    try:
        detent.cli.main()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    return 0


def _print_into(file: Path) -> None:
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(opened, number)
    os.close(opened)


def _open_streams() -> None:
    """Open standard output and error anew: they remember whether they were files."""
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))


def fork(arguments: list[str], log: Path, before: Callable[[], object] = lambda: None) -> int:
    """Run a command in a fork of this process, and return that one's id."""
    process = os.fork()
    if process:
        return process
    code = 99
    try:
        os.setsid()
        _print_into(log)
        _open_streams()
        before()
        code = run_command(arguments)
        sys.stdout.flush()
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
            data = data if json.loads(data) == "old" else b"json"
        elif file.suffix == ".html":
            data = b"page" if data.rstrip().endswith(b"</html>") else b"torn"
        elif file.suffix == ".npz":
            data = b"".join(array.tobytes() for array in np.load(file).values())
        found[str(file.relative_to(folder))] = data
    return found


def is_whole(file: Path) -> bool:
    """Return whether a model or a file of statistics can be read."""
    try:
        if file.suffix == ".stats":
            read_sealed(file, STATISTICS)
        else:
            onnxruntime.InferenceSession(file)
    except Exception:  # noqa: BLE001 - whatever it is, the file is torn
        return False
    return True


class Faults:
    """Let the n-th of some calls fail. The count is seen by the process that forked this one."""

    def __init__(self, fail_at: int, error: int) -> None:
        self.fail_at, self.error, self.lock = fail_at, error, threading.Lock()
        self.shared = mmap.mmap(-1, 8)

    @property
    def calls(self) -> int:
        return int.from_bytes(self.shared[:], "little")

    def install(self) -> None:
        """Wrap the calls, in a process that ends soon."""
        for owner, name in CALLS:
            if hasattr(owner, name):
                setattr(owner, name, self._wrapped(getattr(owner, name), name))

    def count(self, name: str) -> None:
        """Count a call, and raise what it fails with if it is the one to fail."""
        with self.lock:
            number = self.calls + 1
            self.shared[:] = number.to_bytes(8, "little")
        if number != self.fail_at:
            return
        if name in SESSION_CALLS:
            failures = onnxruntime.capi.onnxruntime_pybind11_state
            raise (failures.Fail, failures.RuntimeException, RuntimeError)[number % 3](
                "[ONNXRuntimeError] : 1 : FAIL : injected"
            )
        if name in ALLOCATIONS:
            raise MemoryError("injected")
        raise OSError(self.error, os.strerror(self.error))

    def _wrapped(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if name != "open":
                self.count(name)
                return real(*args, **options)
            mode = str(options.get("mode", args[1] if len(args) > 1 else "r"))
            if not any(letter in mode for letter in "wxa+"):
                return real(*args, **options)
            self.count(name)
            return Written(real(*args, **options), self)

        return call


class Written:
    """A file open for writing, each of whose writes may fail."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self._file, self._faults = file, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def write(self, data: Any) -> Any:
        self._faults.count("write")
        return self._file.write(data)


class Trial:
    """One command, and what its folder may hold after a fault."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name, self.arguments = name, arguments
        self.log, self.folder = Path("log"), Path("out")
        self.tops: set[str] = set()
        self.holds_folder = False
        self.empty(old=False)
        none = Faults(0, 0)
        start = time.monotonic()
        if wait(fork(arguments, self.log, none.install)) != 0:
            raise SystemExit(f"{name} fails without a fault: {self.log.read_text()}")
        self.calls = none.calls
        self.seconds = time.monotonic() - start
        self.wanted = contents(self.folder)
        self.tops = {path.name for path in self.folder.iterdir()}
        self.holds_folder = any(path.is_dir() for path in self.folder.iterdir())

    def empty(self, *, old: bool) -> dict[str, bytes]:
        """Empty the folder, or leave an older output there; return what is in it."""
        self.folder.mkdir(exist_ok=True)
        for path in self.folder.iterdir():  # not the folder itself, which may be a file system
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        if old and not self.holds_folder:
            for name in self.tops:
                (self.folder / name).write_bytes(b'"old"')
        return contents(self.folder)

    def problems(
        self, code: int | None, before: dict[str, bytes], *, killed: bool, unread: bool = False
    ) -> Iterator[str]:
        """Yield what is wrong after a fault. Where nobody reads what is printed, 1 is the exit code of a pipe."""
        said = self.log.read_text(errors="replace")
        # Where onnxruntime fails on its rewritten model, sums of the same numbers differ in their last bits.
        slow = "in another order" in " ".join(said.split())
        # What was counted is kept, as of an interrupted run, and told: the next one, with fewer threads, continues.
        killed = killed or ("not enough memory" in said and "kept in" in said)
        if code is None:
            yield "hang"
        if "Traceback" in said or code in ((99,) if unread else (1, 99)):
            yield f"traceback: {said[-900:]}"
        if code is not None and code < 0 and not killed:
            yield f"signal {-code}: {said[-300:]}"
        try:
            found = contents(self.folder)
        except ValueError as error:
            yield f"torn: {error}"
            return
        for name, data in found.items():
            hidden = Path(name).parts[0] not in self.tops
            if hidden and not killed and not name.startswith(f"{KEPT}/"):
                yield f"left behind: {name}"
            elif hidden or data in (self.wanted.get(name), before.get(name)):
                continue
            elif not (slow and is_whole(self.folder / name)):
                yield f"torn: {name}"
        old = [name for name in self.wanted if found.get(name) in (None, before.get(name))]
        if code == 0 and old:
            yield f"exit code 0 without {old}"

    def again(self) -> Iterator[str]:
        """Run the command once more, without a fault."""
        if self.holds_folder and self.wanted.items() <= contents(self.folder).items():
            return  # a folder of results is not overwritten
        if wait(fork(self.arguments, self.log)) != 0:
            yield f"does not succeed afterwards: {self.log.read_text(errors='replace')[-600:]}"
            return
        found = contents(self.folder)
        for name in sorted({*found, *self.wanted}):
            if found.get(name) != self.wanted.get(name):
                yield f"another output afterwards, or left behind: {name}"


Found = Iterator[tuple[str, str]]  # what was done, and a problem; or no problem, once for each fault


def calls(trial: Trial, part: int, parts: int, most: int, seed: int) -> Found:
    """Let the n-th call fail, for each n of this part; if there are more than `most` of them, for as many."""
    chosen = random.Random(seed).sample(range(1, trial.calls + 1), min(most, trial.calls))
    for at, number in enumerate(chosen[part::parts]):
        error = SYSTEM_ERRORS[(at + seed) % len(SYSTEM_ERRORS)]
        before = trial.empty(old=(at + seed) % 2 == 0)
        faults = Faults(number, error)
        code = wait(fork(trial.arguments, trial.log, faults.install))
        what = f"call {number}, {errno.errorcode[error]}"
        yield from ((what, problem) for problem in trial.problems(code, before, killed=False))
        yield from ((what, problem) for problem in (trial.again() if at % 4 == 0 else ()))
        yield what, ""


def moments(trial: Trial, count: int, rng: random.Random) -> Found:
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
        yield from ((what, problem) for problem in (trial.again() if number % 2 == 0 else ()))
        yield what, ""


def company(trial: Trial, count: int, rng: random.Random) -> Found:
    """Run the command twice at once, with slow names, a jumping clock, or an output that nobody reads."""
    for number in range(count):
        before = trial.empty(old=number % 2 == 0)
        started = ("worker killed", "worker killed") if "--workers" in trial.arguments else ()
        kind = rng.choice(("two at once", "one of two killed", "slow names", "clock", "no reader", *started))
        seed = rng.randrange(1 << 30)
        if kind in ("clock", "no reader"):
            change: Callable[[], object] = _close_output if kind == "no reader" else lambda seed=seed: _jump(seed)  # type: ignore[misc]
            code = wait(fork(trial.arguments, trial.log, change))
            if kind == "clock" and code != 0:
                yield kind, f"exit code {code}: {trial.log.read_text()[-600:]}"
        elif kind == "worker killed":
            process = fork(trial.arguments, trial.log)
            _kill_worker(process, rng.uniform(0, trial.seconds))
            code = wait(process)
            if code != 0:
                yield kind, f"exit code {code}: {trial.log.read_text()[-600:]}"
        else:
            code = None
            for problem in _two(trial, kind, rng, seed):
                yield kind, problem
        if code is not None:
            found = trial.problems(code, before, killed=False, unread=kind == "no reader")
            yield from ((kind, problem) for problem in found)
        yield from ((kind, problem) for problem in trial.again())
        yield kind, ""


def disks(trial: Trial, count: int, rng: random.Random) -> Found:
    """Give the output a file system of its own, which holds fewer pages than it needs, or a few more."""
    pages = sum(len(data) // PAGE + 1 for data in trial.wanted.values())
    for number in range(count):
        size = rng.randrange(2, 8 + 2 * pages)
        what = f"a disk of {size} pages"
        trial.empty(old=False)
        _mount("-t", "tmpfs", "-o", f"size={PAGE * size}", "tmpfs", trial.folder)
        try:
            before = trial.empty(old=number % 2 == 0 and size > len(trial.tops))
            code = wait(fork(trial.arguments, trial.log))
            yield from ((what, problem) for problem in trial.problems(code, before, killed=False))
            _mount("-o", f"remount,size={PAGE << 14}", trial.folder)
            yield from ((what, problem) for problem in trial.again())
        finally:
            subprocess.run(["umount", trial.folder], check=True)
        yield what, ""


def _mount(*words: str | Path) -> None:
    if subprocess.run(["mount", *words], check=False).returncode:
        raise SystemExit("Only root may mount file systems: leave --kinds disk out.")


def _two(trial: Trial, kind: str, rng: random.Random, seed: int) -> Iterator[str]:
    """Run the command twice at once: one succeeds, and the other too unless it finds its folder in use or is killed."""
    slow = (lambda: _slow_names(seed)) if kind == "slow names" else (lambda: None)
    other = Path("log-of-other")
    one = fork(trial.arguments, trial.log, slow)
    time.sleep(rng.uniform(0, trial.seconds) * rng.choice((0.02, 1.0)))
    two = fork(trial.arguments, other, slow)
    if kind == "one of two killed":
        time.sleep(rng.uniform(0, trial.seconds))
        os.kill(two, signal.SIGKILL)
    codes = wait(one), wait(two)
    said = [file.read_text(errors="replace") for file in (trial.log, other)]
    if None in codes or any("Traceback" in each for each in said):
        yield f"exit codes {codes}: {said[0][-600:]} {said[1][-600:]}"
    must = codes[:1] if kind == "one of two killed" else codes
    if 0 not in codes if trial.holds_folder else any(must):
        yield f"exit codes {codes}: {said[0][-600:]} {said[1][-600:]}"
    found = contents(trial.folder)
    torn = [name for name, data in trial.wanted.items() if found.get(name) != data]
    left = [name for name in found if Path(name).parts[0] not in trial.tops and kind != "one of two killed"]
    if torn or left:
        yield f"exit codes {codes}, torn or missing: {torn}, left behind: {left}"


def _kill_worker(process: int, delay: float) -> None:
    """Kill the newest process that a command started, after a while; none if there is none then. Linux only."""
    time.sleep(delay)
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        if children:
            os.kill(int(children[-1]), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return


def _limit_files(most: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _close_output() -> None:
    """Print into a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)
    _open_streams()


def _jump(seed: int) -> None:
    """Let every look at the clock of the day show another time, from 1970 to 2106."""
    rng = random.Random(seed)
    time.time = lambda: rng.uniform(0, 2**32)  # type: ignore[assignment]
    time.time_ns = lambda: rng.randrange(2**62)  # type: ignore[assignment]


def _slow_names(seed: int) -> None:
    """Let every change of a name take a while, as over a network."""
    rng = random.Random(seed + os.getpid())
    for name in ("replace", "rename", "mkdir"):
        setattr(os, name, _slowly(getattr(os, name), rng))


def _slowly(real: Callable[..., Any], rng: random.Random) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        time.sleep(rng.uniform(0, 0.03))
        done = real(*args, **options)
        time.sleep(rng.uniform(0, 0.03))
        return done

    return call


def work(task: tuple[str, str, int, int, int, int, int]) -> tuple[str, str, int, float, list[str]]:
    """Run one part of the faults of a command; returns how many there were, and the problems."""
    name, kind, part, parts, count, most, seed = task
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="job-", dir=".") as folder:
        home = Path.cwd()
        os.chdir(folder)
        try:
            trial = Trial(name, commands()[name])
            rng = random.Random(f"{seed} {name} {kind} {part}")
            found = {
                "call": lambda: calls(trial, part, parts, most, seed),
                "kill": lambda: moments(trial, -(-count // parts), rng),
                "company": lambda: company(trial, -(-count // parts), rng),
                "disk": lambda: disks(trial, -(-count // parts), rng),
            }[kind]()
            done, problems = 0, []
            for what, problem in found:
                done += not problem
                if problem:
                    problems.append(f"{name}, {what}: {problem}")
        finally:
            os.chdir(home)
    return name, kind, done, time.monotonic() - start, problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", nargs="+", choices=list(commands()), default=list(commands()))
    parser.add_argument("--kinds", nargs="+", default=["call", "kill", "company"], choices=KINDS)
    parser.add_argument("--count", type=int, default=20, help="of each kind but call, and of each command")
    parser.add_argument("--calls", type=int, default=1000, help="of the kind call, at most, of each command")
    parser.add_argument("--jobs", type=int, default=2, help="at a time")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ[ENVIRONMENT] = "1"  # the trial in another process has tests of its own
    total, failures, start = 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="detent-faults-") as folder:
        home = Path.cwd()
        prepare(Path(folder))
        tasks = [
            (name, kind, part, 2 * given.jobs, given.count, given.calls, given.seed)
            for name in given.commands
            for kind in given.kinds
            for part in range(2 * given.jobs)
        ]
        # Not a multiprocessing.Pool: its processes may not start others, and --workers does.
        with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("fork")) as pool:
            for ended in as_completed([pool.submit(work, task) for task in tasks]):
                name, kind, done, seconds, problems = ended.result()
                total += done
                failures += len(problems)
                print(f"{name}, {kind}: {done} faults in {seconds:.0f} s", *problems, sep="\n    ", flush=True)
        os.chdir(home)
    print(f"{total} faults, {failures} problems, {total / (time.monotonic() - start):.1f} faults per second")
    sys.exit(min(failures, 1))


if __name__ == "__main__":
    main()
