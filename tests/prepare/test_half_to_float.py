from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from detent.prepare import HalfToFloat, prepare
from tests.prepare.equivalence import f32, info, make, node, run, session

HALF, BFLOAT = TensorProto.FLOAT16, TensorProto.BFLOAT16


def convert(proto):
    before = proto.SerializeToString(deterministic=True)
    step, model = HalfToFloat(), ir.from_proto(proto)
    prepare(model, [step])
    assert proto.SerializeToString(deterministic=True) == before
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    return after, step


def half_model():
    k = numpy_helper.from_array(f32(1).astype(np.float16))
    fill = numpy_helper.from_array(np.array([0.5], np.float16))
    nodes = [
        node("Conv", "x w", "a"),
        helper.make_node("Constant", [], ["k"], value=k),
        node("Mul", "a k", "b"),
        node("Cast", "b", "c", to=TensorProto.FLOAT),
        node("Cast", "c", "d", to=HALF),
        node("Shape", "d", "s"),
        helper.make_node("ConstantOfShape", ["s"], ["e"], value=fill),
        node("Add", "d e", "y"),
    ]
    inner = [info(name, [1, 4, 4, 4], HALF) for name in "abd"]
    return make(
        nodes,
        [info("x", [1, 3, 6, 6], HALF)],
        [info("y", [1, 4, 4, 4], HALF)],
        {"w": f32(4, 3, 3, 3).astype(np.float16)},
        value_info=inner,
    )


def test_computes_the_same_up_to_half_precision():
    proto = half_model()
    after, step = convert(proto)
    x = f32(1, 3, 6, 6).astype(np.float16)
    want, got = run(proto, {"x": x})["y"], run(after, {"x": x.astype(np.float32)})["y"]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want.astype(np.float32), rtol=1e-2, atol=2e-2)
    assert "FLOAT16" not in onnx.printer.to_text(after).upper()
    assert [note.what for note in step.changes[:2]] == [
        "graph input changed from FLOAT16 to FLOAT",
        "graph output changed from FLOAT16 to FLOAT",
    ]


def test_bfloat16():
    weight = ir.Tensor(f32(4, 5).astype(ir.DataType.BFLOAT16.numpy()), name="w")
    nodes = [
        node("Cast", "x", "a", to=BFLOAT),
        node("Cast", "w", "v", to=TensorProto.FLOAT),
        node("Cast", "a", "b", to=TensorProto.FLOAT),
        node("MatMul", "b v", "y"),
    ]
    proto = make(nodes, {"x": [3, 4]}, {"y": [3, 5]})
    proto.graph.initializer.append(ir.to_proto(weight))
    after, _ = convert(proto)
    rounded = weight.numpy().astype(np.float32)
    np.testing.assert_allclose(run(after, {"x": f32(3, 4)})["y"], f32(3, 4) @ rounded, rtol=1e-5, atol=1e-6)
    assert after.graph.initializer[0].data_type == TensorProto.FLOAT


def test_bodies_are_converted_too():
    bodies = {}
    for key, op in (("then_branch", "Relu"), ("else_branch", "Neg")):
        k = numpy_helper.from_array(f32(1).astype(np.float16), f"{key}_k")
        out = info(f"{key}_out", [3], HALF)
        bodies[key] = helper.make_graph(
            [node(op, "x", f"{key}_r"), node("Mul", f"{key}_r {key}_k", f"{key}_out")], key, [], [out], [k]
        )
    proto = make(
        [node("If", "flag", "y", **bodies)],
        [info("x", [3], HALF), info("flag", [], TensorProto.BOOL)],
        [info("y", [3], HALF)],
    )
    after, _ = convert(proto)
    x = f32(3).astype(np.float16)
    for flag in (True, False):
        want = run(proto, {"x": x, "flag": np.array(flag)})["y"]
        got = run(after, {"x": x.astype(np.float32), "flag": np.array(flag)})["y"]
        np.testing.assert_allclose(got, want.astype(np.float32), rtol=1e-2)


def test_sequences():
    nodes = [node("SplitToSequence", "x", "seq", axis=0), node("ConcatFromSequence", "seq", "y", axis=0)]
    proto = make(nodes, [info("x", [4], HALF)], [info("y", [None], HALF)])
    proto.graph.value_info.append(helper.make_tensor_sequence_value_info("seq", HALF, None))
    session(convert(proto)[0])


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64])
def test_others_are_untouched(kind):
    proto = make([node("Add", "x x", "y")], [info("x", [3], kind)], [info("y", [3], kind)])
    after, step = convert(proto)
    assert not step.changes
    assert after.graph.input[0].type.tensor_type.elem_type == kind


def test_foreign_operators_are_pointed_out():
    nodes = [node("Mystery", "x", "y", domain="ours", name="m")]
    proto = make(nodes, [info("x", [3], HALF)], [info("y", [3], HALF)], opsets=[helper.make_opsetid("ours", 1)])
    _, step = convert(proto)
    assert "ours::Mystery" in step.declined[0].what
