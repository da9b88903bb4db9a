"""How long quantized models take in onnxruntime's blocked layout, beside the file as it is, both in exact arithmetic.

python -m benchmarks.blocked [--models mobilenetv2 ...] [--samples 4] [--rounds 5]

Processor time of one inference on random numbers, the least of interleaved rounds. The answers must be the same bits.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

import detent
from benchmarks.common import CALIBRATION, Case, arguments, chosen, print_table
from detent.graph.load import read
from detent.graph.session import Runner
from detent.graph.taps import open_exact


def measure(case: Case, samples: int, rounds: int) -> tuple[str, ...]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "quantized.onnx"
        detent.quantize(case.path, file, CALIBRATION, limit=samples, preprocess=case.options)
        model = read(file)
    runners = [Runner(model, exact=True), open_exact(model)]
    shapes = {
        str(value.name): [dim if isinstance(dim, int) else 1 for dim in value.shape] for value in model.graph.inputs
    }
    feeds = {name: np.random.default_rng(0).standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    answers = [runner(feeds) for runner in runners]
    same = all(np.array_equal(one, other) for one, other in zip(*answers, strict=True))
    spent: list[list[float]] = [[], []]
    for _ in range(rounds):
        for times, runner in zip(spent, runners, strict=True):
            start = time.process_time()
            runner(feeds)
            times.append(1000 * (time.process_time() - start))
    plain, blocked = (min(times) for times in spent)
    return case.name, "yes" if same else "NO", f"{plain:.1f}", f"{blocked:.1f}", f"{blocked / plain:.2f}"


def main() -> None:
    parser = arguments("Quantized models in blocks.", samples=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = [measure(case, options.samples, options.rounds) for case in chosen(options.models)]
    print_table(("model", "same bits", "as it is, ms", "in blocks, ms", "ratio"), rows)


if __name__ == "__main__":
    main()
