from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import detent
from detent.errors import UsageError
from detent.graph.session import DEFAULT_PROVIDERS
from detent.pipeline.job import Job, make_job
from detent.recipe.file import find_recipe
from detent.refine.refine import MEMORY
from tests.models import build, info, node, normal
from tests.transformer_models import bert, bert_data, vit

XINT8 = find_recipe("XINT8")


def test_what_is_not_said_is_the_default():
    job = make_job("m.onnx", None, "XINT8")
    assert job == Job(Path("m.onnx"), None, XINT8)
    assert job.preprocess.given() == {}


def test_whatever_form_it_is_said_in():
    proto = onnx.ModelProto()
    job = make_job(
        proto, [1], XINT8, preprocess={"size": 8}, stats="s", providers="CPUExecutionProvider", threads=3, memory="1KB"
    )
    assert job.model is proto and job.recipe == XINT8 and job.calibration == [1]
    assert job.preprocess.given() == {"size": 8}
    assert job.collecting.reuse == Path("s") and job.collecting.threads == 3
    assert job.collecting.providers == DEFAULT_PROVIDERS
    assert job.memory < MEMORY


def test_an_output_is_resumed_beside_it_unless_that_is_unwanted():
    kept = make_job("m.onnx", None, XINT8, output="out/q.onnx")
    assert kept.collecting.checkpoint == Path("out/q.onnx.checkpoint")
    assert make_job("m.onnx", None, XINT8, output="q.onnx", resume=False).collecting.checkpoint is None


def test_memory_is_for_a_refinement():
    with pytest.raises(UsageError, match="refines nothing"):
        make_job("m.onnx", None, XINT8.replace(refinement=None), memory="1GB")


@pytest.mark.parametrize("transformer", [bert(), vit()])
def test_a_transformer_gets_float_scales_unless_recipe_or_device_is_named(transformer: onnx.ModelProto):
    job = make_job(transformer)
    assert job.recipe.name == "A8W8" and "transformer" in job.recipe_reason and "--recipe" in job.recipe_reason
    assert make_job(transformer, recipe="XINT8").recipe_reason == ""
    assert [make_job(transformer, device=name).recipe.name for name in ("phx", "stx", "cpu")] == [
        "XINT8",
        "A16W8",
        "XINT8",
    ]
    network = build([node("Conv", "x w", "c"), node("Softmax", "c", "y")], "y", {"w": normal(4, 3, 1, 1)})
    assert make_job(network).recipe.name == "XINT8" and make_job(network).recipe_reason == ""


def test_a_transformer_of_functions_or_of_fused_attention_is_one():
    """Exporters write modules as functions, and optimizers write attention as one node."""
    proto = bert()
    ends = {name for each in (proto.graph.input, proto.graph.initializer) for name in (value.name for value in each)}
    outputs = [value.name for value in proto.graph.output]
    body = helper.make_function("local", "Bert", sorted(ends), outputs, list(proto.graph.node), proto.opset_import)
    del proto.graph.node[:]
    proto.graph.node.append(helper.make_node("Bert", sorted(ends), outputs, domain="local"))
    proto.functions.append(body)
    assert make_job(proto).recipe.name == "A8W8"
    fused = helper.make_node("Attention", ["x", "x", "x"], ["y"], name="fused")
    graph = helper.make_graph([fused], "g", [info("x", [1, 2, 4, 4])], [info("y", [1, 2, 4, 4])])
    job = make_job(helper.make_model(graph))
    assert job.recipe.name == "A8W8" and "'fused'" in job.recipe_reason


@pytest.mark.parametrize("device", [None, "stx"])
@pytest.mark.parametrize("op_type", ["Sigmoid", "MatMul", "Conv"])
def test_a_damaged_node_without_inputs_or_outputs_gets_a_recipe_too(op_type: str, device: str | None):
    nodes = [helper.make_node(op_type, given, [], group=2) for given in ([], ["x"])]
    proto = helper.make_model(helper.make_graph(nodes, "g", [], []))
    assert make_job(proto, device=device).recipe.name in ("XINT8", "A8W8")


def test_a_network_with_attention_in_it_gets_float_scales():
    """As YOLO11, MobileViT and readers of text have it, among many more convolutions."""

    def network(keys: str) -> onnx.ModelProto:
        nodes = [node("Conv", "x w", "c"), node("Reshape", "c rows", "r"), node("Softmax", "r", "s")]
        nodes += [node("Transpose", "s", "t", perm=[0, 2, 1]), node("MatMul", f"t {keys}", "y", name="attended")]
        constants = {"w": normal(4, 3, 1, 1), "rows": np.array([1, 4, 64]), "k": normal(4, 8)}
        return build(nodes, "y", constants)

    job = make_job(network("r"))
    assert job.recipe.name == "A8W8" and "attention ('attended')" in job.recipe_reason
    guarded = network("r")  # as PyTorch writes it, with zeros where all scores are masked
    guarded.graph.node[2].output[0] = "softmax"
    guarded.graph.node.insert(3, node("IsNaN", "softmax", "masked"))
    guarded.graph.node.insert(4, node("Where", "masked r softmax", "s"))
    assert make_job(guarded).recipe == job.recipe
    backwards = network("r")
    backwards.graph.node.reverse()
    assert make_job(backwards).recipe == job.recipe
    assert [make_job(network("r"), device=name).recipe.name for name in ("phx", "stx")] == ["XINT8", "A8W8"]
    assert detent.check(network("r")).target == "npu-a8w8"
    assert make_job(network("k")).recipe.name == "XINT8"  # a mean over shares, as YOLOv8's boxes are


def test_a_damaged_file_that_goes_in_circles_gets_a_recipe_too():
    """What is wrong with it is said when it is read."""
    nodes = [node("Transpose", "x", "a"), node("Transpose", "a", "b"), node("MatMul", "a x", "y")]
    model = build(nodes, "y", inputs=[info("x", [3, 3])])
    model.graph.node[0].input[0] = "b"
    assert make_job(model).recipe.name == "XINT8"


@pytest.mark.parametrize(("count", "recipe"), [(7, "XINT8"), (8, "A8W8")])
def test_a_network_of_swishes_gets_float_scales(count: int, recipe: str):
    """As most YOLOs are; a few of them, gates of other values and a Sigmoid at the end are no reason."""
    nodes = [node("Conv", "x w", "v0")]
    for at in range(count):
        nodes += [
            node("Sigmoid", f"v{at}", f"s{at}"),
            node("Mul", f"s{at} v{at}" if at % 2 else f"v{at} s{at}", f"v{at + 1}"),
        ]
    nodes += [
        node("Relu", f"v{count}", "r"),
        node("Sigmoid", "r", "g"),
        node("Mul", "g v0", "m"),
        node("Sigmoid", "m", "y"),
    ]
    network = build(nodes, "y", {"w": normal(4, 3, 1, 1)})
    job = make_job(network)
    assert job.recipe.name == recipe and (recipe == "XINT8" or "--device phx" in job.recipe_reason)
    assert make_job(network, device="phx").recipe.name == make_job(network, recipe="XINT8").recipe.name == "XINT8"
    assert detent.check(network).target == f"npu-{recipe.lower()}"


def test_sensitivity_looks_at_what_quantize_would_make():
    assert detent.sensitivity(bert(), bert_data()).recipe.name == "A8W8"
