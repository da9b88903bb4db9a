"""What more workers bring: the calibration sweep on Dask clusters of one and of two worker processes, already running.

python -m benchmarks.cluster
"""

from __future__ import annotations

import logging
import os
import pickle
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir
from distributed import Client, LocalCluster

from benchmarks.common import CALIBRATION, CASES, arguments, prepared, print_table
from detent.observe.executors import sweep_on
from detent.observe.samples import Source
from detent.observe.shards import compress, decompress, divide
from detent.observe.sources import input_specs, open_source
from detent.observe.statistics import TensorStatistics, merge
from detent.observe.sweep import sweep, taps_of

CASE = CASES[0]
WORKERS = (1, 2)


def main() -> None:
    parser = arguments("Calibration of mobilenetv2 on one and on two Dask workers.", samples=128)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    model, sites = prepared(CASE)
    source = images(model, options.samples)
    runs: dict[int, list[Run]] = {count: [] for count in WORKERS}
    alone: list[float] = []
    with ExitStack() as stack:
        clients = {count: stack.enter_context(running(count, stack)) for count in WORKERS}
        for client in clients.values():
            sweep_on(client, model, sites, source)  # once before: imports, compiled loops, files in memory
        for _ in range(options.repeat):
            for count, client in clients.items():
                runs[count].append(measured(client, partial(sweep_on, client, model, sites, source)))
            alone.append(timed(lambda: sweep(model, sites, source, threads=1)))
    print(
        f"mobilenetv2, {options.samples} images, {len(sites)} sites, {os.cpu_count()} cores, medians of "
        f"{options.repeat} interleaved runs"
    )
    one = middle([run.seconds for run in runs[1]])
    rows = [
        (
            f"{count} Dask worker{'s' if count > 1 else ''}",
            f"{middle([run.seconds for run in each]):.2f}",
            f"{one / middle([run.seconds for run in each]):.2f}",
            f"{middle([run.busiest for run in each]):.2f}",
            f"{middle([run.parent for run in each]):.2f}",
        )
        for count, each in runs.items()
    ]
    rows.append(("1 thread, no cluster", f"{middle(alone):.2f}", f"{one / middle(alone):.2f}", "-", "-"))
    print_table(("sweep on", "seconds", "speed", "CPU s, busiest worker", "CPU s, client and scheduler"), rows)
    print_table(("what a shard costs", "value"), costs(model, sites, source))


@dataclass(frozen=True)
class Run:
    """Wall-clock seconds, and CPU seconds, which a busy machine does not change as much."""

    seconds: float
    busiest: float
    parent: float


def measured(client: Client, action: Callable[[], object]) -> Run:
    before, parent = client.run(time.process_time), time.process_time()
    seconds = timed(action)
    parent = time.process_time() - parent
    after = client.run(time.process_time)
    return Run(seconds, max(after[address] - before[address] for address in after), parent)


def images(model: ir.Model, samples: int) -> Source:
    return open_source(CALIBRATION, input_specs(model), preprocess=CASE.options, limit=samples)


def running(workers: int, stack: ExitStack) -> Client:
    cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.ERROR)
    return Client(stack.enter_context(cluster), set_as_default=False)


def costs(model: ir.Model, sites: list[str], source: Source) -> list[tuple[str, str]]:
    """What is paid for each shard, and once for each worker."""
    shard = divide(source, max(WORKERS))[0][0]
    counted = sweep(model, sites, images(model, len(shard.groups)), threads=1).statistics
    packed = compress(counted)
    total = {name: TensorStatistics() for name in sites}
    return [
        ("samples in a shard", str(len(shard.groups))),
        ("bytes of a task", str(len(pickle.dumps(shard)))),
        ("bytes of its result", f"{len(packed):,} ({len(pickle.dumps(counted)):,} unpacked)"),
        ("packing it, ms", f"{1000 * timed(lambda: compress(counted)):.1f}"),
        ("merging it, ms", f"{1000 * timed(lambda: merge(total, decompress(packed, shard.name))):.1f}"),
        ("building the session, ms (once per worker)", f"{1000 * timed(lambda: taps_of(model, sites)):.0f}"),
    ]


def middle(values: list[float]) -> float:
    return statistics.median(values)


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
