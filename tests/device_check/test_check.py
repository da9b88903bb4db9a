from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import detent
from detent.convert import convert
from detent.devices.constraints import SHIFTS
from detent.emit import emit
from detent.errors import ModelError, UsageError
from detent.recipe.file import find_recipe
from tests.conftest import tiny_model
from tests.models import (
    IMAGE,
    SMALL_MODELS,
    build,
    concat,
    conv_relu_conv,
    info,
    leaky,
    node,
    normal,
    plan_at,
    residual,
)

DATA = normal(4, *IMAGE[1:], seed=5)
WRITTEN = {"kernel_shape": [1, 1], "strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1], "group": 1}


def quantized(proto, recipe="XINT8", **options) -> onnx.ModelProto:
    given = find_recipe(recipe) if isinstance(recipe, str) else recipe
    chosen = given.replace(refinement=None, equalize=False)
    return detent.quantize(proto, calibration=DATA, recipe=chosen, **options).model


def errors(check) -> list[tuple[str, str]]:
    return [(finding.node, finding.what) for finding in check.errors]


def two_convs(*between: onnx.NodeProto, **constants) -> onnx.ModelProto:
    """Two 1x1 layers with all attributes, from x to a and from b to y; `between` leads from a to b."""
    first, last = node("Conv", "x w1", "a", **WRITTEN), node("Conv", "b w2", "y", **WRITTEN)
    weights = {"w1": normal(4, 3, 1, 1), "w2": normal(2, 4, 1, 1, seed=1)}
    return build([first, *between, last], "y", weights | constants)


@pytest.mark.parametrize("recipe", ["XINT8", "A8W8", "A16W8", "BF16"])
@pytest.mark.parametrize("name", ["conv_relu_conv", "residual", "concat", "pools"])
def test_what_detent_writes_is_taken(recipe, name):
    report = detent.quantize(SMALL_MODELS[name](), calibration=DATA, recipe=recipe)
    found = detent.check(report.model, f"npu-{recipe.lower()}")
    single = name == "pools"
    assert (found.verdict, found.subgraphs, found.cpu_nodes) == ("accepted", 1, 0)
    assert [each.what for each in found.warnings] == (["it has a single Conv"] if single else [])
    assert report.device.verdict == "accepted"
    assert (report.device.subgraphs, report.device.nodes) == (found.subgraphs, found.nodes)


@pytest.mark.parametrize(("name", "device"), [("Sigmoid", "HardSigmoid"), ("ReduceMean", "ReduceMean")])
def test_what_only_some_generations_take_is_counted_for_the_others_too(name, device):
    between = [node("Sigmoid", "a", "b")]
    if name == "ReduceMean":
        between = [node("ReduceMean", "a", "m", axes=[3], keepdims=0), node("Reshape", "m s", "b")]
    found = detent.check(quantized(two_convs(*between, s=np.array([1, 4, 8, 1]))), "npu-xint8")
    if name == "Sigmoid":
        assert (found.verdict, found.subgraphs) == ("accepted", 1)
    assert found.elsewhere.generations == ("stx", "krk", "strix-halo")
    assert found.elsewhere.operators == (device,)
    assert (found.elsewhere.device_nodes, found.elsewhere.subgraphs) == (found.device_nodes - 1, 2)
    assert f"on stx, krk, strix-halo, which leave {device} to the CPU, {found.device_nodes - 1} in 2" in str(found)
    assert detent.check(quantized(two_convs(*between, s=np.array([1, 4, 8, 1]))), "stx").elsewhere is None


def test_a_single_layer_is_said_to_be_doubtful_once():
    model = quantized(SMALL_MODELS["pools"]())
    assert "may leave all of it to the CPU, since it has a single Conv; else" in str(detent.check(model))
    on_phoenix = detent.check(model, "phx")
    assert not [each for each in on_phoenix.warnings if "Conv" in each.what + each.why]
    assert "takes all of it" in str(on_phoenix)


def test_a_loop_over_what_its_body_takes_from_outside_is_no_constant():
    """All inputs of the Loop are constants; what it adds up is not, as in recurrent networks of TensorFlow.

    So many trips are not written out.
    """
    state = [info("at", (), TensorProto.INT64), info("go", (), TensorProto.BOOL), info("h", (1, 4, 8, 8))]
    steps = [node("Identity", "go", "on"), node("Add", "h a", "next")]
    body = helper.make_graph(steps, "body", state, [info("on", (), TensorProto.BOOL), info("next", (1, 4, 8, 8))])
    loop = helper.make_node("Loop", ["trips", "yes", "zero"], ["b"], name="loop", body=body)
    nodes = [node("Conv", "x w1", "a", **WRITTEN), loop, node("Conv", "b w2", "y", **WRITTEN)]
    constants = {"trips": np.array(1000), "yes": np.array(True), "zero": np.zeros((1, 4, 8, 8), np.float32)}
    constants |= {"w1": normal(4, 3, 1, 1), "w2": normal(2, 4, 1, 1)}
    found = detent.check(build(nodes, [info("y", (1, 2, 8, 8))], constants), "npu-xint8")
    assert [(each.op_type, each.subgraph is None) for each in found.nodes] == [
        ("Conv", False),
        ("Loop", True),
        ("Conv", False),
    ]


def test_nodes_and_multiplications():
    found = detent.check(quantized(conv_relu_conv()))
    assert [(each.op_type, each.subgraph) for each in found.nodes] == [("Conv", 1), ("Relu", 1), ("Conv", 1)]
    assert (found.device_macs, found.cpu_macs) == (4 * 36 * 27 + 2 * 36 * 4, 0)
    assert (found.quantized, found.recipe, found.target) == (True, "", "npu-xint8")


def test_a_float_model_is_what_it_will_become():
    found = detent.check(conv_relu_conv())
    assert (found.quantized, found.recipe, found.verdict) == (False, "XINT8", "accepted")
    assert {(each.level, each.op_type) for each in found.findings} == {("note", "Conv")}
    assert "WriteAttributes" in found.findings[0].fix


def test_attributes_have_to_be_written_out_where_nothing_is_quantized():
    found = detent.check(conv_relu_conv(), "npu-bf16")
    assert [node for node, _ in errors(found)] == ["conv_c1", "conv_y"]
    assert "kernel_shape, strides, pads, dilations, group" in found.errors[0].what
    assert detent.check(two_convs(node("Relu", "a", "b")), "npu-bf16").verdict == "accepted"


def test_automatic_padding():
    attributes = WRITTEN | {"auto_pad": "VALID"}
    model = build([node("Conv", "x w", "y", **attributes)], "y", {"w": normal(4, 3, 1, 1)})
    assert errors(detent.check(model, "npu-bf16")) == [("conv_y", "its padding is automatic")]


def test_an_open_batch_and_what_mends_it(tmp_path, samples):
    model = detent.quantize(tiny_model(), calibration=samples, keep_batch=True).model
    found = detent.check(model)
    assert (found.verdict, found.device_nodes, found.subgraphs) == ("rejected", 3, 1)
    assert errors(found) == [("", "the batch of input 'x' is not fixed")]
    assert "fixed-shapes:batch=1" in found.errors[0].fix
    convert(model, tmp_path / "fixed.onnx", "fixed-shapes:batch=1")
    assert detent.check(tmp_path / "fixed.onnx").verdict == "accepted"


@pytest.mark.parametrize(
    ("shape", "what", "fix"),
    [
        ((2, 3, 8, 8), "a batch of 2", "--to fixed-shapes:batch=1`"),
        (
            (1, 3, "H", 8),
            "the shape of input 'x' is not fixed",
            "--fix-shape x=1,3,H,8`, with your sizes instead of H",
        ),
        (
            ("N", 3, "H", "W"),
            "the shape of input 'x' is not fixed",
            "x=1,3,H,W`, with your sizes instead of H and W",
        ),
        ((None, 3, None, 8), "the shape of input 'x' is not fixed", "--fix-shape 'x=1,3,?,8'`"),
    ],
)
def test_other_shapes(shape, what, fix):
    nodes = [node("Conv", "x w", "a"), node("Relu", "a", "b"), node("Conv", "b v", "y")]
    constants = {"w": normal(4, 3, 1, 1), "v": normal(2, 4, 1, 1)}
    model = build(nodes, "y", constants, (info("x", shape),))
    found = detent.check(model)
    assert found.verdict == "rejected"
    assert what in found.errors[0].what
    assert fix in found.errors[0].fix


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(SMALL_MODELS)), st.data())
def test_a_file_breaks_the_rules_that_its_plan_breaks(name, data):
    proto = SMALL_MODELS[name]()
    sites = sorted(plan_at(proto)[1].layout.sites)
    positions = {site: data.draw(st.integers(-4, 30), site) for site in sites}
    model, plan = plan_at(proto, positions)
    planned = {(each.node, each.move.rule) for each in SHIFTS.violations(model, plan)}
    emit(model, plan)
    found = detent.check(ir.to_proto(model))
    read = {(each.node, each.what.split("'")[1]) for each in found.errors if "breaks the rule" in each.what}
    assert read == planned


def test_a_shift_cut_worked_out_by_hand():
    model, plan = plan_at(conv_relu_conv(), {"x": 10, "w1": 12, "b1": 12, "r1": 4})  # 12 + 10 - 4 = 18, and 16 is all
    emit(model, plan)
    found = detent.check(ir.to_proto(model))
    rules = [each for each in found.errors if "shift cut" in each.what]
    assert [(each.node, each.what.split(": ")[1]) for each in rules] == [
        ("conv_c1", f"position 12 of '{_weight(found)}' should be 10")
    ]


def _weight(found) -> str:
    return next(each.what for each in found.errors if "shift cut" in each.what).split("'")[3]


def change(proto, name, value) -> onnx.ModelProto:
    """Another number in an initializer."""
    tensor = next(each for each in proto.graph.initializer if each.name == name)
    array = np.full(tuple(tensor.dims), value, onnx.numpy_helper.to_array(tensor).dtype)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))
    return proto


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("x_scale", 0.3, "its activations are scaled by a number that is not a power of two"),
        ("x_zero_point", 127, "its activations are centred on code 127"),
        ("w1_zero_point", 3, "its weights are centred on code 3"),
    ],
)
def test_numbers_that_shifting_cannot_do(name, value, what):
    found = detent.check(change(quantized(conv_relu_conv()), name, value))
    assert ("conv_c1", what) in errors(found)
    assert (found.verdict, found.device_nodes) == ("partly", 2)


def test_scales_per_channel():
    recipe = find_recipe("A8W8").replace(
        weights=find_recipe("A8W8").weights.__class__("int8", granularity="per_channel")
    )
    model = detent.quantize(conv_relu_conv(), calibration=DATA, recipe=recipe).model
    assert detent.check(model, "npu-a8w8").verdict == "accepted"
    assert "its weights are scaled per channel" in {what for _, what in errors(detent.check(model, "npu-xint8"))}


@pytest.mark.parametrize(
    ("recipe", "flow"), [("XINT8", "npu-xint8"), ("A8W8", "npu-a8w8"), ("A16W8", "npu-a16w8"), ("BF16", "npu-bf16")]
)
def test_without_a_device_the_numbers_of_the_file_say_how_it_is_run(recipe, flow):
    found = detent.check(quantized(conv_relu_conv(), recipe))
    assert (found.target, found.verdict) == (flow, "accepted")


def test_a_bias_in_another_unit():
    model = change(quantized(conv_relu_conv(), "A8W8"), "b1_scale", 0.125)
    found = detent.check(model, "npu-a8w8")
    assert errors(found) == [("conv_c1", "the scale of its bias is not that of its input times that of its weights")]


def test_a_concat_of_several_scales_and_zero_points_off_the_middle():
    model = change(quantized(concat(), "A8W8"), "c1_scale", 0.5)
    found = detent.check(model, "npu-a8w8")
    assert [(each.node, each.what) for each in found.warnings] == [("concat_cat", "what it joins has several scales")]
    lopsided = detent.check(quantized(residual(), "S8S8_AAWS"), "npu-a8w8")
    assert lopsided.accepted
    assert "not symmetric" in lopsided.warnings[0].what


@pytest.mark.parametrize(
    ("recipe", "target"), [("A8W8", "npu-xint8"), ("XINT8", "npu-bf16"), ("BF16", "npu-a8w8"), ("A16W8", "npu-a8w8")]
)
def test_models_for_another_device(recipe, target):
    assert detent.check(quantized(residual(), recipe), target).verdict == "rejected"


def test_a_float_island_divides_the_device():
    model = quantized(two_convs(node("Relu", "a", "r"), node("Add", "r k", "b"), k=normal(1, seed=3)), exclude="add_b")
    found = detent.check(model)
    assert ("add_b", "its constant is not quantized") in errors(found)
    assert (found.verdict, found.subgraphs, found.cpu_nodes) == ("partly", 2, 1)


def test_two_things_that_are_missing_at_one_node():
    model = quantized(two_convs(node("Relu", "a", "r"), node("Add", "r k", "b"), k=normal(1, seed=3)), exclude="add_b")
    next(each for each in model.graph.node if each.op_type == "Add").input[0] = "r"
    for each in [each for each in model.graph.node if each.name.startswith("r_")]:
        model.graph.node.remove(each)
    assert ("add_b", "its input and constant are not quantized") in errors(detent.check(model))


def test_a_pair_that_is_missing():
    model = quantized(residual())
    # The Add reads its first operand unrounded.
    add = next(each for each in model.graph.node if each.op_type == "Add")
    add.input[0] = "c2"
    removed = [each for each in model.graph.node if each.name.startswith("c2_")]
    assert len(removed) == 2
    for each in removed:
        model.graph.node.remove(each)
    found = detent.check(model)
    assert errors(found) == [("conv_c2", "its result is not quantized"), ("add_s", "its input is not quantized")]


def test_operators_that_a_device_does_not_have():
    model = two_convs(node("Selu", "a", "b"))
    found = detent.check(model)
    assert [node for node, _ in errors(found)] == ["selu_b"]
    assert (found.subgraphs, found.device_nodes, found.cpu_nodes) == (2, 2, 1)
    assert detent.check(model, "cpu").verdict == "accepted"


def test_operators_that_preparing_mends():
    found = detent.check(two_convs(node("Sigmoid", "a", "b")))
    assert found.verdict == "accepted"
    mended = next(each for each in found.findings if each.op_type == "Sigmoid")
    assert (mended.level, "SigmoidToHardSigmoid" in mended.fix) == ("note", True)


def test_a_hard_sigmoid_of_another_slope():
    recipe = find_recipe("XINT8").replace(without=("set_hard_sigmoid_slope",))
    found = detent.check(quantized(two_convs(node("HardSigmoid", "a", "b", alpha=0.2)), recipe))
    assert ("hardsigmoid_b", "the device has this operator in another form") in errors(found)


def test_the_slope_of_a_leaky_relu():
    assert not [each for each in detent.check(quantized(leaky())).warnings if "slope" in each.what]
    model, plan = plan_at(leaky(0.1))
    emit(model, plan)
    found = detent.check(ir.to_proto(model))
    assert [each.what for each in found.warnings if each.op_type == "LeakyRelu"] == ["its slope is 0.1"]
    alone = detent.check(quantized(build([node("LeakyRelu", "x", "y", alpha=26 / 256)], "y")))
    assert [each.what for each in alone.warnings] == ["no layer stands right before it"]


def test_prelu_is_known_to_go_wrong_in_bfloat16():
    model = two_convs(node("PRelu", "a s", "b"), s=normal(4, 1, 1, seed=2))
    assert "compiled wrongly" in detent.check(model, "npu-bf16").errors[0].why
    assert detent.check(quantized(model)).accepted


def test_rounded_up_sizes():
    pool = node("MaxPool", "a", "b", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    assert [each.what for each in detent.check(quantized(two_convs(pool))).warnings] == [
        "it rounds its output size up (ceil_mode)"
    ]


def test_control_flow_domains_and_functions():
    branch = helper.make_graph([helper.make_node("Relu", ["a"], ["r"])], "then", [], [info("r", (1, 4, 8, 8))])
    other = helper.make_graph([helper.make_node("Neg", ["a"], ["n"])], "else", [], [info("n", (1, 4, 8, 8))])
    choice = node("If", "c", "b", then_branch=branch, else_branch=other)
    weights = {"w1": normal(4, 3, 1, 1), "w2": normal(2, 4, 1, 1, seed=1)}
    nodes = [node("Conv", "x w1", "a", **WRITTEN), choice, node("Conv", "b w2", "y", **WRITTEN)]
    inputs = (info("x", IMAGE), info("c", (), TensorProto.BOOL))
    found = detent.check(build(nodes, "y", weights, inputs))
    assert ("if_b", "it chooses what to compute at run time") in errors(found)
    assert found.subgraphs == 2


def test_operators_of_another_domain():
    model = two_convs(node("Relu", "a", "b"))
    model.graph.node[1].domain, model.graph.node[1].op_type = "my.own", "Magic"
    model.opset_import.append(helper.make_opsetid("my.own", 1))
    for target in ("npu-xint8", "npu-bf16", "cpu"):
        assert "relu_b" in [name for name, _ in errors(detent.check(model, target))]
    body = helper.make_function("my.own", "Magic", ["i"], ["o"], [helper.make_node("Relu", ["i"], ["o"])],
                                [helper.make_opsetid("", 17)])  # fmt: skip
    model.functions.append(body)
    for target in ("npu-xint8", "npu-bf16", "cpu"):
        assert detent.check(model, target).accepted


def test_a_model_that_was_exported_for_training_is_not_accepted():
    weights = {"w": normal(4, 3, 3, 3), **{name: np.ones(4, np.float32) for name in "sbmv"}}
    norm = node("BatchNormalization", "c s b m v", "n mean variance", "norm", training_mode=1)
    model = build([node("Conv", "x w", "c"), norm, node("Relu", "n", "y")], "y", weights)
    for target in ("npu-xint8", "npu-bf16", "stx"):
        found = detent.check(model, target)
        assert not found.accepted
        assert [each.what for each in found.errors if "'norm' is in training mode" in each.what]
    model.graph.node[1].attribute[0].i = 0
    assert not [each for each in detent.check(model, "npu-xint8").findings if "training" in each.what]


def test_names_order_and_opset():
    model = two_convs(node("Relu", "a", "b"))
    model.graph.node[1].name = model.graph.node[0].name
    found = detent.check(model, "npu-bf16")
    assert [each.what for each in found.warnings] == ["1 names belong to several nodes ('conv_a')"]
    unsorted = two_convs(node("Relu", "a", "b"))
    unsorted.graph.node.insert(0, unsorted.graph.node.pop())
    assert "not in the order" in detent.check(unsorted, "npu-bf16").findings[0].what
    old = two_convs(node("Relu", "a", "b"))
    old.opset_import[0].version = 9
    assert [what for _, what in errors(detent.check(old, "npu-bf16"))] == ["it has opset 9"]
    assert detent.check(old).accepted  # quantizing raises it


def test_a_shape_that_depends_on_the_data():
    nodes = [node("Conv", "x w", "a", **WRITTEN), node("NonZero", "a", "n"), node("Cast", "n", "y", to=1)]
    model = build(nodes, [info("y", (4, None))], {"w": normal(4, 3, 1, 1)})
    found = detent.check(model, "npu-bf16")
    assert ("nonzero_n", "the shape of its result is not known") in errors(found)


def test_codes_in_operators_of_their_own():
    operators = find_recipe("A8W8").replace(format="qoperator", refinement=None)
    model = detent.quantize(conv_relu_conv(), calibration=DATA, recipe=operators).model
    assert detent.check(model, "npu-a8w8").accepted
    assert not detent.check(model, "npu-xint8").accepted
    refused = {(found.node, found.what) for found in detent.check(model, "npu-xint8").errors}
    assert ("conv_c1", "it is written as QLinearConv, an operator on codes") in refused
    assert ("conv_c1", "its activations are scaled by a number that is not a power of two") in refused
    dynamic = detent.quantize(conv_relu_conv(), recipe="UINT8_DYNAMIC_QUANT").model
    assert "run time" in detent.check(dynamic, "npu-a8w8").errors[0].why


def broken(check) -> set[tuple[str, str]]:
    return {(found.node, found.what) for found in check.errors if "breaks the rule" in found.what}


@pytest.mark.parametrize(
    ("name", "scale", "factor"),
    [
        ("conv_relu_conv", "r1_scale", 2.0**20),
        ("conv_relu_conv", "r1_scale", 2.0**-9),
        ("residual", "c2_scale", 2.0**-9),
    ],
)
def test_operators_on_codes_are_under_the_same_rules(name, scale, factor):
    operators = find_recipe("XINT8").replace(format="qoperator", refinement=None, equalize=None)
    model = detent.quantize(SMALL_MODELS[name](), calibration=DATA, recipe=operators).model
    assert broken(detent.check(model)) == set()
    (stored,) = (each for each in model.graph.initializer if each.name == scale)
    stored.CopyFrom(numpy_helper.from_array(np.asarray(numpy_helper.to_array(stored) * np.float32(factor)), scale))
    assert broken(detent.check(model))


def test_operators_of_other_tools_and_what_mends_them(tmp_path):
    model = detent.quantize(
        residual(), calibration=DATA, recipe=find_recipe("BF16").replace(format="extended-qdq")
    ).model
    found = detent.check(model, "npu-bf16")
    assert "ExtendedQuantizeLinear of com.amd.quark" in found.errors[0].what
    convert(model, tmp_path / "casts.onnx", "qdq")
    assert detent.check(tmp_path / "casts.onnx", "npu-bf16").accepted


def test_nothing_to_quantize_is_said():
    model = build([node("Abs", "x", "y")], "y")
    assert ("", "it cannot be quantized") in errors(detent.check(model))


def test_bad_input(tmp_path):
    with pytest.raises(UsageError, match="Did you mean 'npu-xint8'"):
        detent.check(conv_relu_conv(), "npu-xint")
    (tmp_path / "no.onnx").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="is not an ONNX model"):
        detent.check(tmp_path / "no.onnx")


def test_the_given_model_is_left_alone():
    model = quantized(residual())
    before = model.SerializeToString()
    detent.check(model)
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("recipe", "name", "device"),
    [
        ("XINT8", "npu-cnn", "npu-xint8"),
        ("A8W8", "npu-float-scale", "npu-a8w8"),
        ("A16W8", "npu-float-scale", "npu-a16w8"),
    ],
)
def test_the_older_name_of_a_device(recipe, name, device):
    found = detent.check(quantized(residual(), recipe), name)
    assert (found.target, found.verdict) == (device, "accepted")


def test_a_device_about_which_nothing_is_published():
    with pytest.raises(UsageError, match="npu-vaiml.*npu-xint8"):
        detent.check(conv_relu_conv(), "npu-vaiml")


def test_json():
    found = detent.check(conv_relu_conv())
    plain = json.loads(found.to_json())
    assert (plain["verdict"], plain["subgraphs"], len(plain["nodes"])) == ("accepted", 1, 3)
    assert set(plain["findings"][0]) == {"level", "node", "op_type", "what", "why", "fix", "whole", "crashes"}
    report = detent.quantize(conv_relu_conv(), calibration=DATA)
    assert json.loads(report.to_json())["device"]["verdict"] == "accepted"
    assert "npu-xint8 takes all of it: 3 of 3 nodes" in str(report)


def test_every_option_and_step_that_a_fix_names_exists():
    from typer.main import get_command

    from detent.cli import app
    from detent.convert import parse_steps

    folder = Path(detent.__file__).parent / "device_check"
    text = "".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py"))
    commands = get_command(app).commands.values()
    known = {option for command in commands for parameter in command.params for option in parameter.opts}
    named = set(re.findall(r"--[a-z][a-z-]+", text))
    assert named
    assert named <= known
    for step in ("fixed-shapes:batch=1", "fixed-shapes:shapes=x=1/3", "opset:version=17", "qdq"):
        parse_steps([step])
    assert set(re.findall(r"--to ([a-z-]+)", text)) == {"fixed-shapes", "opset", "qdq"}


def test_a_shape_that_nodes_compute_from_fixed_ones_is_known():
    nodes = [
        node("Conv", "x w", "a", **WRITTEN),
        node("Shape", "a", "s"),
        node("Gather", "s zero", "n"),
        node("Mul", "n one", "m"),
        node("Concat", "m rest", "t", axis=0),
        node("Reshape", "a t", "y"),
    ]
    constants = {"w": normal(4, 3, 1, 1), "zero": np.array([0]), "one": np.array([1]), "rest": np.array([-1])}
    found = detent.check(build(nodes, "y", constants), "npu-bf16")
    assert (found.verdict, [each.op_type for each in found.nodes]) == ("accepted", ["Conv", "Reshape"])


def test_a_neighbour_of_what_stays_float():
    nodes = [node("Conv", "x w", "a"), node("Selu", "a", "s"), node("Tanh", "s", "p"), node("Conv", "p v", "y")]
    constants = {"w": normal(4, 3, 1, 1), "v": normal(2, 4, 1, 1)}
    found = detent.check(build(nodes, "y", constants))
    assert [name for name, _ in errors(found)] == ["selu_s"]  # both of its sides are rounded all the same


def test_nodes_of_one_name_inside_and_outside_of_a_branch():
    """Unnamed nodes get names that are unique in their own graph only."""
    value = helper.make_tensor_value_info("t", TensorProto.FLOAT, [1, 4])
    one = numpy_helper.from_array(np.ones((1, 4), np.float32))
    inside = [
        helper.make_node("Constant", [], ["k"], value=one),
        helper.make_node("Add", ["r", "k"], ["t"], name="sum"),
    ]
    branch = helper.make_graph(inside, "branch", [], [value])
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("If", ["c"], ["i"], name="if", then_branch=branch, else_branch=branch),
        helper.make_node("Softmax", ["i"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4]), helper.make_tensor_value_info("c", 9, [])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert len(detent.check(model).nodes) == 3


def test_a_scale_that_is_not_what_it_declares_is_a_model_error():
    model = quantized(conv_relu_conv())
    names = {node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    scale = next(each for each in model.graph.initializer if each.name in names)
    scale.ClearField("raw_data")
    del scale.float_data[:]
    with pytest.raises(ModelError, match=scale.name):
        detent.check(model)
