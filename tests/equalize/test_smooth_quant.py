from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from detent.equalize.smooth_quant import SmoothQuant
from detent.errors import UsageError
from detent.graph.load import load
from detent.observe.samples import PendingSample
from detent.prepare import default_passes, prepare
from tests.models import as_ir, build, find, info, node, normal, run
from tests.transformer_models import Style, bert, bert_data, vit, vit_data

X = info("x", (2, 3, 4))
NORM = node("LayerNormalization", "x g h", "n", axis=-1)
PARAMETERS = {"g": np.array([1, 30, 1, 2], np.float32), "h": normal(4, seed=1), "w": normal(4, 5, seed=2)}

WIDE = np.array([1, 1, 30, 1], np.float32)

GATED = [
    *(node("MatMul", "x gate", "g"), node("Sigmoid", "g", "s"), node("MatMul", "x up", "u")),
    *(node("Mul", "s u", "n"), node("MatMul", "n w", "y")),
]
SPLIT = [
    *(node("MatMul", "x v", "m"), node("Add", "m b", "a"), node("Split", "a sizes", "p q n r", axis=-1)),
    *(node("MatMul", "n w", "z"), node("Concat", "p q z r", "y", axis=-1)),
]
HEADS = {"split": np.array([0, -1, 2, 2]), "merge": np.array([0, -1, 4])}
ATTENTION = [
    *(node("MatMul", "x q", "a"), node("Reshape", "a split", "b"), node("Transpose", "b", "c", perm=[0, 2, 1, 3])),
    *(node("MatMul", "x v", "d"), node("Reshape", "d split", "e"), node("Transpose", "e", "f", perm=[0, 2, 1, 3])),
    *(node("Transpose", "c", "g", perm=[0, 1, 3, 2]), node("MatMul", "c g", "h"), node("Softmax", "h", "i", axis=-1)),
    *(node("MatMul", "i f", "j"), node("Transpose", "j", "k", perm=[0, 2, 1, 3]), node("Reshape", "k merge", "n")),
    node("MatMul", "n w", "y"),
]


def pending(*feeds):
    return [PendingSample(index, f"sample {index}", False, lambda each=each: each) for index, each in enumerate(feeds)]


def inputs(*shape, count=3):
    return [{"x": normal(*shape, seed=10 + index)} for index in range(count)]


def smoothed(proto, feeds, **options):
    """The model after smoothing, checked to compute the same, and the report."""
    model = as_ir(proto)
    bits = options.pop("bits", (8, 8))
    report = SmoothQuant(**options).smooth(model, pending(*feeds), bits=bits)
    after = ir.to_proto(model)
    for sample in feeds:
        want, got = run(proto, sample), run(after, sample)
        assert list(want) == list(got)
        for name, array in want.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4 * np.abs(array).max())
    return model, report


def array_of(model, node_name, index):
    return find(model, node_name).inputs[index].const_value.numpy()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_the_factors_are_those_of_the_formula(alpha):
    proto = build([NORM, node("MatMul", "n w", "y"), node("Identity", "y", "z")], "y z", PARAMETERS, inputs=[X])
    feeds = inputs(2, 3, 4)
    model, report = smoothed(proto, feeds, alpha=alpha)
    probe = build([NORM], "n", {key: PARAMETERS[key] for key in "gh"}, inputs=[X])
    largest = np.max([np.abs(run(probe, each)["n"]).max(axis=(0, 1)) for each in feeds], axis=0)
    wanted = largest**alpha / np.abs(PARAMETERS["w"]).max(axis=1) ** (1 - alpha)
    wanted /= np.exp(np.log(wanted).mean())
    np.testing.assert_allclose(report.factors["n"], wanted, rtol=1e-5)
    np.testing.assert_allclose(array_of(model, "matmul_y", 1), PARAMETERS["w"] * wanted[:, None], rtol=1e-5)
    np.testing.assert_allclose(array_of(model, "layernormalization_n", 1), PARAMETERS["g"] / wanted, rtol=1e-5)
    np.testing.assert_allclose(array_of(model, "layernormalization_n", 2), PARAMETERS["h"] / wanted, rtol=1e-5)
    assert report.layers == ("matmul_y",)
    assert report.largest_factor == pytest.approx(max(wanted.max(), 1 / wanted.min()), rel=1e-5)


def test_with_one_half_the_value_and_the_weight_become_equally_large():
    proto = build([NORM, node("MatMul", "n w", "y")], "y", PARAMETERS, inputs=[X])
    feeds = inputs(2, 3, 4)
    model, _ = smoothed(proto, feeds)
    model.graph.outputs.append(find(model, "layernormalization_n").outputs[0])
    after = ir.to_proto(model)
    largest = np.max([np.abs(run(after, each)["n"]).max(axis=(0, 1)) for each in feeds], axis=0)
    ratio = largest / np.abs(array_of(model, "matmul_y", 1)).max(axis=1)
    np.testing.assert_allclose(ratio / ratio[0], 1, rtol=1e-4)


def test_layers_behind_one_normalization_share_its_factors():
    other = 5 * normal(4, 2)
    layers = [node("MatMul", "n w", "y"), node("MatMul", "n u", "t")]
    proto = build([NORM, *layers], "y t", PARAMETERS | {"u": other}, [X])
    _, report = smoothed(proto, inputs(2, 3, 4), alpha=0.0)
    assert report.layers == ("matmul_y", "matmul_t")
    rows = np.maximum(np.abs(PARAMETERS["w"]).max(axis=1), np.abs(other).max(axis=1))
    products = rows * report.factors["n"]
    np.testing.assert_allclose(products, products[0], rtol=1e-5)


def test_constants_with_several_uses_are_left_alone():
    two = [NORM, node("MatMul", "n w", "y"), node("MatMul", "x w", "z")]
    _, report = smoothed(build(two, "y z", PARAMETERS, [X]), inputs(2, 3, 4), insert=True)
    assert report.declined == dict.fromkeys(("matmul_y", "matmul_z"), "the weight 'w' has several uses")
    two = [NORM, node("LayerNormalization", "x g", "m", axis=-1), node("MatMul", "n w", "y")]
    _, report = smoothed(build(two, "y m", PARAMETERS, [X]), inputs(2, 3, 4))
    assert report.declined == {"matmul_y": "'g' of LayerNormalization 'layernormalization_n' has several uses"}


@pytest.mark.parametrize(
    ("nodes", "constants", "shape"),
    [
        ([node("Mul", "x c", "n"), node("MatMul", "n w", "y")], {"c": 9 * normal(4)}, (2, 3, 4)),
        ([node("Mul", "c x", "n"), node("MatMul", "n w", "y")], {"c": np.float32(3)}, (2, 3, 4)),
        (
            [node("Mul", "x c", "m"), node("Add", "m d", "a"), node("Sub", "a c2", "n"), node("MatMul", "n w", "y")],
            {"c": 9 * normal(4), "d": np.ones(1, np.float32), "c2": normal(1, 1, 4)},
            (2, 3, 4),
        ),
        ([node("MatMul", "x v", "n"), node("MatMul", "n w", "y")], {"v": normal(4, 4) * WIDE}, (2, 3, 4)),
        (
            [node("MatMul", "x v", "m"), node("Add", "b m", "a"), node("Relu", "a", "n"), node("MatMul", "n w", "y")],
            {"v": normal(4, 4), "b": 9 * normal(4)},
            (2, 3, 4),
        ),
        (
            [node("Gemm", "x v b", "n", transB=1), node("Gemm", "n w", "y", alpha=0.5)],
            {"v": 9 * normal(4, 3), "b": normal(4)},
            (2, 3),
        ),
        ([node("Gemm", "x v b", "n", beta=2.0), node("Gemm", "n w", "y")], {"v": normal(3, 4), "b": normal(1)}, (2, 3)),
        (
            [NORM, node("Gather", "n i", "first", axis=1), node("Gemm", "first w", "y")],
            {"g": PARAMETERS["g"], "h": PARAMETERS["h"], "i": np.array(0)},
            (2, 3, 4),
        ),
        ([NORM, node("MatMul", "n batched", "y")], {**PARAMETERS, "batched": normal(2, 4, 5)}, (2, 3, 4)),
        (GATED, {"gate": normal(4, 4), "up": normal(4, 4) * WIDE, "w": normal(4, 5)}, (2, 3, 4)),
        (SPLIT, {"v": normal(4, 12) * np.repeat(WIDE, 3), "b": normal(12), "sizes": np.array([4, 2, 4, 2])}, (2, 3, 4)),
        (ATTENTION, {"q": normal(4, 4), "v": normal(4, 4) * WIDE, **HEADS}, (2, 3, 4)),
    ],
)
def test_whatever_takes_the_division_in(nodes, constants, shape):
    constants = {"w": PARAMETERS["w"]} | constants
    used = {name for each in nodes for name in each.input}
    held = {key: value for key, value in constants.items() if key in used}
    proto = build(nodes, "y", held, inputs=[info("x", shape)])
    _, report = smoothed(proto, inputs(*shape))
    assert [each.name for each in nodes if {"w", "batched"} & {*each.input}][-1] in report.layers
    assert report.largest_factor > 1.1
    assert report.inserted == 0


@pytest.mark.parametrize(
    ("nodes", "outputs", "reason", "inserted"),
    [
        ([node("MatMul", "x w", "y")], "y", "'x' comes from outside", 1),
        ([node("Sigmoid", "x", "n"), node("MatMul", "n w", "y")], "y", "Sigmoid 'sigmoid_n' does not pass", 1),
        ([node("Add", "x x", "n"), node("MatMul", "n w", "y")], "y", "joins two computed values", 1),
        ([NORM, node("MatMul", "n w", "y"), node("Relu", "n", "z")], "y z", "Relu 'relu_z' reads 'n' too", 1),
        ([NORM, node("Relu", "n", "m"), node("MatMul", "m w", "y"), node("Neg", "n", "z")], "y z", "has 2 uses", 1),
        ([NORM, node("MatMul", "n w", "y")], "y n", "'n' is a graph output", 1),
    ],
)
def test_what_cannot_be_folded_is_declined_or_gets_a_mul(nodes, outputs, reason, inserted):
    used = {name for each in nodes for name in each.input}
    proto = build(nodes, outputs, {key: value for key, value in PARAMETERS.items() if key in used}, inputs=[X])
    before = proto.SerializeToString(deterministic=True)
    model, report = smoothed(proto, inputs(2, 3, 4))
    assert reason in report.declined["matmul_y"]
    assert not report.layers
    assert ir.to_proto(model).graph.initializer == as_proto(before).graph.initializer
    model, report = smoothed(proto, inputs(2, 3, 4), insert=True)
    assert report.layers == ("matmul_y",)
    assert report.inserted == inserted == sum(each.op_type == "Mul" for each in model.graph)


def as_proto(data):
    return ir.to_proto(as_ir(type(build([NORM], "n", PARAMETERS, inputs=[X])).FromString(data)))


def test_dead_channels_keep_their_size():
    constants = {key: value.copy() for key, value in PARAMETERS.items()}
    constants["g"][0] = constants["h"][0] = 0  # zero in the value
    constants["w"][2] = 0  # zero in the weight
    _, report = smoothed(build([NORM, node("MatMul", "n w", "y")], "y", constants, inputs=[X]), inputs(2, 3, 4))
    factors = report.factors["n"]
    assert factors[0] == factors[2] == 1.0
    assert np.prod(factors) == pytest.approx(1.0)
    constants["w"][:] = 0
    _, report = smoothed(build([NORM, node("MatMul", "n w", "y")], "y", constants, inputs=[X]), inputs(2, 3, 4))
    assert not report.layers
    assert report.largest_factor == 1.0


def test_only_where_rounding_gets_better():
    """A channel that is larger than the others, and weights that are not: with 16 bits only the weights matter."""
    flat = PARAMETERS | {"g": WIDE, "w": np.sign(PARAMETERS["w"])}
    proto = build([NORM, node("MatMul", "n w", "y")], "y", flat, inputs=[X])
    assert smoothed(proto, inputs(2, 3, 4), bits=(8, 8))[1].layers == ("matmul_y",)
    report = smoothed(proto, inputs(2, 3, 4), bits=(16, 8))[1]
    assert "not rounded better" in report.declined["matmul_y"]
    # Where the weights make up for the channel, they gain by the same factors.
    proto = build([NORM, node("MatMul", "n w", "y")], "y", flat | {"w": flat["w"] / WIDE[:, None]}, inputs=[X])
    assert smoothed(proto, inputs(2, 3, 4), bits=(16, 8))[1].layers == ("matmul_y",)


def test_a_channel_that_was_hardly_seen_is_not_blown_up():
    constants = {key: value.copy() for key, value in PARAMETERS.items()}
    constants["g"][0] = constants["h"][0] = 1e-30
    _, report = smoothed(build([NORM, node("MatMul", "n w", "y")], "y", constants, inputs=[X]), inputs(2, 3, 4))
    assert max(report.factors["n"]) / min(report.factors["n"]) < 1e3


def test_the_same_again():
    proto = vit(Style(mask=0.0, outliers=40.0), layers=1)
    model, again = load(proto), load(proto)
    done = SmoothQuant().smooth(model, pending(*vit_data(3)))
    repeated = SmoothQuant().smooth_again(again, done.factors)
    assert (repeated.layers, repeated.factors) == (done.layers, done.factors)
    for name, value in model.graph.initializers.items():
        np.testing.assert_array_equal(value.const_value.numpy(), again.graph.initializers[name].const_value.numpy())
    with pytest.raises(UsageError, match="no layer that reads 'nothing'"):
        SmoothQuant().smooth_again(load(proto), {"nothing": (1.0,)})


def test_alpha_is_a_share():
    with pytest.raises(UsageError, match="from 0"):
        SmoothQuant(alpha=1.5)


@pytest.mark.parametrize("insert", [False, True])
@pytest.mark.parametrize("layer_norm", ["operator", "subgraph"])
def test_transformers_compute_the_same(layer_norm, insert):
    style = Style(opset=20, layer_norm=layer_norm, outliers=40.0)
    for proto, data, folds_all in (
        (vit(Style(mask=0.0, layer_norm=layer_norm, outliers=40.0)), vit_data(4), True),
        (bert(style), bert_data(4), False),
    ):
        model = load(proto)
        prepare(model, default_passes(for_target=()))
        report = SmoothQuant(insert=insert).smooth(model, pending(*data))
        assert report.layers
        assert bool(report.inserted) == (insert and not folds_all)
        for sample in data:
            want, got = run(proto, sample)["logits"], run(ir.to_proto(model), sample)["logits"]
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())
