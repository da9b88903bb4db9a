from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detent.errors import DataError, ModelError, UsageError
from detent.observe import shards as worker
from detent.observe.executors import Backlog, LocalProcesses, open_executor, sweep_on
from detent.observe.preprocess import PreprocessOptions
from detent.observe.shards import Shard, Ticket, do_from_folder
from detent.observe.sources import input_specs, open_source
from detent.observe.sweep import IN_SAMPLE_KEPT, STAGE, sweep
from tests.models import as_ir, conv_relu_conv, normal
from tests.observe.shard_readers import Deadly, Faulty, Numbers, Slow

SITES = ["x", "r1", "y"]


def contents(observation):
    return {name: contents_of(each) for name, each in observation.statistics.items()}


def contents_of(statistics):
    histogram = statistics.histogram
    shape = (histogram.exponent, histogram.total, histogram.minimum, histogram.maximum, histogram.counts.tolist())
    return shape, statistics.samples, statistics.sum_of_minima, statistics.sum_of_maxima, statistics.votes


def exponent(histogram):
    return histogram.exponent


def loads(_):
    time.sleep(0.05)  # so that every worker takes some
    return os.getpid(), worker.last_work.loads


@pytest.fixture(scope="module")
def model():
    return as_ir(conv_relu_conv())


@pytest.fixture(scope="module")
def open_data(model, tmp_path_factory):
    """`open_data(kind)`: the same forty samples in files of some kind, random numbers, or a reader's."""
    folder = tmp_path_factory.mktemp("data")
    for kind in ("npy", "npz", "images"):
        (folder / kind).mkdir()
    data = normal(40, 3, 8, 8, seed=4) * np.exp2(np.arange(40, dtype=np.float32) % 9 - 4)[:, None, None, None]
    np.save(folder / "npy" / "first.npy", data[:15])
    np.save(folder / "npy" / "second.npy", data[15:])
    np.savez_compressed(folder / "npz" / "all.npz", x=data)
    for number, pixels in enumerate(np.random.default_rng(1).integers(0, 256, (40, 8, 8, 3)).astype(np.uint8)):
        Image.fromarray(pixels).save(folder / "images" / f"{number:02}.png")

    def opened(kind, **options):
        data = {"random": None, "reader": Numbers()}[kind] if kind in ("random", "reader") else folder / kind
        preprocess = PreprocessOptions(size=8) if kind == "images" else None
        return open_source(data, input_specs(model), preprocess=preprocess, **options)

    return opened


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.mark.parametrize("hold_out", [0, None])
@pytest.mark.parametrize("kind", ["npy", "npz", "images", "random", "reader"])
def test_the_observation_is_that_of_the_sweep(model, open_data, threads, kind, hold_out):
    here = sweep(model, SITES, open_data(kind, hold_out=hold_out), vote=exponent)
    there = sweep_on(threads, model, SITES, open_data(kind, hold_out=hold_out), vote=exponent)
    assert contents(there) == contents(here)
    assert there.samples == here.samples
    assert [one.index for one in there.measured_on] == [one.index for one in here.measured_on]
    assert [one.origin for one in there.measured_on] == [one.origin for one in here.measured_on]
    assert there.in_sample == here.in_sample
    for one, other in zip(there.measured_on, here.measured_on, strict=True):
        assert np.array_equal(one.load().feeds["x"], other.load().feeds["x"])
    feeds = here.measured_on[0].load().feeds
    assert there.runner.outputs == here.runner.outputs
    for one, other in zip(there.runner(feeds), here.runner(feeds), strict=True):
        assert np.array_equal(one, other)


def test_the_first_samples_are_kept_as_well(model, open_data, threads):
    seen = sweep_on(threads, model, ["x"], open_data("npy", hold_out=None))
    assert [one.index for one in seen.first] == [index for index in range(18) if index % 8 != 7][:IN_SAMPLE_KEPT]
    assert [one.index for one in seen.held_out] == [7, 15, 23, 31, 39]


def test_batches_travel(model, threads, tmp_path):
    proto = conv_relu_conv()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    flexible = as_ir(proto)
    np.save(tmp_path / "x.npy", normal(23, 3, 8, 8))
    opened = partial(open_source, tmp_path, input_specs(flexible), batch=4)
    seen = sweep_on(threads, flexible, SITES, opened())
    assert seen.samples == 23
    assert contents(seen) == contents(sweep(flexible, SITES, opened()))


def test_progress_moves_with_every_shard(model, open_data, threads):
    calls = []
    sweep_on(threads, model, ["x"], open_data("npy", hold_out=None), progress=lambda *call: calls.append(call))
    assert {(stage, total) for stage, _, total in calls} == {(STAGE, 40)}
    done = [done for _, done, _ in calls]
    assert done[0] == 5 and done[-1] == 40 and done == sorted(set(done))  # five are held out


def test_threads_load_the_model_once_and_let_go_of_it(model, open_data, threads):
    before = worker.last_work.loads
    sweep_on(threads, model, SITES, open_data("npy"))
    assert worker.last_work.loads == before + 1
    assert worker.last_work._loaded is None


def test_an_error_in_the_data_is_the_same_error(model, threads, tmp_path):
    data = normal(40, 3, 8, 8)
    data[33, 0, 0, 0] = np.inf
    np.save(tmp_path / "x.npy", data)
    with pytest.raises(DataError) as here:
        sweep(model, SITES, open_source(tmp_path, input_specs(model)))
    with pytest.raises(DataError) as there:
        sweep_on(threads, model, SITES, open_source(tmp_path, input_specs(model)))
    assert str(there.value) == str(here.value)
    assert "x.npy[33]" in str(there.value)


def test_a_reader_without_samples(model, threads):
    with pytest.raises(DataError, match="nothing to calibrate with .*it has no samples"):
        sweep_on(threads, model, SITES, open_source(Numbers(0), input_specs(model)))


@pytest.mark.parametrize("executor", [None, 4, "tcp://127.0.0.1:8786", object()])
def test_what_is_no_executor(model, open_data, executor):
    with pytest.raises(UsageError, match=f"found {type(executor).__name__}"):
        sweep_on(executor, model, SITES, open_data("npy"))


def test_a_process_that_may_not_start_others_is_told_so(model, open_data, monkeypatch):
    """A worker of a multiprocessing.Pool, in which Python itself fails with an assertion."""
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(UsageError, match="--workers"):
        sweep_on(LocalProcesses(2), model, SITES, open_data("npy"))


def test_an_executor_that_was_shut_down(model, open_data):
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(UsageError, match="The executor broke at .*after shutdown"):
        sweep_on(pool, model, SITES, open_data("npy"))


class Fragile(ThreadPoolExecutor):
    """Counts two shards and then, maybe, breaks; the others never begin."""

    def __init__(self, breaks):
        super().__init__(1)
        self.breaks = breaks
        self.taken = []

    def submit(self, task, /, *arguments):
        if len(self.taken) < 2:
            future = super().submit(task, *arguments)
        else:
            future = Future()
            if len(self.taken) == 2 and self.breaks:
                future.set_exception(BrokenProcessPool("a process was terminated abruptly"))
        self.taken.append(future)
        return future


def test_an_executor_that_breaks(model, open_data):
    with (
        Fragile(breaks=True) as pool,
        pytest.raises(UsageError, match=r"broke with [234] of 4 shards not done .*abruptly"),
    ):
        sweep_on(pool, model, SITES, open_data("npy"))
    assert all(future.cancelled() for future in pool.taken[3:])


def test_an_interruption_calls_off_what_has_not_begun(model, open_data):
    def interrupt(stage, done, total):
        if done:
            raise KeyboardInterrupt

    with Fragile(breaks=False) as pool, pytest.raises(KeyboardInterrupt):
        sweep_on(pool, model, SITES, open_data("npy"), progress=interrupt)
    assert all(future.cancelled() for future in pool.taken[3:])


def test_other_versions_are_not_mixed():
    with pytest.raises(UsageError, match="detent .* this machine has 0.0.1"):
        Ticket(versions={"detent": "0.0.1"}).check()
    with pytest.raises(UsageError, match="A worker has onnxruntime"):
        Ticket(versions={"onnxruntime": "0.0.1"}).check()


def test_a_worker_that_does_not_see_the_folder(tmp_path):
    with pytest.raises(ModelError, match="gone .*TMPDIR"):
        do_from_folder(str(tmp_path / "gone"), Ticket(), Shard(0, "a"))


@pytest.mark.parametrize("error", [DataError("a"), UsageError("b"), ModelError("c")])
def test_errors_travel(error):
    import pickle

    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


def test_workers_and_dask_together():
    with pytest.raises(UsageError, match="--workers .* --dask"), open_executor(2, "tcp://127.0.0.1:8786"):
        pass
    with pytest.raises(UsageError, match="--workers .*not 0"), open_executor(0):
        pass
    with open_executor() as nothing, open_executor(3) as processes:
        assert nothing is None
        assert processes.count == 3


def play(backlog, deadly, times=100):
    """A pool in which `deadly` shards kill their worker so many times: what ran together."""
    together = []
    while backlog.left:
        running = []
        while (shard := backlog.next(len(running))) is not None:
            running.append(shard)
            backlog.started(shard)
        together.append([shard.number for shard in running])
        if times and any(shard.number in deadly for shard in running):
            times -= 1
            for shard in running:
                backlog.died(shard)
            continue
        for shard in running:
            backlog.finished(shard)
    return together


def test_suspects_run_alone_and_the_guilty_one_is_named():
    shards = [Shard(number, f"sample {number}") for number in range(7)]
    assert play(Backlog(shards, most_at_once=3), deadly=()) == [[0, 1, 2], [3, 4, 5], [6]]
    backlog = Backlog(shards, most_at_once=3)
    with pytest.raises(DataError, match="3 worker processes .*sample 4,"):
        play(backlog, deadly={4})
    assert backlog.left == 3  # 0, 1 and 2, then the innocent 3 alone
    assert play(Backlog(shards[:2], most_at_once=1), deadly={1}, times=2) == [[0], [1], [1], [1]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npy", "npz", "images", "random", "reader"])
def test_processes_count_the_same_and_load_the_model_once_each(model, open_data, processes, kind):
    before = dict(processes.map(loads, range(20)))
    here = sweep(model, SITES, open_data(kind, hold_out=None), vote=exponent)
    assert contents(sweep_on(processes, model, SITES, open_data(kind, hold_out=None), vote=exponent)) == contents(here)
    after = dict(processes.map(loads, range(20)))
    assert all(after[pid] - before.get(pid, 0) in (0, 1) for pid in after)
    assert sum(after.values()) - sum(before.values()) in (1, 2)


@pytest.mark.slow
def test_a_data_error_in_a_process(model, processes):
    with pytest.raises(DataError, match="item 0 of the reader's shard 5: input 'x' "):
        sweep_on(processes, model, SITES, open_source(Faulty(), input_specs(model)))


@pytest.mark.slow
def test_a_shard_that_always_kills_is_named(model, tmp_path):
    reader = Deadly(folder=tmp_path, times=100)
    with pytest.raises(DataError, match="3 worker processes .*shard 3,"):
        sweep_on(LocalProcesses(1), model, SITES, open_source(reader, input_specs(model)))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
def test_a_worker_that_somebody_kills_in_the_middle(model, tmp_path):
    here = sweep(model, SITES, open_source(Numbers(), input_specs(model), hold_out=16))

    def kill_one():
        while len(notes := list(tmp_path.iterdir())) < 5:
            time.sleep(0.01)
        os.kill(int(notes[0].name.split()[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    source = open_source(Slow(folder=tmp_path), input_specs(model), hold_out=16)
    there = sweep_on(LocalProcesses(2), model, SITES, source)
    killer.join()
    assert contents(there) == contents(here)
    assert there.samples == here.samples


INTERRUPTED = """
    import sys
    from pathlib import Path
    from detent.graph.load import load
    from detent.observe.executors import LocalProcesses, sweep_on
    from detent.observe.sources import input_specs, open_source
    from tests.observe.shard_readers import Slow

    if __name__ == "__main__":
        model = load(sys.argv[1])
        sweep_on(LocalProcesses(1), model, ["x"], open_source(Slow(folder=Path(sys.argv[2])), input_specs(model)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_parent(tiny, tmp_path, how):
    notes = tmp_path / "notes"
    notes.mkdir()
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(INTERRUPTED))
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, script, tiny, notes], env={**os.environ, "PYTHONPATH": str(root)}, stderr=subprocess.DEVNULL
    )
    while not list(notes.iterdir()) and parent.poll() is None:
        time.sleep(0.01)
    parent.send_signal(how)
    parent.wait(timeout=60)
    deadline = time.monotonic() + 10
    workers = {note.name.split()[0] for note in notes.iterdir()}
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workers
    assert not any(alive(pid) for pid in workers)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
