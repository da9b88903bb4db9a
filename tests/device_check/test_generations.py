"""Placement as it was observed, on small models with the same features."""

from __future__ import annotations

import json

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
