"""Which channels can be rescaled: the function stays for arbitrary factors, and none is left out needlessly."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from detent.equalize.channels import FIXED, map_channels
from detent.equalize.equalize import equalize_again
from detent.errors import UsageError
from tests.equalize.networks import IMAGE_INPUT, assert_kept, between_convs
from tests.models import as_ir, build, find, info, node, normal, residual
from tests.prepare.equivalence import bn_constants, flag_input, if_reading, make

SPATIAL = np.array([0, 0, 1, 2, 0, 0, 1, 0])
ZERO, ONE, INFINITY = np.float32(0), np.float32(1), np.float32(np.inf)

PASSING = {
    "nothing": (node("Identity", "c", "m"), {}),
    "Relu": (node("Relu", "c", "m"), {}),
    "LeakyRelu": (node("LeakyRelu", "c", "m", alpha=0.2), {}),
    "PRelu per channel": (node("PRelu", "c s", "m"), {"s": normal(4, 1, 1, seed=5)}),
    "PRelu shared": (node("PRelu", "c s", "m"), {"s": normal(1, seed=5)}),
    "MaxPool": (node("MaxPool", "c", "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), {}),
    "MaxPool with indices": (node("MaxPool", "c", "m where", kernel_shape=[2, 2]), {}),
    "AveragePool": (node("AveragePool", "c", "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), {}),
    "AveragePool of zeros": (
        node("AveragePool", "c", "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
        {},
    ),
    "GlobalAveragePool": (node("GlobalAveragePool", "c", "m"), {}),
    "GlobalMaxPool": (node("GlobalMaxPool", "c", "m"), {}),
    "ReduceMean": (node("ReduceMean", "c", "m", axes=[-1, 2]), {}),
    "Dropout": (node("Dropout", "c", "m"), {}),
    "Clip without end": (node("Clip", "c zero", "m"), {"zero": ZERO}),
    "Clip at infinity": (node("Clip", "c zero end", "m"), {"zero": ZERO, "end": INFINITY}),
    "Pad": (node("Pad", "c pads", "m"), {"pads": SPATIAL}),
    "Pad with a zero": (node("Pad", "c pads zero", "m"), {"pads": SPATIAL, "zero": ZERO}),
    "Pad by reflection": (node("Pad", "c pads", "m", mode="reflect"), {"pads": SPATIAL}),
    "Mul by a constant": (node("Mul", "c some", "m"), {"some": normal(1, 4, 1, 1, seed=6)}),
    "Mul by a number": (node("Mul", "half c", "m"), {"half": np.float32(0.5)}),
    "Resize": (node("Resize", "c _ scales", "m"), {"scales": np.array([1, 1, 2, 2], np.float32)}),
    "Resize, linear": (
        node("Resize", "c _ scales", "m", mode="linear", coordinate_transformation_mode="align_corners"),
        {"scales": np.array([1, 1, 1.5, 2], np.float32)},
    ),
    "Slice of positions": (
        node("Slice", "c start end axis", "m"),
        {"start": np.array([1]), "end": np.array([4]), "axis": np.array([-1])},
    ),
    "Pad at the edge": (node("Pad", "c pads", "m", mode="edge"), {"pads": SPATIAL}),
}

STAYING = {
    "Sigmoid": (node("Sigmoid", "c", "m"), {}),
    "Softmax": (node("Softmax", "c", "m", axis=1), {}),
    "Mul": (node("Mul", "c c", "m"), {}),
    "Sub": (node("Sub", "c some", "m"), {"some": normal(1, 4, 1, 1, seed=6)}),
    "Add of a constant": (node("Add", "c some", "m"), {"some": normal(1, 4, 1, 1, seed=6)}),
    "Slice backwards": (
        node("Slice", "c start end axis step", "m"),
        {"start": np.array([3]), "end": np.array([-9]), "axis": np.array([1]), "step": np.array([-1])},
    ),
    "Clip at -1": (node("Clip", "c low", "m"), {"low": -ONE}),
    "Clip without beginning": (node("Clip", "c _ one", "m"), {"one": ONE}),
    "Pad with ones": (node("Pad", "c pads one", "m"), {"pads": SPATIAL, "one": ONE}),
    "Pad that shifts channels": (node("Pad", "c pads", "m"), {"pads": np.array([0, 1, 0, 0, 0, -1, 0, 0])}),
    "Concat along another axis": (node("Concat", "c c", "m", axis=2), {}),
    "Transpose": (node("Transpose", "c", "m", perm=[0, 1, 3, 2]), {}),
    "ConvTranspose": (node("ConvTranspose", "c t", "m"), {"t": normal(4, 4, 2, 2, seed=6)}),
    "BatchNormalization": (node("BatchNormalization", "c s b m_ v", "m"), {}),
    "a function of channels": (node("Gelu", "c", "m"), {}),
}


@pytest.mark.parametrize("case", PASSING)
def test_a_factor_passes(case):
    middle, constants = PASSING[case]
    assert assert_kept(between_convs([middle], constants)).count == 4


@pytest.mark.parametrize("case", STAYING)
def test_a_factor_stops(case):
    middle, constants = STAYING[case]
    if middle.op_type == "BatchNormalization":
        constants = {{"m": "m_"}.get(name, name): array for name, array in bn_constants(4).items()}
    proto = between_convs([middle], constants, opset=20 if middle.op_type == "Gelu" else 17)
    assert assert_kept(proto).count == 0


def test_a_gate_of_another_branch_lets_factors_pass():
    """Squeeze-and-excite: the gate keeps its own channels, and those that it multiplies are free."""
    gate = [node("GlobalAveragePool", "c", "p"), node("Conv", "p g", "q"), node("Sigmoid", "q", "s")]
    for operands in ("c s", "s c"):
        proto = between_convs([*gate, node("Mul", operands, "m")], {"g": normal(4, 4, 1, 1, seed=7)})
        channels = assert_kept(proto)
        assert channels.count == 4
        assert (channels.of_value["q"] == FIXED).all()


def test_parts_of_the_channels():
    """Slice and Split take the variables of their channels along, and a Concat lines them up again."""
    slices = [node("Slice", "c zero two one", "a"), node("Slice", "c two four one", "b")]
    indices = {name: np.array([number]) for number, name in enumerate(("zero", "one", "two", "three", "four"))}
    for nodes, constants in (
        (slices, indices),
        ([node("Split", "c sizes", "a b", axis=1)], {"sizes": np.array([2, 2])}),
    ):
        channels = assert_kept(between_convs([*nodes, node("Concat", "b a", "m", axis=1)], constants))
        first, second, third, fourth = channels.of_value["c"].tolist()
        assert channels.count == 4
        assert channels.of_value["m"].tolist() == [third, fourth, first, second]


def test_axes_of_opset_18():
    pad = node("Pad", "c pads _ axes", "m")
    for axes, count in ((np.array([3]), 4), (np.array([-3]), 0)):
        proto = between_convs([pad], {"pads": np.array([1, -1]), "axes": axes}, opset=18)
        assert assert_kept(proto).count == count
    mean = node("ReduceMean", "c axes", "m")
    assert assert_kept(between_convs([mean], {"axes": np.array([-1, -2])}, opset=18)).count == 4
    everything = node("ReduceMean", "c", "m")
    assert assert_kept(between_convs([everything], channels=1, opset=18)).count == 0


@pytest.mark.parametrize("limit", ["low", "high"])
def test_a_limit_that_is_an_input(limit):
    names = {"low": "c limit", "high": "c zero limit"}[limit]
    constants = {} if limit == "low" else {"zero": ZERO}
    proto = between_convs([node("Clip", names, "m")], constants, inputs=[IMAGE_INPUT, info("limit", [])])
    feeds = {"x": normal(1, 3, 8, 8, seed=4), "limit": np.array(0.5, np.float32)}
    assert assert_kept(proto, feeds=feeds).count == 0


def test_slopes_that_are_computed_stay():
    nodes = [node("Conv", "x w3", "e"), node("PRelu", "c e", "m")]
    assert assert_kept(between_convs(nodes, {"w3": normal(4, 3, 3, 3, seed=5)})).count == 0


def test_a_chain_has_a_variable_for_each_channel_between_layers():
    nodes = [node("Conv", "x w1 b1", "c"), node("Relu", "c", "r"), node("Conv", "r w2", "d"), node("Conv", "d w3", "y")]
    weights = {"w1": normal(4, 3, 3, 3), "b1": normal(4, seed=1), "w2": normal(5, 4, 1, 1), "w3": normal(2, 5, 3, 3)}
    channels = assert_kept(build(nodes, "y", weights))
    assert channels.count == 9
    assert (channels.of_value["x"] == FIXED).all()
    assert (channels.of_value["y"] == FIXED).all()
    assert channels.of_value["c"].tolist() == channels.of_value["r"].tolist()
    assert [layer.node.outputs[0].name for layer in channels.layers] == ["c", "d", "y"]


@pytest.mark.parametrize(("group", "outputs"), [(4, 4), (4, 8), (4, 12), (2, 4), (2, 6)], ids=lambda value: f"{value}")
def test_groups(group, outputs):
    """Depthwise, with a depth multiplier, and groups of several channels."""
    nodes = [
        node("Conv", "x w1 b1", "c"),
        node("Relu", "c", "r"),
        node("Conv", "r w2 b2", "d", group=group, pads=[1, 1, 1, 1]),
        node("Relu", "d", "s"),
        node("Conv", "s w3", "y"),
    ]
    weights = {
        "w1": normal(4, 3, 1, 1),
        "b1": normal(4, seed=1),
        "w2": normal(outputs, 4 // group, 3, 3, seed=2),
        "b2": normal(outputs, seed=3),
        "w3": normal(3, outputs, 1, 1, seed=4),
    }
    assert assert_kept(build(nodes, "y", weights)).count == 4 + outputs


def test_residual_adds_share_one_factor():
    nodes = [node("Conv", "x w0", "stem")]
    weights = {"w0": normal(4, 3, 3, 3) / 4}
    before = "stem"
    for block in ("a", "b", "c"):
        nodes += [
            node("Conv", f"{before} {block}1", f"{block}c"),
            node("Relu", f"{block}c", f"{block}r"),
            node("Conv", f"{block}r {block}2", f"{block}d"),
            node("Add", f"{block}d {before}", f"{block}s"),
            node("Relu", f"{block}s", f"{block}o"),
        ]
        weights |= {f"{block}1": normal(5, 4, 1, 1, seed=1) / 4, f"{block}2": normal(4, 5, 1, 1, seed=2) / 4}
        before = f"{block}o"
    channels = assert_kept(build([*nodes, node("Conv", "co w9", "y")], "y", weights | {"w9": normal(2, 4, 1, 1)}))
    assert channels.count == 4 + 3 * 5
    assert len({tuple(channels.of_value[name]) for name in ("stem", "ao", "bd", "co")}) == 1


def test_a_residual_that_ends_in_a_graph_output_stays_in_all_its_branches():
    channels = assert_kept(residual())
    assert channels.count == 0
    assert len(channels.layers) == 2


def test_an_add_of_a_graph_input_stays():
    proto = between_convs([node("Add", "c z", "m")], inputs=[IMAGE_INPUT, info("z", (1, 4, 6, 6))])
    assert assert_kept(proto).count == 0


@pytest.mark.parametrize("shape", [(1, 1, 6, 6), (1, 4, 1, 1)])
def test_an_add_that_broadcasts(shape):
    nodes = [node("Conv", "z w3", "e"), node("Add", "c e", "m")]
    inputs = [IMAGE_INPUT, info("z", (1, 2, *shape[2:]))]
    channels = assert_kept(between_convs(nodes, {"w3": normal(shape[1], 2, 1, 1)}, inputs=inputs))
    assert channels.count == (4 if shape[1] == 4 else 0)


def test_an_add_of_other_axes_ties_nothing():
    """The four columns of a matrix are added along the width, not to the four channels."""
    nodes = [
        node("Conv", "x w1", "c"),
        node("Gemm", "z g", "e"),
        node("Add", "c e", "m"),
        node("Conv", "m w2", "y"),
    ]
    weights = {"w1": normal(4, 3, 1, 1), "g": normal(5, 4), "w2": normal(2, 4, 1, 1)}
    proto = build(nodes, "y", weights, [info("x", (1, 3, 4, 4)), info("z", (4, 5))])
    assert assert_kept(proto).count == 0


def test_concat_of_branches_and_of_one_value_twice():
    nodes = [
        node("Conv", "x w3", "e"),
        node("Relu", "e", "f"),
        node("Concat", "c f c", "m", axis=1),
    ]
    channels = assert_kept(between_convs(nodes, {"w3": normal(3, 3, 3, 3)}, channels=11))
    assert channels.count == 7
    joined = channels.of_value["m"].tolist()
    assert joined[:4] == joined[7:]
    assert assert_kept(between_convs([node("Concat", "c c", "m", axis=1)], channels=8)).count == 4


def test_concat_of_what_has_no_channels():
    """A part whose channels nobody knows: those beside it stay, and are not counted off from the wrong end."""
    inputs = [IMAGE_INPUT, info("z", (1, None, 6, 6))]
    proto = between_convs([node("Concat", "z c", "m", axis=1)], channels=8, inputs=inputs)
    feeds = {"x": normal(1, 3, 8, 8, seed=4), "z": normal(1, 4, 6, 6, seed=5)}
    assert assert_kept(proto, feeds=feeds).count == 0
    along_rows = between_convs([node("Concat", "z c", "m", axis=2)], inputs=inputs)
    assert assert_kept(along_rows, feeds=feeds).count == 0
    constant = between_convs([node("Concat", "k c", "m", axis=1)], {"k": normal(1, 4, 6, 6)}, channels=8)
    assert assert_kept(constant).count == 0


HEADS = {
    "pooled and flattened": ([node("GlobalAveragePool", "c", "p"), node("Flatten", "p", "f")], 4),
    "pooled and reshaped": ([node("GlobalAveragePool", "c", "p"), node("Reshape", "p row", "f")], 4),
    "pooled and squeezed": ([node("GlobalAveragePool", "c", "p"), node("Squeeze", "p places", "f")], 4),
    "a map flattened": ([node("Flatten", "c", "f")], 144),
    "a map flattened from behind": ([node("Flatten", "c", "f", axis=-3)], 144),
    "a map reshaped": ([node("Reshape", "c row", "f")], 144),
    "averaged": ([node("ReduceMean", "c", "f", axes=[2, 3], keepdims=0)], 4),
    "averaged, axes kept": ([node("ReduceMean", "c", "p", axes=[2, 3], keepdims=1), node("Flatten", "p", "f")], 4),
}


@pytest.mark.parametrize("head", HEADS)
def test_heads(head):
    nodes, inputs = HEADS[head]
    weights = {
        "w1": normal(4, 3, 3, 3),
        "g": normal(inputs, 5, seed=1) / 8,
        "row": np.array([1, -1]),
        "places": np.array([2, 3]),
    }
    proto = build([node("Conv", "x w1", "c"), *nodes, node("Gemm", "f g", "y")], "y", weights)
    assert assert_kept(proto).count == 4


GEMMS = {
    "plain": ({}, None),
    "transposed": ({"transB": 1}, None),
    "bias": ({}, (5,)),
    "transposed, bias": ({"transB": 1}, (5,)),
    "bias of two axes": ({"transB": 1}, (1, 5)),
    "half the bias": ({"beta": 0.5}, (5,)),
}


@pytest.mark.parametrize("kind", GEMMS)
def test_gemms(kind):
    attributes, bias = GEMMS[kind]
    first, second = normal(6, 5, seed=1), normal(5, 3, seed=2)
    weights = {"g": first.T if "transB" in attributes else first, "h": second}
    if bias is not None:
        weights["b"] = normal(*bias, seed=3)
    nodes = [
        node("Gemm", "x g b" if bias else "x g", "c", **attributes),
        node("Relu", "c", "r"),
        node("Gemm", "r h", "y"),
    ]
    channels = assert_kept(build(nodes, "y", weights, [info("x", (2, 6))]))
    assert channels.count == 5


@pytest.mark.parametrize(
    ("attributes", "shape", "bias"),
    [
        ({"alpha": 2.0}, (2, 6), (5,)),
        ({"transA": 1}, (6, 2), (5,)),
        ({}, (2, 6), (1,)),
        ({}, (2, 6), (2, 5)),
        ({}, (5, 6), (5, 1)),
    ],
)
def test_gemms_that_stay(attributes, shape, bias):
    nodes = [node("Gemm", "x g b", "c", **attributes), node("Relu", "c", "r"), node("Gemm", "r h", "y")]
    weights = {"g": normal(6, 5, seed=1), "h": normal(5, 3, seed=2), "b": normal(*bias, seed=3)}
    assert assert_kept(build(nodes, "y", weights, [info("x", shape)])).count == 0


def test_a_gemm_of_doubles_stays_one():
    nodes = [node("Gemm", "x g", "c"), node("Relu", "c", "r"), node("Gemm", "r h", "y")]
    weights = {"g": normal(6, 5).astype(np.float64), "h": normal(5, 3).astype(np.float64)}
    assert assert_kept(build(nodes, "y", weights, [info("x", (2, 6), TensorProto.DOUBLE)])).count == 0


MISLEADING = {
    "a sample over two rows": ([node("Reshape", "c shape", "m")], {"shape": np.array([2, 8])}, (1, 3, 2, 2), 8),
    "channels as rows": ([node("Flatten", "c", "m", axis=2)], {}, (1, 3, 2, 2), 4),
    "the whole batch in one row": ([node("Flatten", "c", "m", axis=0)], {}, (2, 3, 2, 2), 32),
    "no batch axis": ([node("Squeeze", "c axes", "m")], {"axes": np.array([0, 2])}, (1, 3, 1, 4), 4),
}


@pytest.mark.parametrize("case", MISLEADING)
def test_rows_that_are_not_samples(case):
    """Sizes that happen to fit do not make axis 1 the axis of channels."""
    nodes, constants, shape, inputs = MISLEADING[case]
    weights = {"w1": normal(4, 3, 1, 1), "g": normal(inputs, 3, seed=1)}
    model = build(
        [node("Conv", "x w1", "c"), *nodes, node("Gemm", "m g", "y")], "y", weights | constants, [info("x", shape)]
    )
    assert assert_kept(model).count == 0


@pytest.mark.parametrize("axes", [[0], [1]])
def test_a_mean_that_moves_the_channels(axes):
    nodes = [node("Conv", "x w1", "c"), node("ReduceMean", "c", "m", axes=axes, keepdims=0), node("Conv", "m w2", "y")]
    weights = {"w1": normal(4, 3, 1, 1), "w2": normal(2, 4, 1)}
    assert assert_kept(build(nodes, "y", weights, [info("x", (4, 3, 4, 4))])).count == 0


@pytest.mark.parametrize("places", [(9,), (4, 4, 4)])
def test_convolutions_of_one_and_three_dimensions(places):
    taps = [2] * len(places)
    nodes = [node("Conv", "x w1 b1", "c"), node("Relu", "c", "r"), node("Conv", "r w2", "y")]
    weights = {"w1": normal(4, 3, *taps), "b1": normal(4, seed=1), "w2": normal(2, 4, *taps, seed=2)}
    assert assert_kept(build(nodes, "y", weights, [info("x", (1, 3, *places))])).count == 4


def test_values_that_someone_else_sees_stay():
    nodes = [node("Conv", "x w1", "c"), node("Relu", "c", "r"), node("Conv", "r w2", "y")]
    weights = {"w1": normal(4, 3, 3, 3), "w2": normal(2, 4, 1, 1)}
    assert assert_kept(build(nodes, "r y", weights)).count == 0
    assert assert_kept(build([*nodes, node("Sigmoid", "c", "z")], "y z", weights)).count == 0


def test_values_captured_by_a_body_stay():
    nodes = [node("Conv", "x w1", "c"), node("Relu", "c", "r"), node("Conv", "r w2", "y"), if_reading("c")]
    weights = {"w1": normal(4, 3, 3, 3), "w2": normal(2, 4, 1, 1)}
    proto = build(nodes, [info("y", (1, 2, 6, 6)), info("picked", [None] * 4)], weights, [IMAGE_INPUT, flag_input()])
    assert assert_kept(proto).count == 0


def test_a_weight_of_two_nodes_stays():
    nodes = [node("Conv", "x w1", "c"), node("Conv", "c w2", "d"), node("Conv", "d w2", "e"), node("Conv", "e w3", "y")]
    weights = {"w1": normal(4, 3, 1, 1), "w2": normal(4, 4, 1, 1, seed=1), "w3": normal(2, 4, 1, 1, seed=2)}
    assert assert_kept(build(nodes, "y", weights)).count == 0


def test_a_bias_of_two_nodes_stays():
    nodes = [node("Conv", "x w1 b", "c"), node("Conv", "c w2 b", "d"), node("Conv", "d w3", "y")]
    weights = {"w1": normal(4, 3, 1, 1), "b": normal(4), "w2": normal(4, 4, 1, 1, seed=1), "w3": normal(2, 4, 1, 1)}
    assert assert_kept(build(nodes, "y", weights)).count == 0


def test_a_weight_that_is_an_input_stays():
    proto = between_convs([node("Conv", "c w3", "m")], inputs=[IMAGE_INPUT, info("w3", (4, 4, 1, 1))])
    assert assert_kept(proto).count == 0


def test_a_weight_that_is_a_graph_output_stays():
    nodes = [node("Conv", "x w1", "c"), node("Conv", "c w2", "y")]
    weights = {"w1": normal(4, 3, 1, 1), "w2": normal(2, 4, 1, 1)}
    proto = build(nodes, [info("y", (1, 2, 8, 8)), info("w1", (4, 3, 1, 1))], weights)
    model = as_ir(proto)
    assert map_channels(model).count == 0


@pytest.mark.parametrize("held", ["w3", "b3"])
def test_weights_of_constant_nodes_stay(held):
    """They are not where new ones would be written."""
    constants = {"w3": normal(4, 4, 1, 1, seed=5), "b3": normal(4, seed=6)}
    kept = helper.make_node("Constant", [], [held], name="kept", value=numpy_helper.from_array(constants.pop(held)))
    assert assert_kept(between_convs([kept, node("Conv", "c w3 b3", "m")], constants)).count == 0


def test_unknown_channels():
    """Nothing is known of them, so nothing is done; whatever the sizes after them."""
    nodes = [
        node("Relu", "x", "r"),
        node("Clip", "r zero six", "l"),
        node("Reshape", "l row", "f"),
        node("Gemm", "f g", "h"),
        node("Gemm", "h k", "y"),
    ]
    constants = {"row": np.array([1, 48]), "g": normal(48, 4), "k": normal(4, 2), "zero": ZERO, "six": np.float32(6)}
    proto = build(nodes, "y", constants, [info("x", (1, None, 4, 4))])
    channels = assert_kept(proto, feeds={"x": normal(1, 3, 4, 4, seed=4)})
    assert channels.count == 4
    assert channels.ceilings == []


def test_other_domains_stay():
    model = as_ir(between_convs([node("Relu", "c", "m")]))
    assert map_channels(model).count == 4
    find(model, "relu_m").domain = "mine"
    assert map_channels(model).count == 0


def test_ceilings():
    """Only Clips from 0 to a number that limit a channel which can be rescaled."""
    six = {"zero": ZERO, "six": np.float32(6)}
    (ceiling,) = map_channels(as_ir(between_convs([node("Clip", "c zero six", "m")], six))).ceilings
    assert (ceiling.node.op_type, ceiling.bound) == ("Clip", 6.0)
    seen = [node("Clip", "c zero six", "m"), node("Sigmoid", "c", "s"), node("Mul", "s m", "t")]
    assert map_channels(as_ir(between_convs(seen, six))).ceilings == []


def test_factors_of_another_model():
    with pytest.raises(UsageError, match="with 3 factors of channels and Clips; prepared in this way it has 4"):
        equalize_again(as_ir(between_convs([node("Relu", "c", "m")])), [0.0] * 3)


def test_a_value_times_its_own_relu_stays():
    channels = assert_kept(between_convs([node("Relu", "c", "r"), node("Mul", "c r", "m")]))
    assert channels.count == 0


DAMAGED = {
    "a slice of a scalar": ([node("Slice", "s one one zero", "y")], "s"),
    "more starts than ends": ([node("Slice", "x two one zero", "y")], "x"),
    "a split of a scalar": ([node("Split", "s", "y z", num_outputs=2)], "s"),
    "pads for other axes": ([node("Pad", "x six", "y")], "x"),
    "a mean of a scalar": ([node("ReduceMean", "s", "y", axes=[0])], "s"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_operators_that_contradict_their_input_stop_factors(case):
    nodes, source = DAMAGED[case]
    constants = {"zero": np.array([0]), "one": np.array([1]), "two": np.array([0, 1]), "six": np.zeros(6, np.int64)}
    model = as_ir(make(nodes, {source: [] if source == "s" else [1, 4]}, {"y": None}, constants))
    assert map_channels(model).count == 0


def test_a_size_that_no_memory_holds_is_no_number_of_channels():
    model = as_ir(make([node("Relu", "x", "y")], {"x": [1, 1 << 60]}, {"y": None}))
    assert map_channels(model).count == 0
