"""Models that answer with their inputs, so that every answer is known: the data are the scores."""

from __future__ import annotations

import math
import threading

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto
from PIL import Image

from detent.errors import DataError, ModelError, UsageError
from detent.evaluation.evaluator import Evaluator
from detent.evaluation.measures import matched
from detent.evaluation.metric_file import Metric
from detent.graph import taps
from detent.results.evaluated import CHANGED, OUTPUT_ERROR, Answers, Deviation, SampleScores, WholeScore, compare_scores
from detent.results.tensors import LOSS_UNITS
from tests.models import as_ir, build, info, node, normal

CLASSES = 8


def scaler(factors, *, batch="N", output="y", kind=TensorProto.FLOAT):
    """y = x * factors."""
    shape = [batch, CLASSES]
    constant = np.asarray(factors, onnx.helper.tensor_dtype_to_np_dtype(kind))
    return build([node("Mul", "x f", output)], [info(output, shape, kind)], {"f": constant}, [info("x", shape, kind)])


SAME = scaler(np.ones(CLASSES))


def one_hot(*classes, second=None):
    """Scores whose largest is 2 at the class, and 1 at `second`."""
    scores = np.zeros((len(classes), CLASSES), np.float32)
    scores[np.arange(len(classes)), classes] = 2
    if second is not None:
        scores[:, second] = 1
    return scores


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_known_answers(batch):
    data = one_hot(0, 1, 2, 3, 4, second=7)
    evaluator = Evaluator(SAME, data, labels=[0, 1, 2, 7, 7], batch=batch)
    before = evaluator.evaluate(SAME)
    assert isinstance(before, Answers)
    assert before.answers.tolist() == [0, 1, 2, 3, 4]
    assert before.ranks.tolist() == [0, 0, 0, 1, 1]
    assert before.accuracy() == pytest.approx(60)
    assert before.accuracy(5) == 100
    assert before.names[0] == "array[0]"
    # Class 0 vanishes, so that 7 wins on the first sample; 7 is three times as large, so it wins everywhere.
    after = evaluator.evaluate(scaler([0, 1, 1, 1, 1, 1, 1, 3]))
    loss = compare_scores(before, after)
    assert (loss.became_wrong, loss.became_right, loss.samples) == (3, 2, 5)
    assert loss.points == pytest.approx(20)
    assert loss.p_value == 1.0
    assert loss.interval[0] < 20 < loss.interval[1]
    assert [(c.name, c.label, c.before, c.after) for c in loss.changed][:2] == [
        ("array[0]", 0, 0, 7),
        ("array[1]", 1, 1, 7),
    ]
    assert "percentage points of top-1" in loss.unit


def test_ties_go_to_the_lower_class_as_argmax_does():
    data = np.zeros((1, CLASSES), np.float32)
    for label in range(CLASSES):
        scores = Evaluator(SAME, data, labels=[label]).evaluate(SAME)
        assert (scores.answers[0], scores.ranks[0]) == (0, label)


def test_not_a_number_is_wrong():
    model = scaler([math.nan, *[1] * (CLASSES - 1)])
    evaluator = Evaluator(SAME, one_hot(0, 1), labels=[0, 1])
    scores = evaluator.evaluate(model)
    assert scores.unanswered == 2
    assert scores.accuracy(5) == 0
    assert compare_scores(evaluator.evaluate(SAME), scores).became_wrong == 2


def test_every_form_of_a_model(tmp_path):
    onnx.save(SAME, tmp_path / "same.onnx")
    evaluator = Evaluator(tmp_path / "same.onnx", one_hot(0, 1), labels=[0, 0])
    forms = (str(tmp_path / "same.onnx"), tmp_path / "same.onnx", SAME, ir.from_proto(SAME))
    assert [evaluator.evaluate(form).accuracy() for form in forms] == [50.0] * 4


def test_features_before_the_scores_are_no_classes():
    def model(sign):
        weight = {"w": sign * np.eye(6, 3, dtype=np.float32)}
        nodes = [node("Relu", "x", "hidden"), node("MatMul", "hidden w", "scores")]
        return build(nodes, [info("hidden", [1, 6]), info("scores", [1, 3])], weight, [info("x", [1, 6])])

    data = np.eye(3, 6, dtype=np.float32) + 2 * np.eye(6, dtype=np.float32)[[5] * 3]
    assert Evaluator(model(1), data, labels=[0, 1, 2]).evaluate(model(1)).accuracy() == 100
    assert Evaluator(model(1), data).evaluate(model(-1)).agreeing == 0


def test_a_half_precision_model_is_fed_halves():
    half = scaler(np.ones(CLASSES), kind=TensorProto.FLOAT16)
    assert Evaluator(SAME, one_hot(3), labels=[3]).evaluate(half).accuracy() == 100


def test_scores_with_axes_of_one():
    model = build(
        [node("Mul", "x f", "m"), node("Unsqueeze", "m axes", "y")],
        "y",
        {"f": np.ones(CLASSES, np.float32), "axes": np.array([2, 3])},
        [info("x", ["N", CLASSES])],
    )
    assert Evaluator(model, one_hot(3, 4), labels=[3, 3]).evaluate(model).accuracy() == 50


def test_preprocessing_as_a_file_or_a_dict(tmp_path):
    Image.new("L", (4, 4), 255).save(tmp_path / "white.png")
    (tmp_path / "how.json").write_text('{"std": 255}')
    model = build([node("Flatten", "x", "y")], "y", {}, [info("x", ["N", 1, 4, 4])])
    measured = Metric("sum", score=lambda outputs, _: float(outputs.sum()))
    for given in (tmp_path / "how.json", {"std": 255}):
        evaluator = Evaluator(model, tmp_path / "white.png", metric=measured, preprocess=given)
        assert evaluator.evaluate(model).mean == 16


def test_integer_kernels_are_not_used(monkeypatch):
    """They saturate on some processors: the same file would then score differently there."""
    asked = []

    class Spy(taps.Runner):
        def __init__(self, *arguments, exact=False, **named):
            asked.append(exact)
            super().__init__(*arguments, exact=exact, **named)

    monkeypatch.setattr(taps, "Runner", Spy)
    Evaluator(SAME, one_hot(0)).evaluate(scaler(np.zeros(CLASSES)))
    assert asked == [True, True]


def test_without_labels_changed_answers_are_counted():
    evaluator = Evaluator(SAME, one_hot(0, 1, 2, 3, second=7))
    before, after = evaluator.evaluate(SAME), evaluator.evaluate(scaler([0, *[1] * (CLASSES - 1)]))
    assert isinstance(after, Deviation)
    loss = compare_scores(before, after)
    assert loss.points == 25
    assert loss.unit == CHANGED
    assert loss.interval[0] < 25 < loss.interval[1]
    assert [(c.name, c.label, c.before, c.after) for c in loss.changed] == [("array[0]", None, 0, 7)]
    assert after.agreeing == 3
    # Of 4 * (2^2 + 1^2) squares, those 4 of one score are lost.
    assert after.outputs["y"].sqnr_db == pytest.approx(10 * math.log10(20 / 4))
    assert compare_scores(before, before).points == 0
    assert before.outputs["y"].sqnr_db == math.inf


@pytest.mark.parametrize("batch", [1, 2])
def test_without_class_scores_the_error_of_the_outputs_is_counted(batch):
    def grid(factor):
        return build(
            [node("Mul", "x f", "y")], [info("y", ["N", 2, 3])], {"f": np.float32(factor)}, [info("x", ["N", 2, 3])]
        )

    evaluator = Evaluator(
        grid(1.0), np.random.default_rng(0).standard_normal((6, 2, 3)).astype(np.float32), batch=batch
    )
    after = evaluator.evaluate(grid(1.1))
    assert after.agreeing is None
    loss = compare_scores(evaluator.evaluate(grid(1.0)), after)
    assert loss.unit == OUTPUT_ERROR
    assert loss.points == pytest.approx(1.0, rel=1e-4)  # 0.1^2
    assert loss.interval == pytest.approx((1.0, 1.0), rel=1e-3)


def test_a_score_for_each_sample():
    seen = []

    def score(outputs, sample):
        seen.append((outputs.shape, sample.name, sample.label, sample.path, sample.inputs["x"].shape))
        assert threading.current_thread() is threading.main_thread()
        return outputs[0, sample.label]

    evaluator = Evaluator(SAME, one_hot(0, 1, 2), labels=[0, 1, 0], metric=Metric("height", score=score), batch=2)
    before = evaluator.evaluate(SAME)
    assert isinstance(before, SampleScores)
    assert before.values.tolist() == [2, 2, 0]
    assert seen[1] == ((1, CLASSES), "array[1]", 1, None, (1, CLASSES))
    loss = compare_scores(before, evaluator.evaluate(scaler(np.full(CLASSES, 0.5))))
    assert loss.points == pytest.approx(2 / 3)
    assert loss.unit == "units of height"
    assert loss.interval[0] < 2 / 3 < loss.interval[1]


def test_lower_may_be_better():
    metric = Metric("error", score=lambda outputs, _: float(outputs.max()), lower_is_better=True)
    evaluator = Evaluator(SAME, one_hot(0, 1), metric=metric)
    assert compare_scores(evaluator.evaluate(SAME), evaluator.evaluate(scaler(np.full(CLASSES, 2)))).points == 2


@pytest.mark.parametrize("batch", [1, 2])
def test_a_metric_of_all_samples(batch):
    metric = Metric("hits", whole=lambda outputs, labels: np.mean(outputs.argmax(1) == labels))
    evaluator = Evaluator(SAME, one_hot(0, 1, 2), labels=[0, 1, 0], metric=metric, batch=batch)
    before = evaluator.evaluate(SAME)
    assert before == WholeScore(pytest.approx(2 / 3), "hits", False, 3)
    loss = compare_scores(before, evaluator.evaluate(scaler([0, *[1] * (CLASSES - 1)])))
    assert loss.interval is None
    assert loss.points == pytest.approx(0)  # all scores of the first sample are equal now, and the first wins


def test_a_metric_without_labels_is_given_none():
    metric = Metric("rows", whole=lambda outputs, labels: len(outputs) if labels is None else -1)
    assert Evaluator(SAME, one_hot(0, 1, 2), metric=metric).evaluate(SAME).value == 3


def test_outputs_by_name_where_there_are_several():
    model = build(
        [node("Relu", "x", "a"), node("ReduceSum", "x", "b", keepdims=0)],
        [info("a", ["N", CLASSES]), info("b", [])],
        {},
        [info("x", ["N", CLASSES])],
    )
    metric = Metric("sum", score=lambda outputs, _: float(outputs["b"] + outputs["a"].sum()))
    evaluator = Evaluator(model, one_hot(0, 1), metric=metric)
    assert evaluator.evaluate(model).values.tolist() == [4, 4]
    with pytest.raises(ModelError, match=r"Output 'b' has the shape \[\] for the 2 samples array\[0\] … array\[1\]"):
        Evaluator(model, one_hot(0, 1), metric=metric, batch=2).evaluate(model)
    with pytest.raises(UsageError, match=r"output 'b' is float32 \[\] on array\[0\].*Define score"):
        Evaluator(model, one_hot(0, 1), metric=Metric("all", whole=lambda *_: 0)).evaluate(model)


def folder_of_images(path, names):
    for index, name in enumerate(names):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), 40 * index, np.uint8)).save(path / name)
    return path


def image_model(classes=3):
    """The mean of each of the three channels."""
    return build(
        [node("GlobalAveragePool", "x", "p"), node("Flatten", "p", "f"), node("MatMul", "f w", "y")],
        "y",
        {"w": np.eye(3, classes, dtype=np.float32)},
        [info("x", ["N", 3, 4, 4])],
    )


def test_class_folders_must_be_all_classes(tmp_path):
    data = folder_of_images(tmp_path, ["ant/0.png", "bee/1.png", "cat/2.png"])
    scores = Evaluator(image_model(), data).evaluate(image_model())
    assert scores.names == ["ant/0.png", "bee/1.png", "cat/2.png"]
    assert scores.labels.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="There are 3 class folders, but the model has 4 classes"):
        Evaluator(image_model(4), data).evaluate(image_model(4))
    assert Evaluator(image_model(4), data, label_offset=1).evaluate(image_model(4)).labels.tolist() == [1, 2, 3]


def test_labels_that_the_model_does_not_have(tmp_path):
    data = folder_of_images(tmp_path, ["0/0.png", "7/1.png", "3/2.png"])
    with pytest.raises(DataError, match=r"3/2.png has the label 3, but the model has the classes 0 to 2 \(2 of 3"):
        Evaluator(image_model(), data).evaluate(image_model())
    assert isinstance(Evaluator(image_model(), data, labels=None).evaluate(image_model()), Deviation)


def test_a_sample_knows_its_file(tmp_path):
    data = folder_of_images(tmp_path / "d", ["images/a.png", "images/b.png"])
    (data / "labels.csv").write_text("file,label\na.png,2\nb.png,1\n")
    paths = []
    metric = Metric("m", score=lambda _, sample: paths.append((sample.path, sample.label)) or 0.0)
    Evaluator(image_model(), data, metric=metric).evaluate(image_model())
    assert paths == [(data / "images/a.png", 2), (data / "images/b.png", 1)]


def test_a_limit_takes_the_labels_along(tmp_path):
    data = folder_of_images(tmp_path, [f"{index}/x.png" for index in range(6)])
    scores = Evaluator(image_model(), data, limit=2, labels={f"{i}/x.png": i // 2 for i in range(6)}).evaluate(
        image_model()
    )
    assert (scores.names, scores.labels.tolist()) == (["0/x.png", "3/x.png"], [0, 1])


def test_labels_in_a_file_elsewhere(tmp_path):
    data = folder_of_images(tmp_path / "d", ["a.png", "b.png"])
    (tmp_path / "val.txt").write_text("a.png 2\nb.png 1\n")
    evaluator = Evaluator(image_model(), data, labels=tmp_path / "val.txt")
    assert evaluator.dataset.described == f"2 images from {data}/, labels from val.txt"


def test_an_image_that_is_none(tmp_path):
    data = folder_of_images(tmp_path, ["a.png", "b.png"])
    (data / "b.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"1 of 2 images .*: b.png. The first: the file is empty"):
        Evaluator(image_model(), data).evaluate(image_model())


def test_an_empty_folder(tmp_path):
    with pytest.raises(DataError, match="there is no data in this folder"):
        Evaluator(image_model(), tmp_path)


def test_a_second_part_that_lies_beside_the_model_is_named(tmp_path):
    onnx.save(scaler(np.ones(CLASSES), output="z"), tmp_path / "m.onnx")
    onnx.save(build([node("Relu", "z", "y")], "y", {}, [info("z", [1, CLASSES])]), tmp_path / "m_tail.onnx")
    evaluator = Evaluator(scaler(np.ones(CLASSES)), np.ones((2, CLASSES), np.float32))
    with pytest.raises(ModelError, match=r"give --tail .*m_tail\.onnx"):
        evaluator.evaluate(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (scaler(np.ones(CLASSES), output="z"), "has the output 'z', which .* does not have"),
        (scaler(np.ones(CLASSES), kind=TensorProto.INT32), r"Input 'x' of .* is int32 \[\?, 8\], but .* float32"),
        (scaler(np.ones(CLASSES), batch=3), r"array\[0\].*Check the shape"),
        (build([node("Relu", "u", "y")], "y", {}, [info("u", [1, 8])]), "has the input 'u', which .* does not have"),
        (build([node("Relu", "x", "y")], "y", {}, [info("x", [1, 9])]), r"is float32 \[1, 9\], but .* \[\?, 8\]"),
    ],
    ids=["output", "type", "batch", "input", "shape"],
)
def test_models_that_are_not_alike(model, message):
    with pytest.raises((ModelError, DataError), match=message):
        Evaluator(SAME, one_hot(0, 1), labels=[0, 1]).evaluate(model)


def test_a_model_that_is_missing(tmp_path):
    with pytest.raises(ModelError, match="There is no file .*none.onnx"):
        Evaluator(SAME, one_hot(0)).evaluate(tmp_path / "none.onnx")


def test_outputs_that_are_no_classes(tmp_path):
    model = build([node("Relu", "x", "y")], "y", {}, [info("x", ["N", 2, 3])])
    with pytest.raises(ModelError, match=r"'y' \[1, 2, 3\] on array\[0\].*--metric FILE.py"):
        Evaluator(model, np.zeros((2, 2, 3), np.float32), labels=[0, 1]).evaluate(model)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"labels": [0]}, DataError, "the given list has 1 labels, but there are 2 samples"),
        ({"labels": np.zeros((2, 2), int)}, DataError, "one whole number for each sample"),
        ({"labels": [0.5, 1.5]}, DataError, "one whole number for each sample"),
        ({"label_offset": 1}, UsageError, "there are no labels"),
        ({"limit": 0}, UsageError, "--limit must be at least 1"),
    ],
)
def test_options_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        Evaluator(SAME, one_hot(0, 1), **options)


@pytest.mark.parametrize("data", [None, iter([one_hot(0)])])
def test_data_that_cannot_be_read_again(data):
    with pytest.raises(UsageError, match="read once for each model"):
        Evaluator(SAME, data)


def test_scores_of_two_kinds():
    labelled, plain = Evaluator(SAME, one_hot(0, 1), labels=[0, 1]), Evaluator(SAME, one_hot(0, 1))
    with pytest.raises(UsageError, match="Answers and Deviation"):
        compare_scores(labelled.evaluate(SAME), plain.evaluate(SAME))
    fewer = Evaluator(SAME, one_hot(0, 1), labels=[0, 1], limit=1)
    with pytest.raises(UsageError, match="different samples"):
        compare_scores(labelled.evaluate(SAME), fewer.evaluate(SAME))


def test_progress_reaches_the_end():
    seen = []
    Evaluator(SAME, one_hot(0, 1, 2), batch=2, progress=lambda *step: seen.append(step)).evaluate(SAME)
    assert seen == [("evaluate", 0, 2), ("evaluate", 1, 2), ("evaluate", 2, 2)]


def selector(threshold):
    """Answers with the rows of x whose first number is larger than the threshold."""
    nodes = [
        node("Reshape", "x pairs", "given"),
        node("Gather", "given zero", "first", axis=1),
        node("Greater", "first threshold", "large"),
        node("NonZero", "large", "where"),
        node("Reshape", "where all", "rows"),
        node("Gather", "given rows", "y", axis=0),
    ]
    constants = {"zero": np.array(0), "threshold": np.array(threshold, np.float32), "all": np.array([-1])}
    constants["pairs"] = np.array([4, 2])
    return build(nodes, [info("y", ["found", 2])], constants, [info("x", [1, 4, 2])])


def encoder(sign):
    """Vectors of tokens, behind an output that is the mask of the tokens, as some exporters write it."""
    nodes = [node("Identity", "mask", "kept"), node("Cast", "ids", "f", to=TensorProto.FLOAT)]
    nodes += [node("Unsqueeze", "f last", "u"), node("MatMul", "u w", "y")]
    constants = {"last": np.array([-1]), "w": np.float32(sign) * normal(1, 64)}
    tokens = [info(name, (1, 8), TensorProto.INT64) for name in ("ids", "mask")]
    return build(nodes, "kept y", constants, tokens)


def test_an_encoder_is_judged_by_its_vectors():
    tokens = np.random.default_rng(0).integers(0, 99, (6, 8))
    tokens[::2] *= -1
    data = {"ids": tokens, "mask": np.ones((6, 8), np.int64)}
    found = Evaluator(encoder(1), data).evaluate(encoder(-1))
    assert isinstance(found, Deviation)
    assert (found.agreeing, list(found.outputs)) == (None, ["y"])
    assert (found.agreement.task, found.agreement.figures["cosine"]) == ("embed", pytest.approx(-1.0))
    assert found.losses_against(None)[0].unit == LOSS_UNITS["embed"]


@pytest.mark.parametrize("operator", ["Sqrt", "Log"])
def test_what_no_model_computes_is_no_loss(operator):
    """The float model answers NaN there, and so does the quantized one."""
    model = build([node(operator, "x", "y"), node("Relu", "x", "z")], "y z", {}, [info("x", (1, 4))])
    found = Evaluator(model, np.float32([[-1, 0, 1, 4]] * 4)).evaluate(as_ir(model))
    assert found.outputs["y"].sqnr_db == found.outputs["z"].sqnr_db == np.inf
    assert not found.noise.any()


def test_rows_that_the_data_selects_are_compared_in_pairs():
    data = np.array([[[1, 0], [3, 4], [5, 0], [7, 0]], [[6, 8], [0, 0], [9, 0], [1, 1]]], np.float32)
    evaluator = Evaluator(selector(2.0), data)
    found = evaluator.evaluate(selector(4.0))
    assert isinstance(found, Deviation)
    # [3, 4] is missing from a, and nothing from b: only its 25 are wrong, though other rows have moved up.
    assert found.noise.tolist() == [[25.0], [0.0]]
    assert found.signal.tolist() == [[25.0 + 25.0 + 49.0], [100.0 + 81.0]]


def test_outputs_of_another_rank_are_refused():
    other = build(
        [node("Reshape", "x wanted", "y")],
        [info("y", [1, 8, 1])],
        {"wanted": np.array([1, 8, 1])},
        [info("x", [1, 4, 2])],
    )
    with pytest.raises(ModelError, match="there is nothing to compare"):
        Evaluator(selector(-1.0), np.ones((1, 4, 2), np.float32)).evaluate(other)


def test_the_closest_rows_are_paired_and_others_meet_zeros():
    expected = np.array([[1.0, 1.0], [5.0, 5.0]], np.float32)
    found = np.array([[9.0, 9.0], [5.0, 6.0], [1.0, 1.0]], np.float32)
    one, other = matched(expected, found)
    assert one.tolist() == [[1.0, 1.0], [5.0, 5.0], [0.0, 0.0]]
    assert other.tolist() == [[1.0, 1.0], [5.0, 6.0], [9.0, 9.0]]
    swapped = matched(found.T, expected.T)
    assert [each.T.tolist() for each in swapped] == [other.tolist(), one.tolist()]
    assert matched(expected, np.zeros((0, 2), np.float32))[1].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert matched(expected, np.zeros((3, 3), np.float32))[1].tolist() == [[0.0, 0.0], [0.0, 0.0]]
