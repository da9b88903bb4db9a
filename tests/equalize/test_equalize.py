"""Equalization on data: less noise, the same function, and nothing infinite whatever the data is."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from detent.equalizations import GlobalEqualization
from detent.equalize.channels import map_channels
from detent.equalize.equalize import Equalization, equalize, equalize_again
from tests.equalize.networks import assert_close, between_convs, constants_of, pending
from tests.models import as_ir, build, conv_relu_conv, info, laid_out, node, normal, run, values_of

IMAGES = [normal(1, 3, 8, 8, seed=seed) for seed in range(10, 14)]
UNEQUAL = np.array([1, 0.02, 5, 0.3], np.float32)


def unequal() -> onnx.ModelProto:
    """Four channels of very different size: what one of them is multiplied with, the next layer divides by."""
    model = as_ir(between_convs([node("Relu", "c", "m")]))
    equalize_again(model, np.log(UNEQUAL).tolist())
    return ir.to_proto(model)


def equalized(proto, arrays=IMAGES, threads=0):
    model, layout = laid_out(proto)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = equalize(model, GlobalEqualization(), pending(*arrays), threads, codes=dict.fromkeys(layout.sites, 0))
    return model, done


def assert_same_outputs(proto, model, arrays=IMAGES):
    for array in arrays:
        want, got = run(proto, {"x": array}), run(model, {"x": array})
        for name in want:
            assert_close(got[name], want[name], name)


def assert_untouched(done: Equalization) -> None:
    assert (done.channels, done.largest_factor, done.noise_before, done.noise_after) == (0, 1.0, None, None)
    assert not any(done.factors)


def test_unequal_channels_become_equal():
    proto = unequal()
    model, done = equalized(proto)
    assert_same_outputs(proto, model)
    assert done.noise_after < 0.5 * done.noise_before
    assert (done.channels, done.layers) == (4, 2)
    assert len(done.factors) == 4
    assert done.largest_factor == pytest.approx(np.exp(np.abs(done.factors).max()))
    # Up to a common factor, they are what undoes the imbalance, as far as the channels were equal before it.
    _, of_equal = equalized(between_convs([node("Relu", "c", "m")]))
    assert of_equal.noise_after == pytest.approx(done.noise_after, rel=0.02)


def test_the_noise_that_is_measured_goes_down():
    """Weights and activations rounded to 127 steps, in numpy: the error of the output."""

    def rounded(array):
        step = np.abs(array).max() / 127
        return (np.rint(array / step) * step).astype(np.float32)

    def error(model):
        weights = constants_of(model)
        coarse = {name: rounded(array) for name, array in weights.items()}
        total = 0.0
        for array in IMAGES:
            exact = values_of(with_constants(weights), ["y"], {"x": array})["y"]
            hidden = rounded(values_of(with_constants(coarse), ["m"], {"x": rounded(array)})["m"])
            result = np.einsum("oc,nchw->nohw", coarse["w2"][:, :, 0, 0], hidden) + coarse["b2"][:, None, None]
            total += float(((result - exact) ** 2).sum())
        return total

    def with_constants(constants):
        return between_convs([node("Relu", "c", "m")], constants)

    proto = unequal()
    model, _ = equalized(proto)
    assert error(model) < 0.5 * error(as_ir(proto))


def test_factors_can_be_applied_again():
    proto = unequal()
    model, done = equalized(proto)
    again = as_ir(proto)
    repeated = equalize_again(again, done.factors)
    for name, array in constants_of(model).items():
        np.testing.assert_array_equal(constants_of(again)[name], array)
    assert (repeated.channels, repeated.layers, repeated.noise_before) == (done.channels, done.layers, None)


def test_it_is_deterministic():
    runs = [equalized(unequal(), threads=threads)[1].factors for threads in (1, 4, 4)]
    assert runs[0] == runs[1] == runs[2]


def test_what_is_not_quantized_makes_no_noise():
    model = as_ir(unequal())
    done = equalize(model, GlobalEqualization(), pending(*IMAGES), codes={})
    assert done.noise_before == done.noise_after == 0
    assert done.factors == (0, 0, 0, 0)


def clipped(*bounds: float):
    """Conv, then a Clip at 0 and each of the bounds with a Conv after it; the last Conv ends the network."""
    nodes, constants, before = [], {"zero": np.float32(0)}, "x"
    for number, bound in enumerate(bounds):
        inputs = 3 if before == "x" else 4
        constants |= {
            f"w{number}": normal(4, inputs, 1, 1, seed=number) * UNEQUAL[:, None, None, None] / 4,
            f"bound{number}": np.float32(bound),
        }
        nodes += [
            node("Conv", f"{before} w{number}", f"c{number}"),
            node("Clip", f"c{number} zero bound{number}", f"k{number}"),
        ]
        before = f"k{number}"
    nodes.append(node("Conv", f"{before} last", "y"))
    return build(nodes, "y", constants | {"last": normal(2, 4, 1, 1, seed=9)})


def highest(proto, name, arrays=IMAGES):
    return np.max([values_of(proto, [name], {"x": array})[name].max(axis=(0, 2, 3)) for array in arrays], axis=0)


LARGE = [100 * array for array in IMAGES]


def beside_the_input(bound: float) -> onnx.ModelProto:
    """A Clip whose output is read beside the input, which is far larger: its channels want to grow."""
    nodes = [
        node("Conv", "x w0", "c"),
        node("Clip", "c zero bound", "k"),
        node("Concat", "x k", "m", axis=1),
        node("Conv", "m w1", "y"),
    ]
    constants = {
        "w0": normal(4, 3, 1, 1) * np.array([1, 2, 4, 40], np.float32)[:, None, None, None] / 4000,
        "w1": normal(2, 7, 1, 1, seed=1) * np.array([1, 1, 1, 100, 100, 100, 100], np.float32)[:, None, None] / 100,
    }
    return build(nodes, "y", constants | {"zero": np.float32(0), "bound": np.float32(bound)})


def test_channels_grow_until_they_nearly_meet_the_clip():
    largest = highest(beside_the_input(1e6), "c", LARGE)
    bound = float(largest.max()) * 2
    proto = beside_the_input(bound)
    model, done = equalized(proto, LARGE)
    assert_same_outputs(proto, model, LARGE)
    assert done.noise_after < done.noise_before
    grown = largest * np.exp(done.factors[:4])
    assert (grown <= bound / 1.25 * (1 + 1e-5)).all()
    assert (grown > bound / 1.25 * (1 - 1e-5)).sum() == 3


def test_a_channel_that_nearly_meets_the_clip_does_not_grow():
    largest = highest(beside_the_input(1e6), "c", LARGE)
    proto = beside_the_input(float(largest.max()) * 1.1)
    model, done = equalized(proto, LARGE)
    assert_same_outputs(proto, model, LARGE)
    assert done.factors[int(largest.argmax())] == 0
    assert sorted(done.factors[:4])[1] > 0.5


def test_a_clip_out_of_reach():
    proto = clipped(60.0)
    assert 0.5 < highest(proto, "c0").max() < 10
    model, done = equalized(proto)
    assert_same_outputs(proto, model)
    assert done.noise_after < 0.8 * done.noise_before


def test_channels_that_a_clip_cuts_stay():
    cut = float(highest(clipped(1e6, 1e6), "c0").max()) / 2
    proto = clipped(cut, 1e6)
    model, done = equalized(proto)
    assert_same_outputs(proto, model)
    factors, channels = np.array(done.factors), map_channels(as_ir(proto))
    above = highest(proto, "c0") >= cut
    assert above.any() and not above.all()
    assert (factors[channels.of_value["c0"]][above] == 0).all()
    assert np.abs(factors[channels.of_value["c1"]]).max() > 0.1
    assert done.factors[-2:] == (0.0, 0.0)


def test_channels_that_are_not_cut_grow_beside_power_of_two_scales():
    cut = float(highest(clipped(1e6, 1e6), "c0").max()) / 2
    proto = clipped(cut, 1e6)
    model, layout = laid_out(proto)
    done = equalize(model, GlobalEqualization(), pending(*IMAGES), codes=dict.fromkeys(layout.sites, 127))
    assert_same_outputs(proto, model)
    channels = map_channels(as_ir(proto))
    factors = np.array(done.factors)[channels.of_value["c0"]]
    above = highest(proto, "c0") >= cut
    assert above.any() and not above.all()
    assert factors[above] == pytest.approx(done.factors[8]) and (factors[~above] > done.factors[8] + 0.1).all()


def test_where_clips_hold_most_channels_all_stay():
    _, done = equalized(clipped(1e-3, 1e-4, 1e-7))
    assert done.channels == 0 and not any(done.factors)


@pytest.mark.parametrize("cut", [1.0, 0.5, 0.1, 1e-3])
@pytest.mark.parametrize("factor", [1.0, 1.3, 2.7])
def test_bounds_move_to_where_the_codes_end(cut, factor):
    """With power-of-two scales 127 codes end at 127 * 2^-p: the Clip there or above what was seen, and exact."""
    bounds = [factor * cut * float(highest(clipped(1e6, 1e6), name).max()) for name in ("c0", "c1")]
    proto = clipped(*bounds)
    model, layout = laid_out(proto)
    before = {name: highest(proto, name) for name in ("k0", "k1")}
    done = equalize(model, GlobalEqualization(), pending(*IMAGES), codes=dict.fromkeys(layout.sites, 127))
    assert_same_outputs(proto, model)
    after = {name: highest(ir.to_proto(model), name) for name in ("k0", "k1")}
    for index, name in enumerate(("k0", "k1")):
        moved = np.exp(done.factors[8 + index])
        if moved == 1.0:
            continue
        bound = float(constants_of(model)[f"clip_{name}/bound"])
        assert bound == pytest.approx(bounds[index] * moved)
        edge = 127 * 2.0 ** np.floor(np.log2(bound * (1 + 1e-6) / 127))
        assert edge >= after[name].max() * (1 - 1e-6)
        if before[name].max() == np.float32(bounds[index]):  # it cuts
            assert edge == pytest.approx(bound)
    again = as_ir(proto)
    equalize_again(again, done.factors)
    for name, array in constants_of(model).items():
        np.testing.assert_array_equal(constants_of(again)[name], array)


def test_a_bound_that_several_clips_share_moves_for_each():
    nodes = [
        node("Conv", "x w0", "a"),
        node("Clip", "a zero bound", "b"),
        node("Conv", "b w1", "c"),
        node("Clip", "c zero bound", "d"),
        node("Conv", "d w2", "e"),
        node("Clip", "e zero bound", "y"),
    ]
    weights = {f"w{number}": normal(4, 3 if number == 0 else 4, 1, 1, seed=number) for number in range(3)}
    proto = build(nodes, "y", weights | {"zero": np.float32(0), "bound": np.float32(1.5)})
    model, layout = laid_out(proto)
    done = equalize(model, GlobalEqualization(), pending(*IMAGES), codes=dict.fromkeys(layout.sites, 127))
    assert_same_outputs(proto, model)
    assert len(done.factors) == 8 + 2  # the bound of the last one, at an output, cannot move
    assert constants_of(model)["bound"] == 1.5


def test_a_clip_of_what_is_never_positive_has_all_the_room():
    proto = between_convs(
        [node("Clip", "c zero six", "m")],
        {"zero": np.float32(0), "six": np.float32(6), "b1": np.full(4, -1000, np.float32)},
    )
    model, done = equalized(proto)
    assert np.isfinite(done.factors).all()
    assert_same_outputs(proto, model)


def test_a_clip_of_other_things():
    """A Clip of a vector, and one of unknown channels, limit nothing."""
    nodes = [
        node("Clip", "v zero six", "k"),
        node("Clip", "z zero six", "l"),
        node("Conv", "x w1", "c"),
        node("Conv", "c w2", "y"),
    ]
    constants = {"zero": np.float32(0), "six": np.float32(6), "w1": normal(4, 3, 1, 1), "w2": normal(2, 4, 1, 1)}
    inputs = [info("x", (1, 3, 8, 8)), info("v", (5,)), info("z", (1, None, 2))]
    proto = build(nodes, [info("y", (1, 2, 8, 8)), info("k", (5,)), info("l", (1, None, 2))], constants, inputs)
    model, layout = laid_out(proto)
    feeds = {"x": IMAGES[0], "v": normal(5), "z": normal(1, 7, 2)}
    (sample,) = pending(IMAGES[0])
    sample = type(sample)(0, "sample", False, lambda: feeds)
    done = equalize(model, GlobalEqualization(), [sample], codes=dict.fromkeys(layout.sites, 0))
    assert done.noise_after <= done.noise_before
    assert_close(run(model, feeds)["y"], run(proto, feeds)["y"])


DEAD = {
    "a row of zeros": {"w1": normal(4, 3, 3, 3) * np.array([1, 0, 1, 1], np.float32)[:, None, None, None]},
    "a dead channel": {"b1": np.array([0, -1e4, 0, 0], np.float32)},
    "all dead": {"b1": np.full(4, -1e4, np.float32)},
    "a column that reads nothing": {"w2": np.array([[[[0]], [[1]], [[2]], [[0]]]], np.float32).repeat(2, 0)},
    "a layer of zeros": {"w1": np.zeros((4, 3, 3, 3), np.float32)},
    "zeros everywhere": {
        "w1": np.zeros((4, 3, 3, 3), np.float32),
        "b1": np.zeros(4, np.float32),
        "w2": np.zeros((2, 4, 1, 1), np.float32),
        "b2": np.zeros(2, np.float32),
    },
    "denormal weights": {"w1": normal(4, 3, 3, 3) * np.float32(1e-40)},
    "huge weights": {"w1": normal(4, 3, 3, 3) * np.float32(1e15)},
}


@pytest.mark.parametrize("case", DEAD)
@pytest.mark.parametrize("arrays", [IMAGES, [np.zeros((1, 3, 8, 8), np.float32)]], ids=["images", "zeros"])
def test_dead_channels_and_dead_data(case, arrays):
    proto = between_convs([node("Relu", "c", "m")], DEAD[case])
    model, done = equalized(proto, arrays)
    assert np.isfinite(done.factors).all()
    assert all(np.isfinite(array).all() for array in constants_of(model).values())
    assert done.noise_after <= done.noise_before
    if case != "denormal weights":  # these lose digits when they get smaller still
        assert_same_outputs(proto, model)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_data_is_left_to_the_sweep(bad):
    """It names the sample and the tensor; here nothing is touched."""
    broken = IMAGES[0].copy()
    broken[0, 1, 2, 3] = bad
    proto = unequal()
    model, done = equalized(proto, [*IMAGES, broken])
    assert_untouched(done)
    for name, array in constants_of(as_ir(proto)).items():
        np.testing.assert_array_equal(constants_of(model)[name], array)


def test_nothing_to_do():
    without_layers = build([node("Relu", "x", "y")], "y")
    one_layer = build([node("Conv", "x w", "c"), node("Relu", "c", "y")], "y", {"w": normal(4, 3, 3, 3)})
    for proto in (without_layers, one_layer):
        model, done = equalized(proto)
        assert_untouched(done)
        assert_same_outputs(proto, model)


def test_no_samples():
    """A stream may hold fewer than one that is not held out; whoever needs one says so."""
    _, done = equalized(conv_relu_conv(), [])
    assert_untouched(done)


def test_residuals_and_heads_on_data():
    nodes = [
        node("Conv", "x w0 b0", "c"),
        node("Relu", "c", "r"),
        node("Conv", "r w1", "d", pads=[1, 1, 1, 1], group=4),
        node("Add", "d r", "s"),
        node("GlobalAveragePool", "s", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f g h", "y", transB=1),
    ]
    constants = {
        "w0": normal(4, 3, 3, 3) * UNEQUAL[:, None, None, None],
        "b0": normal(4, seed=1) * UNEQUAL,
        "w1": normal(4, 1, 3, 3, seed=2),
        "g": normal(5, 4, seed=3) / UNEQUAL,
        "h": normal(1, 5, seed=4),
    }
    proto = build(nodes, "y", constants)
    model, done = equalized(proto)
    assert_same_outputs(proto, model)
    assert done.noise_after < 0.5 * done.noise_before
    assert (done.channels, done.layers) == (4, 3)


def test_one_sample_is_enough():
    """What is pooled to one number per channel does not vary then, and must not count for more than all else."""
    pairs = UNEQUAL[:, None, None, None], UNEQUAL[None, :, None, None]
    nodes = [
        node("Conv", "x w0", "c"),
        node("Relu", "c", "r"),
        node("Conv", "r w1", "d"),
        node("GlobalAveragePool", "d", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f g", "y"),
    ]
    constants = {
        "w0": normal(4, 3, 3, 3) * pairs[0],
        "w1": normal(4, 4, 3, 3, seed=2) * pairs[0] / pairs[1],
        "g": normal(4, 5, seed=3) / UNEQUAL[:, None],
    }
    one, two = (equalized(build(nodes, "y", constants), IMAGES[:count])[1] for count in (1, 4))
    assert np.abs(np.subtract(one.factors, two.factors)).max() < 1.0
    assert np.abs(np.subtract(one.factors, -np.log(np.tile(UNEQUAL, 2)))).max() < 2.0
