"""Detent's XINT8 beside AMD Quark's (equalization off) on the same calibration samples: positions and accuracy.

    python3 -m venv quark && quark/bin/pip install torch==2.13.0 && quark/bin/pip install amd-quark onnxruntime==1.28.0
    python -m benchmarks.quark_parity --quark quark/bin/python
    python -m benchmarks.quark_parity --quark quark/bin/python --as-quark XINT8 A8W8 --models squeezenet11

With --as-quark, presets as they are: one script in both tools, its operators counted and its scales compared.
Every position that differs is explained: by the error of both choices on the float model's own values, or by a rule.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from tests.grids import UINT8_ZERO_128

import detent
from benchmarks.common import (
    Case,
    arguments,
    calibration_array,
    chosen,
    evaluator,
    paired_difference,
    parameters,
    percent,
    print_table,
    top1_right,
)
from detent.graph.load import load, read
from detent.graph.session import Runner
from detent.prepare import default_passes, prepare
from detent.results.quantized import Report


def main() -> None:
    parser = arguments("Positions and accuracy beside AMD Quark's XINT8.", samples=128)
    parser.add_argument("--quark", type=Path, required=True, help="the Python of a venv with amd-quark in it")
    parser.add_argument("--as-quark", nargs="+", metavar="PRESET", help="compare `detent run --as-quark` on presets")
    options = parser.parse_args()
    if options.as_quark:
        with tempfile.TemporaryDirectory() as folder:
            found = [
                same_script(case, preset, options.samples, options.quark, Path(folder))
                for case in chosen(options.models)
                for preset in options.as_quark
            ]
        print_table(("model", "preset", "operators that differ", "scales equal", "largest difference"), found)
        return
    rows, notes = [], []
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen(options.models):
            row, explained = compare(case, options.samples, options.quark, Path(folder))
            rows.append(row)
            notes += [f"{case.name}: {note}" for note in explained]
            print_table(HEADER[: len(row)], [row])
    print()
    print_table(HEADER, rows)
    for note in notes:
        print("-", note)


HEADER = (
    "model", "weights equal", "biases equal", "other constants equal", "activations equal",
    "float top-1", "Quark top-1", "Detent top-1", "Detent - Quark (± std. error)", "Quark s", "Detent s",
)  # fmt: skip


def compare(case: Case, samples: int, quark: Path, folder: Path) -> tuple[list[object], list[str]]:
    array = calibration_array(case, samples)
    ours, theirs, data = (folder / f"{case.name}_{kind}" for kind in ("detent.onnx", "quark.onnx", "samples.npy"))
    np.save(data, array)
    start = time.perf_counter()
    plain = detent.find_recipe("XINT8").replace(
        equalize=False, refinement=None
    )  # as Quark is run: nothing but rounding
    report = detent.quantize(case.path, ours, calibration=array, recipe=plain, limit=len(array))
    seconds = time.perf_counter() - start
    quark_seconds, failure, fell_back = run_quark(quark, case.path, theirs, data)
    if failure:
        accuracy = top1(case, ours, None) if case.labelled else ["-"] * 4
        return [case.name, *["-"] * 4, *accuracy, failure, f"{seconds:.1f}"], [f"Quark: {failure}"]
    mine, other = parameters(read(ours)), parameters(read(theirs))
    cells: list[object] = []
    notes = []
    if fell_back:
        notes.append(
            "Quark's MinMSE failed (its histogram outgrew the memory) and it used NonOverflow without saying so: "
            "not comparable. Try fewer --samples."
        )
    for kind in ("weight", "bias", "constant", "activation"):
        shared = [name for name in mine if mine[name][0] == kind and other.get(name, ("",))[0] == kind]
        differ = [name for name in shared if mine[name][1] != other[name][1]]
        cells.append(f"{len(shared) - len(differ)} of {len(shared)}")
        notes += explain(differ, kind, mine, other, report, case, array)
    only = len([name for name in mine if name not in other]), len([name for name in other if name not in mine])
    if any(only):
        notes.append(f"{only[0]} tensors only Detent quantizes, {only[1]} only Quark (graphs folded differently)")
    accuracy = top1(case, ours, theirs) if case.labelled else ["-"] * 4
    return [case.name, *cells, *accuracy, f"{quark_seconds:.1f}", f"{seconds:.1f}"], notes


def same_script(case: Case, preset: str, samples: int, quark: Path, folder: Path) -> list[object]:
    """One script run by Quark and by `detent run --as-quark`."""
    theirs, ours, data = (folder / f"{case.name}_{preset}_{kind}" for kind in ("q.onnx", "d.onnx", "samples.npy"))
    np.save(data, calibration_array(case, samples))
    _, failure, _ = run_quark(quark, case.path, theirs, data, preset)
    if failure:
        return [case.name, preset, failure, "-", "-"]
    worker = Path(__file__).with_name("quark_worker.py")
    command = [sys.executable, "-m", "detent", "run", "--as-quark", worker, case.path, ours, data, preset]
    subprocess.run([str(each) for each in command], check=True, capture_output=True)
    counts = [Counter((node.domain, node.op_type) for node in read(path).graph) for path in (theirs, ours)]
    differ = {
        key: tuple(count[key] for count in counts) for key in counts[0] | counts[1] if counts[0][key] != counts[1][key]
    }
    mine, other = parameters(read(ours)), parameters(read(theirs))
    ratios = [abs(mine[name][1] / other[name][1] - 1) for name in mine if name in other]
    equal = f"{sum(ratio < 1e-5 for ratio in ratios)} of {len(ratios)}"
    return [case.name, preset, differ or "none", equal, f"{100 * max(ratios, default=0.0):.2g} %"]


def run_quark(python: Path, model: Path, output: Path, data: Path, *preset: str) -> tuple[float, str, bool]:
    worker = Path(__file__).with_name("quark_worker.py")
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "QUARK_LOG_LEVEL": "warning"}
    start = time.perf_counter()
    command = [str(python), str(worker), str(model), str(output), str(data), *preset]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=output.parent, check=False)
    log = done.stdout + done.stderr
    if output.exists():
        return time.perf_counter() - start, "", "NonOverflow" in log
    lines = log.strip().splitlines() or ["no output"]
    errors = [line.strip() for line in lines if "Error" in line or "allocate" in line] or lines
    return 0.0, f"failed: {errors[-1][:160]}", False


def top1(case: Case, ours: Path, theirs: Path | None) -> list[object]:
    labelled = evaluator(case)
    before, mine = top1_right(labelled, case.path), top1_right(labelled, ours)
    if theirs is None:
        return [percent(before), "-", percent(mine), "-"]
    other = top1_right(labelled, theirs)
    return [percent(before), percent(other), percent(mine), paired_difference(mine, other, "+")]


def explain(differ, kind, mine, other, report: Report, case: Case, array) -> list[str]:
    """Why two positions differ."""
    if not differ:
        return []
    moved = {move.value: move.rule for move in report.moves}
    notes = []
    if kind == "activation":
        model = load(case.path)
        prepare(model, default_passes())
        inputs = {value.name for value in model.graph.inputs}
        fetched = [name for name in differ if name not in inputs]
        runner, feed = Runner(model, fetched), next(iter(inputs))
        errors = {name: np.zeros(2) for name in differ}
        for sample in array:
            values = dict(zip(fetched, runner({feed: sample[None]}), strict=True)) | {feed: sample}
            for name in differ:
                for index, scale in enumerate((mine[name][1], other[name][1])):
                    difference = values[name] - UINT8_ZERO_128.snap(values[name], scale)
                    errors[name][index] += float((difference**2).sum())
        for name in differ:
            ratio = errors[name][1] / max(errors[name][0], 1e-300)
            rule = f" (moved by the rule '{moved[name]}')" if name in moved else ""
            notes.append(f"activation '{name}': on the raw values Quark's choice has {ratio:.4f} times our error{rule}")
        return notes
    return [
        f"{kind} '{name}': scale {mine[name][1]:g} here, {other[name][1]:g} there; "
        "a constant that several nodes share has one scale there, and one for each node here"
        for name in differ
    ]


if __name__ == "__main__":
    main()
