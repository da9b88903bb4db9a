"""Tasks are recognised from metadata, graphs and shapes, and can be named."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from detent.errors import UsageError
from detent.tasks import Task, answer_heads, class_count, find_task, number_confidences, recognise_task
from detent.tasks.endings import passed_on
from detent.tasks.purpose import purpose_of
from tests.models import as_ir, build, info, node, normal

IMAGE = info("x", (1, 3, 64, 64))
TOKENS = info("ids", ("n", 16), TensorProto.INT64)


def outputs(*shapes: tuple[str, tuple[object, ...]], inputs: onnx.ValueInfoProto = IMAGE) -> onnx.ModelProto:
    """A model of Identity-like nodes whose outputs are declared with these shapes; it cannot be run."""
    nodes = [onnx.helper.make_node("Mystery", [inputs.name], [name], domain="test") for name, _ in shapes]
    graph = onnx.helper.make_graph(nodes, "g", [inputs], [info(name, shape) for name, shape in shapes])
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("test", 1)]
    )


@pytest.mark.parametrize(
    ("shapes", "task"),
    [
        ([("logits", ("n", 10))], Task.CLASSIFY),
        ([("y", (1, 1000))], Task.CLASSIFY),
        ([("pooled", (1, 1280, 1, 1))], Task.EMBED),
        ([("y", ("n", 512))], Task.EMBED),
        ([("y", ("n", 512)), ("z", (1, 10))], Task.CLASSIFY),
        ([("logits", ("n", 512))], Task.CLASSIFY),
        ([("embedding", (1, 512))], Task.EMBED),
        ([("y", (1, 1))], Task.REGRESS),
        ([("y", (1, 21, 64, 64))], Task.SEGMENT),
        ([("y", (1, 19, 8, 8))], Task.SEGMENT),
        ([("y", (1, 3, 128, 128))], Task.IMAGE),
        ([("y", (1, 3, 100, 100))], Task.IMAGE),  # twice the size without padding: waifu2x
        ([("depth", (1, 1, 64, 64))], Task.REGRESS),
        ([("depth", (1, 64, 64))], Task.REGRESS),
        ([("y", (1, 252, 6))], Task.DETECT),  # 3 anchors in each of 64 / 8, 16 and 32: 64 + 16 + 4 cells
        ([("y", (1, 197, 768))], Task.REGRESS),
        ([("boxes", (1, 100, 4)), ("scores", (1, 100, 92))], Task.DETECT),
        ([("a", (1, 255, 8, 8)), ("b", (1, 255, 4, 4)), ("c", (1, 255, 2, 2))], Task.DETECT),
        ([("regressors", (1, 896, 16)), ("classificators", (1, 896, 1))], Task.DETECT),
        ([("dets", (1, 100, 5)), ("labels", (1, 100))], Task.DETECT),
        ([("y", ("n", 6))], Task.CLASSIFY),
        (
            [(f"{kind}{rows}", (rows, size)) for rows in (128, 32, 8) for kind, size in (("s", 1), ("b", 4))],
            Task.DETECT,
        ),
        (
            [(f"{kind}{rows}", (1, rows, size)) for rows in (64, 16, 4) for kind, size in (("s", 80), ("b", 32))],
            Task.DETECT,
        ),
        ([("y", (1, 2, 64, 64)), ("a", (1, 16, 8, 8)), ("b", (1, 32, 4, 4)), ("c", (1, 32, 2, 2))], Task.SEGMENT),
    ],
)
def test_shapes_tell_the_task(shapes: list[tuple[str, tuple[object, ...]]], task: Task) -> None:
    model = ir.from_proto(outputs(*shapes))
    assert recognise_task(model.graph, {})[0] is task


@pytest.mark.parametrize(
    ("name", "shape", "task"),
    [
        ("logits", (1, 40, 97), Task.SEQUENCE),  # a reader of text
        ("y", (40, 1, 97), Task.SEQUENCE),  # with the steps first, as recurrent networks have them
        ("y", (1, 40, 97), Task.REGRESS),
        ("y", (1, 1, 97), Task.CLASSIFY),
        ("last_hidden_state", (40, 1, 97), Task.EMBED),
    ],
)
def test_rows_of_scores_for_each_step_are_a_sequence(name: str, shape: tuple[object, ...], task: Task) -> None:
    assert recognise_task(ir.from_proto(outputs((name, shape))).graph, {})[0] is task


def test_shares_of_each_step_are_a_sequence() -> None:
    model = build(
        [node("MatMul", "x w", "a"), node("Softmax", "a", "y")], "y", {"w": normal(8, 5)}, [info("x", (1, 40, 8))]
    )
    assert recognise_task(as_ir(model).graph, {})[0] is Task.SEQUENCE


def heads_model() -> onnx.ModelProto:
    """Age, kind and tags of one image, the features that they are computed from, and a box."""
    sizes = {"age": 1, "kind": 3, "tags": 5, "box": 4}
    nodes = [node("GlobalAveragePool", "x", "p"), node("Flatten", "p", "f")]
    nodes += [node("Gemm", f"f {name}_w", f"{name}_y") for name in sizes]
    nodes += [node("Identity", "age_y", "age"), node("Softmax", "kind_y", "kind"), node("Sigmoid", "tags_y", "tags")]
    nodes += [node("Sigmoid", "box_y", "box")]
    weights = {f"{name}_w": normal(3, size) for name, size in sizes.items()}
    return build(nodes, "age kind f tags box", weights, [IMAGE])


def test_every_answer_of_a_model_is_known_by_its_end() -> None:
    graph = as_ir(heads_model()).graph
    shapes = {"age": (1, 1), "kind": (1, 3), "f": (1, 3), "tags": (1, 5), "box": (1, 4)}
    assert recognise_task(graph, {}, shapes)[0] is Task.CLASSIFY
    known = {"age": "number", "kind": "classes", "tags": "tags", "box": "number"}  # and features, which are no answer
    assert answer_heads(Task.CLASSIFY, graph, shapes) == known
    assert answer_heads(Task.TAG, graph, shapes) == known
    assert answer_heads(Task.EMBED, graph, shapes) == {}


def test_rows_of_objects_that_a_network_chose_itself() -> None:
    """As many as there are, behind an NMS: no batch of scores. Rows of scores for each box have no objectness."""
    weights = {"v": normal(3, 3, 1, 1), "u": normal(4, 3, 1, 1), "four": np.array([1, -1, 4]), "most": np.array([5])}
    weights |= {"three": np.array([1, 3, -1]), "one": np.array(1), "first": np.array([0])}
    heads = [node("Conv", "x v", "a"), node("Reshape", "a three", "logits"), node("Sigmoid", "logits", "scores")]
    heads += [node("Conv", "x u", "b"), node("Reshape", "b four", "boxes")]
    chosen = [node("NonMaxSuppression", "boxes scores most", "found"), node("Gather", "found one", "at", axis=1)]
    chosen += [node("Squeeze", "boxes first", "flat"), node("Gather", "flat at", "own")]
    chosen += [node("Cast", "found", "kinds", to=TensorProto.FLOAT), node("Concat", "kinds own", "y", axis=1)]
    graph = as_ir(build([*heads, *chosen], "y", weights, [IMAGE])).graph
    shapes = {"y": (None, 7)}
    assert recognise_task(graph, {}, shapes)[0] is Task.DETECT
    assert find_task("detect", graph, {}, shapes)[0] is Task.DETECT
    assert answer_heads(Task.DETECT, graph, shapes) == {"y": "objects"}
    rows = [*heads, node("Transpose", "scores", "s", perm=[0, 2, 1]), node("Concat", "boxes s", "y", axis=2)]
    assert purpose_of(as_ir(build(rows, "y", weights, [IMAGE])), None).classes == 3
    with pytest.raises(UsageError, match="looks like classify"):
        find_task("detect", ir.from_proto(outputs(("y", (1, 6)))).graph, {})


def test_a_row_of_sigmoids_is_of_tags_unless_the_user_says_otherwise() -> None:
    nodes = [node("Flatten", "x", "f"), node("Gemm", "f w", "g"), node("Sigmoid", "g", "y")]
    graph = as_ir(build(nodes, "y", {"w": normal(12288, 4)}, [IMAGE])).graph
    assert recognise_task(graph, {})[0] is Task.TAG
    assert answer_heads(Task.TAG, graph) == {"y": "tags"}
    assert answer_heads(Task.CLASSIFY, graph) == {"y": "classes"}
    assert recognise_task(graph, {"problem_type": "single_label_classification"})[0] is Task.CLASSIFY
    logits = as_ir(build(nodes[:2], "g", {"w": normal(12288, 4)}, [IMAGE])).graph
    assert recognise_task(logits, {})[0] is Task.CLASSIFY
    assert answer_heads(Task.TAG, logits) == {"g": "tags"}


def test_features_beside_logits_are_no_answer() -> None:
    nodes = [
        node("Flatten", "x", "a"),
        node("Gemm", "a v", "f"),
        node("Gemm", "f w", "one"),
        node("Gemm", "f u", "two"),
    ]
    weights = {"v": normal(12288, 8), "w": normal(8, 4), "u": normal(8, 6)}
    graph = as_ir(build(nodes, "f one two", weights, [IMAGE])).graph
    assert answer_heads(Task.CLASSIFY, graph, {"f": (1, 8), "one": (1, 4), "two": (1, 6)}) == {
        "one": "classes",
        "two": "classes",
    }


@pytest.mark.parametrize(
    ("name", "shape", "task"),
    [
        ("logits", ("n", 16, 30522), Task.SEQUENCE),  # a language model
        ("y", ("n", 16, 9), Task.SEQUENCE),  # labels of words
        ("start_logits", ("n", 384), Task.CLASSIFY),  # where an answer begins
        ("logits", ("n", 1), Task.REGRESS),  # how well two texts fit together
        ("last_hidden_state", ("n", 16, 384), Task.EMBED),
    ],
)
def test_tokens_get_labels_or_vectors(name: str, shape: tuple[object, ...], task: Task) -> None:
    assert recognise_task(ir.from_proto(outputs((name, shape), inputs=TOKENS)).graph, {})[0] is task


def test_an_input_that_is_passed_on_is_no_answer() -> None:
    tokens = info("mask", (1, 10), TensorProto.INT64)
    nodes = [node("Identity", "mask", "same"), node("Cast", "mask", "f", to=TensorProto.FLOAT)]
    nodes += [node("MatMul", "f w", "y")]
    made = [info("same", (1, 10), TensorProto.INT64), info("f", (1, 10)), info("y", (1, 384))]
    graph = onnx.helper.make_graph(nodes, "g", [tokens], made, [onnx.numpy_helper.from_array(normal(10, 384), "w")])
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]))
    assert passed_on(model.graph) == {"same", "f"}
    assert recognise_task(model.graph, {})[0] is Task.EMBED


def test_tokens_are_embedded_or_classified() -> None:
    assert recognise_task(ir.from_proto(outputs(("y", ("n", 16, 384)), inputs=TOKENS)).graph, {})[0] is Task.EMBED
    assert recognise_task(ir.from_proto(outputs(("y", ("n", 384)), inputs=TOKENS)).graph, {})[0] is Task.EMBED
    assert recognise_task(ir.from_proto(outputs(("y", ("n", 2)), inputs=TOKENS)).graph, {})[0] is Task.CLASSIFY


def test_a_number_for_each_token_is_no_vector() -> None:
    """Rows as long as the text, such as where its words begin: those of two samples cannot be compared."""
    tokens = info("ids", ("n", "length"), TensorProto.INT64)
    assert recognise_task(ir.from_proto(outputs(("y", ("n", "length")), inputs=tokens)).graph, {})[0] is Task.REGRESS
    table = {"table": normal(50, 8), "w": normal(8, 1), "b": normal(1), "last": np.array([-1])}
    nodes = [node("Gather", "table ids", "e"), node("MatMul", "e w", "m"), node("Add", "m b", "a")]
    graph = as_ir(build([*nodes, node("Squeeze", "a last", "y")], "y", table, [tokens])).graph
    assert recognise_task(graph, {})[0] is Task.TAG


@pytest.mark.parametrize("picked", [False, True])
def test_the_state_of_a_recurrence_is_a_vector(picked: bool) -> None:
    """Whether given out as such or as the last of its steps; scores come from a layer behind it."""
    weights = {"w": normal(1, 400, 59), "r": normal(1, 400, 100), "v": normal(100, 20)}
    nodes = [node("LSTM", "x w r", "steps state", hidden_size=100), node("Squeeze", "state zero", "last")]
    if picked:
        nodes[1:] = [node("Squeeze", "steps one", "s"), node("Gather", "s zero0", "last")]
    whole = {"zero": np.array([0]), "one": np.array([1]), "zero0": np.array(-1)}
    given = [info("x", (9, 1, 59))]
    graph = as_ir(build(nodes, "last", {**weights, **whole}, given)).graph
    assert recognise_task(graph, {}, {"last": (1, 100)})[0] is Task.EMBED
    behind = as_ir(build([*nodes, node("MatMul", "last v", "y")], "y", {**weights, **whole}, given)).graph
    assert recognise_task(behind, {}, {"y": (1, 20)})[0] is Task.CLASSIFY


def test_a_softmax_that_is_written_out_is_one() -> None:
    """exp(x) / sum(exp(x)) of 200 classes: scores, though a row that long would else be a vector."""
    parts = [node("Cast", "ids", "f", to=TensorProto.FLOAT), node("Exp", "f", "e"), node("ReduceSum", "e", "s")]
    for divided, task in (("e", Task.CLASSIFY), ("f", Task.EMBED)):
        nodes = [*parts, node("Identity", "s", "t"), node("Div", f"{divided} t", "y")]
        graph = onnx.helper.make_graph(nodes, "g", [info("ids", (1, 200), TensorProto.INT64)], [info("y", (1, 200))])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
        assert recognise_task(ir.from_proto(model).graph, {})[0] is task


def test_metadata_decide() -> None:
    model = as_ir(build([node("Relu", "x", "y")], "y"))
    assert recognise_task(model.graph, {"task": "detect"}) == (Task.DETECT, "the file's metadata say task: detect")
    ultralytics = {"task": "segment", "stride": "32", "names": "{0: 'a', 1: 'b'}"}
    assert recognise_task(model.graph, ultralytics)[0] is Task.DETECT
    assert recognise_task(model.graph, {"task": "segment"})[0] is Task.SEGMENT
    assert class_count(ultralytics) == 2
    assert class_count({}) is None


def test_real_shapes_replace_those_of_the_file() -> None:
    model = ir.from_proto(outputs(("y", ("a", "b", "c", "d"))))
    assert recognise_task(model.graph, {}, {"y": (1, 21, 64, 64)})[0] is Task.SEGMENT


def test_a_map_after_a_sigmoid_is_a_segmentation() -> None:
    model = as_ir(build([node("Conv", "x w", "a"), node("Sigmoid", "a", "y")], "y", {"w": normal(1, 3, 1, 1)}))
    assert recognise_task(model.graph, {})[0] is Task.SEGMENT


def test_one_channel_of_a_grey_image_is_an_image() -> None:
    grey = info("x", (1, 1, 64, 64))
    assert recognise_task(ir.from_proto(outputs(("y", (1, 1, 128, 128)), inputs=grey)).graph, {})[0] is Task.IMAGE


def test_three_channels_that_are_interpolated_are_classes() -> None:
    constants = {"w": normal(3, 3, 2, 2), "s": np.array([1, 1, 2, 2], np.float32)}
    nodes = [node("Conv", "x w", "a", strides=[2, 2]), node("Resize", "a _ s", "y", mode="linear")]
    regions = as_ir(build(nodes, "y", constants, [IMAGE]))
    assert recognise_task(regions.graph, {}, {"y": (1, 3, 64, 64)})[0] is Task.SEGMENT
    # Real-ESRGAN's for twice the size enlarges four times and comes down.
    assert recognise_task(regions.graph, {}, {"y": (1, 3, 128, 128)})[0] is Task.IMAGE


def test_a_normalized_row_is_an_embedding() -> None:
    nodes = [
        node("GlobalAveragePool", "x", "p"),
        node("Flatten", "p", "f"),
        node("ReduceL2", "f", "n", axes=[1]),
        node("Div", "f n", "y"),
    ]
    assert recognise_task(as_ir(build(nodes, "y")).graph, {})[0] is Task.EMBED


def test_a_named_task_must_be_possible() -> None:
    graph = ir.from_proto(outputs(("logits", ("n", 10)))).graph
    assert find_task("regress", graph, {}) == (Task.REGRESS, "as --task says")
    for wrong in ("detect", "segment", "image"):
        with pytest.raises(UsageError, match=r"'logits' \[\?, 10\].*looks like classify"):
            find_task(wrong, graph, {})
    with pytest.raises(UsageError, match="classify, tag, sequence, detect"):
        find_task("detekt", graph, {})


def test_rows_as_long_as_the_input_are_no_classes():
    """A pitch for each frame of a sound: how many there are is left open, as is the length of the sound."""
    sound = info("audio", (1, "samples"))
    found, _ = recognise_task(as_ir(outputs(("pitch", (1, "frames")), inputs=sound)).graph, {}, {"pitch": (1, 188)})
    assert found is Task.REGRESS
    found, _ = recognise_task(as_ir(outputs(("y", (1, 188)), inputs=sound)).graph, {})
    assert found is Task.CLASSIFY


def beside(*nodes: onnx.NodeProto, second: Sequence[int] = (1, 5)) -> onnx.ModelProto:
    """A model of two outputs, `number` and `sure`."""
    return build(
        list(nodes),
        [info("number", (1, 5)), info("sure", second)],
        {"zero": np.zeros((), np.float32), "part": np.ones((5, 2), np.float32)},
        [info("x", (1, 5))],
    )


def test_scores_of_steps_are_the_answer_and_what_they_are_computed_from_is_not():
    nodes = [node("Relu", "x", "states"), node("MatMul", "states w", "h"), node("Softmax", "h", "shares")]
    given = [info("states", [1, 6, 8]), info("shares", [1, 6, 5])]
    graph = as_ir(build(nodes, given, {"w": np.ones((8, 5), np.float32)}, [info("x", [1, 6, 8])])).graph
    assert answer_heads(Task.SEQUENCE, graph) == {"shares": "classes"}


@pytest.mark.parametrize(
    ("nodes", "second", "confident"),
    [
        ([node("Exp", "x", "number"), node("Sigmoid", "x", "sure")], (1, 5), True),
        (
            [
                node("Exp", "x", "number"),
                node("Sigmoid", "x", "s"),
                node("Greater", "x zero", "asked"),
                node("Where", "asked s zero", "sure"),
            ],
            (1, 5),
            True,
        ),
        ([node("Exp", "x", "number"), node("Sigmoid", "number", "sure")], (1, 5), False),  # logits, and their shares
        ([node("Sigmoid", "x", "sure"), node("Exp", "sure", "number")], (1, 5), False),
        ([node("HardSigmoid", "x", "number"), node("Sigmoid", "x", "sure")], (1, 5), False),
        ([node("Exp", "x", "number"), node("Tanh", "x", "sure")], (1, 5), False),
        (
            [node("Exp", "x", "number"), node("MatMul", "x part", "h"), node("Sigmoid", "h", "sure")],
            (1, 2),
            False,
        ),
    ],
)
def test_an_output_may_say_how_sure_another_is(
    nodes: list[onnx.NodeProto], second: Sequence[int], confident: bool
) -> None:
    found = number_confidences(as_ir(beside(*nodes, second=second)).graph)
    assert found == ({"number": "sure"} if confident else {})


@pytest.mark.parametrize(
    ("size", "biased", "task"),
    [
        (59, True, Task.SEQUENCE),  # labels of words and their kinds
        (59, False, Task.EMBED),  # a projection
        (384, True, Task.EMBED),
    ],
)
def test_a_biased_layer_of_an_odd_size_labels_tokens(size: int, biased: bool, task: Task) -> None:
    nodes = [node("Gather", "table ids", "e"), node("MatMul", "e w", "s"), node("Add", "s b", "y")]
    weights = {"table": normal(50, 8), "w": normal(8, size), "b": normal(size)}
    graph = as_ir(build(nodes if biased else nodes[:2], "y" if biased else "s", weights, [TOKENS])).graph
    assert recognise_task(graph, {})[0] is task


def test_the_bias_of_a_normalization_labels_nothing() -> None:
    nodes = [node("Gather", "table ids", "e"), node("Mul", "e scale", "s"), node("Add", "s b", "y")]
    graph = as_ir(build(nodes, "y", {"table": normal(50, 59), "scale": normal(59), "b": normal(59)}, [TOKENS])).graph
    assert recognise_task(graph, {})[0] is Task.EMBED


@pytest.mark.parametrize(("length", "task"), [(7500, Task.REGRESS), (40, Task.CLASSIFY)])
def test_a_number_for_each_moment_of_a_signal_is_no_class(length: int, task: Task) -> None:
    model = ir.from_proto(outputs(("y", (1, length, 1)), inputs=info("x", (1, 1, 7500))))
    assert recognise_task(model.graph, {})[0] is task


def test_the_state_of_a_loop_is_a_vector() -> None:
    """TensorFlow writes recurrent layers as loops."""
    nodes = [node("Loop", "_ _ x", "steps"), node("Gather", "steps last", "y")]
    made = onnx.helper.make_graph(nodes, "g", [info("x", (1, 9, 5))], [info("y", (1, 300))])
    graph = ir.from_proto(onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)])).graph
    assert recognise_task(graph, {})[0] is Task.EMBED
