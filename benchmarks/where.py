"""Where the time and the memory of `detent quantize` go: by stage and by cause, in processor seconds.

python -m benchmarks.where
python -m benchmarks.where --models yolov8n --samples 32

Each model is quantized in a process of its own. Processor time is that of all threads, so it can be compared on a
machine that does other things too; plain inference over the same samples stands beside it. Causes overlap with stages,
and are counted in the thread that works: a session of onnxruntime is created, run, a loop is compiled or read from the
cache, a graph becomes a message. Other models: --model FILE --data FOLDER.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START = time.process_time()

import detent  # noqa: E402  (imports are measured, and this one first, as in the command)
from benchmarks.common import CALIBRATION, DATA, print_table  # noqa: E402

MODELS = {
    "mobilenetv2": (DATA / "models" / "mobilenetv2.onnx", CALIBRATION),
    "resnet50": (DATA / "models" / "resnet50.onnx", CALIBRATION),
    "yolov8n": (DATA / "models" / "yolov8n.onnx", DATA / "coco-train-64"),
}
IMPORTS = "import benchmarks.where, detent.pipeline.trials, numba.core.dispatcher"
CAUSES = ("create session", "run session", "compile or load loops", "serialize")


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor time and memory of quantize(), by stage and by cause.")
    present = [name for name, (model, _) in MODELS.items() if model.exists()]
    parser.add_argument("--models", nargs="*", default=present, choices=list(MODELS))
    parser.add_argument("--model", type=Path, help="another model; with --data")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--recipe", default="XINT8")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options.model, options.data, options.samples, options.recipe)))
        return
    cases = [(options.model, options.data)] if options.model else [MODELS[name] for name in options.models]
    for model, data in cases:
        command = [sys.executable, "-m", "benchmarks.where", "--inside", "--model", str(model), "--data", str(data)]
        command += ["--samples", str(options.samples), "--recipe", options.recipe]
        with tempfile.TemporaryDirectory() as folder:
            # As in an installation, modules are compiled to bytecode already, whatever the environment says.
            settings = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
            subprocess.run([sys.executable, "-c", IMPORTS], env=settings, check=True)
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=settings)
        show(model, options.samples, json.loads(done.stdout.splitlines()[-1]))


def show(model: Path, samples: int, found: dict[str, Any]) -> None:
    plain = found["plain"]
    total = sum(stage["seconds"] for stage in found["stages"].values())
    print(
        f"\n{model.stem}, {samples} samples: {total:.1f} processor seconds, {total / plain:.1f} times plain inference"
    )
    rows = [
        (name, f"{stage['seconds']:.2f}", stage["peak"], *(_cause(stage["causes"].get(cause)) for cause in CAUSES))
        for name, stage in found["stages"].items()
    ]
    print_table(("stage", "seconds", "peak MB", *CAUSES), rows)
    print(f"minor page faults: {found['faults']:,}; plain inference: {plain:.2f} s")


def _cause(found: list[float] | None) -> str:
    return "" if found is None else f"{found[1]:.2f} ({int(found[0])})"


def measure(model: Path, data: Path, samples: int, recipe: str) -> dict[str, Any]:
    """Quantize in this process, and return what each stage took."""
    from detent.pipeline import prepared, trials  # noqa: F401  (what the command imports)

    causes = watch_causes()
    stages = {"import": _stage(START, {}, {})}

    @contextmanager
    def step(self: Any, name: str) -> Iterator[None]:
        before, start = {cause: tuple(each) for cause, each in causes.items()}, time.process_time()
        with original(self, name):
            yield
        stages[name] = _stage(start, before, causes)

    original = prepared.Stopwatch.step
    prepared.Stopwatch.step = step  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        detent.quantize(model, Path(folder) / "out.onnx", data, limit=samples, recipe=recipe)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return {"stages": stages, "plain": plain_inference(model, data, samples), "faults": faults}


def _stage(start: float, before: dict[str, tuple[float, ...]], causes: dict[str, list[float]]) -> dict[str, Any]:
    changed = {cause: [each[0] - before.get(cause, (0,))[0], each[1] - before.get(cause, (0, 0))[1]] for cause, each in causes.items()}  # fmt: skip  # noqa: E501
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {
        "seconds": time.process_time() - start,
        "peak": peak,
        "causes": {name: each for name, each in changed.items() if each[0]},
    }


def watch_causes() -> dict[str, list[float]]:
    """Return a count and the seconds of each cause, kept up to date from now on."""
    import onnxruntime
    from numba.core.dispatcher import Dispatcher
    from onnx_ir import serde

    causes: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])

    def timed(cause: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                causes[cause][0] += 1
                causes[cause][1] += time.thread_time() - start

        return wrapper

    session: Any = onnxruntime.InferenceSession
    session.__init__ = timed("create session", session.__init__)
    session.run = timed("run session", session.run)
    Dispatcher.compile = timed("compile or load loops", Dispatcher.compile)
    serde.serialize_model = timed("serialize", serde.serialize_model)
    return causes


def plain_inference(model: Path, data: Path, samples: int) -> float:
    """Return the processor seconds of the float model alone, one sample at a time in one thread."""
    import onnxruntime

    from detent.graph.load import load
    from detent.observe.sources import input_specs, open_source

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options)
    types = {each.name: "float16" if each.type == "tensor(float16)" else None for each in session.get_inputs()}
    seconds = 0.0
    for pending in open_source(data, input_specs(load(model)), limit=samples):
        feeds = {name: each.astype(types[name] or each.dtype) for name, each in pending.load().feeds.items()}
        start = time.process_time()
        session.run(None, feeds)
        seconds += time.process_time() - start
    return seconds


if __name__ == "__main__":
    main()
