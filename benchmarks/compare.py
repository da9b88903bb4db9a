"""What `detent compare` takes, in inferences of the float model over the same images, decoding included in both.

python -m benchmarks.compare [--models mobilenetv2 ...] [--samples 32] [--rounds 5]

Medians of interleaved rounds; every tensor that both models have is compared. Models are loaded each time. The first
ratio counts that on both sides, the second one only with comparing: against a model that is loaded already.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import detent
from benchmarks.common import CALIBRATION, Case, arguments, chosen, print_table
from detent.comparison import compare_models
from detent.evaluation.evaluator import Evaluator


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def measure(case: Case, samples: int, rounds: int) -> tuple[str, ...]:
    """One row of the table. The measure of the plain inference does nothing with the outputs."""
    with tempfile.TemporaryDirectory() as folder:
        quantized = Path(folder) / "quantized.onnx"
        detent.quantize(case.path, quantized, CALIBRATION, limit=samples, preprocess=case.options)
        options: dict[str, Any] = {"preprocess": case.options, "limit": samples}
        nothing = detent.Metric("nothing", score=lambda _outputs, _sample: 0.0)
        plain, loading, comparing, tensors = [], [], [], 0
        for _ in range(rounds):
            spent, evaluator = seconds(
                lambda: Evaluator(case.path, CALIBRATION, labels=None, metric=nothing, **options)
            )
            loading.append(spent)
            plain.append(seconds(partial(evaluator.evaluate, case.path))[0])
            spent, found = seconds(lambda: compare_models(case.path, quantized, CALIBRATION, **options))
            comparing.append(spent)
            tensors = len(found.tensors)
    inferring, loaded, compared = (statistics.median(times) for times in (plain, loading, comparing))
    return (
        case.name,
        f"{tensors}",
        *(f"{each:.2f}" for each in (loaded, inferring, compared)),
        *(f"{compared / each:.1f}" for each in (loaded + inferring, inferring)),
    )


def main() -> None:
    parser = arguments("The cost of comparing.", samples=32)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = [measure(case, options.samples, options.rounds) for case in chosen(options.models)]
    header = ("model", "tensors", "load, s", "infer, s", "compare, s", "of load and infer", "of infer")
    print_table(header, rows)


if __name__ == "__main__":
    main()
