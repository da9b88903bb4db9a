"""Run targets on mutated seeds; an exception that is no DetentError, a signal, a hang, memory or a file left behind is
kept and told."""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import detent
from detent.graph.guard import try_message
from fuzz.mutate import mutate
from fuzz.targets import TARGETS, Target

HANG = 30.0
MOST_BYTES = 20_000  # larger seeds make slow runs
MOST_MEMORY = 500 << 20  # of one run, beside twice the file
ALL_MEMORY = 12 << 30  # of address space: what asks for more fails here, not on the machine


def run_one(target: Target, folder: Path, data: bytes) -> str | None:
    """Return how a target failed on the data, or None if it answered or refused.

    It fails with an exception that is no DetentError, with files that it left behind, and with memory that it took.
    """
    before = _peak()
    try:
        target.run(folder, data)
    except detent.DetentError:
        pass
    except Exception:  # noqa: BLE001 - this is what is searched for
        return traceback.format_exc(limit=-6)
    left = sorted({path.name for path in folder.iterdir()} - target.files)
    if left:
        return f"left behind: {left}"
    took = _peak() - before
    return f"memory: {took >> 20} MB" if took > MOST_MEMORY + 2 * len(data) else None


def _peak() -> int:
    """Return the most bytes that this process had in memory so far; 0 on Windows, which does not say."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _limit_memory() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (ALL_MEMORY, ALL_MEMORY))


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a folder, in memory where the system has that, for this process and for all that it makes temporarily."""
    memory = Path("/dev/shm")
    place = str(memory) if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="detent-fuzz-", dir=place) as folder:
        before, tempfile.tempdir = tempfile.tempdir, place
        (Path(folder) / "scratch").mkdir()
        try:
            yield Path(folder) / "scratch"
        finally:
            tempfile.tempdir = before


def work(name: str, seed: int, seconds: float, most: int, pipe: Connection, corpus: Path | None) -> None:
    """Run a target for a time; send each input before it is run, and each failure."""
    target, rng = TARGETS[name], random.Random(seed)
    seeds = target.seeds() + ([] if corpus is None or not target.model else small_models(corpus))
    logging.disable()  # of the graph library, on every graph that is none
    _limit_memory()
    pipe.send_bytes(b"s")
    end, count = time.monotonic() + seconds, 0
    with scratch_folder() as folder:
        while time.monotonic() < end and count < most:
            data = mutate(rng.choice(seeds), rng, model=target.model)
            if target.model:  # native code may end this process
                pipe.send_bytes(b"r" + data)
            failure = run_one(target, folder, data)
            count += 1
            if failure is not None:
                pipe.send_bytes(b"f" + data)
                pipe.send_bytes(failure.encode())
    pipe.send_bytes(b"d" + str(count).encode())


def small_models(corpus: Path) -> list[bytes]:
    """Return the small models in a folder, searched to its depth."""
    return [path.read_bytes() for path in sorted(corpus.rglob("*.onnx")) if path.stat().st_size < MOST_BYTES]


def is_caught(data: bytes) -> bool:
    """Return whether the trial in a process of its own says that native code dies of a model (see graph/guard.py)."""
    try:
        try_message(data, "the model")
    except detent.DetentError:
        return True
    return False


def fuzz(name: str, seed: int, seconds: float, most: int, keep: Path, corpus: Path | None = None) -> int:
    """Fuzz one target in processes of its own, print what fails for the first time, and return how many did."""
    end, failures, count = time.monotonic() + seconds, dict[str, int](), 0
    context = multiprocessing.get_context("spawn")
    while time.monotonic() < end and count < most:
        here, there = context.Pipe(duplex=False)
        left = max(1.0, end - time.monotonic())
        process = context.Process(target=work, args=(name, seed + count, left, most - count, there, corpus))
        process.start()
        there.close()
        last, done, patience = b"", False, 300.0  # until the seeds are made, which may compile loops
        while not done:
            try:
                if not here.poll(patience):
                    process.kill()
                    if not (TARGETS[name].model and is_caught(last)):
                        _tell(name, last, "hang", failures, keep)
                    break
                answer = here.recv_bytes()
                patience = HANG + (0.0 if TARGETS[name].model else left)
            except EOFError:
                process.join()
                if not (TARGETS[name].model and is_caught(last)):
                    _tell(name, last, f"signal: exit code {process.exitcode}", failures, keep)
                break
            count += answer[:1] == b"r"
            if answer[:1] == b"f":
                _tell(name, answer[1:], here.recv_bytes().decode(), failures, keep)
            elif answer[:1] == b"d":
                count, done = (count if TARGETS[name].model else count + int(answer[1:])), True
            last = answer[1:] if answer[:1] == b"r" else last
        process.join()
    print(f"{name}: {count} runs, {sum(failures.values())} failures of {len(failures)} kinds", flush=True)
    return len(failures)


def _tell(name: str, data: bytes, what: str, failures: dict[str, int], keep: Path) -> None:
    lines = [line for line in what.strip().splitlines() if line.strip() and "^^^" not in line]
    places = [line.strip() for line in lines if line.lstrip().startswith("File")]
    kind = f"{places[-1] if places else ''} {lines[-1].partition(':')[0]}"
    failures[kind] = failures.get(kind, 0) + 1
    if failures[kind] == 1:
        keep.mkdir(exist_ok=True)
        path = keep / f"{name}-{len(failures)}.bin"
        path.write_bytes(data)
        print(f"--- {name}, kept as {path}\n{what}", flush=True)


def guided(name: str) -> None:
    """Let atheris guide the search by coverage; it takes its own options from the command line."""
    import atheris  # only where its wheel installs

    target = TARGETS[name]
    with scratch_folder() as folder:

        def test_one(data: bytes) -> None:
            failure = run_one(target, folder, data)
            if failure is not None:
                raise AssertionError(failure)

        atheris.instrument_all()
        atheris.Setup([sys.argv[0]], test_one)
        atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0, help="in all")
    parser.add_argument("--runs", type=int, default=10**9, help="at most, of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="where inputs that fail are kept")
    parser.add_argument("--corpus", type=Path, help="a folder of models to start from, beside those of the targets")
    parser.add_argument("--file", type=Path, help="run the target on this file")
    parser.add_argument("--atheris", action="store_true", help="search guided by coverage")
    given = parser.parse_args()
    if given.file is not None:
        with scratch_folder() as folder:
            print(run_one(TARGETS[given.targets[0]], folder, given.file.read_bytes()) or "no failure")
        return 0
    if given.atheris:
        guided(given.targets[0])
        return 0
    each = given.seconds / len(given.targets)
    found = [fuzz(name, given.seed, each, given.runs, given.keep, given.corpus) for name in given.targets]
    return min(1, sum(found))
