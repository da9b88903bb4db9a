"""Models as others write them: what onnxruntime runs is quantized, and what is written loads as a user opens it."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import detent
from detent.errors import DataError
from tests.conftest import tiny_model
from tests.models import needs_opset

RNG = np.random.default_rng(0)
IMAGES = [RNG.standard_normal((1, 4, 8, 8)).astype(np.float32) for _ in range(4)]


def model_of(nodes, arrays, opset=17, outputs=("y",), shape=(1, 4, 8, 8)):
    """A model of these nodes from x to its outputs."""
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "g", inputs, values, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def conv(source="x", output="c"):
    return helper.make_node("Conv", [source, "w"], [output], pads=[1, 1, 1, 1], name=f"make_{output}")


WEIGHT = {"w": RNG.standard_normal((4, 4, 3, 3)).astype(np.float32) / 4}


def opened(report):
    """The session of a user."""
    return onnxruntime.InferenceSession(report.model.SerializeToString())


@pytest.mark.parametrize("opset", [17, 19, 21])
@pytest.mark.parametrize("recipe", ["XINT8", "A8W8"])
def test_pools_of_every_opset_load_as_a_user_opens_them(opset, recipe):
    pool = helper.make_node("AveragePool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2])
    last = helper.make_node("GlobalAveragePool", ["p"], ["y"])
    report = detent.quantize(model_of([conv(), pool, last], WEIGHT, opset), None, IMAGES, recipe)
    assert opened(report).run(None, {"x": IMAGES[0]})[0].shape == (1, 4, 1, 1)


def test_a_dilated_pool_stays_float():
    pool = helper.make_node("AveragePool", ["c"], ["y"], kernel_shape=[2, 2], dilations=[2, 2], name="pool")
    report = detent.quantize(model_of([conv(), pool], WEIGHT, 19), None, IMAGES)
    assert [decision.node for decision in report.left_float()] == ["pool"]
    assert opened(report)


def test_what_a_user_could_not_open_is_not_written(tmp_path, monkeypatch):
    """onnxruntime's own rewrites of quantized nodes can fail, and are off while a model is measured."""
    from detent.plan.operators import OPERATORS, Operator

    monkeypatch.setitem(OPERATORS, "AveragePool", Operator(data=(0,)))
    pool = helper.make_node("AveragePool", ["c"], ["y"], kernel_shape=[2, 2], dilations=[2, 2], name="pool")
    with pytest.raises(detent.ModelError, match="pool"):
        detent.quantize(model_of([conv(), pool], WEIGHT, 19), tmp_path / "out.onnx", IMAGES)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("recipe", ["XINT8", "A8W8"])  # the second smooths
def test_a_weight_without_elements_stays_float(recipe):
    arrays = {"a": np.ones((4, 0), np.float32), "b": np.ones((0, 4), np.float32), "w": np.eye(4, dtype=np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["d"], name="down"),
        helper.make_node("MatMul", ["d", "b"], ["u"], name="up"),
        helper.make_node("MatMul", ["x", "w"], ["m"], name="main"),
        helper.make_node("Add", ["m", "u"], ["y"], name="sum"),
    ]
    data = [RNG.standard_normal((4, 4)).astype(np.float32) for _ in range(4)]
    report = detent.quantize(model_of(nodes, arrays, shape=(4, 4)), None, data, recipe)
    assert {"down", "up"} <= {decision.node for decision in report.left_float()}
    np.testing.assert_allclose(opened(report).run(None, {"x": data[0]})[0], data[0], atol=0.1)


def test_a_model_in_float64_says_so():
    values = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(detent.ModelError, match="float64"):
        detent.quantize(model)


def test_an_output_that_declares_a_wrong_shape_gets_the_right_one():
    model = model_of([conv(output="y")], WEIGHT)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 8, 8]))
    report = detent.quantize(model, None, IMAGES)
    assert [dim.dim_value for dim in report.model.graph.output[0].type.tensor_type.shape.dim] == [1, 4, 8, 8]


def test_a_file_in_a_folder_with_spaces_and_unicode(tmp_path):
    folder = tmp_path / "mein Ordner ü 模型"
    folder.mkdir()
    onnx.save(tiny_model(), folder / "m o.onnx", save_as_external_data=True, location="da ta.bin", size_threshold=0)
    detent.quantize(folder / "m o.onnx", folder / "aus gabe.onnx", None)
    assert onnxruntime.InferenceSession(str(folder / "aus gabe.onnx"))


def test_what_draws_random_numbers_is_quantized_and_said():
    nodes = [
        conv(),
        helper.make_node("RandomNormalLike", ["c"], ["n"], name="draw"),
        helper.make_node("Add", ["c", "n"], ["y"]),
    ]
    report = detent.quantize(model_of(nodes, WEIGHT), None, IMAGES)
    assert any("'draw'" in warning for warning in report.warnings)
    assert opened(report)


def test_a_batchnorm_in_training_mode_that_gives_its_statistics_out_stays_float_and_is_said():
    norm = helper.make_node(
        "BatchNormalization", ["c", "s", "b", "m", "v"], ["y", "rm", "rv"], name="norm", training_mode=1
    )
    half = np.full(4, 0.5, np.float32)
    statistics = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "mv"]
    model = model_of([conv(), norm], {**WEIGHT, "s": half, "b": half}, outputs=("y", "rm", "rv"))
    model.graph.input.extend(statistics)
    data = [{"x": image, "m": half, "v": half} for image in IMAGES]
    report = detent.quantize(model, None, data)
    assert {each.node: each.quantized for each in report.nodes} == {"make_c": True, "norm": False}
    assert any("'norm'" in warning for warning in report.warnings)
    assert opened(report)
    del model.graph.output[1:]  # now onnxruntime would overwrite what it is given
    with pytest.raises(detent.ModelError, match="'norm'"):
        detent.quantize(model, None, data)


@needs_opset(23)
@pytest.mark.parametrize("recipe", ["XINT8", "BF16"])
def test_an_attention_that_gives_its_masked_scores_out_gives_them_out_as_float(recipe):
    names = ["q", "k", "v"]
    attention = helper.make_node(
        "Attention", names, ["y", "", "", "scores"], name="attention", is_causal=1, qk_matmul_output_mode=2
    )
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 4, 8]) for name in names]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 4, 8]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 2, 4, 4]),
    ]
    graph = helper.make_graph([attention], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    feeds = {name: np.random.default_rng(each).random((1, 2, 4, 8), np.float32) for each, name in enumerate(names)}
    report = detent.quantize(model, None, [feeds], recipe)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(["scores"], feeds)[0]
    found = opened(report).run(["scores"], feeds)[0]
    assert (found[expected < -1e38] < -1e38).all() and np.isfinite(found).all()
    np.testing.assert_allclose(found[expected > -1e38], expected[expected > -1e38], atol=0.1)


def test_sequences_inside_a_bfloat16_model_and_as_an_output():
    at = {"i": np.array(0, np.int64)}
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("SequenceAt", ["s", "i"], ["y"]),
    ]
    assert detent.quantize(model_of(nodes, at), None, IMAGES, "BF16").model is not None
    with_sequence = model_of(nodes, at)
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    with_sequence.graph.output.append(sequence)
    report = detent.quantize(with_sequence, None, IMAGES, "BF16")
    assert len(opened(report).run(["s"], {"x": IMAGES[0]})[0]) == 2


INFINITE = {"low": np.array(-np.inf, np.float32), "zero": np.array(0, np.float32), "pads": np.array([0, 0, 1, 1] * 2)}


def padded_with_infinity():
    """Keras and timm pad with -inf before a MaxPool of their own rounding."""
    return [
        conv(),
        helper.make_node("Pad", ["c", "pads", "low"], ["p"], name="carrier"),
        helper.make_node("MaxPool", ["p"], ["y"], kernel_shape=[3, 3], strides=[2, 2], name="largest"),
    ]


def masked_with_infinity():
    return [
        conv(),
        helper.make_node("Greater", ["c", "zero"], ["m"]),
        helper.make_node("Where", ["m", "c", "low"], ["p"], name="carrier"),
        helper.make_node("ReduceMax", ["p"], ["y"], axes=[1], name="largest"),
    ]


@pytest.mark.parametrize("recipe", ["XINT8", "A16W8", "BF16"])
@pytest.mark.parametrize("nodes", [padded_with_infinity(), masked_with_infinity()], ids=["pad", "where"])
def test_what_a_constant_makes_infinite_stays_float_and_the_rest_is_quantized(nodes, recipe):
    model = model_of(nodes, {**WEIGHT, **INFINITE})
    data = [np.abs(image) + 1 for image in IMAGES]
    report = detent.quantize(model, None, data, recipe)
    decisions = {each.node: each.quantized for each in report.nodes}
    assert decisions["make_c"] and not decisions["carrier"]
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": data[0]})[0]
    found = opened(report).run(None, {"x": data[0]})[0]
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(found), finite)
    np.testing.assert_allclose(found[finite], expected[finite], atol=0.15 * np.abs(expected[finite]).max())


def test_what_onnx_itself_cannot_infer_is_no_reason_to_refuse():
    """Of onnx 1.23 the function of MeanVarianceNormalization fails its own strict inference."""
    nodes = [conv(), helper.make_node("MeanVarianceNormalization", ["c"], ["y"], name="norm")]
    assert opened(detent.quantize(model_of(nodes, WEIGHT, 13), None, IMAGES, "BF16"))


def test_an_input_without_axes_is_walked_through():
    model = model_of([helper.make_node("Mul", ["x", "s"], ["m"], name="scale"), conv("m", "y")], WEIGHT)
    model.graph.input.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, []))
    data = [{"x": image, "s": np.array(2, np.float32)} for image in IMAGES]
    assert detent.quantize(model, None, data, "BF16").model is not None


@pytest.mark.parametrize("recipe", ["XINT8", "BF16"])
@pytest.mark.parametrize("outputs", [("c", "parts"), ("parts",)])
def test_a_sequence_that_is_an_output_is_compared_as_one_row(recipe, outputs):
    model = model_of([conv(), helper.make_node("SplitToSequence", ["c"], ["parts"], axis=1)], WEIGHT, outputs=("c",))
    parts = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, [1, 1, 8, 8])
    values = [*model.graph.output, parts]
    del model.graph.output[:]
    model.graph.output.extend(value for value in values if value.name in outputs)
    report = detent.quantize(model, None, IMAGES, recipe=recipe)
    session = opened(report)
    name = session.get_inputs()[0].name
    found = session.run(["parts"], {name: IMAGES[0]})[0]
    assert [part.shape for part in found] == [(1, 1, 8, 8)] * 4
    measured = report.fidelity.outputs
    assert set(measured) == set(outputs)
    if len(outputs) == 2:  # the same numbers, whole and in parts
        assert measured["parts"].sqnr_db == pytest.approx(measured["c"].sqnr_db)


def test_layers_before_a_sequence_are_ranked():
    model = model_of([conv(), helper.make_node("SplitToSequence", ["c"], ["parts"], axis=1)], WEIGHT, outputs=())
    model.graph.output.append(helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, [1, 1, 8, 8]))
    ranked = detent.sensitivity(model, IMAGES)
    assert [layer.node for layer in ranked.found.layers] == ["make_c"]


def test_a_spectrum_whose_sides_are_not_said_has_one():
    window = np.hanning(16).astype(np.float32)
    arrays = {"hop": np.array(8, np.int64), "window": window, "mel": RNG.random((9, 4)).astype(np.float32)}
    nodes = [
        helper.make_node("STFT", ["x", "hop", "window"], ["image"]),
        helper.make_node("ReduceSumSquare", ["image"], ["power"], axes=[-1], keepdims=0),
        helper.make_node("MatMul", ["power", "mel"], ["y"], name="mel"),
    ]
    model = model_of(nodes, arrays, shape=(1, 64))
    waves = [RNG.standard_normal((1, 64)).astype(np.float32) for _ in range(4)]
    for recipe in ("XINT8", "A8W8"):
        report = detent.quantize(model, None, waves, recipe=recipe)
        (found,) = opened(report).run(["y"], {"x": waves[0]})
        assert found.shape == (1, 7, 4)  # 16 samples give 9 frequencies


def test_text_is_data_as_numbers_are(tmp_path):
    """What encodes categories takes str, which files hold without pickles."""
    words = helper.make_node("OneHotEncoder", ["word"], ["hot"], domain="ai.onnx.ml", cats_strings=["no", "yes"])
    graph = helper.make_graph(
        [words, helper.make_node("MatMul", ["hot", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("word", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(RNG.standard_normal((2, 4)).astype(np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    model, output, data = (str(tmp_path / name) for name in ("m.onnx", "q.onnx", "words.npy"))
    np.save(data, np.random.default_rng(0).choice(["no", "yes", "perhaps"], 40))
    report = detent.quantize(model, output, data, recipe="A8W8")
    assert "Only 3 of the first 32 samples differ" in " ".join(report.warnings)
    assert report.fidelity.outputs["y"].sqnr_db > 30
    assert detent.evaluate([model, output], data).samples == 40
    detent.quantize(model, output, list(np.load(data)), recipe="A8W8")
    with pytest.raises(DataError, match=r"expects text, found float32. Convert it with .astype\(str\)"):
        detent.quantize(model, output, np.zeros(40, np.float32))
    with pytest.raises(DataError, match="found Python objects.* Give a plain array of str"):
        detent.quantize(model, output, np.load(data).astype(object))


@pytest.mark.parametrize("options", [{"recipe": "XINT8"}, {"recipe": "A8W8", "widen": 20}])
def test_answers_of_0_on_all_samples_are_no_reason_to_refuse(options):
    """They tell no choice from another, and the data is doubted."""
    nodes = [conv(), helper.make_node("Relu", ["c"], ["r"]), helper.make_node("GlobalAveragePool", ["r"], ["p"])]
    nodes += [helper.make_node("Conv", ["p", "v", "b"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    arrays = {**WEIGHT, "v": np.ones((4, 4, 1, 1), np.float32), "b": np.full(4, -1e3, np.float32)}
    report = detent.quantize(model_of(nodes, arrays), None, [*IMAGES, *IMAGES[::-1]], **options)
    assert report.fidelity.outputs["y"].sqnr_db == np.inf
    assert any("had the same value in all samples" in warning for warning in report.warnings)
