"""Bias absorption: amounts worked out by hand, the same function on what was observed, and all that must stay."""

from __future__ import annotations

import numpy as np
import pytest

from detent.equalizations.channel_problem import ChannelMoments
from detent.equalize.absorb import Absorption, absorb, absorb_again, find_givers, safe_amounts
from detent.equalize.channels import map_channels
from detent.errors import UsageError
from tests.equalize.networks import assert_close, between_convs, constants_of, pending
from tests.models import IMAGE, as_ir, build, info, node, normal, run

IMAGES = [normal(1, 3, 8, 8, seed=seed) for seed in range(10, 14)]
LIFTED = np.array([60, 0, 80, -60], np.float32)
"""Biases: two channels are always far above zero, one is on both sides, one is always below."""

RELU = [node("Relu", "c", "m")]


def absorbed(proto, arrays=IMAGES) -> tuple[dict[str, np.ndarray], Absorption]:
    """The constants afterwards, of a model that computes on the samples what it did."""
    model = as_ir(proto)
    done = absorb(model, pending(*arrays))
    for array in arrays:
        want, got = run(proto, {"x": array}), run(model, {"x": array})
        for name in want:
            assert_close(got[name], want[name], name)
    again = as_ir(proto)
    assert absorb_again(again, done.amounts) == done
    after = constants_of(model)
    for name, array in constants_of(again).items():
        np.testing.assert_array_equal(array, after[name], err_msg=name)
    return after, done


def lifted(middle=RELU, channels=4, **constants):
    return between_convs(middle, {"b1": LIFTED, **constants}, channels)


def test_known_amounts():
    """A channel of 10 or more gives 10, and the layer behind adds 2 * 10 and -1 * 10."""
    constants = {
        "w1": np.ones((1, 1, 1, 1), np.float32),
        "b1": np.array([12], np.float32),
        "w2": np.array([2, -1], np.float32).reshape(2, 1, 1, 1),
        "b2": np.array([0.5, 1], np.float32),
    }
    nodes = [node("Conv", "x w1 b1", "c"), node("Relu", "c", "m"), node("Conv", "m w2 b2", "y")]
    image = np.zeros((1, 1, 1, 100), np.float32)
    image[..., 0] = -2  # once among so many: further down than three deviations
    after, done = absorbed(build(nodes, "y", constants, [info("x", image.shape)]), [image])
    assert done.amounts == {"c": (10.0,)}
    np.testing.assert_array_equal(after["b1"], [2])
    np.testing.assert_array_equal(after["b2"], [20.5, -9])
    assert (done.channels, done.layers) == (1, 1)


@pytest.mark.parametrize(
    ("minimum", "mean", "deviation", "amount"),
    [
        (5.0, 6.0, 1 / 3, 5.0),  # both agree
        (5.0, 6.0, 1.0, 3.0),  # three deviations below the mean is less than all that was seen
        (1.0, 6.0, 1.0, 1.0),  # the least value is
        (0.0, 6.0, 1.0, 0.0),
        (-1.0, 6.0, 0.1, 0.0),
        (1.0, 2.0, 1.0, 0.0),
    ],
)
def test_the_safer_of_two_amounts(minimum, mean, deviation, amount):
    seen = ChannelMoments(*(np.array([each]) for each in (minimum, 8.0, mean, mean**2 + deviation**2)))
    np.testing.assert_allclose(safe_amounts(seen), [amount], atol=1e-9)
    np.testing.assert_allclose(safe_amounts(seen, ceiling=10.0), [amount], atol=1e-9)
    assert safe_amounts(seen, ceiling=9.9) == 0  # less than a quarter to spare


def test_only_channels_that_are_never_zero_give():
    after, done = absorbed(lifted())
    given = np.array(done.amounts["c"])
    assert [amount > 0 for amount in given] == [True, False, True, False]
    assert done.channels == 2 and done.layers == 1 and done.largest_amount == given.max()
    np.testing.assert_allclose(after["b1"], LIFTED - given, rtol=1e-6)
    assert after["b1"][1] == LIFTED[1] and after["b1"][3] == LIFTED[3]


BETWEEN = {
    "nothing": [node("Identity", "c", "m")],
    "LeakyRelu": [node("LeakyRelu", "c", "m", alpha=0.2)],
    "PRelu": [node("PRelu", "c slopes", "m")],
    "MaxPool with padding": [
        node("Relu", "c", "r"),
        node("MaxPool", "r", "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ],
    "AveragePool": [node("Relu", "c", "r"), node("AveragePool", "r", "m", kernel_shape=[2, 2])],
    "GlobalAveragePool": [node("Relu", "c", "r"), node("GlobalAveragePool", "r", "m")],
    "Clip far away": [node("Clip", "c zero high", "m")],
}
EXTRAS = {
    "slopes": np.full((4, 1, 1), 0.1, np.float32),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "zero": np.float32(0),
    "high": np.float32(1000),
    "near": np.float32(85),
}


def with_extras(middle, **constants):
    used = {name for each in middle for name in each.input}
    return lifted(middle, **{name: array for name, array in EXTRAS.items() if name in used}, **constants)


@pytest.mark.parametrize("middle", BETWEEN)
def test_through_what_passes_a_constant_on(middle):
    _, done = absorbed(with_extras(BETWEEN[middle]))
    assert done.channels == 2


REFUSED = {
    "Pad": [node("Relu", "c", "r"), node("Pad", "r pads", "m")],
    "AveragePool with padding": [
        node("Relu", "c", "r"),
        node("AveragePool", "r", "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    ],
    "Add": [node("Relu", "c", "r"), node("Add", "r r", "m")],
    "Sigmoid": [node("Sigmoid", "c", "m")],
}


@pytest.mark.parametrize("middle", REFUSED)
def test_what_passes_no_constant_on(middle):
    proto = with_extras(REFUSED[middle])
    after, done = absorbed(proto)
    assert not done.amounts
    np.testing.assert_array_equal(after["b1"], LIFTED)


def test_channels_near_the_bound_of_a_clip_stay():
    """85 is more than a quarter above the channel around 60 unless that varies much, and not above that around 80."""
    calm = normal(4, 3, 3, 3) / 100
    _, done = absorbed(with_extras([node("Clip", "c zero near", "m")], w1=calm))
    assert [amount > 0 for amount in done.amounts["c"]] == [True, False, False, False]


@pytest.mark.parametrize("padding", [{"pads": [1, 1, 1, 1]}, {"auto_pad": "SAME_UPPER"}])
def test_a_padded_layer_takes_nothing(padding):
    nodes = [node("Conv", "x w1 b1", "c"), node("Relu", "c", "m"), node("Conv", "m w2 b2", "y", **padding)]
    constants = {"w1": normal(4, 3, 3, 3), "b1": LIFTED, "w2": normal(2, 4, 3, 3), "b2": normal(2)}
    after, done = absorbed(build(nodes, "y", constants))
    assert done.channels == 0
    np.testing.assert_array_equal(after["b2"], constants["b2"])


def test_larger_and_depthwise_kernels_without_padding():
    """Through a depthwise 3 x 3 into a 3 x 3 of stride 2: what the first takes, it gives on."""
    nodes = [
        node("Conv", "x w0 b0", "a"),
        node("Relu", "a", "b"),
        node("Conv", "b w1 b1", "c", group=4),
        node("Relu", "c", "d"),
        node("Conv", "d w2 b2", "y", strides=[2, 2], auto_pad="VALID"),
    ]
    constants = {
        "w0": normal(4, 3, 1, 1),
        "b0": LIFTED,
        "w1": np.abs(normal(4, 1, 3, 3)),
        "b1": normal(4, seed=1),
        "w2": normal(5, 4, 3, 3, seed=2),
        "b2": normal(5, seed=3),
    }
    after, done = absorbed(build(nodes, "y", constants))
    assert list(done.amounts) == ["a", "c"]
    expected = constants["b1"] + constants["w1"].sum(axis=(1, 2, 3)) * done.amounts["a"] - done.amounts["c"]
    np.testing.assert_allclose(after["b1"], expected, rtol=1e-5, atol=1e-4)


def test_groups():
    nodes = [node("Conv", "x w1 b1", "c"), node("Relu", "c", "m"), node("Conv", "m w2 b2", "y", group=2)]
    constants = {"w1": normal(4, 3, 1, 1), "b1": LIFTED, "w2": normal(6, 2, 3, 3), "b2": normal(6)}
    _, done = absorbed(build(nodes, "y", constants))
    assert done.channels == 2


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_takes_from_every_place_of_a_channel(transposed):
    nodes = [
        node("Conv", "x w1 b1", "c"),
        node("Relu", "c", "m"),
        node("Flatten", "m", "f"),
        node("Gemm", "f w2 b2", "g", transB=transposed),
        node("Relu", "g", "r"),
        node("Gemm", "r w3 b3", "y"),
    ]
    constants = {
        "w1": normal(4, 3, 3, 3),
        "b1": LIFTED,
        "w2": normal(4 * 36, 5, seed=2) if not transposed else normal(5, 4 * 36, seed=2),
        "b2": np.full((1, 5), 9000, np.float32),
        "w3": normal(5, 2, seed=4),
        "b3": normal(2, seed=5),
    }
    _, done = absorbed(build(nodes, "y", constants))
    assert list(done.amounts) == ["c", "g"]


def test_every_reader_takes_its_share_wherever_concat_puts_the_channels():
    nodes = [
        node("Conv", "x wa ba", "a"),
        node("Relu", "a", "ra"),
        node("Conv", "x wb bb", "b"),
        node("Relu", "b", "rb"),
        node("Concat", "rb ra", "m", axis=1),
        node("Conv", "m w1 b1", "y"),
        node("Conv", "ra w2 b2", "z"),
    ]
    constants = {
        "wa": normal(4, 3, 1, 1),
        "ba": LIFTED,
        "wb": normal(2, 3, 1, 1, seed=1),
        "bb": np.array([0, 70], np.float32),
        "w1": normal(3, 6, 1, 1, seed=2),
        "b1": normal(3, seed=3),
        "w2": normal(2, 4, 1, 1, seed=4),
        "b2": normal(2, seed=5),
    }
    _, done = absorbed(build(nodes, "y z", constants))
    assert list(done.amounts) == ["a", "b"] and done.channels == 3


def test_one_reader_that_cannot_take_is_enough_to_give_nothing():
    """A padded layer, a model output, a layer without a bias, or one whose bias is counted twice."""
    first = [node("Conv", "x w1 b1", "c"), node("Relu", "c", "m"), node("Conv", "m w2 b2", "y")]
    constants = {"w1": normal(4, 3, 3, 3), "b1": LIFTED, "w2": normal(2, 4, 1, 1), "b2": normal(2)}
    padded = [*first, node("Conv", "m w3 b3", "z", pads=[1, 1, 1, 1])]
    bare = [*first, node("Conv", "m w3", "z")]
    third = {"w3": normal(2, 4, 3, 3), "b3": normal(2)}
    protos = [
        build(padded, "y z", constants | third),
        build(first, "m y", constants),
        build(bare, "y z", constants | {"w3": third["w3"]}),
        _doubled_bias(),
    ]
    for proto in protos:
        assert absorbed(proto)[1].channels == 0


def _doubled_bias():
    nodes = [
        node("Conv", "x w1 b1", "c", kernel_shape=[8, 8]),
        node("Relu", "c", "m"),
        node("Flatten", "m", "f"),
        node("Gemm", "f w2 b2", "y", beta=2.0),
    ]
    constants = {"w1": normal(4, 3, 8, 8), "b1": LIFTED * 10, "w2": normal(4, 2), "b2": normal(2)}
    return build(nodes, "y", constants)


def test_nothing_to_do():
    proto = lifted()
    assert absorb(as_ir(proto), []).channels == 0
    assert absorb(as_ir(build([node("Relu", "x", "y")], "y")), pending(*IMAGES)).amounts == {}
    broken = np.full(IMAGE, np.nan, np.float32)
    assert absorb(as_ir(proto), pending(broken)).amounts == {}
    assert [giver.value for giver in find_givers(map_channels(as_ir(proto)))] == ["c"]


def test_amounts_of_another_model():
    for amounts in ({"elsewhere": (1.0,)}, {"c": (1.0, 2.0)}):
        with pytest.raises(UsageError, match="gave .* biases.*calibrate again"):
            absorb_again(as_ir(lifted()), amounts)
