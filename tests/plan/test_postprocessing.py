"""Post-processing is known by what it computes: each sign alone is enough, and nothing else looks like one."""

from __future__ import annotations

import json
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from detent.errors import UsageError
from detent.graph.load import load
from detent.pipeline.job import make_job
from detent.pipeline.run import Run
from detent.plan.postprocessing import find_postprocessing
from detent.prepare import default_passes, prepare
from tests.models import build, info, node, normal

WEIGHTS = {"w": normal(8, 3, 1, 1), "b": normal(8, seed=1), "v": normal(4, 3, 1, 1, seed=2)}
HEADS = [
    node("Conv", "x w b", "boxes"),
    node("Conv", "x v", "logits"),
    node("Flatten", "boxes", "flat_boxes", axis=2),
    node("Flatten", "logits", "flat_logits", axis=2),
]


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def found_in(proto: onnx.ModelProto):
    model = load(proto)
    prepare(model, default_passes())
    return find_postprocessing(model.graph)


def tail(nodes, outputs="y", constants=None):
    """A detector that ends in these nodes; `boxes` is (1, 8, 8, 8) and `logits` (1, 4, 8, 8)."""
    return build([*HEADS[:2], *nodes], outputs, {**WEIGHTS, **(constants or {})})


GRID = np.stack(np.meshgrid(np.arange(8), np.arange(8))).astype(np.float32)[None] + 0.5
SIGNS = {
    "boxes and scores side by side": tail(
        [node("Sigmoid", "logits", "s"), node("Concat", "boxes s", "y", axis=1)],
    ),
    "boxes and scores, reshaped": tail(
        [
            node("Softmax", "logits", "s", axis=1),
            node("Reshape", "s four", "r"),
            node("Reshape", "boxes eight", "q"),
            node("Concat", "q r", "y", axis=1),
        ],
        constants={"four": ints(1, 4, 64), "eight": ints(1, 8, 64)},
    ),
    "objectness times class": tail(
        [
            node("Sigmoid", "logits", "s"),
            node("Slice", "s zero one axis", "o"),
            node("Mul", "s o", "p"),
            node("Concat", "p boxes", "y", axis=1),
        ],
        constants={"zero": ints(0), "one": ints(1), "axis": ints(1)},
    ),
    "a grid of anchors": tail(
        [node("Slice", "boxes zero two axis", "c"), node("Add", "c grid", "y")],
        constants={"zero": ints(0), "two": ints(2), "axis": ints(1), "grid": GRID},
    ),
    "prior boxes": tail(
        [
            node("Reshape", "boxes rows", "r"),
            node("Mul", "r prior", "y"),
        ],
        constants={"rows": ints(128, 4), "prior": np.abs(normal(128, 4, seed=7))},
    ),
    "expected distances": tail(
        [
            node("Softmax", "boxes", "p", axis=1),
            node("Conv", "p count", "y"),
        ],
        constants={"count": np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1)},
    ),
    "sizes from exponents": tail(
        [node("Exp", "logits", "e"), node("Mul", "e sizes", "y")],
        constants={"sizes": floats(10, 13.5, 33.2, 23.1).reshape(1, 4, 1, 1)},
    ),
    "boxes around reference points": build(
        [
            *HEADS[:2],
            node("Sigmoid", "logits", "ref"),
            node("Conv", "ref u", "delta"),
            node("Clip", "ref low high", "a"),
            node("Sub", "one ref", "rest"),
            node("Clip", "rest low high", "c"),
            node("Div", "a c", "d"),
            node("Log", "d", "l"),
            node("Add", "l delta", "sum"),
            node("Sigmoid", "sum", "y"),
        ],
        "y boxes",
        {
            **WEIGHTS,
            "u": normal(4, 4, 1, 1, seed=5),
            "low": np.float32(1e-5),
            "high": np.float32(1),
            "one": np.float32(1),
        },
    ),
    "corners from centers": tail(
        [
            node("Split", "boxes", "c size rest more", axis=1),
            node("Mul", "size half", "h1"),
            node("Mul", "size half2", "h2"),
            node("Sub", "c h1", "low"),
            node("Add", "c h2", "high"),
            node("Concat", "low high", "y", axis=1),
        ],
        constants={"half": np.float32(0.5), "half2": np.float32(0.5)},
    ),
    "peaks of a heat map": tail(
        [
            node("Sigmoid", "logits", "s"),
            node("MaxPool", "s", "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("Equal", "m s", "e"),
            node("Cast", "e", "f", to=TensorProto.FLOAT),
            node("Mul", "s f", "y"),
        ],
    ),
    "TopK": tail(
        [
            node("Reshape", "logits rows", "r"),
            node("TopK", "r k", "values indices"),
            node("Reshape", "boxes all", "q"),
            node("Gather", "q indices", "y"),
        ],
        "values y",
        constants={"rows": ints(256), "k": ints(5), "all": ints(512)},
    ),
    "NonMaxSuppression": tail(
        [
            node("Reshape", "boxes corners", "q"),
            node("Reshape", "logits scores", "r"),
            node("NonMaxSuppression", "q r most", "y"),
        ],
        constants={"corners": ints(1, 128, 4), "scores": ints(1, 2, 128), "most": ints(10)},
    ),
}
SIGN_OF = {
    "boxes and scores, reshaped": "boxes and scores side by side",
    "objectness times class": "boxes and scores side by side",
    "prior boxes": "a grid of anchors",
}


@pytest.mark.parametrize("name", SIGNS)
def test_each_sign_alone_is_enough(name):
    found = found_in(SIGNS[name])
    assert found is not None
    assert found.sign == SIGN_OF.get(name, name)
    assert "boxes" in found.starts or "logits" in found.starts or "delta" in found.starts
    assert not {"conv_boxes", "conv_logits"} & found.nodes
    assert found.sign in found.reason


def linear(*nodes, constants=None):
    constants = {"w": normal(16, 5), "b": normal(5, seed=1), **(constants or {})}
    return build(nodes, "y", constants, [info("x", (1, 6, 16))])


HARMLESS = {
    "classifier with Softmax": tail(
        [node("GlobalAveragePool", "logits", "p"), node("Flatten", "p", "f"), node("Softmax", "f", "y")]
    ),
    "classifier with TopK": tail(
        [
            node("GlobalAveragePool", "logits", "p"),
            node("Flatten", "p", "f"),
            node("Softmax", "f", "s"),
            node("TopK", "s k", "y i"),
            node("Cast", "i", "z", to=TensorProto.INT32),
        ],
        "y z",
        constants={"k": ints(2)},
    ),
    "bias at the end of a transformer": linear(node("MatMul", "x w", "m"), node("Add", "m b", "y")),
    "whole biases of a transformer": linear(
        node("MatMul", "x v", "m"),
        node("Add", "m whole", "y"),
        constants={"v": normal(16, 40), "whole": np.arange(40, dtype=np.float32)},
    ),
    "segmentation": tail(
        [node("Resize", "logits _ scales", "r"), node("ArgMax", "r", "y", axis=1)],
        constants={"scales": floats(1, 1, 2, 2)},
    ),
    "super-resolution": tail(
        [
            node("DepthToSpace", "logits", "d", blocksize=2),
            node("Mul", "d range", "m"),
            node("Clip", "m low high", "y"),
        ],
        constants={"range": np.float32(255), "low": np.float32(0), "high": np.float32(255)},
    ),
    "U-Net with Sigmoid": build(
        [
            node("Conv", "x w1", "a", pads=[1, 1, 1, 1]),
            node("Sigmoid", "a", "g"),
            node("Mul", "a g", "swish"),
            node("Concat", "swish x", "skip", axis=1),
            node("Conv", "skip w2", "c"),
            node("Sigmoid", "c", "y"),
        ],
        "y",
        {"w1": normal(4, 3, 3, 3), "w2": normal(1, 7, 1, 1, seed=3)},
    ),
    "embeddings": tail(
        [
            node("GlobalAveragePool", "boxes", "p"),
            node("Flatten", "p", "f"),
            node("LpNormalization", "f", "y", axis=1, p=2),
        ]
    ),
    "scores alone, joined": tail(
        [node("Sigmoid", "boxes", "s"), node("Sigmoid", "logits", "t"), node("Concat", "s t", "y", axis=1)]
    ),
    "boxes and scores apart": tail([node("Sigmoid", "logits", "y")], "y boxes"),
    "normalized image": tail(
        [node("Mul", "logits std", "m"), node("Add", "m mean", "y")],
        constants={"std": floats(58, 57, 57, 3).reshape(4, 1, 1), "mean": floats(123, 117, 104, 8).reshape(4, 1, 1)},
    ),
    "post-processing alone": build(
        [node("Sigmoid", "x", "s"), node("Concat", "x s", "y", axis=1)],
        "y",
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_detector_is_not_taken_for_one(name):
    assert found_in(HARMLESS[name]) is None


def test_only_what_leads_to_the_same_outputs_belongs_to_it():
    proto = tail(
        [
            node("Sigmoid", "logits", "s"),
            node("Concat", "boxes s", "y", axis=1),
            node("Relu", "logits", "z"),
        ],
        "y z",
    )
    found = found_in(proto)
    assert found.nodes == {"sigmoid_s", "concat_y"}
    assert found.outputs == ("y",)
    assert set(found.starts) == {"boxes", "logits"}


@pytest.mark.parametrize("trained", [False, True])
def test_a_matrix_that_turns_boxes_into_corners_is_not_trained(trained):
    """YOLOv7 multiplies centers and sizes with a matrix before its NMS: what comes before it is post-processing too."""
    corners = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]], np.float32)
    nodes = [
        node("Sigmoid", "logits", "s"),
        node("Concat", "boxes s", "c", axis=1),
        node("Reshape", "c rows", "r"),
        node("MatMul", "r corners", "y"),
    ]
    constants = {"rows": ints(1, -1, 4), "corners": corners + 0.1 * trained}
    found = found_in(tail(nodes, constants=constants))
    assert found is None if trained else set(found.starts) == {"boxes", "logits"}


def test_several_tails_are_one_set():
    proto = tail(
        [
            node("Sigmoid", "logits", "s"),
            node("Concat", "boxes s", "y", axis=1),
            node("Exp", "boxes", "e"),
            node("Mul", "e sizes", "z"),
        ],
        "y z",
        constants={"sizes": floats(*range(1, 9)).reshape(8, 1, 1)},
    )
    found = found_in(proto)
    assert found.nodes == {"sigmoid_s", "concat_y", "exp_e", "mul_z"}
    assert found.outputs == ("y", "z")


def test_a_choice_in_a_body_counts():
    body = helper.make_graph(
        [node("NonMaxSuppression", "corners scores most", "inner")],
        "then",
        [],
        [info("inner", None, TensorProto.INT64)],
    )
    other = helper.make_graph(
        [node("Identity", "nothing", "none")], "else", [], [info("none", None, TensorProto.INT64)]
    )
    proto = tail(
        [
            node("Reshape", "boxes of_corners", "corners"),
            node("Reshape", "logits of_scores", "scores"),
            node("ReduceMax", "scores", "m", keepdims=0),
            node("Greater", "m low", "any"),
            helper.make_node("If", ["any"], ["y"], name="if_y", then_branch=body, else_branch=other),
        ],
        [info("y", None, TensorProto.INT64)],
        constants={
            "of_corners": ints(1, 128, 4),
            "of_scores": ints(1, 2, 128),
            "most": ints(10),
            "low": np.float32(0),
            "nothing": np.zeros((0, 3), np.int64),
        },
    )
    found = found_in(proto)
    assert found.sign == "NonMaxSuppression"
    assert "if_y" in found.nodes
    assert set(found.starts) == {"boxes", "logits"}


@pytest.mark.parametrize("op", ["Reshape", "Concat"])
def test_deep_graphs_are_walked_quickly(op):
    nodes = [node("Sigmoid", "logits", "s0")]
    if op == "Reshape":
        nodes += [node("Reshape", f"s{index} same", f"s{index + 1}") for index in range(5000)]
    else:
        # Each joins what the one before gave with itself, cut in half again: 2^n ways lead back.
        for index in range(2500):
            nodes.append(node("Concat", f"s{index} s{index}", f"t{index}", axis=1))
            nodes.append(node("Slice", f"t{index} zero four axis", f"s{index + 1}"))
    last = nodes[-1].output[0]
    nodes.append(node("Concat", f"boxes {last}", "y", axis=1))
    constants = {"same": ints(1, 4, 8, 8), "zero": ints(0), "four": ints(4), "axis": ints(1)}
    model = load(tail(nodes, constants=constants))
    start = time.perf_counter()
    found = find_postprocessing(model.graph)
    assert found is not None
    assert len(found.nodes) == len(nodes)
    assert time.perf_counter() - start < 20


# --- the option


DETECTOR = SIGNS["boxes and scores side by side"]


def decisions(proto, **options):
    run = Run(make_job(proto, None, "A8W8", dry_run=True, **options))
    report = run.report()
    return {each.node: each for each in report.nodes}, report


def test_by_default_it_stays_float_and_the_report_says_why():
    nodes, report = decisions(DETECTOR)
    assert {name for name, each in nodes.items() if not each.quantized} == {"sigmoid_s", "concat_y"}
    assert "post-processing" in nodes["concat_y"].reason
    assert report.postprocessing.nodes == {"sigmoid_s", "concat_y"}
    assert "Left float from 'logits' and 1 more" in str(report)
    assert json.loads(report.to_json())["postprocessing"]["sign"] == "boxes and scores side by side"


def test_keep_quantizes_it():
    nodes, report = decisions(DETECTOR, postprocessing="keep")
    assert all(each.quantized for each in nodes.values())
    assert report.postprocessing is None


def test_a_users_own_exclusion_is_named_first():
    nodes, _ = decisions(DETECTOR, exclude="concat_y")
    assert nodes["concat_y"].reason == "excluded by 'concat_y'"
    assert not nodes["sigmoid_s"].quantized


@pytest.mark.parametrize("wanted", ["float", "cut"])
def test_float_and_cut_need_something_to_leave(wanted):
    with pytest.raises(UsageError, match="no post-processing"):
        decisions(HARMLESS["classifier with Softmax"], postprocessing=wanted)
    nodes, _ = decisions(DETECTOR, postprocessing=wanted)
    assert not nodes["concat_y"].quantized


def test_auto_says_nothing_of_other_models():
    _, report = decisions(HARMLESS["embeddings"])
    assert report.postprocessing is None
    assert "postprocessing" not in report.to_dict()


def test_a_whole_model_in_bfloat16_has_no_float_part():
    job = {"recipe": "BF16", "format": "bfloat16", "dry_run": True}
    assert Run(make_job(DETECTOR, None, **job)).report().postprocessing is None
    with pytest.raises(UsageError, match="bfloat16"):
        Run(make_job(DETECTOR, None, postprocessing="float", **job)).report()
