"""Placement as it was observed, on small models with the same features."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest

import detent as package
from detent.device_check.ep_report import compare_report, read_report, report_table
from detent.errors import DataError, UsageError
from detent.recipe.file import find_recipe
from tests.models import build, conv_relu_conv, info, node, normal, residual

DATA = normal(4, 3, 8, 8, seed=5)


def quantized(proto, recipe="XINT8", **options) -> onnx.ModelProto:
    chosen = find_recipe(recipe).replace(refinement=None, equalize=False)
    return package.quantize(proto, calibration=DATA, recipe=chosen, **options).model


def swish() -> onnx.ModelProto:
    """Two layers with x * sigmoid(x) behind each."""
    nodes = [node("Conv", "x w", "a"), node("Sigmoid", "a", "s"), node("Mul", "a s", "b")]
    nodes += [node("Conv", "b v", "c"), node("Sigmoid", "c", "t"), node("Mul", "c t", "d"), node("Conv", "d u", "y")]
    return build(nodes, "y", {"w": normal(4, 3, 1, 1), "v": normal(4, 4, 1, 1), "u": normal(2, 4, 1, 1)})


@pytest.mark.parametrize("make", [conv_relu_conv, residual])
def test_a_clean_network_leaves_a_pair_at_each_end(make):
    model = quantized(make())
    found = package.check(model, "phx")
    constants = sum(each.op_type == "Constant" for each in model.graph.node)
    readers = sum(node.op_type == "DequantizeLinear" for node in model.graph.node)
    uses = [name for each in model.graph.node for name in each.input]
    outputs = [value.name for value in model.graph.output]
    copies = sum(
        uses.count(each.output[0]) + outputs.count(each.output[0])
        for each in model.graph.node
        if each.op_type == "DequantizeLinear"
    )
    total = len(model.graph.node) - constants - readers + copies
    assert found.report_nodes == (total - 1 - len(outputs), total)
    assert found.subgraphs == 1
    assert found.cost.milliseconds > 1.4


def test_strix_cuts_at_every_hard_sigmoid_and_phoenix_does_not():
    model = quantized(swish())
    phoenix, strix = package.check(model, "phx"), package.check(model, "stx")
    assert (phoenix.verdict, phoenix.subgraphs) == ("accepted", 1)
    assert (strix.verdict, strix.subgraphs) == ("partly", 3)
    # Off the device: for each of both a DequantizeLinear, the node, its factor and a QuantizeLinear.
    assert phoenix.report_nodes[0] - strix.report_nodes[0] == 2 * 4
    assert all("A8W8" in finding.fix for finding in strix.errors)
    assert package.check(quantized(swish(), "A8W8"), "stx").subgraphs == 1


def test_the_recipe_follows_device_and_model():
    def of(device, proto):
        return package.quantize(proto, calibration=DATA, device=device, dry_run=True)

    assert of("phx", swish()).recipe.name == "XINT8"
    assert of("phx", swish()).recipe.rounding == "dpu"
    assert of("stx", swish()).recipe.name == "A8W8"
    assert of("stx", residual()).recipe.name == "XINT8"
    assert of(None, swish()).recipe.rounding == "half-even"
    assert "Sigmoid" in str(package.quantize(swish(), calibration=DATA, device="stx"))


def test_a_recipe_that_the_device_does_not_take():
    with pytest.raises(UsageError) as error:
        package.quantize(residual(), calibration=DATA, recipe="A8W8", device="phx")
    assert all(word in str(error.value) for word in ("phx", "A8W8", "XINT8"))


@pytest.mark.parametrize(
    ("between", "constants", "whole"),
    [
        ([node("InstanceNormalization", "a s t", "b")], {"s": normal(4), "t": normal(4)}, True),
        ([node("Reshape", "a k", "c"), node("Reshape", "c m", "b")], {}, True),
        ([node("PRelu", "a p", "b")], {"p": normal(4, 1, 1)}, False),
        ([node("Selu", "a", "b")], {}, False),
    ],
)
def test_what_costs_phoenix_every_node(between, constants, whole):
    shapes = {"k": np.array([1, 2, 2, 8, 8]), "m": np.array([1, 4, 8, 8])}
    weights = {"w": normal(4, 3, 1, 1), "v": normal(2, 4, 1, 1)}
    nodes = [node("Conv", "x w", "a"), *between, node("Conv", "b v", "y")]
    used = {name for each in nodes for name in each.input}
    model = build(nodes, "y", weights | constants | {name: each for name, each in shapes.items() if name in used})
    phoenix, strix = package.check(quantized(model), "phx"), package.check(quantized(model), "stx")
    assert phoenix.verdict == ("rejected" if whole else "partly")
    assert (phoenix.report_nodes[0] == 0) == whole
    assert strix.verdict in ("partly", "accepted")
    assert strix.report_nodes[0] > 0


def depthwise(activation) -> onnx.ModelProto:
    """Two layers with a depthwise one between them; `activation` stands behind the first two."""
    nodes = [node("Conv", "x w", "a"), activation("a", "b"), node("Conv", "b d", "c", group=4, pads=[1, 1, 1, 1])]
    nodes += [activation("c", "e"), node("Conv", "e v", "y")]
    weights = {"w": normal(4, 3, 1, 1), "d": normal(4, 1, 3, 3), "v": normal(2, 4, 1, 1)}
    return build(nodes, "y", weights | {"low": np.float32(0), "high": np.float32(6)})


def _relu(source, result):
    return node("Relu", source, result)


def _clip(source, result):
    return node("Clip", f"{source} low high", result)


@pytest.mark.parametrize(
    ("activation", "recipe", "pieces"),
    [(_relu, "XINT8", 2), (_clip, "XINT8", 2), (_relu, "A8W8", 1), (_clip, "A8W8", 2), (_clip, "A16W8", 1)],
)
def test_strix_leaves_depthwise_layers_with_their_activation(activation, recipe, pieces):
    """MobileNetV2 fell into 18 pieces in XINT8 and A8W8, in A16W8 it was one; MobileNetV3 in A8W8 was one, too."""
    model = quantized(depthwise(activation), recipe)
    found = package.check(model, "stx")
    assert (found.subgraphs, found.cpu_nodes) == (pieces, 2 * (pieces - 1))
    assert {each.op_type for each in found.warnings} == {"Conv"}
    if pieces > 1:  # six nodes: those that bring input, weight and perhaps a bias, the layer, its activation, rounding
        clean = package.check(model, "stx", software="1.8")
        assert clean.report_nodes[0] - found.report_nodes[0] == 5
        assert clean.accepted


def test_relu_is_written_for_clip_where_strix_would_cut():
    model = package.quantize(depthwise(_clip), calibration=np.abs(DATA) * 9, device="stx").model
    assert [each.op_type for each in model.graph.node if each.op_type in ("Relu", "Clip")] == ["Relu", "Relu"]
    assert package.check(model, "stx").subgraphs == 1


def test_phoenix_takes_transposed_convolutions():
    nodes = [node("Conv", "x w", "a"), node("ConvTranspose", "a t", "b", strides=[2, 2]), node("Conv", "b v", "y")]
    weights = {"w": normal(4, 3, 1, 1), "t": normal(4, 4, 2, 2), "v": normal(2, 4, 1, 1)}
    model = quantized(build(nodes, "y", weights))
    assert package.check(model, "phx").accepted
    assert package.check(model, "stx").subgraphs == 2


@pytest.mark.parametrize(
    ("factor", "how", "taken"),
    [
        (2, {"mode": "linear"}, True),
        (0.5, {"mode": "linear"}, True),
        (4, {"mode": "linear"}, False),
        (2, {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, False),
        (4, {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, True),
    ],
)
def test_which_resize_phoenix_takes(factor, how, taken):
    scales = np.array([1, 1, factor, factor], np.float32)
    nodes = [node("Conv", "x w", "a"), node("Resize", "a  scales", "b", **how), node("Conv", "b v", "y")]
    nodes[1].input[:] = ["a", "", "scales"]
    model = build(nodes, "y", {"w": normal(4, 3, 1, 1), "v": normal(2, 4, 1, 1), "scales": scales})
    assert package.check(quantized(model), "phx").accepted == taken


def test_slopes_are_whole_numbers_of_256ths():
    nodes = [node("Conv", "x w", "a"), node("LeakyRelu", "a", "b", alpha=0.2), node("Conv", "b v", "y")]
    proto = build(nodes, "y", {"w": normal(4, 3, 1, 1), "v": normal(2, 4, 1, 1)})
    model = quantized(proto, device="phx")
    assert not package.check(model, "phx").warnings
    leaky = next(each for each in model.graph.node if each.op_type == "LeakyRelu")
    leaky.attribute[0].f = 0.2
    assert "51/256" in package.check(model, "phx").warnings[0].fix


def test_without_a_device_what_generations_disagree_about_is_said():
    model = quantized(swish())
    assert [each.op_type for each in package.check(model).warnings] == ["HardSigmoid"] * 2
    assert package.check(model).accepted
    assert not package.check(quantized(swish(), device="phx"), "phx").warnings


def test_a_float_model_is_checked_with_the_recipe_that_quantize_would_choose():
    assert package.check(swish(), "stx").recipe == "A8W8"
    assert package.check(swish(), "phx").recipe == "XINT8"
    assert package.check(depthwise(_relu), "stx").recipe == "A8W8"
    assert package.check(residual(), "stx").recipe == "XINT8"


def test_software_without_an_overlay():
    model = quantized(conv_relu_conv())
    assert package.check(model, "phx", software="1.7").accepted
    found = package.check(model, "phx", software="1.8")
    assert found.verdict == "rejected"
    assert "1.7" in found.errors[0].fix
    with pytest.raises(UsageError, match=r"1\.8"):
        package.check(model, "phx", software="1.88")


def test_scales_that_are_no_numbers():
    model = quantized(conv_relu_conv())
    scale = next(each for each in model.graph.initializer if each.name.endswith("_scale"))
    scale.CopyFrom(onnx.numpy_helper.from_array(np.array(np.nan, np.float32), scale.name))
    assert package.check(model, "npu-a8w8").verdict != "accepted"


def test_convolutions_over_one_axis():
    nodes = [node("Conv", "x w", "a"), node("Relu", "a", "b"), node("Conv", "b v", "y")]
    model = build(nodes, "y", {"w": normal(4, 3, 3), "v": normal(2, 4, 3)}, (info("x", (1, 3, 8)),))
    assert {each.op_type for each in package.check(model, "stx").errors} >= {"Conv"}


def report_of(model: onnx.ModelProto, placed: bool) -> dict:
    """A report such as the execution provider writes, with every node at one place."""
    device = "NPU" if placed else "CPU"
    nodes = [{"output": each.output[0], "opType": each.op_type, "device": device} for each in model.graph.node]
    return {"deviceStat": [{"name": "all", "nodeNum": 9}, {"name": device, "nodeNum": 9}], "nodeStat": nodes}


def test_a_report_beside_the_prediction(tmp_path, detent):
    model = quantized(conv_relu_conv())
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "r.json").write_text(json.dumps(report_of(model, placed=False)))
    check = package.check(tmp_path / "m.onnx", "phx")
    found = compare_report(tmp_path / "m.onnx", check, tmp_path / "r.json")
    assert {"Conv", "Relu"} <= {each.op_type for each in found.differences}
    assert found.report.on_device == 0
    outcome = detent("check", tmp_path / "m.onnx", "--device", "phx", "--ep-report", tmp_path / "r.json")
    assert outcome.code == 0
    assert "0 of 9" in outcome.out
    assert "r.json: 0 of 9" in report_table(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"deviceStat": [{"name": "all"}]}'])
def test_reports_that_are_none(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(DataError, match=r"r\.json"):
        read_report(tmp_path / "r.json")


def test_a_report_of_another_model(tmp_path):
    onnx.save(quantized(conv_relu_conv()), tmp_path / "m.onnx")
    (tmp_path / "r.json").write_text(json.dumps(report_of(quantized(residual()), placed=True)))
    with pytest.raises(DataError, match="another model"):
        compare_report(tmp_path / "m.onnx", package.check(tmp_path / "m.onnx", "phx"), tmp_path / "r.json")


def test_devices_are_listed(detent):
    assert "strix-halo" in detent("devices").out
    assert "measured" in detent("devices", "phx").out
    assert json.loads(detent("devices", "stx", "--json").out)["facts"]
    assert "'stx'" in detent("devices", "stxx").err


def test_the_time_on_this_cpu_beside_the_estimate(detent, tmp_path):
    onnx.save(quantized(conv_relu_conv()), tmp_path / "m.onnx")
    assert "the CPU is likely to win" in detent("check", tmp_path / "m.onnx", "--device", "phx", "--time").out


def test_a_file_says_which_rounding_it_was_made_for():
    plain, phoenix = quantized(conv_relu_conv()), quantized(conv_relu_conv(), device="phx")
    rounding = [[each.what for each in package.check(model, device).warnings if "round" in each.what + each.why]
                for model in (plain, phoenix) for device in ("phx", "stx")]  # fmt: skip
    assert rounding[0] == ["it was not quantized for the rounding of phx"] and rounding[1] == [] == rounding[2]
    assert rounding[3] == ["it was quantized for a device that rounds ties upwards"]
    plain.producer_name = "another tool"
    assert not any("round" in each.what for each in package.check(plain, "phx").warnings)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_report_that_went_through_powershell(tmp_path, encoding):
    plain, other = tmp_path / "plain.json", tmp_path / "other.json"
    text = '{"deviceStat": [{"name": "all", "nodeNum": 9, "supportedOpType": []}], "nodeStat": []}'
    plain.write_text(text, encoding="utf-8")
    other.write_text(text, encoding=encoding)
    assert replace(read_report(other), source="") == replace(read_report(plain), source="")
