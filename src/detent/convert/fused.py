"""Fused quantizing nodes: what they compute on a constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.convert.linear import Linear
from detent.convert.operators import is_fix_neuron
from detent.emit.functions import add_functions
from detent.errors import ModelError
from detent.graph.names import Names
from detent.graph.session import Runner
from detent.graph.values import constant, input_at

_CODE_TYPES = {"8": np.int8, "16": np.int16, "32": np.int32}


def fix_neuron_linear(node: ir.Node) -> Linear:
    """The parameters of a FixNeuron: x, scale, zero point, and `bit_width`, which is a string."""
    scale, zero_point = constant(input_at(node, 1)), constant(input_at(node, 2))
    attribute = node.attributes.get("bit_width")
    width = "8" if attribute is None else str(attribute.value)
    if scale is None or zero_point is None or width not in _CODE_TYPES:
        raise ModelError(
            f"FixNeuron '{node.name}' needs a constant scale and zero point and a bit_width of "
            f"{', '.join(_CODE_TYPES)}; it has bit_width {width}. Fold constants first."
        )
    return Linear(scale, zero_point.astype(_CODE_TYPES[width]))


def evaluate_fused(model: ir.Model, node: ir.Node) -> npt.NDArray[Any]:
    """What a fused node makes of its constant input. A block format is computed by its function."""
    source = constant(node.inputs[0])
    assert source is not None
    if is_fix_neuron(node):
        linear = fix_neuron_linear(node)
        return linear.decode(linear.encode(source))
    return _run_alone(model, node, source)


def _run_alone(model: ir.Model, node: ir.Node, source: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The first output of a node with one input, run by itself with the functions of the model."""
    name = Names(model).fresh("fused_input")
    feed = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(source.shape))
    alone = ir.Node(node.domain, node.op_type, [feed], list(node.attributes.values()), overload=node.overload)
    result = alone.outputs[0]
    result.name, result.type, result.shape = "fused_output", feed.type, feed.shape
    graph = ir.Graph([feed], [result], nodes=[alone], opset_imports=dict(model.opset_imports), name="alone")
    single = ir.Model(graph, ir_version=model.ir_version, functions=list(model.functions.values()))
    add_functions(single)
    return Runner(single)({name: source.astype(np.float32)})[0]
