from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from detent.emit.qoperator_form import ToQOperator
from tests.emit.qoperator.forms import FEEDS, assert_same, exact_run, forms, forms_of
from tests.models import IMAGE, build, conv_relu_conv, hard_swish, info, leaky, node, normal, residual, run

PARAMETERS = {
    "sx": np.float32(0.03),
    "zx": np.uint8(120),
    "sw": np.float32(0.02),
    "zw": np.int8(0),
    "sy": np.float32(0.2),
    "zy": np.uint8(110),
    "w": np.random.default_rng(3).integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
}
QUANTIZE = [node("QuantizeLinear", "x sx zx", "xq"), node("DequantizeLinear", "xq sx zx", "xd")]
CONV = [*QUANTIZE, node("DequantizeLinear", "w sw zw", "wd"), node("Conv", "xd wd", "c")]
RESULT = [node("QuantizeLinear", "c sy zy", "cq"), node("DequantizeLinear", "cq sy zy", "y")]


def qdq(nodes, outputs="y", changes=None, **options):
    held = PARAMETERS | (changes or {})
    read = {name for one in nodes for name in one.input}
    return forms_of(build(nodes, outputs, {name: held[name] for name in held if name in read}, **options))


def test_notes_say_what_was_done_and_what_was_not():
    from detent.emit import emit
    from tests.models import planned

    model, plan = planned(hard_swish(), FEEDS)
    emit(model, plan)
    rewrite = ToQOperator()
    rewrite(model)
    assert [(note.node, note.what) for note in rewrite.changes] == [
        ("conv_c", "Conv computes on codes: QLinearConv"),
        ("mul_y", "Mul computes on codes: QLinearMul"),
    ]
    assert [(note.node, note.what, note.by) for note in rewrite.declined] == [
        ("hardsigmoid_h", "there is no integer operator for HardSigmoid", "ToQOperator")
    ]


def test_a_node_that_is_left_keeps_its_pairs_around_it():
    both = forms(hard_swish())
    assert both.operators == [
        *("QuantizeLinear", "QLinearConv", "DequantizeLinear", "HardSigmoid", "QuantizeLinear", "QLinearMul"),
        "DequantizeLinear",
    ]
    assert_same(both, ties=0.02)


def test_a_function_that_is_no_cut_keeps_its_layer_float():
    both = forms(leaky())
    assert both.between == ["Conv", "LeakyRelu"]
    assert "read as float by LeakyRelu 'leakyrelu_y'" in both.declined[0].what


def test_a_plain_layer():
    both = qdq([*CONV, *RESULT])
    assert both.operators == ["QuantizeLinear", "QLinearConv", "DequantizeLinear"]
    assert_same(both, ties=0.004)


def test_onnxruntimes_twins_of_the_pair():
    nodes = [onnx.NodeProto.FromString(one.SerializeToString()) for one in [*CONV, *RESULT]]
    for one in nodes:
        one.domain = "com.microsoft" if one.op_type != "Conv" else ""
    held = {name: PARAMETERS[name] for name in PARAMETERS}
    proto = build([*CONV, *RESULT], "y", held)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    both = forms_of(proto)
    assert both.operators == ["QuantizeLinear", "QLinearConv", "DequantizeLinear"] and both.declined == []
    assert_same(both, ties=0.004)


def test_parameters_as_vectors_of_one_become_scalars():
    changes = {name: PARAMETERS[name].reshape(1) for name in ("sx", "zx", "sw", "zw", "sy", "zy")}
    both = qdq([*CONV, *RESULT], changes=changes)
    shapes = {held.name: list(held.dims) for held in both.integer.graph.initializer}
    layer = next(one for one in both.integer.graph.node if one.op_type == "QLinearConv")
    assert all(shapes[layer.input[index]] == [] for index in (1, 2, 4, 5, 6, 7))
    assert_same(both, ties=0.004)


def test_no_zero_point_means_zero():
    nodes = [
        *(node("QuantizeLinear", "x sx", "xq"), node("DequantizeLinear", "xq sx", "xd")),
        *(node("DequantizeLinear", "w sw", "wd"), node("Conv", "xd wd", "c"), *RESULT),
    ]
    both = qdq(nodes)
    assert both.between == ["QLinearConv"]
    assert_same(both, ties=0.004)


def test_a_weight_that_is_quantized_in_the_graph():
    weight = [node("QuantizeLinear", "wf sw zw", "wq"), node("DequantizeLinear", "wq sw zw", "wd")]
    both = qdq([*QUANTIZE, *weight, CONV[-1], *RESULT], changes={"wf": normal(4, 3, 3, 3)})
    assert both.operators == ["QuantizeLinear", "QLinearConv", "DequantizeLinear"]
    assert np.array_equal(*(exact_run(one, FEEDS)["y"] for one in (both.integer, both.qdq)))


def test_a_result_that_is_a_graph_output_too_is_declined():
    both = qdq([*CONV, *RESULT], "y c")
    assert both.between == ["Conv"] and "is a graph output and not quantized" in both.declined[0].what


def test_a_result_that_is_also_read_as_float_is_declined():
    both = qdq([*CONV, *RESULT, node("Exp", "c", "e")], "y e")
    assert both.between == ["Conv", "Exp"] and "read as float by Exp" in both.declined[0].what


def test_a_result_that_is_quantized_twice_alike():
    again = [node("QuantizeLinear", "c sy zy", "cq2"), node("DequantizeLinear", "cq2 sy zy", "y2")]
    both = qdq([*CONV, *RESULT, *again], "y y2")
    assert both.operators == ["QuantizeLinear", "QLinearConv", "DequantizeLinear", "DequantizeLinear"]
    results = exact_run(both.integer, FEEDS)
    assert np.array_equal(results["y"], results["y2"])


def test_a_result_that_is_quantized_twice_differently_is_declined():
    again = [node("QuantizeLinear", "c sx zy", "cq2"), node("DequantizeLinear", "cq2 sx zy", "y2")]
    both = qdq([*CONV, *RESULT, *again], "y y2")
    assert "more than one scale" in both.declined[0].what


def test_codes_that_are_a_graph_output_keep_their_name():
    both = qdq([*CONV, RESULT[0]], "cq")
    assert both.operators == ["QuantizeLinear", "QLinearConv"]
    assert_same(both, ties=0.004)


def test_codes_that_pass_through_to_a_graph_output():
    nodes = [*QUANTIZE, node("Relu", "xd", "r"), node("QuantizeLinear", "r sx zx", "rq")]
    both = qdq(nodes, "rq")
    assert both.operators == ["QuantizeLinear", "Clip"]
    assert_same(both)


def test_a_pair_on_the_same_grid_goes():
    nodes = [*CONV, *RESULT[:1], node("DequantizeLinear", "cq sy zy", "cd"), node("QuantizeLinear", "cd sy zy", "c2")]
    both = qdq([*nodes, node("DequantizeLinear", "c2 sy zy", "y")])
    assert both.operators == ["QuantizeLinear", "QLinearConv", "DequantizeLinear"]
    assert_same(both, ties=0.004, gone=["c2"])


def test_a_scale_that_is_computed_is_declined():
    nodes = [*CONV[:2], node("Abs", "sw", "s2"), node("DequantizeLinear", "w s2 zw", "wd"), CONV[-1], *RESULT]
    both = qdq(nodes)
    assert "Conv" in both.operators and "is not constant" in both.declined[-1].what


@pytest.mark.parametrize("kind", [np.uint16, np.int16])
def test_16_bit_codes_are_declined(kind):
    both = qdq([*CONV, *RESULT], changes={"zx": kind(20)}, opset=21)
    assert "INT16 codes" in both.declined[0].what


def test_signed_codes_of_an_unsigned_input_are_declined():
    both = qdq([*CONV, *RESULT], changes={"zy": np.int8(3)})
    assert "must have INT8, as the result has" in both.declined[0].what


def test_zero_points_that_differ_between_channels_are_declined():
    changes = {"sw": np.full(4, 0.02, np.float32), "zw": np.array([0, 1, 0, 0], np.int8)}
    nodes = [*QUANTIZE, node("DequantizeLinear", "w sw zw", "wd", axis=0), CONV[-1], *RESULT]
    assert "different zero points" in qdq(nodes, changes=changes).declined[0].what


def test_scales_along_another_axis_are_declined():
    changes = {"sw": np.full(3, 0.02, np.float32), "zw": np.zeros(3, np.int8)}
    nodes = [*QUANTIZE, node("DequantizeLinear", "w sw zw", "wd", axis=-3), CONV[-1], *RESULT]
    assert "not along its output channels" in qdq(nodes, changes=changes).declined[0].what


def test_a_split_with_an_output_that_nobody_wants_keeps_its_parts():
    split = helper.make_node("Split", ["xd"], ["", "b", ""], name="split", axis=1)
    proto = build([*QUANTIZE, node("Identity", "xd", "b"), node("QuantizeLinear", "b sx zx", "bq")], "bq", PARAMETERS)
    proto.graph.node[2].CopyFrom(split)
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = ir.from_proto(proto)
    rewrite = ToQOperator()
    rewrite(model)
    assert [(note.node, note.what) for note in rewrite.declined] == [("split", "one of its outputs is not used")]


def test_before_opset_12_nothing_cuts_codes():
    nodes = [*CONV, node("Relu", "c", "r"), node("QuantizeLinear", "r sy zy", "cq"), RESULT[1]]
    both = qdq(nodes, opset=11)
    assert "Clip on integers needs opset 12" in both.declined[0].what


def test_the_body_of_an_if_still_reads_what_it_captures():
    then = helper.make_graph([node("Exp", "xd", "e1")], "then", [], [info("e1", IMAGE)])
    other = helper.make_graph([node("Neg", "xd", "e2")], "else", [], [info("e2", IMAGE)])
    choice = helper.make_node("If", ["flag"], ["z"], name="choice", then_branch=then, else_branch=other)
    inputs = [info("x", IMAGE), info("flag", [], TensorProto.BOOL)]
    both = qdq([*CONV, *RESULT, choice], "y z", inputs=inputs)
    assert both.operators == ["QuantizeLinear", "DequantizeLinear", "QLinearConv", "DequantizeLinear", "If"]
    feeds = FEEDS | {"flag": np.array(True)}
    assert np.array_equal(run(both.qdq, feeds)["z"], exact_run(both.integer, feeds)["z"])


class Samples(CalibrationDataReader):
    def __init__(self):
        self._rest = iter([{"x": FEEDS["x"]}])

    def get_next(self):
        return next(self._rest, None)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("maker", [conv_relu_conv, residual])
def test_what_onnxruntimes_quantizer_writes(maker, per_channel, tmp_path):
    source, target = tmp_path / "float.onnx", tmp_path / "qdq.onnx"
    onnx.save(maker(), source)
    quantize_static(
        str(source),
        str(target),
        Samples(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        per_channel=per_channel,
    )
    both = forms_of(onnx.load(target))
    assert both.declined == [] and both.operators.count("QuantizeLinear") == 1
    assert_same(both, ties=0.01)


def test_the_rewrite_is_deterministic():
    first, second = (forms(residual()).integer.SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_a_rewritten_model_is_left_alone():
    once = forms(residual()).integer
    model = ir.from_proto(once)
    rewrite = ToQOperator()
    rewrite(model)
    assert rewrite.changes == rewrite.declined == []
