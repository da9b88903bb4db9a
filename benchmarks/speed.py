"""What quantizing costs: time as a multiple of plain inference over the same images, memory, imports and disk.

python -m benchmarks.speed
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnxruntime

import detent
from benchmarks.common import CALIBRATION, CASES, arguments, calibration_array, print_table

CASE = CASES[0]
SCRIPT = Path(sys.executable).with_name("detent")


PLAIN_COMMAND = """
import sys
from pathlib import Path
import numpy
import onnxruntime
from detent.observe.preprocess import InputSpec, PreprocessOptions, guess_preprocess
model, settings, folder, count = sys.argv[1:]
images = InputSpec("images", numpy.dtype("float32"), (None, 3, None, None))
load = guess_preprocess(images, PreprocessOptions(file=settings))[0].load
session = onnxruntime.InferenceSession(model)
for file in sorted(Path(folder).iterdir())[: int(count)]:
    session.run(None, {session.get_inputs()[0].name: load(file)[None]})
"""


def main() -> None:
    parser = arguments("Time and memory of `detent quantize` on mobilenetv2.", samples=128)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    images = calibration_array(CASE, options.samples)
    plain, command, inside, alone = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.onnx"
        quantize(output, options.samples)  # once before: compiled loops are cached, files are in memory
        # Before anything large runs in this process: a child's peak counts from its parent's size.
        memory = {count: peak_memory(output, count) for count in (64, 350)}
        quantize_here(output, options.samples)
        for _ in range(options.repeat):
            plain.append(plain_inference(images))
            inside.append(quantize_here(output, options.samples))
            plain.append(plain_inference(images))
            command.append(quantize(output, options.samples))
            alone.append(timed_once([sys.executable, "-c", PLAIN_COMMAND, *plain_arguments(options.samples)]))
    base = statistics.median(plain)
    rows = [
        ("plain onnxruntime inference", f"{base:.2f}", "1.00"),
        ("detent.quantize(), everything included", f"{statistics.median(inside):.2f}", ratio(inside, base)),
        ("the command, start-up and imports included", f"{statistics.median(command):.2f}", ratio(command, base)),
        ("plain inference as a command, images read", f"{statistics.median(alone):.2f}", ratio(alone, base)),
    ]
    print(
        f"mobilenetv2, {options.samples} images, {os.cpu_count()} cores, medians of {options.repeat} interleaved runs"
    )
    print_table(("what", "seconds", "times plain inference"), rows)
    print_table(("images", "peak memory MB"), [(count, f"{size:.0f}") for count, size in memory.items()])
    print(f"350 images against 64: {100 * (memory[350] / memory[64] - 1):+.1f} %")
    print_table(("start-up", "seconds"), [("import detent", import_time()), ("detent --help", help_time())])


def ratio(ours: list[float], plain: float) -> str:
    return f"{statistics.median(ours) / plain:.2f}"


def plain_inference(images) -> float:
    """All images through the float model, as anyone would: one default session, one image at a time."""
    session = onnxruntime.InferenceSession(CASE.path)
    name = session.get_inputs()[0].name
    session.run(None, {name: images[:1]})
    start = time.perf_counter()
    for image in images:
        session.run(None, {name: image[None]})
    return time.perf_counter() - start


def command_line(output: Path, samples: int) -> list[str]:
    settings = ["--preprocess", str(CASE.path.with_suffix(".json"))]
    return [str(SCRIPT), "quantize", str(CASE.path), str(output), "--calib", str(CALIBRATION), "--limit", str(samples), "--json", *settings]  # fmt: skip  # noqa: E501


def plain_arguments(samples: int) -> list[str]:
    return [str(CASE.path), str(CASE.path.with_suffix(".json")), str(CALIBRATION), str(samples)]


def quantize(output: Path, samples: int) -> float:
    return timed_once(command_line(output, samples))


def quantize_here(output: Path, samples: int) -> float:
    start = time.perf_counter()
    detent.quantize(CASE.path, output, CALIBRATION, limit=samples, preprocess=CASE.options)
    return time.perf_counter() - start


def peak_memory(output: Path, samples: int) -> float:
    """The largest resident size of the command, in MB."""
    process = subprocess.Popen(command_line(output, samples), stdout=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_maxrss / 1024


def import_time() -> str:
    return timed([sys.executable, "-c", "import detent"], timed([sys.executable, "-c", "pass"]))


def help_time() -> str:
    return f"{timed([str(SCRIPT), '--help']):.2f}"


def timed_once(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - start


def timed(command: list[str], less: float = 0.0):
    median = statistics.median(timed_once(command) for _ in range(7))
    return f"{median - less:.2f}" if less else median


if __name__ == "__main__":
    main()
