from __future__ import annotations

import tempfile
from collections import Counter

import numpy as np
import onnx
import pytest

import detent
from detent.errors import DataError, ModelError, UsageError
from detent.graph import sections, taps
from detent.graph.load import load
from detent.graph.session import Runner, take_fallbacks
from detent.graph.taps import BLOCKED, BlockedValue, UnorderedRunner, open_alike, open_exact, open_taps
from tests.models import build, info, node, normal

PLAIN = info("x", ("n", 3, 12, 12))


def convolution(name, source, result, inputs, outputs, kernel=3, group=1):
    """A Conv that keeps height and width, and its weights."""
    pads = [kernel // 2] * 4
    constants = {
        f"w_{name}": normal(outputs, inputs // group, kernel, kernel, seed=inputs + outputs) / 4,
        f"b_{name}": normal(outputs, seed=outputs),
    }
    return node("Conv", f"{source} w_{name} b_{name}", result, pads=pads, group=group), constants


def everything(channels):
    """Convolutions with and without activations, a residual, a depthwise layer, pools, a concat, and a padded tail."""
    stem, constants = convolution("a", "x", "a", 3, channels)
    inner, more = convolution("b", "ra", "b", channels, channels, kernel=1)
    depthwise, deep = convolution("d", "rs", "d", channels, channels, group=channels)
    tail, last = convolution("t", "cat", "t", 2 * channels, 20, kernel=1)
    nodes = [
        stem,
        node("Relu", "a", "ra"),
        inner,
        node("Add", "b ra", "s"),
        node("Relu", "s", "rs"),
        depthwise,
        node("Sigmoid", "d", "gate"),
        node("MaxPool", "rs", "m", kernel_shape=[2, 2], strides=[2, 2]),
        node("AveragePool", "gate", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", "m p", "cat", axis=1),
        tail,
        node("Clip", "t six nine", "ct"),
        node("Transpose", "ct", "tr", perm=[0, 2, 3, 1]),
        node("GlobalAveragePool", "ct", "y"),
    ]
    limits = {"six": np.float32(0.25), "nine": np.float32(6)}  # padding is zero, and would come out as a quarter
    return build(nodes, "y", constants | more | deep | last | limits, inputs=[PLAIN])


def quantized(channels, recipe):
    """The same model with quantizers between its layers."""
    return load(detent.quantize(everything(channels), None, {"x": normal(4, 3, 12, 12)}, recipe, keep_batch=True).model)


EVERY_VALUE = ["a", "ra", "b", "s", "rs", "d", "gate", "m", "p", "cat", "t", "ct", "tr", "y"]
FUSED = ["ra", "b", "s", "rs", "gate", "m", "p", "cat", "ct", "y"]


@pytest.mark.parametrize("names", [EVERY_VALUE, FUSED, ["y"], ["ct"]], ids=["all", "fused", "output", "one"])
@pytest.mark.parametrize("channels", [1, 3, 4, 7, 8, 12, 16, 20, 24, 32, 40])
def test_the_values_are_the_same_in_another_order(channels, names):
    model = load(everything(channels))
    ordered, unordered = open_taps(model, names)
    for batch in (1, 3):
        x = normal(batch, 3, 12, 12, seed=batch)
        expected, plain, found = ordered({"x": x}), Runner(model, names)({"x": x}), unordered({"x": x})
        for name, one, other, third in zip(names, expected, plain, found, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)
            assert one.size == third.size, name
            np.testing.assert_array_equal(np.sort(one, axis=None), np.sort(third, axis=None), err_msg=name)
    assert [str(value.name) for value in model.graph.outputs] == ["y"]


def test_padded_parts_of_a_whole_number_of_blocks():
    first, constants = convolution("a", "x", "a", 3, 12)
    second, more = convolution("b", "x", "b", 3, 20)
    nodes = [first, second, node("Concat", "a b", "cat", axis=1), node("Sigmoid", "cat", "y")]
    model = load(build(nodes, "y", constants | more, inputs=[PLAIN]))
    ordered, unordered = open_taps(model, ["a", "b", "cat", "y"])
    x = {"x": normal(2, 3, 12, 12)}
    for one, other in zip(ordered(x), unordered(x), strict=True):
        np.testing.assert_array_equal(np.sort(one, axis=None), np.sort(other, axis=None))


def test_only_some_values_are_asked_for():
    ordered, unordered = open_taps(load(everything(32)), EVERY_VALUE)
    x = {"x": normal(2, 3, 12, 12)}
    for names in (["rs", "ra"], ["y"], EVERY_VALUE[::-1]):
        for one, other in zip(ordered(x, "it", names), unordered(x, "it", names), strict=True):
            np.testing.assert_array_equal(np.sort(one, axis=None), np.sort(other, axis=None))


def test_reorders_are_really_taken_out():
    unordered = open_taps(load(everything(32)), FUSED).unordered
    if not isinstance(unordered, UnorderedRunner):
        pytest.skip("onnxruntime has no blocked layout on this CPU")
    assert {"ra", "b", "s", "rs"} <= set(unordered._blocked)
    assert "ct" not in unordered._blocked  # 20 channels do not fill their blocks


def test_a_layout_that_is_not_the_expected_one_is_an_error():
    model = build([node("Relu", "x", "y")], "y", inputs=[PLAIN])
    runner = UnorderedRunner(model, ["value"], {"value": BlockedValue("y", 5)})
    with pytest.raises(ModelError, match="tensor 'value' with 3 channels instead of 5"):
        runner({"x": normal(1, 3, 12, 12)})


@pytest.mark.parametrize("why", ["no convolution", "too large", "no folder", "not written", "not loaded"])
def test_where_it_cannot_be_done_the_ordered_runner_does_both(why, monkeypatch):
    model = load(everything(32))
    if why == "no convolution":
        model = load(build([node("Relu", "x", "y")], "y", inputs=[PLAIN]))
    elif why == "too large":
        monkeypatch.setattr(taps, "MOST_BYTES", 100)
    elif why == "no folder":
        monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    elif why == "not written":
        monkeypatch.setattr(onnx, "load", lambda path, **_: onnx.ModelProto.FromString(path.read_bytes()[:50]))
    else:

        def refuse(*_):
            raise ModelError("no")

        monkeypatch.setattr(taps, "cut", refuse)
    take_fallbacks()
    names = ["y"] if why == "no convolution" else ["rs", "y"]  # of these, one comes in blocks
    ordered, unordered = open_taps(model, names)
    assert ordered is unordered
    assert len(take_fallbacks()) == (why in ("no folder", "not written", "not loaded"))
    assert not take_fallbacks()
    x = {"x": normal(1, 3, 12, 12)}
    np.testing.assert_array_equal(ordered(x)[0], Runner(model, names)(x)[0])


def test_a_model_that_does_not_load_says_so():
    proto = everything(8)
    next(attribute for attribute in proto.graph.node[0].attribute if attribute.name == "pads").ints.append(1)
    with pytest.raises(ModelError, match="onnxruntime cannot load the model"):
        open_taps(taps.ir.from_proto(proto), ["y"])


def test_an_unknown_provider_is_named():
    with pytest.raises(UsageError, match="'CPUExecutionprovider'.*'CPUExecutionProvider'"):
        open_taps(load(everything(8)), ["y"], providers=["CPUExecutionprovider"])


@pytest.mark.parametrize("channels", [3, 8, 16, 20, 32])
@pytest.mark.parametrize("weights", ["A8W8", "XINT8"])
def test_a_quantized_model_answers_the_same_in_blocks(channels, weights):
    model = quantized(channels, weights)
    runner = open_exact(model)
    for batch in (1, 3):
        x = {"x": normal(batch, 3, 12, 12, seed=batch)}
        np.testing.assert_array_equal(runner(x)[0], Runner(model, exact=True)(x)[0])


def test_quantizers_are_really_carried_into_blocks():
    _, rewritten = taps._optimize(quantized(32, "XINT8"), None, taps.DEFAULT_PROVIDERS, exact=True)
    found = Counter(node.op_type for node in rewritten.model.graph.node if node.domain == BLOCKED)
    if not found:
        pytest.skip("onnxruntime has no blocked layout on this CPU")
    assert found["Conv"] == 4
    assert found["ReorderInput"] == 1  # behind the Concat


@pytest.mark.parametrize("channels", [3, 20, 32])
def test_two_models_in_one_order(channels):
    models = [load(everything(channels)), quantized(channels, "XINT8")]
    names = ["ra", "b", "s", "rs", "gate", "m", "p", "ct", "y"]
    runners = open_alike(models, ["one", "other"], names).runners
    x = {"x": normal(2, 3, 12, 12)}
    found = [runner(x) for runner in runners]
    expected = [Runner(model, names, exact=True)(x) for model in models]
    for name, a, b, c, d in zip(names, *found, *expected, strict=True):
        assert a.shape == b.shape == c.shape, name
        # Element for element the same pairs, whatever their order.
        pairs = [np.stack([one.reshape(-1), other.reshape(-1)]) for one, other in ((a, b), (c, d))]
        first, second = (each[:, np.lexsort(each)] for each in pairs)
        np.testing.assert_array_equal(first, second, err_msg=name)


@pytest.mark.parametrize("channels", [16, 32, 48])
def test_the_lanes_are_those_of_the_blocks(channels):
    models = [load(everything(channels)), quantized(channels, "XINT8")]
    names = ["ra", "b", "s", "rs", "gate", "m", "p", "ct", "y"]
    runners, lanes = open_alike(models, ["one", "other"], names)
    if not isinstance(runners[0], UnorderedRunner):
        pytest.skip("onnxruntime has no blocked layout on this CPU")
    assert {"ra", "b", "s", "rs"} <= set(lanes)
    assert "y" not in lanes  # in its 20 channels
    x = {"x": normal(2, 3, 12, 12)}
    for name, found, expected in zip(names, runners[0](x), Runner(models[0], names, exact=True)(x), strict=True):
        n, c, *area = expected.shape
        size = lanes.get(name, 1)
        in_order = np.moveaxis(found.reshape(n, c // size, *area, size), -1, 2).reshape(expected.shape)
        np.testing.assert_array_equal(in_order, expected, err_msg=name)


def test_where_the_lanes_cannot_be_told_all_is_in_order(monkeypatch):
    monkeypatch.setattr(taps, "block_lanes", lambda: 0)
    models = [load(everything(32)), quantized(32, "XINT8")]
    runners, lanes = open_alike(models, ["one", "other"], ["ra", "y"])
    assert not lanes
    x = {"x": normal(2, 3, 12, 12)}
    for runner, model in zip(runners, models, strict=True):
        for found, expected in zip(runner(x), Runner(model, ["ra", "y"], exact=True)(x), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_models_that_cannot_both_be_in_blocks_are_in_order():
    plain = load(build([node("Relu", "x", "ra"), node("Abs", "ra", "y")], "y", inputs=[PLAIN]))
    runners, lanes = open_alike([load(everything(32)), plain], ["one", "other"], ["ra"])
    assert not lanes
    assert not any(isinstance(runner, UnorderedRunner) for runner in runners)


def test_which_of_the_models_does_not_load():
    proto = everything(8)
    next(attribute for attribute in proto.graph.node[0].attribute if attribute.name == "pads").ints.append(1)
    with pytest.raises(ModelError, match=r"^other\.onnx: "):
        open_alike([load(everything(8)), taps.ir.from_proto(proto)], ["one.onnx", "other.onnx"], ["y"])


@pytest.mark.parametrize("most", [1, 4000, 1 << 30], ids=["a value", "some", "all"])
def test_sections_give_the_same_values_one_after_the_other(most, monkeypatch):
    model = load(onnx.shape_inference.infer_shapes(everything(32)))
    monkeypatch.setattr(taps, "cut", lambda rewritten, sizes: sections.cut(rewritten, sizes, most))
    ordered, unordered = open_taps(model, EVERY_VALUE)
    if not isinstance(unordered, UnorderedRunner):
        pytest.skip("onnxruntime has no blocked layout on this CPU")
    x = {"x": normal(2, 3, 12, 12)}
    parts = list(unordered.parts(x))
    assert (len(parts) == 1) == (most == 1 << 30)
    assert sorted(name for part in parts for name in part) == sorted(EVERY_VALUE)
    for name, one, other in zip(EVERY_VALUE, ordered(x), Runner(model, EVERY_VALUE)(x), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


def test_sections_behind_all_that_is_asked_for_are_not_run(monkeypatch):
    monkeypatch.setattr(taps, "cut", lambda rewritten, sizes: sections.cut(rewritten, sizes, 1))
    unordered = open_taps(load(onnx.shape_inference.infer_shapes(everything(32))), EVERY_VALUE).unordered
    if not isinstance(unordered, UnorderedRunner):
        pytest.skip("onnxruntime has no blocked layout on this CPU")
    unordered._sessions[1:] = [None] * (len(unordered._sessions) - 1)
    (found,) = unordered.parts({"x": normal(1, 3, 12, 12)}, "it", ["a"])
    assert found["a"].size


def test_what_a_section_cannot_compute_the_ordinary_model_does(monkeypatch):
    monkeypatch.setattr(taps, "cut", lambda rewritten, sizes: sections.cut(rewritten, sizes, 1))
    model = load(onnx.shape_inference.infer_shapes(everything(32)))
    unordered = open_taps(model, EVERY_VALUE).unordered
    if not isinstance(unordered, UnorderedRunner):
        pytest.skip("onnxruntime has no blocked layout on this CPU")
    run = taps.run_session

    def fail(session, *, names, feeds, origin):
        if session is unordered._sessions[3]:
            raise DataError("no")
        return run(session, names, feeds, origin)

    monkeypatch.setattr(taps, "run_session", fail)
    x = {"x": normal(1, 3, 12, 12)}
    found = {name: array for part in unordered.parts(x) for name, array in part.items()}
    for name, expected in zip(EVERY_VALUE, Runner(model, EVERY_VALUE)(x), strict=True):
        np.testing.assert_array_equal(np.sort(found[name], axis=None), np.sort(expected, axis=None), err_msg=name)
