"""The integer emulator beside onnxruntime: every code of every tensor compared, and both timed.

python -m benchmarks.emulator [--models ...] [--files quantized.onnx ...] [--images 4]

onnxruntime runs the QDQ file as it is written, in float32, without fusing anything. A tensor is an *origin* of a
difference where all tensors that it is computed from are equal: there float32 and integers part; all others follow.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

import detent
from benchmarks.common import CALIBRATION, CASES, Case, arguments, chosen, print_table
from detent.emulator import Emulator
from detent.graph.load import load
from detent.graph.save import complete_proto, serialize
from detent.graph.session import Runner, session_options
from detent.numerics.codec import DEVICE_ROUNDINGS
from detent.observe.sources import open_source

RUNS = 12


def main() -> None:
    parser = arguments("The integer emulator against onnxruntime.", samples=16)
    parser.add_argument("--images", type=int, default=4, help="images to compare on")
    parser.add_argument("--files", nargs="*", type=Path, default=[], help="quantized files, named as their model")
    parser.add_argument("--threads", type=int, default=2, help="images at a time, when timing")
    options = parser.parse_args()
    compared, timed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for case, file in files(options, Path(folder)):
            feeds = images(case, file, options.images)
            compared.append([file.stem, *compare(file, feeds)])
            timed.append([file.stem, *speed(file, feeds[0], options.threads)])
    print_table(
        (
            "model",
            "in float",
            "tensors",
            "differ",
            "elements",
            "differ",
            "by at most",
            "origins",
            "top-1 half-even, dpu",
        ),
        compared,
    )
    print()
    print_table(("model", "QDQ float, ms", "QDQ, ms", "emulator, ms", "of QDQ float", "dpu, of QDQ float"), timed)


def files(options: Any, folder: Path) -> Iterator[tuple[Case, Path]]:
    for given in options.files:
        yield next(case for case in CASES if given.stem.startswith(case.name)), given
    for case in chosen(options.models if not options.files else ()):
        output = folder / f"{case.name}.onnx"
        recipe = detent.find_recipe("XINT8")
        shapes = None if case.size is None else {input_name(case): (1, 3, *case.size)}
        detent.quantize(
            case.path, output, CALIBRATION, recipe, limit=options.samples, preprocess=case.options, fix_shapes=shapes
        )
        yield case, output


def input_name(case: Case) -> str:
    return str(load(case.path).graph.inputs[0].name)


def images(case: Case, file: Path, count: int) -> list[dict[str, np.ndarray]]:
    inputs = Emulator(file).inputs
    source = open_source(CALIBRATION, inputs, preprocess=case.options, limit=count)
    return [dict(pending.load().feeds) for pending in source]


def as_written(model: ir.Model, names: Sequence[str]) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    """onnxruntime without any optimization."""
    options = session_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    present = {value.name for value in model.graph.outputs}
    more = [v for node in model.graph for v in node.outputs if v.name in names and v.name not in present]
    model.graph.outputs.extend(more)
    session = onnxruntime.InferenceSession(serialize(complete_proto(model)), options, ["CPUExecutionProvider"])
    return lambda feeds: session.run(list(names), feeds)


def compare(file: Path, feeds: Sequence[dict[str, np.ndarray]]) -> list[object]:
    exact, device = (Emulator(file, rounding=rounding) for rounding in DEVICE_ROUNDINGS)
    names = exact.tensors
    model = load(file)
    before = sources(model)
    run = as_written(load(file), [*names, *exact.outputs])
    elements = differing = farthest = 0
    wrong: set[str] = set()
    origins: Counter[str] = Counter()
    same = [0, 0]
    for one in feeds:
        results = run(one)
        expected, outputs = dict(zip(names, results, strict=False)), results[len(names) :]
        found = exact.codes(one)
        distance = {name: np.abs(found[name].astype(int) - expected[name].astype(int)) for name in names}
        apart = {name for name in names if distance[name].any()}
        wrong |= apart
        for name in apart:
            if apart.isdisjoint(before[name][1]):
                origins[f"{before[name][0]}: {int((distance[name] > 0).sum())}"] += 1
        elements += sum(each.size for each in distance.values())
        differing += sum(int((each > 0).sum()) for each in distance.values())
        farthest = max(farthest, *(int(each.max(initial=0)) for each in distance.values()))
        for index, emulator in enumerate((exact, device)):
            same[index] += np.array_equal(emulator(one)[0].argmax(-1), outputs[0].argmax(-1))
    report = exact.report()
    steps = Counter(f"{step.op_type}" for step in report.float_steps)
    listed = ", ".join(f"{count} {op}" for op, count in steps.items()) or "none"
    for reason, count in Counter((step.op_type, step.reason) for step in report.float_steps).items():
        print(f"{file.stem}: {count} x {reason[0]} in float: {reason[1]}")
    if report.overflows:
        print(f"{file.stem}: left int32: {report.overflows}")
    causes = "; ".join(f"{what} ({count}x)" for what, count in origins.most_common(4)) or "none"
    agreeing = f"{same[0]}, {same[1]} of {len(feeds)}"
    return [listed, len(names), len(wrong), f"{elements:,}", f"{differing:,}", farthest, causes, agreeing]


def sources(model: ir.Model) -> dict[str, tuple[str, set[str]]]:
    """For the codes of each QuantizeLinear: the operators before it, and the codes that these read."""
    found = {}
    for node in model.graph:
        if node.op_type != "QuantizeLinear":
            continue
        operators, codes, pending = [], set(), [node.inputs[0]]
        while pending:
            producer = pending.pop().producer()
            if producer is None:
                continue
            if producer.op_type == "DequantizeLinear":
                codes.add(str(producer.inputs[0].name))
                continue
            operators.append(producer.op_type)
            pending += [value for value in producer.inputs if value is not None]
        found[str(node.outputs[0].name)] = ("-".join(reversed(operators)) or "input", codes)
    return found


def speed(file: Path, feeds: dict[str, np.ndarray], threads: int) -> list[str]:
    """Milliseconds for `threads` images at a time; interleaved, the median of the rounds."""
    model = load(file)
    runs = {
        "float": Runner(model, exact=True),
        "qdq": Runner(model),
        **{rounding: Emulator(file, rounding=rounding) for rounding in DEVICE_ROUNDINGS},
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(RUNS):
            for name, run in runs.items():
                start = time.perf_counter()
                list(pool.map(run, [feeds] * threads))
                times[name].append(time.perf_counter() - start)
    middle = {name: 1000 * statistics.median(each[2:]) for name, each in times.items()}
    ratios = [f"{middle[rounding] / middle['float']:.2f}" for rounding in DEVICE_ROUNDINGS]
    return [f"{middle['float']:.1f}", f"{middle['qdq']:.1f}", f"{middle['half-even']:.1f}", *ratios]


if __name__ == "__main__":
    main()
