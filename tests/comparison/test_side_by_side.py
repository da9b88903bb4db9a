from __future__ import annotations

import numpy as np
import pytest

from detent.comparison import fitting_batches, open_pair
from detent.evaluation.dataset import open_dataset
from detent.evaluation.fidelity import ChannelScales
from detent.graph.load import load
from detent.graph.session import DEFAULT_PROVIDERS
from detent.observe.sources import input_specs
from tests.models import build, info, node, normal

ROWS = normal(10, 4)


def squared(factor, bend):
    """a = x * factor + bend * x^2: by how much it differs depends on the sample."""
    nodes = [node("Mul", "x f", "b"), node("Mul", "x x", "q"), node("Mul", "q g", "h"), node("Add", "b h", "a")]
    constants = {"f": np.float32(factor), "g": np.float32(bend), "one": np.float32(1)}
    return load(
        build([*nodes, node("Mul", "a one", "y")], [info("y", ["N", 4])], constants, inputs=[info("x", ["N", 4])])
    )


def opened(batch):
    graphs = [squared(1, 0), squared(8, 0.5)]
    both = open_pair(graphs, ["one", "other"], ["a", "y"], DEFAULT_PROVIDERS)
    return both, open_dataset(ROWS, input_specs(graphs[0]), labels=None, batch=batch)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 10])
def test_the_factors_come_from_the_first_four_samples(batch):
    both, dataset = opened(batch)
    items = fitting_batches(dataset)
    assert [name for item in items for name in item.names][:4] == [f"array[{row}]" for row in range(4)]
    assert sum(len(item.names) for item in items[:-1]) < 4
    x = ROWS[:4].astype(np.float64)
    expected = (x**2).sum(0) / (x * (8 * x + 0.5 * x**2)).sum(0)
    scales = both.fit(items, threads=2)
    assert list(scales) == ["a"]  # not the output
    np.testing.assert_allclose(scales["a"].undoing, expected, rtol=1e-6)


def test_fewer_samples_than_that():
    both, _ = opened(1)
    dataset = open_dataset(ROWS[:2], both.first.inputs, labels=None)
    assert sum(len(item.names) for item in fitting_batches(dataset)) == 2


def test_another_number_of_channels_than_fitted_cannot_be_compared():
    both, dataset = opened(1)
    item = next(iter(dataset))
    for size, comparable in ((4, True), (3, False)):
        found = both.differences(item, {"a": ChannelScales(1, np.ones(size))})
        assert (found["a"] is not None) == comparable
        assert found["y"] is not None
