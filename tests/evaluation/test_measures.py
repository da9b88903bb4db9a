from __future__ import annotations

import errno

import numpy as np
import pytest

from detent.errors import OutputError
from detent.evaluation.candidate import Candidate
from detent.evaluation.measures import CachedOutputs, RowStore
from detent.observe.samples import Sample
from tests.models import build, info, node


@pytest.fixture
def counted(monkeypatch):
    """A model of 8 bytes of output, and how often it was run on each sample."""
    candidate = Candidate(build([node("Neg", "x", "y")], "y", {}, [info("x", ["N", 2])]))
    runs = []
    call = Candidate.__call__

    def spy(self, sample):
        runs.append(sample.index)
        return call(self, sample)

    monkeypatch.setattr(Candidate, "__call__", spy)
    return candidate, runs


@pytest.mark.parametrize(("room", "again"), [(0, [0, 1, 2]), (8, [1, 2]), (17, [2]), (24, [])])
def test_runs_again_only_where_there_was_no_room(counted, room, again):
    candidate, runs = counted
    remembered = CachedOutputs(candidate, room)
    samples = [Sample(index, "", {"x": np.full((1, 2), index, np.float32)}) for index in range(3)]
    for _ in range(2):
        for sample in samples:
            np.testing.assert_array_equal(remembered(sample)["y"], -sample.feeds["x"])
    assert runs == [0, 1, 2, *again]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.bool_, np.int64])
def test_rows_come_back(dtype):
    rows = np.random.default_rng(0).integers(0, 2, (5, 2, 3)).astype(dtype)
    store = RowStore(rows.dtype, (2, 3))
    store.append(rows[:1])
    store.append(rows[1:, ::-1, :])
    found = store.rows()
    np.testing.assert_array_equal(found, np.concatenate([rows[:1], rows[1:, ::-1, :]]))
    assert found.dtype == dtype
    found[0] = 1
    np.testing.assert_array_equal(store.rows()[0], rows[0])


def test_nothing():
    assert RowStore(np.dtype(np.float32), (3,)).rows().shape == (0, 3)
    empty = RowStore(np.dtype(np.float32), (0, 4))
    empty.append(np.zeros((2, 0, 4), np.float32))
    assert empty.rows().shape == (2, 0, 4)


def test_a_full_disk(monkeypatch):
    store = RowStore(np.dtype(np.float32), (3,))

    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(store, "_file", Full())
    with pytest.raises(OutputError, match="No space left on device. Set TMPDIR"):
        store.append(np.zeros((1, 3), np.float32))
