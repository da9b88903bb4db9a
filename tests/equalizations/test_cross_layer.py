"""Cross-layer equalization: factors worked out by hand, and the same function through everything between two layers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from detent.equalizations import CrossLayer
from detent.equalizations.cross_layer import find_chains
from detent.equalize.channels import map_channels
from detent.equalize.equalize import equalize, equalize_again, problem_of
from tests.equalize.networks import assert_close, between_convs, constants_of, pending
from tests.models import as_ir, build, node, normal, run, values_of

IMAGES = [normal(1, 3, 8, 8, seed=seed) for seed in range(10, 14)]
BARE = CrossLayer(append_bias=False, threshold=0.0)
UNEQUAL = np.array([1, 0.02, 5, 0.3], np.float32)


def balanced(proto, settings=BARE, arrays=IMAGES):
    model = as_ir(proto)
    done = equalize(model, settings, pending(*arrays), codes={})
    for array in arrays:
        want, got = run(proto, {"x": array}), run(model, {"x": array})
        for name in want:
            assert_close(got[name], want[name], name)
    return constants_of(model), done


def chains_of(model):
    """The chains of a model in which no Clip limits anything."""
    problem = problem_of(map_channels(model), {}, {})
    return find_chains(problem.layers, problem.count)


def largest(weight: np.ndarray, axis: int) -> np.ndarray:
    return np.abs(weight).max(axis=tuple(each for each in range(weight.ndim) if each != axis))


BETWEEN = {
    "Relu": [node("Relu", "c", "m")],
    "nothing": [node("Identity", "c", "m")],
    "LeakyRelu": [node("LeakyRelu", "c", "m", alpha=0.2)],
    "PRelu": [node("PRelu", "c slopes", "m")],
    "MaxPool": [node("Relu", "c", "r"), node("MaxPool", "r", "m", kernel_shape=[2, 2])],
    "AveragePool": [node("AveragePool", "c", "m", kernel_shape=[2, 2])],
    "Pad": [node("Pad", "c pads", "m")],
    "a Clip that cuts nothing": [node("Clip", "c zero high", "m")],
}


@pytest.mark.parametrize("middle", BETWEEN)
def test_both_layers_have_equal_weights_afterwards(middle):
    constants = {
        "w1": normal(4, 3, 3, 3) * UNEQUAL[:, None, None, None],
        "slopes": np.full((4, 1, 1), 0.1, np.float32),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "zero": np.float32(0),
        "high": np.float32(1e6),
    }
    used = {name for each in BETWEEN[middle] for name in each.input} | {"w1"}
    given = {name: array for name, array in constants.items() if name in used}
    after, done = balanced(between_convs(BETWEEN[middle], given))
    np.testing.assert_allclose(largest(after["w1"], 0), largest(after["w2"], 1), rtol=1e-5)
    assert done.channels == 4
    again = as_ir(between_convs(BETWEEN[middle], given))
    equalize_again(again, done.factors)
    np.testing.assert_array_equal(constants_of(again)["w1"], after["w1"])


def test_known_factors():
    """Weights 4 and 1: both become 2. 9 and 1/9: both become 1."""
    weights = {
        "w1": np.array([4, 9, 0, 1], np.float32)[:, None, None, None] * np.ones((4, 3, 3, 3), np.float32),
        "w2": np.array([1, 1 / 9, 1, 1], np.float32)[None, :, None, None] * np.ones((2, 4, 1, 1), np.float32),
    }
    after, done = balanced(between_convs([node("Relu", "c", "m")], weights))
    np.testing.assert_allclose(np.exp(done.factors), [0.5, 1 / 9, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(largest(after["w1"], 0), [2, 1, 0, 1], rtol=1e-6)


def test_channels_below_the_threshold_stay():
    weights = {
        "w1": np.array([0.1, 0.1, 0.4, 4], np.float32)[:, None, None, None] * np.ones((4, 3, 3, 3), np.float32),
        "w2": np.array([0.3, 0.5, 0.05, 1], np.float32)[None, :, None, None] * np.ones((2, 4, 1, 1), np.float32),
    }
    _, done = balanced(between_convs([node("Relu", "c", "m")], weights), CrossLayer(append_bias=False))
    assert [factor == 0 for factor in done.factors] == [True, False, True, False]


def test_the_bias_counts_at_a_half():
    """One bias of 6 beside weights of 1: it counts as 3, so the factor is the root of 1/3."""
    weights = {
        "w1": np.ones((4, 3, 3, 3), np.float32),
        "b1": np.array([6, 0, 1, 2], np.float32),
        "w2": np.ones((2, 4, 1, 1), np.float32),
    }
    _, done = balanced(between_convs([node("Relu", "c", "m")], weights), CrossLayer(threshold=0.0))
    np.testing.assert_allclose(np.exp(done.factors), [3**-0.5, 1, 1, 1], rtol=1e-6)


@pytest.mark.parametrize(("size", "divisor"), [(12.0, 5), (20.0, 10), (400.0, 20)])
def test_large_biases_count_for_less(size, divisor):
    weights = {
        "w1": np.ones((4, 3, 3, 3), np.float32),
        "b1": np.full(4, size, np.float32),
        "w2": np.ones((2, 4, 1, 1), np.float32),
    }
    _, done = balanced(between_convs([node("Relu", "c", "m")], weights), CrossLayer(threshold=0.0))
    np.testing.assert_allclose(np.exp(done.factors), (size / divisor) ** -0.5, rtol=1e-6)


def separable(**changes):
    nodes = [
        node("Conv", "x w0 b0", "a"),
        node("Relu", "a", "b"),
        node("Conv", "b w1", "c", group=4, pads=[1, 1, 1, 1]),
        node("Relu", "c", "d"),
        node("Conv", "d w2", "e"),
        node("Relu", "e", "f"),
        node("Conv", "f w3", "y"),
    ]
    constants = {
        "w0": normal(4, 3, 1, 1) * UNEQUAL[:, None, None, None],
        "b0": normal(4),
        "w1": normal(4, 1, 3, 3, seed=1) * UNEQUAL[::-1, None, None, None],
        "w2": normal(5, 4, 1, 1, seed=2),
        "w3": normal(2, 5, 1, 1, seed=3),
    }
    return build(nodes, "y", constants | changes)


def test_a_depthwise_layer_between_two_others():
    proto = separable()
    chains = chains_of(as_ir(proto))
    assert [[layer.name for layer in chain.layers] for chain in chains] == [
        ["conv_a", "conv_c"],
        ["conv_a", "conv_c", "conv_e"],
        ["conv_c", "conv_e"],
        ["conv_e", "conv_y"],
    ]
    before = constants_of(as_ir(proto))
    sizes = [largest(before["w0"], 0), largest(before["w1"], 0), largest(before["w2"], 1)]
    after, _ = balanced(proto)
    # The third layer was rescaled once more, by its own outputs; the first two have what all three should have.
    np.testing.assert_allclose(largest(after["w0"], 0), np.cbrt(sizes[0] * sizes[1] * sizes[2]), rtol=1e-5)
    np.testing.assert_allclose(largest(after["w1"], 0), largest(after["w0"], 0), rtol=1e-5)
    np.testing.assert_allclose(largest(after["w2"], 0), largest(after["w3"], 1), rtol=1e-5)


def test_the_bias_of_a_depthwise_layer_counts_after_all_three():
    """Weights of 1 everywhere stay, but for the bias of 6 behind the depthwise layer: it counts as 3."""
    nodes = [
        node("Conv", "x w0", "a"),
        node("Relu", "a", "b"),
        node("Conv", "b w1 b1", "c", group=4),
        node("Relu", "c", "d"),
        node("Conv", "d w2", "y"),
    ]
    constants = {
        "w0": np.ones((4, 3, 1, 1), np.float32),
        "w1": np.ones((4, 1, 1, 1), np.float32),
        "b1": np.array([6, 0, 1, 2], np.float32),
        "w2": np.ones((2, 4, 1, 1), np.float32),
    }
    after, _ = balanced(build(nodes, "y", constants), CrossLayer(threshold=0.0))
    np.testing.assert_allclose(largest(after["w1"], 0), [3**-0.5, 1, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(largest(after["w2"], 1), [3**0.5, 1, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(largest(after["w0"], 0), 1, rtol=1e-6)


def test_more_steps_come_closer_and_end():
    proto = separable()
    one, three, more = (balanced(proto, CrossLayer(steps, append_bias=False, threshold=0.0)) for steps in (1, 3, -1))
    again, _ = balanced(proto, CrossLayer(-1, append_bias=False, threshold=0.0, converged=1e-3))

    def imbalance(constants):
        return float(np.abs(np.log(largest(constants["w0"], 0) / largest(constants["w2"], 1))).max())

    assert imbalance(one[0]) > imbalance(three[0]) > imbalance(more[0])
    assert imbalance(more[0]) < 1e-4 < imbalance(again) < imbalance(one[0])


def test_channels_that_a_clip_cuts_stay_as_they_are():
    nodes = [node("Clip", "c zero six", "m")]
    constants = {"zero": np.float32(0), "six": np.float32(6), "w1": normal(4, 3, 3, 3) * UNEQUAL[:, None, None, None]}
    proto = between_convs(nodes, constants)
    after, done = balanced(proto)
    cut = np.max([values_of(proto, ["c"], {"x": array})["c"].max(axis=(0, 2, 3)) for array in IMAGES], axis=0) >= 6
    factors = np.array(done.factors)[map_channels(as_ir(proto)).of_value["c"]]
    assert cut.any()
    assert not cut.all()
    assert not factors[cut].any()
    assert after["six"] == 6


def test_who_is_not_alone_is_no_pair():
    """An output, two readers, a sum: nothing is moved."""
    shared = [
        node("Conv", "x w0", "a"),
        node("Conv", "a w1", "b"),
        node("Conv", "a w2", "c"),
        node("Add", "b c", "y"),
    ]
    weights = {f"w{number}": normal(3, 3, 1, 1, seed=number) for number in range(3)}
    assert not chains_of(as_ir(build(shared, "y", weights)))
    visible = [node("Conv", "x w0", "a"), node("Conv", "a w1", "y")]
    proto = build(visible, "a y", {"w0": weights["w0"], "w1": weights["w1"]})
    after, done = balanced(proto)
    assert done.channels == 0
    np.testing.assert_array_equal(after["w0"], weights["w0"])


def test_groups_that_are_not_single_channels_are_left():
    nodes = [node("Conv", "x w0", "a"), node("Conv", "a w1", "b", group=2), node("Conv", "b w2", "y")]
    weights = {"w0": normal(4, 3, 1, 1), "w1": normal(4, 2, 1, 1), "w2": normal(2, 4, 1, 1)}
    assert not chains_of(as_ir(build(nodes, "y", weights)))


def test_gemm_with_and_without_transposition():
    nodes = [
        node("GlobalAveragePool", "x", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f w0 b0", "a", transB=1),
        node("Relu", "a", "b"),
        node("Gemm", "b w1", "y"),
    ]
    constants = {"w0": normal(5, 3), "b0": normal(5), "w1": normal(5, 2, seed=2)}
    after, _ = balanced(build(nodes, "y", constants))
    np.testing.assert_allclose(largest(after["w0"], 0), largest(after["w1"], 0), rtol=1e-5)


def test_nothing_to_do():
    proto = build([node("Relu", "x", "y")], "y")
    model = as_ir(proto)
    assert equalize(model, CrossLayer(), [], codes={}).channels == 0
    assert ir.to_proto(model).graph.node[0].op_type == "Relu"
