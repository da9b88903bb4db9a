from __future__ import annotations

import math

import numpy as np
import pytest

import detent
from detent.comparison.models import compare_models
from detent.demo import FOLDER, MODEL, PREPROCESS
from detent.errors import ModelError
from detent.graph import taps
from detent.graph.load import load
from tests.models import build, info, node, normal

DATA = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]], np.float32)


def chain(factor, last="y", batch="N"):
    """a = x * factor, b = a + 0, y = b * 1; and a shape, which is no float."""
    return build(
        [node("Mul", "x f", "a"), node("Add", "a zero", "b"), node("Mul", "b one", last), node("Shape", "a", "s")],
        [info(last, [batch, 2])],
        {"f": np.asarray(factor, np.float32), "zero": np.float32(0), "one": np.float32(1)},
        [info("x", [batch, 2])],
    )


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_by_hand(batch):
    found = compare_models(chain(1.0), chain([1.0, 0.5]), DATA, batch=batch)
    assert [tensor.name for tensor in found.tensors] == ["a", "b", "y"]
    assert [tensor.is_output for tensor in found.tensors] == [False, False, True]
    assert found.skipped == ["s"]
    y = found.tensors[-1]
    # (3, 4) against (3, 2); (1, 0) against itself; (0, 2) against (0, 1).
    assert y.values[0] == pytest.approx([10 * math.log10(25 / 4), math.inf, 10 * math.log10(4)])
    assert y.values[1] == pytest.approx([10 * math.log10(16 / 2), math.inf, 10 * math.log10(4 / 0.5)])
    assert y.values[2] == pytest.approx([17 / (5 * math.sqrt(13)), 1, 1])
    assert y.values[3] == pytest.approx([1, 0, 0.5])
    assert y.values[4] == pytest.approx([2, 0, 0.5])
    assert y.mean("l1") == pytest.approx(0.5)
    assert (y.worst("l2"), y.worst("cosine")) == (2, pytest.approx(17 / (5 * math.sqrt(13))))
    assert y.worst_samples(2) == ["array[2]", "array[0]"]


def test_the_worst_come_first():
    one = build(
        [node("Relu", "x", "a"), node("Mul", "x f", "b"), node("Add", "a b", "y")],
        "y",
        {"f": np.float32(1)},
        [info("x", ["N", 2])],
    )
    other = build(
        [node("Relu", "x", "a"), node("Mul", "x f", "b"), node("Add", "a b", "y")],
        "y",
        {"f": np.float32(-1)},
        [info("x", ["N", 2])],
    )
    assert [tensor.name for tensor in compare_models(one, other, DATA).worst_first()] == ["b", "y", "a"]


def test_models_without_a_common_tensor():
    one = build([node("Relu", "x", "y")], "y", {}, [info("x", ["N", 2])])
    other = build([node("Relu", "x", "z")], "z", {}, [info("x", ["N", 2])])
    with pytest.raises(ModelError, match="have no tensor of the same name"):
        compare_models(one, other, DATA)
    fed = build([node("Relu", "u", "y")], "y", {}, [info("u", ["N", 2])])
    with pytest.raises(ModelError, match="has the input 'u'"):
        compare_models(one, fed, DATA)


def test_an_output_of_another_name_is_left_out():
    found = compare_models(chain(1.0), chain(1.0, last="z"), DATA)
    assert [(tensor.name, tensor.is_output) for tensor in found.tensors] == [("a", False), ("b", False)]


CHANNELS = 32  # whole blocks on every CPU
IMAGES = normal(6, 3, 12, 12, seed=5)


def convolutions(scales=1.0, gain=1.0, dead=(), last=1.0):
    """Two layers with the channels between them in other scales. `gain` is not made up for, nor is the `last` one."""
    scales = np.broadcast_to(np.float32(scales), CHANNELS)
    first, second = normal(CHANNELS, 3, 3, 3, seed=1), normal(CHANNELS, CHANNELS, 1, 1, seed=2)
    first[list(dead)] = 0
    nodes = [
        node("Conv", "x w", "a", pads=[1] * 4),
        node("Relu", "a", "ra"),
        node("Conv", "ra v", "b"),
        node("Relu", "b", "rb"),
        node("GlobalAveragePool", "rb", "p"),
        node("Flatten", "p", "f"),
        node("MatMul", "f m", "y"),
    ]
    constants = {
        "w": first * scales[:, None, None, None],
        "v": second * np.float32(gain) / scales[:, None, None],
        "m": normal(CHANNELS, 10, seed=3) * np.float32(last),
    }
    return build(nodes, [info("y", ["N", 10])], constants, [info("x", ["N", 3, 12, 12])])


def by_name(found):
    return {tensor.name: tensor for tensor in found.tensors}


POWERS = (2.0 ** (np.arange(CHANNELS) % 5 - 2)).astype(np.float32)


@pytest.mark.parametrize("layout", ["in blocks", "in order"])
@pytest.mark.parametrize("batch", [1, 3, 6])
def test_rescaled_channels_are_undone(layout, batch, monkeypatch):
    if layout == "in order":
        monkeypatch.setattr(taps, "block_lanes", lambda: 0)
    found = compare_models(convolutions(), convolutions(POWERS), IMAGES, batch=batch)
    tensors = by_name(found)
    assert {name for name, tensor in tensors.items() if tensor.rescaled} == {"ra"}
    assert tensors["ra"].worst("sqnr_db") > 140
    assert tensors["y"].worst("sqnr_db") > 100
    assert found.rescaling == "1 inner tensor was compared with the scales of its channels undone."
    assert [each["name"] for each in found.to_dict()["tensors"] if each["rescaled"]] == ["ra"]
    uneven = np.linspace(0.1, 9, CHANNELS)
    assert by_name(compare_models(convolutions(), convolutions(uneven), IMAGES))["ra"].worst("sqnr_db") > 100


def test_a_gain_is_seen_at_the_outputs():
    tensors = by_name(compare_models(convolutions(), convolutions(gain=2), IMAGES))
    assert {name for name, tensor in tensors.items() if tensor.rescaled} == {"rb", "p", "f"}
    assert tensors["rb"].worst("sqnr_db") > 100
    assert tensors["y"].mean("sqnr_db") == pytest.approx(0, abs=1e-3)
    last = compare_models(convolutions(), convolutions(last=2), IMAGES)
    assert [(each.name, each.rescaled) for each in last.tensors if each.mean("sqnr_db") < 1] == [("y", False)]
    assert not last.rescaling


def test_dead_channels_do_not_matter():
    models = convolutions(dead=(0, 7)), convolutions(POWERS, dead=(0, 7))
    ra = by_name(compare_models(*models, IMAGES))["ra"]
    assert ra.rescaled
    assert ra.worst("sqnr_db") > 140


def test_one_that_is_dead_in_one_model_is_noise():
    ra = by_name(compare_models(convolutions(), convolutions(POWERS, dead=(5,)), IMAGES))["ra"]
    assert ra.rescaled
    assert 10 < ra.mean("sqnr_db") < 20  # about a channel of 32


def test_nan_is_as_far_as_can_be():
    scales = POWERS.copy()
    scales[3] = np.nan
    ra = by_name(compare_models(convolutions(), convolutions(scales), IMAGES))["ra"]
    assert not ra.rescaled
    assert ra.mean("sqnr_db") == -math.inf


def test_the_factors_are_those_of_the_first_samples():
    few, many = (compare_models(convolutions(), convolutions(POWERS * 3), IMAGES[:count]) for count in (4, 6))
    np.testing.assert_array_equal(by_name(few)["ra"].values, by_name(many)["ra"].values[:, :4])


@pytest.mark.parametrize(("threads", "batch"), [(1, 1), (3, 1), (2, 4), (1, 6)])
def test_whatever_the_threads(threads, batch):
    models = load(convolutions()), load(convolutions(POWERS * 3))
    expected = compare_models(*models, IMAGES, threads=1, batch=batch)
    found = compare_models(*models, IMAGES, threads=threads, batch=batch)
    for one, other in zip(expected.tensors, found.tensors, strict=True):
        np.testing.assert_array_equal(one.values, other.values)


def test_progress_counts_the_samples_that_are_run_twice():
    calls = []
    compare_models(convolutions(), convolutions(), IMAGES, batch=1, progress=lambda *call: calls.append(call[1:]))
    assert calls == [(done, 10) for done in (0, 4, 5, 6, 7, 8, 9, 10)]


def test_channels_that_come_last():
    """As between matrix products: [samples, tokens, channels]."""

    def products(scales):
        nodes = [node("MatMul", "x w", "a"), node("Abs", "a", "c"), node("MatMul", "c v", "y")]
        constants = {"w": normal(6, 16, seed=1) * scales, "v": normal(16, 4, seed=2) / scales[:, None]}
        return build(nodes, "y", constants, [info("x", ["N", 5, 6])])

    found = compare_models(products(np.ones(16, np.float32)), products(POWERS[:16]), normal(4, 5, 6))
    assert {name for name, tensor in by_name(found).items() if tensor.rescaled} == {"a", "c"}
    assert min(tensor.worst("sqnr_db") for tensor in found.tensors) > 100


def test_a_quantized_model_is_as_close_as_its_report_says():
    report = detent.quantize(MODEL, None, FOLDER / "calibration", preprocess=PREPROCESS)
    found = compare_models(
        MODEL, report.model, FOLDER / "images", preprocess=detent.PreprocessOptions(file=PREPROCESS), limit=16
    )
    operators = [
        {value.name: node.op_type for node in load(each).graph for value in node.outputs}
        for each in (MODEL, report.model)
    ]
    # Where the quantizer has taken over a Clip, the tensor before it is not cut off yet.
    apart = {
        tensor.name: tensor.mean("sqnr_db") - report.fidelity.tensors[tensor.name].sqnr_db
        for tensor in found.tensors
        if tensor.name in report.fidelity.tensors and operators[0][tensor.name] == operators[1][tensor.name]
    }
    assert len(apart) > 8
    assert sum(tensor.rescaled for tensor in found.tensors) > 15
    sizes = sorted(map(abs, apart.values()))
    assert sizes[len(sizes) // 2] < 1
    assert sizes[-2] < 2
    assert sizes[-1] < 8  # behind the global pool, where the factor of a channel is fitted to four values


def test_a_tensor_without_dimensions():
    models = [
        build([node("Mul", "x f", "a"), node("ReduceMean", "a", "m", keepdims=0), node("Add", "a m", "y")],
              [info("y", ["N", 2])], {"f": np.float32(factor)}, [info("x", ["N", 2])])
        for factor in (1, 2)
    ]  # fmt: skip
    found = {tensor.name: tensor for tensor in compare_models(*models, DATA).tensors}
    assert found["m"].worst("l1") == 3.5
    assert compare_models(*models, DATA, batch=3).skipped == ["m"]


def test_parts_of_an_output_are_compared_apart():
    """Scores of 0..1 beside boxes of hundreds: the noise of the whole is that of the boxes."""

    def joined(step):
        nodes = [
            node("Conv", "x w4", "b"),
            node("Conv", "x w10", "c"),
            node("Sigmoid", "c", "s"),
            node("Concat", "b s", "j", axis=1),
            node("Div", "j step", "d"),
            node("Round", "d", "r"),
            node("Mul", "r step", "y"),
        ]
        plain = [*nodes[:3], node("Concat", "b s", "y", axis=1)]
        weights = {"w4": 300 * normal(4, 3, 1, 1), "w10": normal(10, 3, 1, 1), "step": np.float32(8.0)}
        return build(nodes if step else plain, "y", weights if step else {k: weights[k] for k in ("w4", "w10")})

    data = normal(6, 3, 8, 8)
    found = compare_models(joined(False), joined(True), data)
    measured = {tensor.name: tensor.mean("sqnr_db") for tensor in found.tensors if tensor.is_output}
    assert measured["y"] > 30
    assert measured["y: boxes 0..4"] > 30
    assert measured["y: scores 4..14"] < 3
