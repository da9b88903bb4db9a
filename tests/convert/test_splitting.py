"""A model cut in two computes what the whole does, in files that are both there or neither."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest

import detent
from detent import DataError, ModelError, OutputError, Pipeline, UsageError
from detent.graph import save as saving
from detent.report.differences import split_document
from tests.models import build, info, node, normal


def detector(extra=(), outputs="y") -> onnx.ModelProto:
    """stem -> relu -> (boxes | scores), decoded: boxes times about 8 beside the Sigmoid of scores."""
    return build(
        [
            node("Conv", "x w b", "c", "stem", pads=[1, 1, 1, 1]),
            node("Relu", "c", "r", "relu"),
            node("Conv", "r v", "boxes", "boxes_conv"),
            node("Conv", "r u", "scores", "scores_conv"),
            node("Mul", "boxes eight", "m", "scale"),
            node("Sigmoid", "scores", "s", "sigmoid"),
            node("Concat", "m s", "y", "join", axis=1),
            *extra,
        ],
        outputs,
        {
            "w": normal(8, 3, 3, 3) / 4,
            "b": normal(8, seed=1) / 4,
            "v": normal(4, 8, 1, 1, seed=2),
            "u": normal(5, 8, 1, 1, seed=3),
            "eight": 8 + normal(1, 1, 8, 8, seed=4),
        },
    )


@pytest.fixture
def files(tmp_path):
    model = tmp_path / "model.onnx"
    onnx.save(detector(), model)
    return model, tmp_path / "body.onnx", tmp_path / "tail.onnx"


FEEDS = {"x": normal(1, 3, 8, 8, seed=9)}
SAMPLES = {"x": normal(6, 3, 8, 8, seed=10)}


def outputs_of(model, feeds=None):
    source = str(model) if not isinstance(model, onnx.ModelProto) else model.SerializeToString()
    return onnxruntime.InferenceSession(source).run(None, feeds or FEEDS)


def names(values):
    return [value.name for value in values]


def test_without_a_place_it_is_cut_where_the_post_processing_starts(files):
    done = detent.split(*files)
    assert {each.name: (each.type, each.shape, each.added) for each in done.between} == {
        "boxes": ("FLOAT", (1, 4, 8, 8), False),
        "scores": ("FLOAT", (1, 5, 8, 8), False),
    }
    body, tail = onnx.load(files[1]), onnx.load(files[2])
    assert names(body.graph.node) == ["stem", "relu", "boxes_conv", "scores_conv"]
    assert set(names(tail.graph.node)) == {"scale", "sigmoid", "join"}
    assert sorted(names(body.graph.output)) == sorted(names(tail.graph.input)) == ["boxes", "scores"]
    assert not {"w", "v", "u"} & set(names(tail.graph.initializer))
    pipeline = Pipeline(files[1], files[2])
    assert (pipeline.inputs, pipeline.outputs, sorted(pipeline.between)) == (["x"], ["y"], ["boxes", "scores"])
    np.testing.assert_array_equal(pipeline.run(None, FEEDS)[0], outputs_of(files[0])[0])
    np.testing.assert_array_equal(pipeline(FEEDS)[0], pipeline.run(["y"], FEEDS)[0])


def test_what_leads_around_the_cut_goes_over_too(files):
    done = detent.split(*files, at="scores")
    assert {each.name: each.added for each in done.between} == {"scores": False, "r": True}
    np.testing.assert_array_equal(Pipeline(*files[1:]).run(None, FEEDS)[0], outputs_of(files[0])[0])


def test_outputs_of_the_body_are_outputs_of_the_pair_in_their_order(tmp_path):
    proto = detector([node("Relu", "r", "features")], "features y boxes")
    body, tail = tmp_path / "b.onnx", tmp_path / "t.onnx"
    detent.split(proto, body, tail)
    pipeline = Pipeline(body, tail)
    assert pipeline.outputs == ["features", "y", "boxes"]
    for found, expected in zip(pipeline(FEEDS), outputs_of(proto), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert [value.name for value in pipeline.joined.graph.outputs] == pipeline.outputs


def test_an_input_that_only_the_tail_reads_is_one_of_the_tail(tmp_path):
    proto = detector()
    proto.graph.node.append(node("Mul", "y size", "z"))
    proto.graph.input.append(info("size", (1,)))
    proto.graph.output[0].name = "z"
    detent.split(proto, tmp_path / "b.onnx", tmp_path / "t.onnx", at=["boxes", "scores"])
    pipeline = Pipeline(tmp_path / "b.onnx", tmp_path / "t.onnx")
    assert pipeline.inputs == ["x", "size"]
    feeds = {**FEEDS, "size": np.array([3], np.float32)}
    np.testing.assert_array_equal(pipeline(feeds)[0], outputs_of(proto, feeds)[0])
    with pytest.raises(DataError, match="'size'"):
        pipeline(FEEDS)


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (["boxs"], "boxes"),
        (["boxes_conv"], "boxes"),
        (["x"], "input"),
        (["w"], "constant"),
        (["y"], "nothing is computed after"),
        (["c", "scores", "boxes"], "'c'.*'(scores|boxes)'"),
    ],
)
def test_places_where_no_cut_can_be(files, at, words):
    with pytest.raises(UsageError, match=words):
        detent.split(*files, at=at)
    assert not files[1].exists()
    assert not files[2].exists()


def test_a_cut_before_the_first_layer_leaves_nothing_to_quantize(tmp_path):
    proto = build([node("Relu", "x", "r"), node("Conv", "r w", "y")], "y", {"w": normal(4, 3, 1, 1)})
    with pytest.raises(UsageError, match="no layer before the cut"):
        detent.split(proto, tmp_path / "b.onnx", tmp_path / "t.onnx", at="r")


def test_a_classifier_has_no_place_of_its_own(tmp_path):
    proto = build([node("Conv", "x w", "c"), node("Softmax", "c", "y")], "y", {"w": normal(4, 3, 1, 1)})
    with pytest.raises(UsageError, match="--at"):
        detent.split(proto, tmp_path / "b.onnx", tmp_path / "t.onnx")


def test_before_an_operator_that_onnxruntime_does_not_know_a_model_can_be_cut_as_the_error_says(tmp_path):
    """As the plugins of other devices, with which exported detectors end."""
    proto = build([node("Conv", "x w", "c"), node("Relu", "c", "y")], "y", {"w": normal(4, 3, 1, 1)})
    proto.graph.node.append(node("EfficientNMS_TRT", "y", "z", "nms", domain="TRT"))
    proto.graph.output[0].name = "z"
    proto.opset_import.append(onnx.helper.make_opsetid("TRT", 1))
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="TRT::EfficientNMS_TRT.*detent split MODEL BODY TAIL --at 'y'`"):
        detent.quantize(tmp_path / "m.onnx")
    done = detent.split(tmp_path / "m.onnx", tmp_path / "a.onnx", tmp_path / "b.onnx", at=["y"])
    assert "onnxruntime does not know TRT::EfficientNMS_TRT" in repr(split_document(done))
    assert [each.op_type for each in onnx.load(tmp_path / "b.onnx").graph.node] == ["EfficientNMS_TRT"]
    detent.quantize(tmp_path / "a.onnx", tmp_path / "q.onnx", normal(4, 3, 8, 8))


def test_files_that_would_destroy_others(files):
    model, body, _ = files
    with pytest.raises(OutputError):
        detent.split(model, body, body)
    with pytest.raises(OutputError):
        detent.split(model, body, model)


def test_both_files_are_written_or_neither(files, monkeypatch):
    model, body, tail = files
    body.write_bytes(b"what was there before")
    real = saving._move

    def fail_at_the_second(moving, path, moved, *, keep):
        if path.name == tail.name:
            raise OSError(28, "No space left on device")
        return real(moving, path, moved, keep=keep)

    monkeypatch.setattr(saving, "_move", fail_at_the_second)
    with pytest.raises(OutputError, match="disk is full"):
        detent.split(model, body, tail)
    assert body.read_bytes() == b"what was there before"
    assert sorted(path.name for path in body.parent.iterdir()) == ["body.onnx", "model.onnx"]


def test_quantize_writes_two_files_that_compute_what_one_does(files, tmp_path):
    model = files[0]
    whole, cut = tmp_path / "whole.onnx", tmp_path / "q.onnx"
    detent.quantize(model, whole, SAMPLES, "A8W8")
    report = detent.quantize(model, cut, SAMPLES, "A8W8", postprocessing="cut")
    tail = tmp_path / "q_tail.onnx"
    assert report.cut.tail == str(tail)
    assert json.loads(report.to_json())["cut"]["tail"] == str(tail)
    assert {each.name for each in report.cut.between} == {"boxes", "scores"}
    assert "q_tail.onnx" in str(report)
    assert names(onnx.load(tail).graph.node) == [
        each.name for each in onnx.load(whole).graph.node if each.name in ("scale", "sigmoid", "join")
    ]
    assert sorted(names(onnx.load(cut).graph.output)) == ["boxes", "scores"], "named as in the float model"
    np.testing.assert_array_equal(Pipeline(cut, tail)(FEEDS)[0], outputs_of(whole)[0])
    assert report.device.cpu_nodes == 0, "the body is what the device gets"


@pytest.mark.parametrize("recipe", ["XINT8", "U8S8_AAWS", "BF16", "A16W8", "UINT8_DYNAMIC_QUANT"])
@pytest.mark.parametrize("fmt", [None, "qoperator"])
def test_every_form_can_be_cut(files, recipe, fmt):
    if fmt is not None and recipe != "U8S8_AAWS":
        pytest.skip("one recipe in this form is enough")
    options = {} if fmt is None else {"format": fmt}
    whole = detent.quantize(files[0], None, SAMPLES, recipe, **options)
    parts = detent.quantize(files[0], None, SAMPLES, recipe, postprocessing="cut", **options)
    pair = Pipeline(parts.model, parts.tail_model)
    np.testing.assert_array_equal(pair(FEEDS)[0], outputs_of(whole.model)[0])


def test_a_part_may_be_quantized_alone(files, tmp_path):
    model, body, tail = files
    detent.split(*files)
    quantized = tmp_path / "body_q.onnx"
    detent.quantize(body, quantized, SAMPLES, "A8W8", opset=21)
    pair = Pipeline(quantized, tail)
    expected = outputs_of(model)[0]
    assert np.square(pair(FEEDS)[0] - expected).sum() < np.square(expected).sum() / 10
    assert pair.joined.opset_imports[""] == 21


def test_evaluate_compare_and_infer_take_the_pair(files, tmp_path):
    model, body, tail = files
    detent.split(*files)
    pair = Pipeline(body, tail)
    for models, options in (([model, pair], {}), ([model, body], {"tail": tail})):
        result = detent.evaluate(models, SAMPLES, **options)
        assert result.models[1].model == f"{body} + {tail}"
        assert result.models[1].bytes
    compared = detent.compare(model, body, SAMPLES, tail=tail)
    assert {each.name for each in compared.tensors} >= {"boxes", "scores", "y"}
    assert all(np.isposinf(each.values[0]).all() for each in compared.tensors if each.name == "y")
    written = detent.infer(pair, SAMPLES, tmp_path / "answers")
    again = detent.infer(body, SAMPLES, tmp_path / "again", tail=tail)
    assert len(written) == len(again) == 6
    np.testing.assert_array_equal(np.load(written[0]), np.load(again[0]))
    with pytest.raises(UsageError, match="none of the models"):
        detent.infer(model, SAMPLES, tmp_path / "more", tail=tail)


def test_parts_that_do_not_belong_together(files, tmp_path):
    detent.split(*files)
    with pytest.raises(ModelError, match="does not continue"):
        Pipeline(files[0], files[2])
    other = onnx.load(files[2])
    other.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 7
    with pytest.raises(ModelError, match="not parts of one model"):
        Pipeline(files[1], other)
    pipeline = Pipeline(files[1], files[2])
    with pytest.raises(UsageError, match="'z'"):
        pipeline.run(["z"], FEEDS)
    with pytest.raises(UsageError, match="'xx'"):
        pipeline.run(None, {"xx": FEEDS["x"]})


def test_names_that_both_parts_have_are_told_apart(files):
    detent.split(*files)
    tail = onnx.load(files[2])
    for each in tail.graph.node:
        each.name = "stem"
        each.input[:] = ["r" if name == "m" else name for name in each.input]
        each.output[:] = ["r" if name == "m" else name for name in each.output]
    del tail.graph.value_info[:]
    pair = Pipeline(files[1], tail)
    np.testing.assert_array_equal(
        outputs_of(saving.complete_proto(pair.joined))[0], outputs_of(files[0])[0], "as the whole"
    )


def test_the_command(files):
    from typer.testing import CliRunner

    from detent.cli import app

    shown = CliRunner().invoke(app, ["split", *map(str, files), "--at", "boxes", "--at", "scores", "--json"])
    assert shown.exit_code == 0, shown.output
    assert {each["name"] for each in json.loads(shown.output)["between"]} == {"boxes", "scores"}
    text = CliRunner().invoke(app, ["split", *map(str, files)])
    assert "1 x 4 x 8 x 8" in text.output
    assert "boxes and scores side by side" in text.output
