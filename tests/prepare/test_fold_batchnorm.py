from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from detent.prepare import FoldBatchNorm, prepare
from tests.prepare.equivalence import bn_constants, check, f32, flag_input, if_reading, info, make, node


def bn(x="a", y="y", **attributes):
    return node("BatchNormalization", f"{x} s b m v", y, name="bn", **attributes)


@pytest.mark.parametrize("opset", [17, 18, 21])
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_conv_before(opset, group, bias):
    constants = {"w": f32(8, 4 // group, 3, 3), **bn_constants(8)} | ({"c": f32(8)} if bias else {})
    conv = node("Conv", "x w c" if bias else "x w", "a", name="conv", group=group, strides=[2, 1], pads=[1, 0, 1, 2])
    done = check(FoldBatchNorm(), make([conv, bn()], {"x": ["N", 4, 9, 8]}, {"y": None}, constants, opset))
    assert done.ops == ["Conv"]
    assert set(done.constants) == {"conv/folded_weight", "conv/folded_bias"}
    assert "folded into Conv 'conv'" in done.step.changes[0].what


@pytest.mark.parametrize("spatial", [(5,), (5, 6), (3, 4, 5)])
def test_conv_of_other_ranks(spatial):
    constants = {"w": f32(6, 3, *[2] * len(spatial)), **bn_constants(6)}
    nodes = [node("Conv", "x w", "a"), bn(epsilon=0.01)]
    assert check(FoldBatchNorm(), make(nodes, {"x": [2, 3, *spatial]}, {"y": None}, constants)).ops == ["Conv"]


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_conv_transpose_before(group, bias):
    constants = {"w": f32(4, 3, 3, 3), **bn_constants(3 * group)} | ({"c": f32(3 * group)} if bias else {})
    up = node("ConvTranspose", "x w c" if bias else "x w", "a", group=group, strides=[2, 2])
    done = check(FoldBatchNorm(), make([up, bn()], {"x": [2, 4, 5, 4]}, {"y": None}, constants))
    assert done.ops == ["ConvTranspose"]


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("c_shape", [None, (), (1,), (6,), (1, 6), (3, 1), (3, 6)])
def test_gemm_before(trans_b, c_shape):
    constants = {"w": f32(6, 4) if trans_b else f32(4, 6), **bn_constants(6)}
    if c_shape is not None:
        constants["c"] = f32(*c_shape)
    gemm = node("Gemm", "x w" if c_shape is None else "x w c", "a", alpha=0.5, beta=3.0, transB=trans_b)
    assert check(FoldBatchNorm(), make([gemm, bn()], {"x": [3, 4]}, {"y": None}, constants)).ops == ["Gemm"]


def test_matmul_before_becomes_gemm_only_with_rank_2():
    constants = {"w": f32(4, 6), **bn_constants(6)}
    nodes = [node("MatMul", "x w", "a", name="mm"), bn()]
    assert check(FoldBatchNorm(), make(nodes, {"x": [3, 4]}, {"y": None}, constants)).ops == ["Gemm"]
    deep = make(nodes, {"x": [3, 6, 4]}, {"y": None}, {"w": f32(4, 4), **bn_constants(6)})
    done = check(FoldBatchNorm(), deep)
    assert done.ops == ["MatMul", "BatchNormalization"]
    assert "rank 2" in done.why


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("auto_pad", ["NOTSET", "VALID"])
def test_conv_after(group, auto_pad):
    constants = {"w": f32(6, 4 // group, 3, 3), "c": f32(6), **bn_constants(4)}
    nodes = [bn("x", "a"), node("Conv", "a w c", "y", name="conv", group=group, auto_pad=auto_pad)]
    done = check(FoldBatchNorm(), make(nodes, {"x": [2, 4, 6, 6]}, {"y": None}, constants))
    assert done.ops == ["Conv"]
    assert done.proto.graph.node[0].input[0] == "x"


@pytest.mark.parametrize("pad", [{"pads": [0, 1, 0, 0]}, {"auto_pad": "SAME_UPPER"}])
@pytest.mark.parametrize("shift", [False, True])
def test_padding_conv_after_only_without_shift(pad, shift):
    constants = {"w": f32(6, 4, 3, 3), **bn_constants(4, shift=shift)}
    nodes = [bn("x", "a"), node("Conv", "a w", "y", name="conv", **pad)]
    done = check(FoldBatchNorm(), make(nodes, {"x": [2, 4, 6, 6]}, {"y": None}, constants))
    assert done.ops == (["BatchNormalization", "Conv"] if shift else ["Conv"])
    assert ("pads with zeros" in done.why) == shift


@pytest.mark.parametrize("trans_b", [0, 1])
def test_gemm_after(trans_b):
    constants = {"w": f32(6, 4) if trans_b else f32(4, 6), "c": f32(3, 1), **bn_constants(4)}
    nodes = [bn("x", "a"), node("Gemm", "a w c", "y", alpha=0.5, beta=-2.0, transB=trans_b)]
    assert check(FoldBatchNorm(), make(nodes, {"x": [3, 4]}, {"y": None}, constants)).ops == ["Gemm"]


def test_matmul_after_and_transposed_gemm():
    constants = {"w": f32(4, 6), **bn_constants(4)}
    done = check(
        FoldBatchNorm(), make([bn("x", "a"), node("MatMul", "a w", "y")], {"x": [3, 4]}, {"y": None}, constants)
    )
    assert done.ops == ["Gemm"]
    nodes = [bn("x", "a"), node("Gemm", "a w", "y", transA=1)]
    done = check(FoldBatchNorm(), make(nodes, {"x": [4, 4]}, {"y": None}, constants))
    assert "transposes" in done.why


def test_name_of_the_last_node_is_kept_inside_the_graph():
    constants = {"w": f32(8, 4, 3, 3), **bn_constants(8)}
    nodes = [node("Conv", "x w", "a"), bn(y="bn_out"), node("Relu", "bn_out", "y")]
    done = check(FoldBatchNorm(), make(nodes, {"x": [2, 4, 5, 5]}, {"y": None}, constants))
    assert done.named("Conv").output == ["bn_out"]
    assert set(done.constants) == {"a/folded_weight", "a/folded_bias"}, "unnamed nodes are called by their output"


def test_shared_weight_is_not_changed_for_the_other_layer():
    constants = {"w": f32(4, 4, 3, 3), **bn_constants(4)}
    nodes = [node("Conv", "x w", "a", name="one"), bn(), node("Conv", "x w", "z", name="two")]
    done = check(FoldBatchNorm(), make(nodes, {"x": [1, 4, 5, 5]}, {"y": None, "z": None}, constants))
    assert done.ops == ["Conv", "Conv"]
    assert "w" in done.constants


def test_names_do_not_collide_with_existing_ones():
    constants = {"w": f32(4, 4, 3, 3), "conv/folded_weight": f32(1), **bn_constants(4)}
    nodes = [node("Conv", "x w", "a", name="conv"), bn(), node("Add", "y conv/folded_weight", "z")]
    done = check(FoldBatchNorm(), make(nodes, {"x": [1, 4, 5, 5]}, {"y": None, "z": None}, constants))
    assert "conv/folded_weight_1" in done.constants


@pytest.mark.parametrize(
    ("extra", "outputs", "reason"),
    [
        ([node("Relu", "a", "z")], {"y": None, "z": None}, "'a' has 2 uses"),
        ([], {"y": None, "a": None}, "'a' is a graph output"),
        ([if_reading("a")], {"y": None, "picked": None}, "'a' has 3 uses"),
    ],
)
def test_declines_when_the_layer_is_read_elsewhere(extra, outputs, reason):
    constants = {"w": f32(4, 4, 3, 3), **bn_constants(4)}
    inputs = [info("x", [1, 4, 5, 5]), flag_input()]
    outs = dict.fromkeys(outputs)
    done = check(FoldBatchNorm(), make([node("Conv", "x w", "a"), bn(), *extra], inputs, outs, constants))
    assert "BatchNormalization" in done.ops
    assert reason in done.why


def test_output_captured_by_a_body_follows_the_rename():
    constants = {"w": f32(4, 4, 3, 3), **bn_constants(4)}
    nodes = [node("Conv", "x w", "a"), bn(y="t"), if_reading("t")]
    done = check(FoldBatchNorm(), make(nodes, [info("x", [1, 4, 5, 5]), flag_input()], {"picked": None}, constants))
    assert done.ops == ["Conv", "If"]


def test_declines_parameters_that_are_not_constant():
    constants = {"w": f32(4, 4, 3, 3), **bn_constants(4)}
    scale = constants.pop("s")
    proto = make([node("Conv", "x w", "a"), bn()], {"x": [1, 4, 5, 5], "s": [4]}, {"y": None}, constants)
    assert "its scale is not constant" in check(FoldBatchNorm(), proto, {"x": f32(1, 4, 5, 5), "s": scale}).why
    constants = {"w": f32(4, 4, 3, 3), **bn_constants(4)}
    weight = constants.pop("w")
    proto = make([node("Conv", "x w", "a"), bn()], {"x": [1, 4, 5, 5], "w": [4, 4, 3, 3]}, {"y": None}, constants)
    assert "weight" in check(FoldBatchNorm(), proto, {"x": f32(1, 4, 5, 5), "w": weight}).why


def test_default_epsilon_is_the_standards():
    constants = {"w": np.ones((1, 1, 1, 1), np.float32), **dict.fromkeys("sm", np.ones(1, np.float32))}
    constants |= {"b": np.zeros(1, np.float32), "v": np.zeros(1, np.float32)}
    done = check(FoldBatchNorm(), make([node("Conv", "x w", "a"), bn()], {"x": [1, 1, 2, 2]}, {"y": None}, constants))
    (weight,) = [array for name, array in done.constants.items() if name.endswith("weight")]
    assert weight.item() == pytest.approx(1 / np.sqrt(1e-5), rel=1e-6)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("joining", [node("Reshape", "p rows", "a"), node("Flatten", "p", "a", axis=2)])
def test_matmul_before_a_reshape_that_joins_all_but_the_channels(shift, joining):
    constants = {"w": f32(4, 6), "rows": np.array([-1, 6]), **bn_constants(6, shift=shift)}
    nodes = [node("MatMul", "x w", "p", name="mm"), joining, bn()]
    known = [info("p", [2, 5, 6]), info("a", [10, 6])]
    done = check(FoldBatchNorm(), make(nodes, {"x": [2, 5, 4]}, {"y": None}, constants, value_info=known))
    assert done.ops == (["MatMul", "Add", joining.op_type] if shift else ["MatMul", joining.op_type])


@pytest.mark.parametrize("rows", [[-1, 3], [2, 30]])
def test_a_reshape_that_moves_the_channels_is_in_the_way(rows):
    constants = {"w": f32(4, 6), "rows": np.array(rows), **bn_constants(rows[1])}
    nodes = [node("MatMul", "x w", "p"), node("Reshape", "p rows", "a"), bn()]
    known = [info("p", [2, 5, 6]), info("a", [60 // rows[1], rows[1]])]
    done = check(FoldBatchNorm(), make(nodes, {"x": [2, 5, 4]}, {"y": None}, constants, value_info=known))
    assert "leave the last dimension" in done.why


def test_declines_parameters_of_different_sizes():
    """As in a damaged file, which onnxruntime refuses."""
    constants = {"w": f32(4, 4, 3, 3), **bn_constants(4), "m": f32(36)}
    model = ir.from_proto(make([node("Conv", "x w", "a"), bn()], {"x": [1, 4, 5, 5]}, {"y": None}, constants))
    step = FoldBatchNorm()
    prepare(model, [step])
    assert "different sizes" in step.declined[0].what
