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
import onnx_ir as ir
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import detent
from benchmarks.common import CASES, Case, calibration_array, chosen, evaluation_images, print_table
from detent.emit.qoperator import check_qoperator, to_qoperator
from detent.methods import MinMax
from detent.numerics.formats import IntegerFormat
from detent.recipe import Recipe

RECIPE = Recipe(
    "integers",
    "asymmetric 8-bit activations, as is usual on CPUs",
    activations=IntegerFormat("uint8", symmetric=False),
    weights=IntegerFormat("int8"),
    biases=IntegerFormat("int32"),
    method=MinMax(),
    target="cpu",
    equalize=False,
    refinement=None,
)
FLOAT, THEIR_QDQ, THEIR_INTEGER = "float", "onnxruntime, QDQ", "onnxruntime, QOperator"
OUR_QDQ, OUR_INTEGER = "detent, QDQ", "detent, QOperator"
COUNTED = ("QLinearConv", "Conv", "QuantizeLinear", "DequantizeLinear", "Clip")


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency of integer models on this CPU, one image at a time.")
    parser.add_argument("--models", nargs="*", default=["mobilenetv2"], choices=[case.name for case in CASES])
    parser.add_argument("--samples", type=int, default=8, help="calibration images")
    parser.add_argument("--rounds", type=int, default=40, help="interleaved rounds of 5 images each")
    parser.add_argument("--agreement", type=int, default=100, help="evaluation images to compare both forms on")
    options = parser.parse_args()
    for case in chosen(options.models):
        with tempfile.TemporaryDirectory() as folder:
            images = calibration_array(case, options.samples)
            files = {FLOAT: case.path, **quantized(case, images, Path(folder))}
            report(case, files, images[:1], options.rounds)
            print(f"{agreement(case, files, options.agreement)}\n")


def quantized(case: Case, images, folder: Path) -> dict[str, Path]:
    files = {
        name: folder / f"{index}.onnx" for index, name in enumerate((THEIR_QDQ, THEIR_INTEGER, OUR_QDQ, OUR_INTEGER))
    }
    prepared = folder / "prepared.onnx"
    quant_pre_process(str(case.path), str(prepared))
    for name, form in ((THEIR_QDQ, QuantFormat.QDQ), (THEIR_INTEGER, QuantFormat.QOperator)):
        quantize_static(
            str(prepared), str(files[name]), Reader(case, images), quant_format=form, activation_type=QuantType.QUInt8
        )
    check_qoperator(RECIPE)
    detent.quantize(case.path, files[OUR_QDQ], images, recipe=RECIPE)
    model = ir.load(files[OUR_QDQ])
    for note in to_qoperator(model):
        print(f"left float: {note.node}: {note.what}")
    ir.save(model, files[OUR_INTEGER])
    return files


class Reader(CalibrationDataReader):
    """The calibration images, one at a time."""

    def __init__(self, case: Case, images) -> None:
        name = onnx.load(case.path).graph.input[0].name
        self._rest = iter([{name: image[None]} for image in images])

    def get_next(self):
        return next(self._rest, None)


def report(case: Case, files: dict[str, Path], image, rounds: int) -> None:
    print(f"{case.name}, one image at a time, medians of {rounds} interleaved rounds of 5")
    threads = (1, 2)
    times = {count: latencies(files, image, count, rounds) for count in threads}
    rows = []
    for name, file in files.items():
        operators = optimized_operators(file)
        row = [name]
        for count in threads:
            median = statistics.median(times[count][name])
            row += [f"{1000 * median:.2f}", f"{median / statistics.median(times[count][FLOAT]):.2f}"]
        rows.append([*row, *(operators[op] for op in COUNTED), operators.total()])
    header = ["model"]
    for count in threads:
        header += [f"ms, {count} thread{'s' * (count > 1)}", "times float"]
    print_table([*header, *COUNTED, "nodes in all"], rows)


def latencies(files: dict[str, Path], image, threads: int, rounds: int) -> dict[str, list[float]]:
    """Seconds for one image, round by round; every round runs every model."""
    sessions = {name: open_session(file, threads) for name, file in files.items()}
    times: dict[str, list[float]] = {name: [] for name in files}
    for turn in range(rounds + 2):
        for name, session in sessions.items():
            feeds = {session.get_inputs()[0].name: image}
            start = time.perf_counter()
            for _ in range(5):
                session.run(None, feeds)
            if turn >= 2:
                times[name].append((time.perf_counter() - start) / 5)
    return times


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
    """How alike Detent's two forms answer, in arithmetic that does not saturate."""
    images, preprocess = evaluation_images(case)
    qdq = open_session(files[OUR_QDQ], 2, x64quantprecision="1", disable_quant_qdq="1")
    integer = open_session(files[OUR_INTEGER], 2, x64quantprecision="1")
    same = 0
    for image in images[:count]:
        feeds = {qdq.get_inputs()[0].name: preprocess.load(image.file)[None]}
        same += int(np.argmax(qdq.run(None, feeds)[0]) == np.argmax(integer.run(None, feeds)[0]))
    return f"the same answer from detent's QDQ and QOperator: {same} of {len(images[:count])} images"


if __name__ == "__main__":
    main()
