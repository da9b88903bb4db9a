from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from detent.prepare import InferShapes, prepare
from tests.prepare.equivalence import check, f32, info, make, node


def shapes(proto):
    step, model = InferShapes(), ir.from_proto(proto)
    prepare(model, [step])
    return {v.name: v.shape for item in model.graph for v in item.outputs}, step


def test_data_flows_through_shape_and_concat():
    nodes = [
        node("Shape", "x", "s", start=0, end=1),
        node("Concat", "s k", "t", axis=0),
        node("Reshape", "x t", "r"),
        node("Relu", "r", "y"),
    ]
    proto = make(nodes, {"x": [6, 2, 2]}, {"y": [None, None]}, {"k": np.array([4])})
    found, step = shapes(proto)
    assert found["r"] == (6, 4)
    assert step.changes
    assert check(InferShapes(), proto, exact=True).ops == [item.op_type for item in proto.graph.node]


def test_unknown_operator_is_noted_once_and_not_for_what_follows():
    nodes = [node("Mystery", "x", "a", domain="ours", name="m"), node("Relu", "a", "b"), node("Neg", "b", "y")]
    proto = make(nodes, {"x": [3]}, {"y": ["N"]}, opsets=[helper.make_opsetid("ours", 1)])
    _, step = shapes(proto)
    assert [(note.node, note.what) for note in step.declined] == [("m", "no shape could be inferred for 'a'")]


@pytest.mark.parametrize("level", [logging.NOTSET, logging.ERROR, logging.CRITICAL])
def test_a_model_that_contradicts_itself_is_noted_whatever_the_log_level(caplog, level):
    nodes = [node("Add", "x k", "a", name="bad"), node("Relu", "a", "y")]
    proto = make(nodes, {"x": [3]}, [info("y", [3])])
    proto.graph.initializer.append(helper.make_tensor("k", 7, [3], [1, 2, 3]))
    logger = logging.getLogger("onnx_ir.passes.common.shape_inference")
    before = (logger.level, list(logger.filters), logger.propagate)
    with caplog.at_level(level, logger="onnx_ir"):
        _, step = shapes(proto)
    assert "shape inference failed" in step.declined[0].what
    assert not caplog.records, "the note replaces the warning"
    assert (logger.level, list(logger.filters), logger.propagate) == before


def test_large_initializers_survive():
    proto = make([node("MatMul", "x w", "y")], {"x": [3, 64]}, {"y": None}, {"w": f32(64, 64)})
    np.testing.assert_array_equal(check(InferShapes(), proto, exact=True).constants["w"], f32(64, 64))


LONG = """
import resource
from tests.prepare.equivalence import make, node
from tests.prepare.test_infer_shapes import shapes

resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
nodes = [node("Relu", "x", "r"), node("Cast", "r", "c", to=10), node("Cast", "c", "y", to=1)]
print(shapes(make(nodes, {"x": [2**40]}, {"y": [2**40]}))[0]["c"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory")
def test_the_elements_of_a_very_long_vector_are_not_listed():
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == f"[{2**40}]", done.stderr


def test_types_that_only_inference_knows_are_a_note():
    """A sequence of maps inside the graph, which no declaration gives away."""
    zipped = node("ZipMap", "x", "maps", domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    opsets = [helper.make_opsetid("ai.onnx.ml", 1)]
    _, step = shapes(make([zipped, node("Relu", "x", "y")], {"x": [1, 2]}, {"y": [1, 2]}, opsets=opsets))
    assert "shape inference failed" in step.declined[0].what
