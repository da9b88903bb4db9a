from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import detent
from detent.errors import ModelError
from detent.plan.layout import Role, bias_input, data_inputs
from detent.plan.select import Selection
from tests.models import build, conv_relu_conv, find, hard_swish, info, laid_out, leaky, node, normal, residual

W = {"w": normal(3, 3, 3, 3)}
FLAG = info("flag", [], TensorProto.BOOL)
X = info("x", (1, 3, 8, 8))


def sites(proto, selection=None):
    layout = laid_out(proto, selection)[1]
    return {name: site.role.value for name, site in layout.sites.items()}


def activations(proto, selection=None):
    return [name for name, role in sites(proto, selection).items() if role == "activation"]


def decisions(proto, selection=None):
    return {name: decision.reason for name, decision in laid_out(proto, selection)[1].decisions.items()}


def test_conv_relu_conv():
    assert sites(conv_relu_conv()) == {
        "x": "activation",
        "w1": "weight",
        "b1": "bias",
        "r1": "activation",  # and not c1, between Conv and Relu
        "w2": "weight",
        "b2": "bias",
        "y": "activation",
    }
    layout = laid_out(conv_relu_conv())[1]
    assert {site.value: site.node for site in layout.sites.values()} == {
        "x": "conv_c1",
        "w1": "conv_c1",
        "b1": "conv_c1",
        "r1": "conv_c1",  # a user knows the fused pair by its Conv
        "w2": "conv_y",
        "b2": "conv_y",
        "y": "conv_y",
    }
    assert [site.value for site in layout.of_role(Role.BIAS)] == ["b1", "b2"]
    assert {decision.reason for decision in layout.decisions.values()} == {"quantized"}


def test_residual_and_leaky_and_swish():
    assert activations(residual()) == ["x", "r1", "c2", "y"]  # s is fused into the last Relu
    assert activations(leaky()) == ["x", "y"]
    assert activations(hard_swish()) == ["x", "c", "h", "y"]


@pytest.mark.parametrize(
    ("bounds", "expected"), [((0, 6), ["x", "y"]), ((0, 1), ["x", "y"]), ((0, 4), ["x", "v", "y"])]
)
def test_clip(bounds, expected):
    constants = {**W, "low": np.float32(bounds[0]), "high": np.float32(bounds[1])}
    proto = build([node("Conv", "x w", "v"), node("Clip", "v low high", "y")], "y", constants)
    assert activations(proto) == expected
    assert sites(proto).keys().isdisjoint({"low", "high"})


def test_two_consumers_are_not_fused():
    proto = build([node("Conv", "x w", "v"), node("Relu", "v", "r"), node("Sigmoid", "v", "s")], "r s", W)
    assert activations(proto) == ["x", "v", "r", "s"]


def test_a_graph_output_is_not_fused():
    proto = build([node("Conv", "x w", "v"), node("Relu", "v", "r")], "v r", W)
    assert activations(proto) == ["x", "v", "r"]


def test_a_capture_by_a_body_is_not_fused():
    bodies = {
        key: helper.make_graph([node(op, "v", f"{key}_o")], key, [], [info(f"{key}_o", (1, 3, 6, 6))])
        for key, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    proto = build(
        [node("Conv", "x w", "v"), node("Relu", "v", "r"), node("If", "flag", "picked", **bodies)],
        "r picked",
        W,
        inputs=[X, FLAG],
    )
    assert activations(proto) == ["x", "v", "r"]
    assert decisions(proto)["if_picked"] == "control flow: the graphs inside stay float"


def test_a_body_node_is_not_taken_for_the_node_of_the_same_name():
    # v is read only by a Relu inside the If, which has the name of a quantized node outside.
    then = helper.make_graph([node("Relu", "v", "t", "twin")], "then", [], [info("t", (1, 3, 6, 6))])
    other = helper.make_graph([node("Neg", "u", "e", "other")], "else", [], [info("e", (1, 3, 6, 6))])
    proto = build(
        [
            node("Conv", "x w", "v"),
            node("Conv", "x w", "u"),
            node("If", "flag", "picked", then_branch=then, else_branch=other),
            node("Sigmoid", "picked", "y", "twin"),
        ],
        "y",
        W,
        inputs=[X, FLAG],
    )
    assert activations(proto) == ["x", "v", "u", "picked", "y"]


def test_a_node_left_out_is_not_fused():
    proto = conv_relu_conv()
    assert activations(proto, Selection(exclude=("relu_r1",))) == ["x", "c1", "r1", "y"]
    assert activations(proto, Selection(exclude=("conv_c1",))) == ["c1", "r1", "y"]
    assert activations(proto, Selection(include=("conv_y",))) == ["r1", "y"]


def test_pad_and_average_pool():
    pads = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)}
    pool = node("AveragePool", "p", "y", kernel_shape=[2, 2])
    assert sites(build([node("Pad", "x pads", "p"), pool], "y", pads)) == {"x": "activation", "y": "activation"}
    most = node("MaxPool", "p", "y", kernel_shape=[2, 2])
    assert activations(build([node("Pad", "x pads", "p"), most], "y", pads)) == ["x", "p", "y"]


SHARING = {
    "Reshape": (node("Reshape", "x shape", "m"), {"shape": np.array([1, 192], np.int64)}),
    "Flatten": (node("Flatten", "x", "m"), {}),
    "Transpose": (node("Transpose", "x", "m"), {}),
    "Squeeze": (node("Squeeze", "x axis", "m"), {"axis": np.array([0], np.int64)}),
    "Unsqueeze": (node("Unsqueeze", "x axis", "m"), {"axis": np.array([0], np.int64)}),
    "MaxPool": (node("MaxPool", "x", "m", kernel_shape=[2, 2]), {}),
    "GlobalMaxPool": (node("GlobalMaxPool", "x", "m"), {}),
    "Gather": (node("Gather", "x at", "m"), {"at": np.array([0], np.int64)}),
    "DepthToSpace": (node("SpaceToDepth", "x", "m", blocksize=2), {}),
    "Resize": (node("Resize", "x _ sizes", "m"), {"sizes": np.array([1, 1, 2, 2], np.float32)}),
}


@pytest.mark.parametrize("op_type", SHARING)
def test_data_movers_share_the_position_of_their_input(op_type):
    mover, constants = SHARING[op_type]
    layout = laid_out(build([mover, node("Sigmoid", "m", "y")], "y", constants))[1]
    assert list(layout.sites) == ["x", "m", "y"]
    assert layout.leaders == {"m": "x"}
    assert [layout.leader(name) for name in ("x", "m", "y")] == ["x", "x", "y"]


def test_a_chain_of_movers_has_one_leader():
    proto = build(
        [
            node("Transpose", "x", "a"),
            node("Flatten", "a", "b"),
            node("Unsqueeze", "b axis", "y"),
        ],
        "y",
        {"axis": np.array([0], np.int64)},
    )
    layout = laid_out(proto)[1]
    assert {name: layout.leader(name) for name in layout.sites} == dict.fromkeys(("x", "a", "b", "y"), "x")


def test_a_fused_mover_shares_nothing():
    proto = build([node("MaxPool", "x", "m", kernel_shape=[2, 2]), node("Relu", "m", "y")], "y")
    layout = laid_out(proto)[1]
    assert list(layout.sites) == ["x", "y"]
    assert layout.leaders == {}


@pytest.mark.parametrize("op_type", ["Relu", "AveragePool", "Sigmoid", "Softmax", "GlobalAveragePool", "ReduceMean"])
def test_what_computes_something_new_shares_nothing(op_type):
    attributes = {"kernel_shape": [2, 2]} if op_type == "AveragePool" else {}
    assert laid_out(build([node(op_type, "x", "y", **attributes)], "y"))[1].leaders == {}


def test_roles():
    proto = build(
        [
            node("Add", "x c", "a"),
            node("Concat", "a k", "b", axis=1),
            node("PRelu", "b slope", "p"),
            node("InstanceNormalization", "p s o", "n"),
            node("Where", "mask n zero", "y"),
        ],
        "y",
        {
            "c": normal(3, 1, 1),
            "k": normal(1, 1, 8, 8),
            "slope": normal(4, 1, 1),
            "s": normal(4),
            "o": normal(4, seed=1),
            "mask": np.ones((8, 8), bool),
            "zero": np.zeros(1, np.float32),
        },
    )
    found = sites(proto)
    assert [name for name, role in found.items() if role == "weight"] == ["c", "k", "slope", "s", "o", "zero"]
    assert [name for name, role in found.items() if role == "activation"] == ["x", "a", "b", "p", "n", "y"]


def test_a_computed_weight_and_bias_are_activations():
    proto = build(
        [node("Sigmoid", "w", "sw", "sig"), node("Conv", "x v b", "y")],
        "y sw",
        W,
        inputs=[X, info("v", (3, 3, 3, 3)), info("b", (3,))],
    )
    assert sites(proto) == dict.fromkeys(("x", "v", "b", "y"), "activation")
    assert decisions(proto)["sig"] == "its data is constant"


def test_bias_and_data_of_a_node():
    model = laid_out(conv_relu_conv())[0]
    conv, relu = find(model, "conv_c1"), find(model, "relu_r1")
    assert [value.name for value in data_inputs(conv)] == ["x", "w1"]
    assert bias_input(conv).name == "b1"
    assert bias_input(relu) is None
    without = laid_out(build([node("Conv", "x w", "y")], "y", W))[0]
    assert bias_input(find(without, "conv_y")) is None


def test_reasons_for_float_nodes():
    proto = build(
        [
            node("Shape", "x", "shape"),
            node("Gather", "shape at", "n"),
            node("Mul", "n n", "area"),
            node("Exp", "x", "e"),
            node("HardSigmoid", "x", "h", alpha=0.2),
            node("Where", "picked low high", "t", "lookup"),
            node("Relu", "x", "y"),
        ],
        "area e h t y",
        {"at": np.array(2, np.int64), "low": normal(3), "high": normal(3)},
        inputs=[X, info("picked", (3,), TensorProto.BOOL)],
    )
    assert decisions(proto) == {
        "shape_shape": "operator Shape is not quantized by this recipe",
        "gather_n": "holds no float data",
        "mul_area": "holds no float data",
        "exp_e": "operator Exp is not quantized by this recipe",
        "hardsigmoid_h": "the device has only HardSigmoid with alpha 1/6 and beta 0.5, not 0.2 and 0.5",
        "lookup": "its data is constant",
        "relu_y": "quantized",
    }
    assert sites(proto) == {"x": "activation", "y": "activation"}


def test_a_batchnorm_in_training_mode_is_told_as_such():
    nodes = [node("BatchNormalization", "x s b m v", "n mean var", training_mode=1), node("Relu", "n", "y")]
    ones = np.ones(3, np.float32)
    proto = build(nodes, "y", {"s": ones, "b": ones, "m": ones, "v": ones})
    assert decisions(proto)["batchnormalization_n"] == "it could not be folded into a layer: it is in training mode"
    with pytest.raises(ModelError, match=r"training mode.*model.eval\(\)"):
        detent.quantize(proto)


def test_a_table_of_embeddings_is_a_weight():
    proto = build(
        [node("Gather", "table picked", "y", "lookup")],
        "y",
        {"table": normal(5, 2)},
        inputs=[info("picked", (3,), TensorProto.INT64)],
    )
    assert decisions(proto) == {"lookup": "quantized"}
    assert sites(proto) == {"table": "weight", "y": "activation"}


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Min", "Max"])
def test_infinity_in_an_operand_is_a_reason(op_type):
    bound = np.where(np.arange(8) % 2, np.inf, 1).astype(np.float32)
    proto = build([node(op_type, "x c", "v"), node("Relu", "x", "y")], "v y", {"c": bound})
    assert "a constant brings infinity" in decisions(proto)[f"{op_type.lower()}_v"]
    assert sites(proto) == {"x": "activation", "y": "activation"}
    broken = build([node(op_type, "x c", "v"), node("Relu", "x", "y")], "v y", {"c": np.full(8, np.nan, np.float32)})
    with pytest.raises(ModelError, match="holds NaN"):
        laid_out(broken)


def test_a_foreign_operator_of_a_known_name_stays_float():
    relu = helper.make_node("Relu", ["x"], ["r"], name="foreign", domain="com.example")
    graph = helper.make_graph([relu, node("Relu", "x", "y")], "g", [X], [info("y", (1, 3, 8, 8))])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    layout = laid_out(proto)[1]
    assert layout.decisions["foreign"].reason == "operator Relu is of domain com.example, which no recipe quantizes"
    assert list(layout.sites) == ["x", "y"]


def test_behind_an_unknown_operator_types_are_unknown():
    odd = helper.make_node("Odd", ["x"], ["o"], name="odd", domain="com.example")
    graph = helper.make_graph(
        [odd, node("Sigmoid", "o", "s"), node("Relu", "x", "y")], "g", [X], [info("y", (1, 3, 8, 8))]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    layout = laid_out(helper.make_model(graph, opset_imports=opsets, ir_version=10))[1]
    assert layout.decisions["sigmoid_s"].reason.startswith("the type of 'o' is unknown")
    assert list(layout.sites) == ["x", "y"]


def test_an_output_that_is_left_empty_does_not_matter():
    normalize = helper.make_node("LayerNormalization", ["x", "s"], ["y", "", "deviation"], name="norm", axis=-1)
    proto = build([normalize], [info("y", None), info("deviation", None)], {"s": normal(8)})
    layout = laid_out(proto)[1]
    assert layout.decisions["norm"].reason == "quantized"
    assert set(layout.sites) == {"x", "y", "deviation"}


def test_the_range_of_a_softmax_is_settled():
    proto = build([node("Softmax", "x", "s"), node("Relu", "s", "y")], "y")
    found = laid_out(proto)[1].sites
    assert (found["x"].largest, found["s"].largest, found["y"].largest) == (None, 1.0, None)
    left = laid_out(proto, Selection(exclude=("softmax_s",)))[1].sites
    assert left["s"].largest is None


def test_nothing_to_quantize():
    proto = build([node("Exp", "x", "e"), node("Exp", "e", "f"), node("Shape", "x", "y")], "f y")
    with pytest.raises(ModelError) as caught:
        laid_out(proto)
    assert "(2 x operator Exp is not quantized by this recipe; 1 x operator Shape" in str(caught.value)
    assert "--set all_operators=true" in str(caught.value)
    with pytest.raises(ModelError, match=r"3 x excluded by '\*'"):
        laid_out(conv_relu_conv(), Selection(exclude=("*",)))


def test_what_quantizes_no_operator_is_not_advised():
    trees = helper.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml")
    graph = helper.make_graph([trees], "g", [info("x", (1, 8))], [info("y", (1, 8))])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    with pytest.raises(ModelError, match="Normalizer is of domain ai.onnx.ml") as caught:
        laid_out(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    assert "all_operators" not in str(caught.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "role"), [("w", "weight"), ("b", "bias")])
def test_a_weight_that_is_not_finite(bad, name, role):
    constants = {**W, "b": normal(3)}
    constants[name] = constants[name].copy()
    constants[name].flat[1] = bad
    proto = build([node("Conv", "x w b", "v"), node("Relu", "x", "y")], "v y", constants)
    with pytest.raises(ModelError, match=f"{role} '{name}' of node 'conv_v'"):
        laid_out(proto)
    assert sites(proto, Selection(exclude=("conv_v",))) == {"x": "activation", "y": "activation"}


def test_what_moves_data_among_float_nodes_stays_float():
    """Before an excluded node a Transpose of the input would round what nothing else rounds."""
    nodes = [
        node("Transpose", "x", "a", perm=[0, 1, 3, 2]),
        node("Transpose", "a", "b", perm=[0, 1, 3, 2]),
        node("Sigmoid", "b", "s"),
        node("Transpose", "s", "t", perm=[0, 1, 3, 2]),
        node("Conv", "t w", "y"),
    ]
    proto = build(nodes, "y", W, [X])
    names = [each.name for each in proto.graph.node]
    left = decisions(proto, Selection(exclude=(names[2],)))
    assert {left[names[0]], left[names[1]]} == {"moves data from float nodes to float nodes"}
    assert left[names[3]] == left[names[4]] == "quantized"  # its values are on the grid of the Conv's input
    assert set(decisions(proto).values()) == {"quantized"}


def test_what_moves_data_between_two_conversions_is_on_a_grid():
    """What was an Identity is left for a conversion: a Transpose between two of them has a format of its own."""
    nodes = [
        *(node("Conv", "x w", "a"), node("Identity", "a", "b"), node("Transpose", "b", "c", perm=[0, 1, 3, 2])),
        *(node("Identity", "c", "d"), node("Relu", "d", "y")),
    ]
    proto = build(nodes, "y", W, [X])
    left = decisions(proto)
    assert left["transpose_c"] == left["relu_y"] == "quantized"
