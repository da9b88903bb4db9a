"""What workers measure is what threads measure, to the bit."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from detent.errors import DataError, UsageError
from detent.observe import executors as local_processes
from detent.observe import shards as worker
from detent.observe.executors import LocalProcesses, sweep_on
from detent.observe.shards import divide_samples
from detent.observe.sources import input_specs, open_source
from detent.sensitivity_analysis import STAGE, SampleWorkers, VariantWork, _on_workers, sensitivity
from detent.sensitivity_analysis.variants import VariantErrors
from tests.execute.test_probe import deep
from tests.models import SMALL_MODELS, normal, planned
from tests.observe.shard_readers import Deadly, Faulty, Numbers

NEVER = 1.1
"""A correlation that no two halves reach: all samples are taken, in several rounds."""


@pytest.fixture(scope="module")
def ready():
    return planned(deep())


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def file(tmp_path):
    # Magnitudes that differ, so that sums in another order round otherwise.
    data = normal(14, 3, 8, 8, seed=4) * np.exp2(np.arange(14, dtype=np.float32) % 9 - 4)[:, None, None, None]
    np.save(tmp_path / "x.npy", data)
    return tmp_path / "x.npy"


def measured(ready, data, executor=None, count=14, source=None, **options):
    model, plan = ready
    opened = open_source(data, input_specs(model), hold_out=1)
    samples = opened.peek(count)
    workers = None if executor is None else SampleWorkers(executor, source or opened)
    found = sensitivity(model, plan, samples, workers=workers, **options)
    return found.layers, found.errors, found.total, found.samples, found.exact


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("settled", [-1.0, NEVER])
def test_workers_measure_what_threads_measure(ready, file, threads, monkeypatch, exact, settled):
    monkeypatch.setattr("detent.sensitivity_analysis.SETTLED", settled)
    here = measured(ready, file, exact=exact)
    assert measured(ready, file, threads, exact=exact) == here
    assert here[3] == (13 if exact or settled == NEVER else 4)


@pytest.mark.parametrize("count", [3, 20])
def test_a_reader_of_shards(ready, threads, monkeypatch, count):
    monkeypatch.setattr("detent.sensitivity_analysis.SETTLED", NEVER)
    assert measured(ready, Numbers(), threads, count=count) == measured(ready, Numbers(), count=count)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_any_model_on_random_numbers(name, threads):
    ready = planned(SMALL_MODELS[name]())
    assert measured(ready, None, threads, exact=True) == measured(ready, None, exact=True)


def test_the_model_is_loaded_once_however_often_samples_are_added(ready, file, threads, monkeypatch):
    monkeypatch.setattr("detent.sensitivity_analysis.SETTLED", NEVER)
    before = worker.last_work.loads
    measured(ready, file, threads)
    assert worker.last_work.loads == before + 1
    assert worker.last_work._loaded is None


def test_progress_counts_samples(ready, file, threads, monkeypatch):
    monkeypatch.setattr("detent.sensitivity_analysis.SETTLED", NEVER)
    calls = []
    measured(ready, file, threads, progress=lambda *call: calls.append(call))
    assert {(stage, total) for stage, _, total in calls} == {(STAGE, 13)}
    assert sorted({done for _, done, _ in calls}) == list(range(14))


def test_sums_come_in_the_order_of_the_samples(ready, file):
    source = open_source(file, input_specs(ready[0]))
    samples = list(source)[::-1]

    def backwards(shards):
        for shard in reversed(shards):
            yield shard, tuple(VariantErrors(index, np.zeros(1), {}, {}) for index, _ in shard.groups)

    assert len(divide_samples(source, samples, 1)) == 5
    found = list(_on_workers(backwards, source, 1, samples))
    assert [sums.samples for sums in found] == list(range(14))[::-1]


def test_no_weights_travel_beside_the_model(ready, file):
    source = open_source(file, input_specs(ready[0]))
    few = len(pickle.dumps(VariantWork("left float", source, ready[1], {}, 1)))
    wide = planned(deep(22))
    assert few < 20_000
    assert len(pickle.dumps(VariantWork("left float", source, wide[1], {}, 1))) < 3 * few


def test_arrays_in_memory_are_refused_as_in_calibration(ready, threads):
    data = normal(6, 3, 8, 8)
    with pytest.raises(UsageError, match="arrays in memory are not sent") as probing:
        measured(ready, data, threads)
    with pytest.raises(UsageError) as calibration:
        sweep_on(threads, ready[0], ["x"], open_source(data, input_specs(ready[0]), hold_out=1))
    assert str(probing.value) == str(calibration.value)
    with pytest.raises(UsageError, match="a stream is in this process only"):
        measured(ready, list(data), threads)


def test_what_is_no_executor(ready, file):
    with pytest.raises(UsageError, match=r"expected a concurrent.futures.Executor .*found int"):
        measured(ready, file, 4)


def broken(file):
    data = np.load(file)
    data[3, 0, 0, 0] = np.inf
    np.save(file, data)
    return file


def test_a_sample_that_fails_is_named(ready, file, threads):
    with pytest.raises(DataError, match=r"x.npy\[3\]") as here:
        measured(ready, broken(file), exact=True)
    with pytest.raises(DataError) as there:
        measured(ready, file, threads, exact=True)
    assert str(there.value) == str(here.value)


def test_a_reader_that_gives_less_the_second_time(ready, threads):
    less = open_source(Numbers(10), input_specs(ready[0]), hold_out=1)
    with pytest.raises(DataError, match=r"Item \d+ of the reader's shard 0 is gone: the Numbers must"):
        measured(ready, Numbers(), threads, source=less)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True])
def test_processes_measure_what_threads_measure(ready, file, processes, monkeypatch, exact):
    monkeypatch.setattr("detent.sensitivity_analysis.SETTLED", NEVER)
    assert measured(ready, file, processes, exact=exact) == measured(ready, file, exact=exact)


@pytest.mark.slow
def test_a_sample_that_fails_in_a_process_is_named(ready, file, processes):
    with pytest.raises(DataError, match=r"x.npy\[3\]"):
        measured(ready, broken(file), processes, exact=True)


@pytest.mark.slow
def test_processes_stay_while_samples_are_added(ready, file, monkeypatch):
    monkeypatch.setattr("detent.sensitivity_analysis.SETTLED", NEVER)
    started = []
    start = local_processes._pool
    monkeypatch.setattr(local_processes, "_pool", lambda count: started.append(count) or start(count))
    assert measured(ready, file, LocalProcesses(1)) == measured(ready, file)
    assert started == [1]


@pytest.mark.slow
def test_a_process_that_is_killed_costs_a_retry(ready, tmp_path, monkeypatch):
    monkeypatch.setattr("detent.sensitivity_analysis.SETTLED", NEVER)
    here = measured(ready, Numbers(64), count=20)  # the first five shards
    deadly = open_source(Deadly(64, folder=tmp_path), input_specs(ready[0]), hold_out=1)
    assert measured(ready, Numbers(64), LocalProcesses(1), count=20, source=deadly) == here
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_a_faulty_item_of_a_reader_in_a_process(ready):
    faulty = open_source(Faulty(32), input_specs(ready[0]), hold_out=1)
    with pytest.raises(DataError, match="item 0 of the reader's shard 5: input 'x' expects finite numbers"):
        measured(ready, Numbers(32), LocalProcesses(1), source=faulty, exact=True)


@pytest.mark.slow
def test_a_cluster(ready, file, monkeypatch):
    from tests.workers import running

    monkeypatch.setattr("detent.sensitivity_analysis.SETTLED", NEVER)
    with running(workers=1, processes=False, protocol="inproc") as client:
        sent = []
        scatter = client.scatter
        monkeypatch.setattr(client, "scatter", lambda *given, **options: sent.append(1) or scatter(*given, **options))
        assert measured(ready, file, client) == measured(ready, file)
        assert sent == [1]  # in three rounds
