from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from detent.emit import coded_node, emit
from tests.emit.qoperator.forms import FEEDS, RECIPES, U8, assert_same, differences, forms, forms_of
from tests.models import XINT8, build, conv_relu_conv, info, node, normal, plan_at, residual, values_of

# Sums of products are exact in both forms; what is left is one float32 multiplication against two.
TIES = 0.004

CONVS = {
    "plain": ({}, (8, 3, 3, 3), True),
    "no-bias": ({}, (8, 3, 3, 3), False),
    "pads": ({"pads": [1, 2, 0, 1]}, (8, 3, 3, 3), True),
    "same-upper": ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (8, 3, 3, 3), True),
    "same-lower": ({"auto_pad": "SAME_LOWER"}, (8, 3, 2, 2), True),
    "dilated": ({"dilations": [2, 2], "pads": [2, 2, 2, 2]}, (8, 3, 3, 3), True),
    "depthwise": ({"group": 3, "pads": [1, 1, 1, 1]}, (3, 1, 3, 3), True),
    "grouped": ({"group": 3, "strides": [2, 1]}, (6, 1, 3, 3), True),
    "pointwise": ({}, (8, 3, 1, 1), True),
}


@pytest.mark.parametrize("scheme", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize(("attributes", "shape", "biased"), CONVS.values(), ids=CONVS)
def test_conv(attributes, shape, biased, scheme):
    constants = {"w": normal(*shape) + 0.2, **({"b": normal(shape[0], seed=1)} if biased else {})}
    proto = build([node("Conv", "x w b" if biased else "x w", "y", **attributes)], "y", constants)
    both = forms(proto, scheme)
    assert both.operators == ["QuantizeLinear", "QLinearConv", "DequantizeLinear"] and both.declined == []
    assert_same(both, ties=0 if scheme is XINT8 else TIES)


@pytest.mark.parametrize("scheme", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("maker", [conv_relu_conv, residual])
def test_layers_behind_each_other_have_no_pair_between_them(maker, scheme):
    both = forms(maker(), scheme)
    assert both.declined == []
    assert both.operators[0] == "QuantizeLinear" and both.operators[-1] == "DequantizeLinear"
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(both.operators[1:-1])
    assert_same(both, ties=0.02)


def dense(transposed: bool, alpha: float, beta: float, bias_shape):
    constants = {"w": normal(*((6, 8) if transposed else (8, 6))), "b": normal(*bias_shape, seed=1)}
    gemm = node("Gemm", "x w b", "y", transB=int(transposed), alpha=alpha, beta=beta)
    return build([gemm], "y", constants, [info("x", [4, 8])])


ROWS = {"x": normal(4, 8, seed=2)}


@pytest.mark.parametrize("scheme", [one for name, one in RECIPES.items() if name != "power-of-two"])
@pytest.mark.parametrize(
    ("transposed", "alpha", "beta", "bias_shape"),
    [(False, 1.0, 1.0, (6,)), (True, 1.0, 1.0, (6,)), (True, 0.5, 1.0, (6,)), (False, 1.0, 3.0, (1, 6))],
)
def test_gemm(transposed, alpha, beta, bias_shape, scheme):
    both = forms(dense(transposed, alpha, beta, bias_shape), scheme, ROWS)
    assert both.between == ["QGemm"] and both.declined == []
    assert_same(both, ROWS, ties=0.05)


def test_gemm_without_bias_and_with_a_transposed_input():
    gemm = node("Gemm", "x w", "y", transA=1)
    both = forms(build([gemm], "y", {"w": normal(4, 6)}, [info("x", [4, 8])]), U8, ROWS)
    assert both.between == ["QGemm"]
    assert_same(both, ROWS, ties=0.05)


def test_beta_of_zero_has_no_bias():
    both = forms(dense(False, 1.0, 0.0, (6,)), U8, ROWS)
    assert both.between == ["QGemm"]
    assert_same(both, ROWS, ties=0.05)


def test_alpha_that_does_not_divide_the_bias_is_declined():
    """The bias is counted in s_x s_w; in units of 3 s_x s_w two thirds of all biases are no whole numbers."""
    both = forms(dense(False, 3.0, 1.0, (6,)), U8, ROWS)
    assert "Gemm" in both.operators and "whole number" in both.declined[0].what


@pytest.mark.parametrize("scheme", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("shape", [(4, 8), (2, 4, 8)])
def test_matmul_with_a_weight(shape, scheme):
    feeds = {"x": normal(*shape, seed=2)}
    both = forms(build([node("MatMul", "x w", "y")], "y", {"w": normal(8, 6)}, [info("x", shape)]), scheme, feeds)
    assert both.between == ["QLinearMatMul"] and both.declined == []
    assert_same(both, feeds, ties=0.03)


@pytest.mark.parametrize("scheme", RECIPES.values(), ids=RECIPES)
def test_matmul_of_activations(scheme):
    feeds = {"x": normal(2, 4, 8, seed=2), "z": normal(2, 8, 5, seed=3) - 1}
    proto = build([node("MatMul", "x z", "y")], "y", None, [info("x", (2, 4, 8)), info("z", (2, 8, 5))])
    both = forms(proto, scheme, feeds)
    assert both.between == ["QLinearMatMul"]
    assert_same(both, feeds, ties=0.03)


def test_a_batch_of_weights_with_a_scale_for_each_column_is_declined():
    feeds = {"x": normal(2, 4, 8, seed=2)}
    proto = build([node("MatMul", "x w", "y")], "y", {"w": normal(2, 8, 6)}, [info("x", (2, 4, 8))])
    both = forms(proto, RECIPES["u8-channels"], feeds)
    assert "MatMul" in both.operators and "matrix" in both.declined[0].what


def at_positions(positions):
    model, plan = plan_at(conv_relu_conv(), positions)
    emit(model, plan)
    return forms_of(ir.to_proto(model))


def bias_of(both, layer):
    name = next(one for one in both.integer.graph.node if one.name == layer).input[8]
    return next(numpy_helper.to_array(held) for held in both.integer.graph.initializer if held.name == name)


def code_of(both, name):
    return next(numpy_helper.to_array(held) for held in both.qdq.graph.initializer if held.name == name)


def test_an_8_bit_bias_becomes_whole_units_of_the_products():
    """x at 5, w at 6 and b at 4: one step of b is 2^(5 + 6 - 4) = 128 units."""
    both = at_positions({"x": 5, "w1": 6, "b1": 4, "r1": 2, "w2": 5, "b2": 3, "y": -1})
    assert both.declined == []
    bias = bias_of(both, "conv_c1")
    assert bias.dtype == np.int32 and np.array_equal(bias, code_of(both, "b1_quantized").astype(np.int32) * 128)
    assert_same(both)


def test_a_bias_finer_than_the_products_moves_nothing_but_ties():
    """r1 at 2 and w2 at 2, b2 at 6: a unit is 4 steps of b. y at 1: a step is 8 units, and ties are 8 A + 4."""
    both = at_positions({"x": 5, "w1": 6, "b1": 4, "r1": 2, "w2": 2, "b2": 6, "y": 1})
    codes = code_of(both, "b2_quantized").astype(np.int64)
    assert (codes % 4 != 0).all()
    assert both.declined == [] and np.array_equal(bias_of(both, "conv_y"), codes // 4)
    apart = differences(both)
    assert all(one.max() == 0 for name, one in apart.items() if not name.startswith("y_"))
    moved = apart["y_QuantizeLinear_Output"]
    sums = values_of(both.qdq, ["y_QuantizeLinear_Input"], FEEDS)["y_QuantizeLinear_Input"] * 16
    ties = np.floor(sums) % 8 == 4
    assert ties.any() and moved.max() == 1 and not moved[~ties].any()


def test_a_fine_bias_of_a_result_as_fine_as_the_products_is_declined():
    both = at_positions({"x": 5, "w1": 6, "b1": 4, "r1": 2, "w2": 2, "b2": 6, "y": 4})
    assert [note.node for note in both.declined] == ["conv_y"] and "whole number" in both.declined[0].what
    assert "Conv" in both.operators


def test_scales_whose_product_is_zero_in_float32_are_declined():
    tiny = normal(8, 3, 3, 3) * np.float32(1e-30)
    both = forms(build([node("Conv", "x w", "y")], "y", {"w": tiny}), U8, {"x": FEEDS["x"] * np.float32(1e-10)})
    assert "too small" in both.declined[0].what


@pytest.mark.parametrize("scheme", ["u8", "u8-unsigned-weights", "s8-asymmetric-channels", "u8-symmetric"])
def test_the_comparison_sees_a_wrong_zero_point(scheme, monkeypatch):
    original = coded_node.grid_of

    def off_by_one(one):
        grid = original(one)
        shifted = coded_node.NewConstant("zero_point", grid.params.zero_point + np.ones((), grid.params.dtype))
        return coded_node.EightBitGrid(grid.params, grid.axis, (grid.operands[0], shifted))

    proto = build([node("Conv", "x w b", "y")], "y", {"w": normal(8, 3, 3, 3), "b": normal(8, seed=1)})
    monkeypatch.setattr(coded_node, "grid_of", off_by_one)
    apart = differences(forms(proto, RECIPES[scheme]), FEEDS)
    assert (np.concatenate([one.reshape(-1) for one in apart.values()]) != 0).mean() > 0.2
