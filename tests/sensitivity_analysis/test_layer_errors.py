from __future__ import annotations

import math

import numpy as np
import pytest

from detent.errors import DataError, ModelError
from detent.observe.samples import PendingSample
from detent.results.searched import decibels
from detent.sensitivity_analysis import FEWEST, evenly_spaced, sensitivity
from detent.sensitivity_analysis.variants import quantized_units
from detent.tasks.parts import output_parts
from tests.execute.test_probe import deep
from tests.models import IMAGE, SMALL_MODELS, build, info, node, normal, plan_at, planned


def pending(feeds, size=1):
    return PendingSample(0, "a sample", False, lambda: feeds, size)


SAMPLES = [pending({"x": normal(*IMAGE, seed=seed)}) for seed in range(20, 26)]


def gemm(weight, classes=2):
    """y = x @ weight, on a grid of 2^-4 for everything."""
    nodes = [node("Gemm", "x w", "y")]
    return plan_at(build(nodes, "y", {"w": np.array(weight, np.float32)}, inputs=[info("x", [1, 2])]))


def test_by_hand():
    # Steps of 1/16. x = (1, 2) is on the grid and 1.03125 is half a step from it: it goes to the even code, 16.
    # y = (1.03125, 2); with the weight rounded (1, 2), and y rounded: 1.03125 -> 1, the same; both together: (1, 2).
    model, plan = gemm([[1.03125, 0], [0, 1]])
    found = sensitivity(model, plan, [pending({"x": np.array([[1, 2]], np.float32)})], exact=True)
    (layer,) = found.layers
    signal = 1.03125**2 + 4
    noise = 0.03125**2 / signal
    assert layer.weights == pytest.approx(noise)
    assert found.errors["activation x"] == 0.0
    assert found.errors["activation y"] == pytest.approx(noise)
    assert layer.activations == pytest.approx(noise)
    assert found.total == pytest.approx(noise)
    assert layer.gain == pytest.approx(noise)  # alone in the model, it leaves nothing quantized
    assert (layer.node, layer.op_type, layer.members) == ("gemm_y", "Gemm", ("gemm_y",))
    assert layer.changed == (0, 0)
    assert (layer.parameters, layer.operations, found.samples) == (4, 8, 1)  # 4 products, 2 numbers in and 2 out
    assert layer.error == pytest.approx(2 * noise)


def boxes_and_scores():
    """Two layers from one input: boxes, a hundred times x, and scores, a hundredth of x; joined."""
    nodes = [node("Gemm", "x w", "boxes"), node("Gemm", "x v", "scores"), node("Concat", "boxes scores", "y", axis=1)]
    weights = {"w": np.diag([100.3, 100.3]), "v": np.diag([0.013, 0.013])}
    constants = {name: array.astype(np.float32) for name, array in weights.items()}
    return planned(build(nodes, "y", constants, inputs=[info("x", [1, 2])]), {"x": np.array([[1, 2]], np.float32)})


def test_layers_are_ranked_by_the_part_that_they_harm():
    model, plan = boxes_and_scores()
    found = sensitivity(model, plan, [pending({"x": np.array([[1, 2]], np.float32)})], exact=True)
    boxes, scores = ((part.label, part.start, part.stop) for part in output_parts(model.graph)["y"])
    assert (boxes, scores) == (("boxes", 0, 2), ("scores", 2, 4))
    assert found.part == "'scores'"
    # What is joined has the grid of the boxes, on which the scores are 0: all of that part is error.
    assert found.total == pytest.approx(1.0)
    worst = found.worst_first()[0]
    assert (worst.part, worst.error) == ("'scores'", pytest.approx(1.0, abs=0.1))
    whole = sensitivity(model, plan, [pending({"x": np.array([[1, 2]], np.float32)})], parts={}, exact=True)
    assert whole.total < 1e-3 and whole.part == ""


def test_a_changed_answer_is_counted():
    # y = (1.02, 1): the weight 1.02 becomes 1, and the first of two equal numbers is not the larger any more: x swaps.
    model, plan = gemm([[0, 1.02], [1, 0]])
    found = sensitivity(model, plan, [pending({"x": np.array([[1, 1]], np.float32)})], exact=True)
    assert found.layers[0].changed == (1, 1)
    assert found.changed == 1


def test_gains_are_measured_exactly_or_not_at_all():
    model, plan = planned(deep())
    fast, exact = (sensitivity(model, plan, SAMPLES[:4], exact=each) for each in (False, True))
    assert all(layer.gain is None for layer in fast.layers)
    assert sum(layer.gain is not None for layer in exact.layers) > 10
    assert (fast.exact, exact.exact) == (False, True)
    assert [layer.error for layer in fast.layers] == pytest.approx([layer.error for layer in exact.layers])


@pytest.mark.parametrize(("settled", "taken"), [(-1.0, 4), (1.1, 6)])
def test_samples_are_added_until_two_halves_agree(monkeypatch, settled, taken):
    monkeypatch.setattr("detent.sensitivity_analysis.SETTLED", settled)
    model, plan = planned(SMALL_MODELS["residual"]())
    assert sensitivity(model, plan, SAMPLES).samples == taken


def test_nothing_becomes_float_with_an_add_alone():
    model, plan = planned(SMALL_MODELS["residual"]())
    gains = {layer.node: layer.gain for layer in sensitivity(model, plan, SAMPLES[:2], exact=True).layers}
    assert gains["add_s"] is not None  # its result is the output, which nobody else reads
    model, plan = planned(SMALL_MODELS["pools"]())
    gains = {layer.node: layer.gain for layer in sensitivity(model, plan, SAMPLES[:2], exact=True).layers}
    assert gains["averagepool_a"] is None


def test_memory_decides_only_how_many_are_walked_together():
    model, plan = planned(deep())
    little, much = (sensitivity(model, plan, SAMPLES[:2], exact=True, memory=memory) for memory in (1, 1 << 30))
    assert little.errors == much.errors
    assert little.layers == much.layers


def test_threads_and_order_change_nothing():
    model, plan = planned(SMALL_MODELS["residual"]())
    one, four = (sensitivity(model, plan, SAMPLES, exact=True, threads=threads) for threads in (1, 4))
    assert one.layers == four.layers


def test_layers_of_a_residual():
    model, plan = planned(SMALL_MODELS["residual"]())
    found = sensitivity(model, plan, SAMPLES)
    assert [layer.node for layer in found.layers] == ["conv_c1", "conv_c2", "add_s"]
    assert [layer.members for layer in found.layers] == [("conv_c1", "relu_r1"), ("conv_c2",), ("add_s", "relu_y")]
    assert found.layers[2].weights is None
    assert all(layer.activations > 0 for layer in found.layers)
    assert found.changed is None
    assert found.worst_first()[0].error == max(layer.error for layer in found.layers)


def test_sums_add():
    model, plan = planned(SMALL_MODELS["residual"]())
    things = quantized_units(model, plan)
    whole = sensitivity(model, plan, SAMPLES, exact=True)
    halves = [sensitivity(model, plan, part, exact=True) for part in (SAMPLES[:3], SAMPLES[3:])]
    name = things[0].name
    low, high = sorted(half.errors[name] for half in halves)
    assert low <= whole.errors[name] <= high


@pytest.mark.parametrize(
    ("samples", "things", "expected"), [(32, 118, 4), (32, 64, 9), (32, 10, 32), (2, 10, 2), (32, 4000, 4)]
)
def test_fewer_samples_for_more_things(samples, things, expected):
    chosen = evenly_spaced([pending({}) for _ in range(samples)], things)
    assert len(chosen) == expected >= min(FEWEST, samples)


def test_decibels():
    assert decibels(0.01) == pytest.approx(-20)
    assert decibels(0.0) == -math.inf


def test_a_model_that_finds_nothing():
    model, plan = planned(
        build([node("Conv", "x w", "c"), node("Relu", "c", "y")], "y", {"w": -(normal(2, 3, 1, 1) ** 2)})
    )
    ones = pending({"x": np.ones(IMAGE, np.float32)})
    with pytest.raises(DataError, match="on all 1 samples"):
        sensitivity(model, plan, [ones])


def test_without_data():
    model, plan = planned(SMALL_MODELS["residual"]())
    with pytest.raises(DataError, match="no samples"):
        sensitivity(model, plan, [])


def test_without_an_output_of_floats():
    nodes = [node("Conv", "x w", "c"), node("ArgMax", "c", "y", axis=1)]
    model, plan = plan_at(build(nodes, "y", {"w": normal(2, 3, 1, 1)}))
    with pytest.raises(ModelError, match="no output of float numbers"):
        sensitivity(model, plan, SAMPLES)
