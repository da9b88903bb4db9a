"""Quantized models by hand and by plan, and a conversion in one call."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from detent.convert import Conversion, convert
from detent.emit import emit
from detent.qdq.functions import add_functions
from detent.recipe.file import find_recipe
from tests.models import IMAGE, build, info, node, normal, planned, run

IMAGES = [normal(*IMAGE, seed=seed) * size for seed, size in ((21, 1), (22, 3), (23, 40))]


def quantized(proto: onnx.ModelProto, recipe: str = "XINT8", **changes) -> onnx.ModelProto:
    """A QDQ model as `detent quantize` writes it."""
    model, plan = planned(proto, recipe=find_recipe(recipe).replace(**changes))
    emit(model, plan)
    return ir.to_proto(model)


def converted(model: onnx.ModelProto, *steps: str) -> tuple[onnx.ModelProto, Conversion]:
    before = model.SerializeToString(deterministic=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.onnx"
        done = convert(model, path, steps)
        assert model.SerializeToString(deterministic=True) == before, "the caller's model was written to"
        return onnx.load(path), done


def same(one: onnx.ModelProto, other: onnx.ModelProto, feeds=None) -> None:
    """Both models give the same bits."""
    for image in [{"x": image} for image in IMAGES] if feeds is None else feeds:
        want, got = run(one, image), run(other, image)
        assert want.keys() == got.keys()
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)


def ops(model: onnx.ModelProto) -> list[str]:
    return [f"{item.domain}::{item.op_type}" if item.domain else item.op_type for item in model.graph.node]


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {held.name: ir.from_proto(held).numpy() for held in model.graph.initializer}


def tensor(name: str, array) -> onnx.TensorProto:
    """A tensor of any type; old versions of onnx's helper do not take bfloat16."""
    return ir.to_proto(ir.Tensor(np.asarray(array), name=name))


def shape_of_graph(model: onnx.ModelProto) -> list:
    """A model without its names: operators, attributes, and the constants that each node reads, in order."""
    held = constants(model)
    makers = {name: index for index, item in enumerate(model.graph.node) for name in item.output}
    rows = []
    for item in model.graph.node:
        reads = [
            (str(held[name].dtype), held[name].tolist()) if name in held else makers.get(name, name)
            for name in item.input
        ]
        attributes = sorted((each.name, str(helper.get_attribute_value(each))) for each in item.attribute)
        rows.append((item.domain, item.op_type, reads, attributes))
    return rows


def foreign(nodes, constants_, outputs="y", inputs=(("x", (4, 6)),), opset: int = 17) -> onnx.ModelProto:
    """A model with operators of other domains, and the functions that define them."""
    graph = helper.make_graph(
        nodes,
        "foreign",
        [info(name, shape) for name, shape in inputs],
        [info(outputs, inputs[0][1])],
        [tensor(name, array) for name, array in constants_.items()],
    )
    domains = sorted({item.domain for item in nodes})
    imports = [helper.make_opsetid(domain, 1 if domain else opset) for domain in {"", *domains}]
    model = ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=10))
    add_functions(model)
    return ir.to_proto(model)


def pair(dtype: str, zero_point, scale=0.05, shape=(4, 6), opset: int = 17) -> onnx.ModelProto:
    """x -> Relu-free Q/DQ -> y, with one scale."""
    domain = "com.microsoft" if dtype.endswith("16") and opset < 21 else ""
    nodes = [
        node("QuantizeLinear", "x s z", "q", domain=domain),
        node("DequantizeLinear", "q s z", "y", domain=domain),
    ]
    tensors = {"s": np.array(scale, np.float32), "z": np.array(zero_point, dtype)}
    graph = helper.make_graph(
        nodes,
        "pair",
        [info("x", shape)],
        [info("y", shape)],
        [tensor(name, array) for name, array in tensors.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


__all__ = ["IMAGES", "TensorProto", "build", "constants", "converted", "foreign", "ops", "pair", "quantized", "same"]
