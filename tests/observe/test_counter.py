from __future__ import annotations

import numpy as np
import pytest

from detent.errors import DataError, UsageError
from detent.observe.samples import Sample
from detent.observe.sweep import SiteCounter, taps_of
from tests.models import as_ir, build, info, node, normal


def network():
    """Two convolutions of 32 channels, so that onnxruntime computes in its own layout, and a residual."""
    return as_ir(
        build(
            [
                node("Conv", "x w1 b1", "c1", pads=[1, 1, 1, 1]),
                node("Relu", "c1", "r1"),
                node("Conv", "r1 w2 b2", "c2", pads=[1, 1, 1, 1]),
                node("Add", "c2 r1", "s"),
                node("Log", "s", "logs"),
                node("GlobalAveragePool", "s", "y"),
            ],
            "y",
            {
                "w1": normal(32, 3, 3, 3) / 4,
                "b1": normal(32, seed=1) / 8,
                "w2": normal(32, 32, 3, 3, seed=2) / 16,
                "b2": normal(32, seed=3) / 8,
            },
            inputs=[info("x", ("n", 3, 10, 10))],
        )
    )


SITES = ["x", "r1", "c2", "s", "y"]


def counted(runner, sites, batches):
    counter = SiteCounter(runner, sites)
    for index, batch in enumerate(batches):
        counter.count(Sample(index, f"batch {index}", {"x": batch}))
    return {
        name: (each.histogram.exponent, each.histogram.counts.tolist(), each.mean_extremes, each.samples)
        for name, each in counter.statistics.items()
    }


def test_both_runners_give_the_same_statistics():
    taps = taps_of(network(), SITES)
    batches = [normal(size, 3, 10, 10, seed=size) * size for size in (1, 2, 1, 5)]
    assert counted(taps.unordered, SITES, batches) == counted(taps.ordered, SITES, batches)


def test_outputs_come_first_and_inputs_are_not_fetched():
    taps = taps_of(network(), SITES)
    assert taps.ordered.outputs == taps.unordered.outputs == ["y", "r1", "c2", "s"]


def test_the_error_names_the_tensor_by_its_own_name():
    model = network()
    sites = ["s", "logs"]  # of negative numbers: NaN
    counter = SiteCounter(taps_of(model, sites).unordered, sites)
    with pytest.raises(DataError, match="On cat.jpg .* NaN or infinity in tensor 'logs'"):
        counter.count(Sample(0, "cat.jpg", {"x": np.full((1, 3, 10, 10), -9, np.float32)}))


def test_providers_reach_the_session():
    with pytest.raises(UsageError, match="no provider 'NPU'"):
        taps_of(network(), SITES, ["NPU"])
