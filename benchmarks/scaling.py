"""How the time of each stage grows with the number of nodes: a chain of small convolutions, in processor seconds.

python -m benchmarks.scaling
python -m benchmarks.scaling --nodes 100 1000 10000
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import detent
from benchmarks.common import print_table

CHANNELS, SIZE, SAMPLES = 4, 4, 4


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor seconds of each stage against the number of nodes.")
    parser.add_argument("--nodes", nargs="+", type=int, default=[100, 1000, 4000])
    nodes = parser.parse_args().nodes
    found = [measure(count) for count in nodes]
    rows = []
    for stage in found[0]:
        seconds = [each[stage] for each in found]
        growth = math.log(seconds[-1] / seconds[-2]) / math.log(nodes[-1] / nodes[-2]) if len(nodes) > 1 else math.nan
        rows.append((stage, *(f"{each:.2f}" for each in seconds), f"{growth:.2f}"))
    print_table(("stage", *(f"{count:,} nodes" for count in nodes), "exponent of the last step"), rows)


def measure(nodes: int) -> dict[str, float]:
    """Quantize a chain; return the processor seconds of each stage."""
    from detent.pipeline import prepared

    seconds: dict[str, float] = {}
    original: Any = prepared.Stopwatch.step

    @contextmanager
    def step(self: Any, name: str) -> Iterator[None]:
        start = time.process_time()
        with original(self, name):
            yield
        seconds[name] = time.process_time() - start

    prepared.Stopwatch.step = step  # type: ignore[method-assign]
    samples = np.random.default_rng(0).normal(size=(SAMPLES, 1, CHANNELS, SIZE, SIZE)).astype(np.float32)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "chain.onnx"
            onnx.save(chain(nodes), path)
            detent.quantize(path, Path(folder) / "out.onnx", list(samples), try_advice=False)
    finally:
        prepared.Stopwatch.step = original  # type: ignore[method-assign]
    return seconds


def chain(nodes: int) -> onnx.ModelProto:
    """Return Conv and Relu in turn."""
    rng = np.random.default_rng(0)
    made, weights, value = [], [], "input"
    for at in range(nodes // 2):
        weight = (0.7 * rng.normal(size=(CHANNELS, CHANNELS, 1, 1))).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"weight{at}"))
        weights.append(numpy_helper.from_array(np.zeros(CHANNELS, np.float32), f"bias{at}"))
        inputs = [value, f"weight{at}", f"bias{at}"]
        made.append(helper.make_node("Conv", inputs, [f"sum{at}"], name=f"conv{at}"))
        made.append(helper.make_node("Relu", [f"sum{at}"], [f"value{at}"], name=f"relu{at}"))
        value = f"value{at}"
    shape = [1, CHANNELS, SIZE, SIZE]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("input", value)]
    graph = helper.make_graph(made, "chain", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    main()
