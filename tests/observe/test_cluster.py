from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

import dask
import numpy as np
import pytest

from detent.errors import DataError, UsageError
from detent.observe import cluster as cluster_module
from detent.observe import shards as worker
from detent.observe.executors import open_executor, sweep_on
from detent.observe.sources import input_specs, open_source
from detent.observe.sweep import sweep
from tests.models import as_ir, conv_relu_conv, normal
from tests.observe.shard_readers import Deadly, Faulty, Numbers, Slow
from tests.observe.test_executors import SITES, contents, exponent
from tests.workers import running


@pytest.fixture(scope="module")
def client():
    """Two worker processes."""
    with running() as client:
        yield client


@pytest.fixture(scope="module")
def model():
    return as_ir(conv_relu_conv())


@pytest.fixture
def data(tmp_path):
    np.save(tmp_path / "x.npy", normal(40, 3, 8, 8, seed=4))
    return tmp_path / "x.npy"


def opened(model, data, **options):
    return open_source(data, input_specs(model), **options)


def loads():
    return worker.last_work.loads


def test_two_worker_processes_count_the_same_and_load_the_model_once_each(model, data, client):
    before = client.run(loads)
    here = sweep(model, SITES, opened(model, data, hold_out=None), vote=exponent)
    there = sweep_on(client, model, SITES, opened(model, data, hold_out=None), vote=exponent)
    assert contents(there) == contents(here)
    assert there.samples == here.samples == 35
    assert [one.index for one in there.held_out] == [7, 15, 23, 31, 39]
    after = client.run(loads)
    assert len(after) == 2
    assert all(after[address] - before[address] <= 1 for address in after)
    assert sum(after.values()) > sum(before.values())


def test_a_reader_of_ones_own_script(model, client, monkeypatch):
    """A class that the workers cannot import: it travels whole."""

    class Mine(Numbers):
        pass

    monkeypatch.setattr(Mine, "__module__", "__main__")
    here = sweep(model, SITES, opened(model, Numbers(), hold_out=16))
    there = sweep_on(client, model, SITES, opened(model, Mine(), hold_out=16))
    assert contents(there) == contents(here)
    assert [one.index for one in there.held_out] == [one.index for one in here.held_out]


def test_a_data_error_comes_back_as_it_is_and_the_cluster_is_free_again(model, data, client):
    with pytest.raises(DataError, match="item 0 of the reader's shard 5: input 'x' expects finite numbers"):
        sweep_on(client, model, SITES, opened(model, Faulty()))
    assert sweep_on(client, model, SITES, opened(model, data)).samples == 40


def test_a_model_past_the_limit_of_a_message_goes_through_a_folder(model, data, client, monkeypatch):
    monkeypatch.setattr(cluster_module, "PROTOBUF_LIMIT", 10)
    monkeypatch.setattr(client, "scatter", None)
    here = sweep(model, SITES, opened(model, data))
    assert contents(sweep_on(client, model, SITES, opened(model, data))) == contents(here)


def test_an_interruption_cancels_what_is_outstanding(model, client, tmp_path):
    def interrupt(stage, done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep_on(client, model, SITES, opened(model, Slow(folder=tmp_path)), progress=interrupt)
    time.sleep(0.5)
    begun = len(list(tmp_path.iterdir()))
    assert begun < 16
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) == begun


def test_nobody_answers(monkeypatch):
    monkeypatch.setattr(cluster_module, "PATIENCE", 0.5)
    for address in ("tcp://127.0.0.1:9", "127.0.0.1:9", "nonsense://host"):
        with pytest.raises(UsageError, match=f"No Dask scheduler answers at '{address}'"), open_executor(dask=address):
            pass


def test_the_address_of_a_cluster_is_enough(model, data, client):
    with open_executor(dask=client.scheduler.address) as connected:
        assert sweep_on(connected, model, SITES, opened(model, data)).samples == 40
    with pytest.raises(UsageError, match="cannot be reached any more"):
        sweep_on(connected, model, SITES, opened(model, data))


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'detent\[distributed\]'"), open_executor(dask="tcp://host:1"):
        pass


def test_a_scheduler_without_workers(model, data, monkeypatch):
    monkeypatch.setattr(cluster_module, "PATIENCE", 0.3)
    with (
        running(workers=0, processes=False, protocol="inproc") as client,
        pytest.raises(UsageError, match="scheduler at inproc.* has no workers"),
    ):
        sweep_on(client, model, SITES, opened(model, data))


def test_workers_that_are_gone_when_the_model_is_sent(model, data, client, monkeypatch):
    def scatter(*_, **__):
        raise asyncio.TimeoutError("No valid workers found")

    monkeypatch.setattr(type(client), "scatter", scatter)
    with pytest.raises(UsageError, match="No valid workers found"):
        sweep_on(client, model, SITES, opened(model, data))


def test_a_client_of_asynchronous_code(model, data, client, monkeypatch):
    monkeypatch.setattr(type(client), "asynchronous", True)
    with pytest.raises(UsageError, match="this dask Client is asynchronous"):
        sweep_on(client, model, SITES, opened(model, data))


@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle(model, tmp_path):
    """There is one worker: what was scattered dies with it, and is scattered again."""
    here = sweep(model, SITES, opened(model, Numbers()))

    def kill_one():
        while len(notes := list(tmp_path.iterdir())) < 4:
            time.sleep(0.01)
        os.kill(int(notes[0].name.split()[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    with running(1) as client:
        killer.start()
        there = sweep_on(client, model, SITES, opened(model, Slow(folder=tmp_path)))
    killer.join()
    assert contents(there) == contents(here)
    assert there.samples == here.samples


@pytest.mark.slow
def test_a_shard_that_always_kills_is_named(model, tmp_path):
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        running() as client,
        # Which one: a shard that another worker counted when its turn came to die may be taken for the culprit.
        pytest.raises(DataError, match=r"the reader's shard \d+ died \(1"),
    ):
        sweep_on(client, model, SITES, opened(model, Deadly(folder=tmp_path, times=100)))
    assert len(list(tmp_path.iterdir())) >= 1
