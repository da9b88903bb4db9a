"""How long sensitivity takes, in inferences of the float model, and how well a few samples rank the layers.

python -m benchmarks.sensitivity [--models mobilenetv2 ...] [--samples 32] [--recipe XINT8] [--exact-on 32] [--rounds 3]

The ratios are of processor time, so that other work on the machine counts little, and of time by the clock: all of the
fast measurement over the float inference of all samples, both on all cores. The rank correlation (Spearman) is that of
the fast errors with those of --exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.common import CALIBRATION, Case, arguments, chosen, print_table
from detent.execute.inference import map_in_order
from detent.graph.session import Runner
from detent.pipeline.job import make_job
from detent.pipeline.run import Run
from detent.results.searched import Sensitivity
from detent.search import unrefined
from detent.sensitivity_analysis import sensitivity


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """The correlation of ranks."""
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def seconds(work: Callable[[], Any]) -> tuple[Any, Any]:
    """Of the processor and by the clock."""
    start = np.array([time.process_time(), time.perf_counter()])
    result = work()
    return np.array([time.process_time(), time.perf_counter()]) - start, result


def infer(runner: Runner, feeds: Sequence[Any]) -> None:
    """The float inference of all samples, on all cores."""
    for _ in map_in_order(runner, feeds):
        pass


def kinds(fast: Sensitivity, exact: Sensitivity) -> list[str]:
    """The correlations of all things, of weights and of activations."""
    found = []
    for wanted in ((True, False), (True,), (False,)):
        names = [thing.name for thing in exact.sources if thing.is_weight in wanted]
        found.append(f"{spearman([fast.errors[name] for name in names], [exact.errors[name] for name in names]):.3f}")
    return found


def measure(case: Case, recipe: str, samples: int, exact_on: int, rounds: int) -> list[str]:
    """One row of the table."""
    job = make_job(case.path, CALIBRATION, recipe, preprocess=case.options, limit=2 * samples)
    planned = Run(unrefined(job, samples)).planned
    feeds = [pending.load().feeds for pending in planned.probes]
    runner = Runner(planned.model)
    infer(runner, feeds)
    inferring, measuring = [], []
    for _ in range(rounds):
        inferring += [seconds(lambda: infer(runner, feeds))[0] for _ in range(3)]
        spent, fast = seconds(lambda: sensitivity(planned.model, planned.plan, planned.probes))
        measuring.append(spent)
    inference, spent = np.median(inferring, axis=0), np.median(measuring, axis=0)
    all_spent, exact = seconds(lambda: sensitivity(planned.model, planned.plan, planned.probes[:exact_on], exact=True))
    return [
        case.name,
        f"{len(fast.layers)}",
        f"{len(fast.sources)}",
        f"{fast.samples} of {len(feeds)}",
        *(f"{ratio:.1f}" for ratio in spent / inference),
        *kinds(fast, exact),
        f"{all_spent[0] / inference[0] * len(feeds) / exact.samples:.0f}",
    ]


def main() -> None:
    parser = arguments(__doc__ or "", samples=32)
    parser.set_defaults(models=["mobilenetv2", "squeezenet11"])
    parser.add_argument("--recipe", default="XINT8")
    parser.add_argument("--exact-on", type=int, default=32, help="samples of the exact measurement")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    heads = [
        "model",
        "layers",
        "things",
        "samples",
        "inferences",
        "by the clock",
        "ranks",
        "weights",
        "activations",
        "exact",
    ]
    rows = [measure(case, given.recipe, given.samples, given.exact_on, given.rounds) for case in chosen(given.models)]
    print_table(heads, rows)


if __name__ == "__main__":
    main()
