"""How fast integer models run: Detent's two forms beside those of onnxruntime's own quantizer, and float.

python -m benchmarks.integer_speed
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import detent
from benchmarks.common import CASES, Case, calibration_array, chosen, evaluator, print_table
from detent.convert import convert
from detent.methods import MinMax
from detent.numerics.formats import IntegerFormat
from detent.recipe import Recipe
from detent.recipe.file import find_recipe

RECIPE = Recipe(
    "A8W8-asymmetric",
    "asymmetric 8-bit activations, as is usual on CPUs",
    activations=IntegerFormat("uint8", symmetric=False),
    weights=IntegerFormat("int8"),
    biases=IntegerFormat("int32"),
    method=MinMax(),
    target="cpu",
    equalize=None,
    refinement=None,
)
PRESETS = [find_recipe(name).replace(equalize=False, refinement=None) for name in ("A8W8", "XINT8")]
FLOAT, THEIR_QDQ, THEIR_INTEGER = "float", "onnxruntime, QDQ", "onnxruntime, QOperator"
RUNS = 10
COUNTED = ("QLinearConv", "Conv", "QuantizeLinear", "DequantizeLinear", "Clip")


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency of integer models on this CPU, one image at a time.")
    parser.add_argument("--models", nargs="*", default=["mobilenetv2"], choices=[case.name for case in CASES])
    parser.add_argument("--samples", type=int, default=8, help="calibration images")
    parser.add_argument("--rounds", type=int, default=40, help=f"interleaved rounds of {RUNS} runs each")
    parser.add_argument("--agreement", type=int, default=100, help="evaluation images to compare both forms on")
    options = parser.parse_args()
    for case in chosen(options.models):
        with tempfile.TemporaryDirectory() as folder:
            images = calibration_array(case, options.samples)
            files = {FLOAT: case.path, **theirs(case, images, Path(folder))}
            for recipe in (RECIPE, *PRESETS):
                files |= ours(case, images, Path(folder), recipe)
            report(case, files, images[:1], options.rounds)
            print(f"{agreement(case, files, options.agreement)}\n")


def theirs(case: Case, images, folder: Path) -> dict[str, Path]:
    """Both forms from onnxruntime's quantizer, as it is by default but for unsigned activations."""
    files = {THEIR_QDQ: folder / "their_qdq.onnx", THEIR_INTEGER: folder / "their_integer.onnx"}
    prepared = folder / "prepared.onnx"
    quant_pre_process(str(case.path), str(prepared))
    for name, form in ((THEIR_QDQ, QuantFormat.QDQ), (THEIR_INTEGER, QuantFormat.QOperator)):
        reader = Reader(case, images)
        quantize_static(str(prepared), str(files[name]), reader, quant_format=form, activation_type=QuantType.QUInt8)
    return files


def ours(case: Case, images, folder: Path, recipe: Recipe) -> dict[str, Path]:
    """Both forms from Detent; that of integers with unsigned activations, which run faster on x64."""
    qdq, integer = (folder / f"{recipe.name}_{form}.onnx" for form in ("qdq", "integer"))
    detent.quantize(case.path, qdq, images, recipe=recipe)
    unsigned = ["uint8:weights=false"] if recipe.activations.signed else []
    for note in convert(qdq, integer, [*unsigned, "qoperator"]).declined:
        print(f"{recipe.name} leaves {note.node} float: {note.what}")
    return {f"detent {recipe.name}, QDQ": qdq, f"detent {recipe.name}, QOperator": integer}


class Reader(CalibrationDataReader):
    """The calibration images, one at a time."""

    def __init__(self, case: Case, images) -> None:
        name = onnx.load(case.path).graph.input[0].name
        self._rest = iter([{name: image[None]} for image in images])

    def get_next(self):
        return next(self._rest, None)


def report(case: Case, files: dict[str, Path], image, rounds: int) -> None:
    print(f"{case.name}, one image at a time, the fastest of {RUNS} runs, medians of {rounds} interleaved rounds")
    threads = (1, 2)
    times = {count: latencies(files, image, count, rounds) for count in threads}
    rows = []
    for name, file in files.items():
        row = [name]
        for count in threads:
            ours, plain = times[count][name], times[count][FLOAT]
            ratio = statistics.median(one / other for one, other in zip(ours, plain, strict=True))
            row += [f"{1000 * statistics.median(ours):.2f}", f"{ratio:.2f}"]
        operators = optimized_operators(file)
        rows.append([*row, *(operators[op] for op in COUNTED), operators.total()])
    header = ["model"]
    for count in threads:
        header += [f"ms, {count} thread{'s' * (count > 1)}", "times float"]
    print_table([*header, *COUNTED, "nodes in all"], rows)


def latencies(files: dict[str, Path], image, threads: int, rounds: int) -> dict[str, list[float]]:
    """Seconds for one image, round by round; every round runs every model, each time from another one on."""
    sessions = {name: open_session(file, threads) for name, file in files.items()}
    times: dict[str, list[float]] = {name: [] for name in files}
    names = list(files)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(min(timed(sessions[name], image) for _ in range(RUNS)))
    return times


def timed(session, image) -> float:
    feeds = {session.get_inputs()[0].name: image}
    start = time.perf_counter()
    session.run(None, feeds)
    return time.perf_counter() - start


def open_session(file: Path, threads: int = 1, optimized: Path | None = None, **config: str):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    for key, setting in config.items():
        options.add_session_config_entry(f"session.{key}", setting)
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def optimized_operators(file: Path) -> Counter[str]:
    """What onnxruntime makes of a model before it runs it."""
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        open_session(file, optimized=optimized)
        return Counter(node.op_type for node in onnx.load(optimized).graph.node)


def agreement(case: Case, files: dict[str, Path], count: int) -> str:
    """How often Detent's integer form gives the answer of its QDQ form, in arithmetic that does not saturate.

    The QDQ form runs in float, as it is written, and on the integer kernels that onnxruntime puts in its place.
    """
    images = evaluator(case, count).dataset
    integer = open_session(files[f"detent {RECIPE.name}, QOperator"], 2, x64quantprecision="1")
    others = {
        "in float": open_session(files[f"detent {RECIPE.name}, QDQ"], 2, disable_quant_qdq="1"),
        "on integer kernels": open_session(files[f"detent {RECIPE.name}, QDQ"], 2, x64quantprecision="1"),
    }
    same = Counter[str]()
    for batch in images:
        feeds = batch.pending.load().feeds
        answer = np.argmax(integer.run(None, feeds)[0])
        same.update(name for name, other in others.items() if np.argmax(other.run(None, feeds)[0]) == answer)
    found = ", ".join(f"{same[name]} {name}" for name in others)
    return f"detent's QOperator answers as its QDQ on {found}, of {len(images)} images"


if __name__ == "__main__":
    main()
