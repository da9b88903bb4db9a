from __future__ import annotations

import numpy as np
import pytest

from detent.evaluation.candidate import Candidate
from detent.evaluation.measures import CachedOutputs
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
