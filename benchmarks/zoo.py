"""A zoo of architectures: does every one quantize, load and stay close to float, and what is left float?

python benchmarks/zoo_export.py FOLDER                           in a venv with torch: writes the models, once
python -m benchmarks.zoo FOLDER [NAMES ...] [--recipes XINT8 A8W8 BF16] [--quark PYTHON] [--why]

One row for each model and recipe: how close to float it is on samples that were kept aside (SQNR of all float outputs,
in exact arithmetic), the nodes that are left float, the parts that the device computes, seconds and peak memory. With
--quark, AMD Quark's own Python quantizes the same file with its preset of that name (`zoo_quark.py`), and its SQNR and
nodes left float stand beside ours. --why lists what is left float, by operator and reason.

Every row is computed in a process of its own, so that its memory is its own and one that dies takes no other with it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import detent
from benchmarks.common import print_table

CALIBRATION = 32
RECIPES = ("XINT8", "A8W8", "BF16")
NOT_ARITHMETIC = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "Constant", "Shape", "Identity", "Cast", "ExtendedQuantizeLinear",
     "ExtendedDequantizeLinear"}
)  # fmt: skip
TIME_LIMIT = 1200


def main() -> None:
    parser = argparse.ArgumentParser(description="A zoo of architectures.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--quark", help="the Python of a venv that has AMD Quark")
    parser.add_argument("--why", action="store_true", help="say what is left float, and why")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(quantized(options.folder, options.names[0], options.recipes[0])))
        return
    rows = []
    for name in options.names or sorted(path.stem for path in options.folder.glob("*.npz")):
        for recipe in options.recipes:
            row = measured([sys.executable, "-m", "benchmarks.zoo", str(options.folder), name], recipe)
            beside = by_quark(options.quark, options.folder, name, recipe) if options.quark else {}
            rows.append(_cells(name, recipe, row, beside))
            print(*rows[-1], flush=True)
            if options.why:
                for reason, count in row.get("why", {}).items():
                    print(f"    {count} x {reason}", flush=True)
    print_table(
        (
            "model",
            "recipe",
            "ok",
            "dB",
            "left float",
            "nodes",
            "on device",
            "parts",
            "s",
            "MB",
            "Quark dB",
            "its float",
        ),
        rows,
    )


def _cells(name: str, recipe: str, row: dict[str, Any], beside: dict[str, Any]) -> tuple[object, ...]:
    if "error" in row:
        return (name, recipe, row["error"][:160], *[""] * 9)
    ours = tuple(row[key] for key in ("db", "left", "nodes", "share", "parts", "seconds", "megabytes"))
    return (name, recipe, row["ok"], *ours, beside.get("db", beside.get("error", "")), beside.get("left", ""))


def measured(command: list[str], recipe: str) -> dict[str, Any]:
    """Run one row in a process of its own; its last line is the result."""
    command = [*command, "--row", "--recipes", recipe]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"more than {TIME_LIMIT} s"}
    try:
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": (done.stderr.strip().splitlines() or [f"died with {done.returncode}"])[-1]}
    return found


def samples_of(folder: Path, name: str) -> list[dict[str, Any]]:
    with np.load(folder / f"{name}.npz") as stored:
        arrays = dict(stored)
    present = {value.name for value in onnx.load(folder / f"{name}.onnx", load_external_data=False).graph.input}
    arrays = {key: value for key, value in arrays.items() if key in present}
    return [{key: value[i : i + 1] for key, value in arrays.items()} for i in range(len(next(iter(arrays.values()))))]


def quantized(folder: Path, name: str, recipe: str) -> dict[str, Any]:
    samples = samples_of(folder, name)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary) / "out.onnx"
        try:
            report = detent.quantize(folder / f"{name}.onnx", output, samples[:CALIBRATION], recipe)
        except detent.DetentError as error:
            return {"error": f"{type(error).__name__}: {error}"}
        seconds = time.perf_counter() - start
        left = [node for node in report.nodes if not node.quantized and node.op_type not in NOT_ARITHMETIC]
        db = closeness(folder / f"{name}.onnx", output, samples[CALIBRATION:])
    device = report.device
    return {
        "ok": "yes" if np.isfinite(db) else "NaN",
        "db": round(db, 1),
        "left": len(left),
        "nodes": len(report.nodes),
        "share": ""
        if device is None
        else f"{device.device_nodes / max(device.device_nodes + device.cpu_nodes, 1):.0%}",
        "parts": "" if device is None else device.subgraphs,
        "seconds": round(seconds, 1),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "why": dict(Counter(f"{node.op_type}: {node.reason}" for node in left).most_common(20)),
    }


def closeness(before: Path, after: Path, samples: list[dict[str, Any]]) -> float:
    """The SQNR of all float outputs in dB, each output scaled to unit power; NaN if any number is not finite."""
    noise: list[float] = []
    first, second = _session(before), _session(after)
    for sample in samples:
        for one, other in zip(first.run(None, sample), second.run(None, sample), strict=True):
            if one.dtype.kind == "f":
                power = float(np.square(one, dtype=np.float64).mean()) or 1.0
                noise.append(float(np.square(one.astype(np.float64) - other).mean()) / power)
    return float(-10 * np.log10(max(float(np.mean(noise)), 1e-12))) if noise else float("nan")


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def by_quark(python: str, folder: Path, name: str, recipe: str) -> dict[str, Any]:
    """What AMD Quark makes of the same file."""
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary) / "out.onnx"
        worker = str(Path(__file__).with_name("zoo_quark.py"))
        command = [python, worker, str(folder / f"{name}.onnx"), str(output), str(folder / f"{name}.npz"), recipe]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
        except subprocess.TimeoutExpired:
            return {"error": "time"}
        if not output.exists():
            return {"error": (done.stderr.strip().splitlines() or ["died"])[-1][:60]}
        try:
            db = closeness(folder / f"{name}.onnx", output, samples_of(folder, name)[CALIBRATION:])
        except RuntimeError as error:
            return {"error": str(error)[:60]}
        return {"db": round(db, 1), "left": left_float(onnx.load(output))}


def left_float(model: onnx.ModelProto) -> int:
    """Count the nodes with float data none of whose inputs is dequantized and none of whose outputs is quantized."""
    kinds = {
        value.name: value.type.tensor_type.elem_type
        for value in onnx.shape_inference.infer_shapes(model).graph.value_info
    }
    made = {name: node.op_type for node in model.graph.node for name in node.output}
    read: dict[str, set[str]] = {}
    for node in model.graph.node:
        for value in node.input:
            read.setdefault(value, set()).add(node.op_type)
    count = 0
    for node in model.graph.node:
        if (
            node.op_type in NOT_ARITHMETIC
            or kinds.get(node.output[0], onnx.TensorProto.FLOAT) != onnx.TensorProto.FLOAT
        ):
            continue
        after = any("QuantizeLinear" in kind for name in node.output for kind in read.get(name, ()))
        before = any("DequantizeLinear" in made.get(name, "") for name in node.input)
        count += not after and not before
    return count


if __name__ == "__main__":
    main()
