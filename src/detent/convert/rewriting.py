"""From one family of Q/DQ operators to another: the rewrites that all targets share.

Families differ in names and in the types that they hold, never in arithmetic, so a node only changes its operator.
FixNeuron, which does both at once, is taken apart into a pair, and a constant behind it is stored as codes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from detent.convert.edits import substitute
from detent.convert.fused import fix_neuron_linear
from detent.convert.linear import Linear
from detent.convert.operators import Family, quantize_family
from detent.graph.names import Names
from detent.graph.values import add_initializer, constant, input_at


def retarget(graph: ir.Graph, node: ir.Node, family: Family, linear: Linear, names: Names) -> None:
    """Make a Q or DQ node one of another family, in place; names of values stay."""
    quantizes = quantize_family(node) is not None
    node.op_type = family.quantize if quantizes else family.dequantize
    node.domain, node.overload = family.domain, ""
    if linear.per_tensor:
        node.attributes.pop("axis", None)  # without meaning; the standard operators of old opsets do not have it
    if input_at(node, 2) is None and family.domain != "":  # only the standard operators go without
        node.resize_inputs(3)
        zeros = np.zeros_like(linear.zero_point)
        node.replace_input_with(2, add_initializer(graph, names.fresh(f"{node.outputs[0].name}_zero_point"), zeros))


def split_fix_neuron(graph: ir.Graph, node: ir.Node, family: Family, names: Names) -> None:
    """Replace a FixNeuron by Q and DQ; a constant behind it by its codes and DQ."""
    linear, source = fix_neuron_linear(node), node.inputs[0]
    assert source is not None
    base = str(source.name)
    scale = add_initializer(graph, names.fresh(f"{base}_scale"), linear.scale.reshape(()))
    zero_point = add_initializer(graph, names.fresh(f"{base}_zero_point"), linear.zero_point.reshape(()))

    def insert(op_type: str, value: ir.Value, result_type: ir.TypeProtocol | None) -> ir.Value:
        name = f"{base}_{op_type}"
        made = ir.node(op_type, [value, scale, zero_point], domain=family.domain, name=names.fresh(name))
        output = made.outputs[0]
        output.name, output.type, output.shape = names.fresh(f"{name}_Output"), result_type, source.shape
        graph.insert_before(node, [made])
        return output

    array = constant(source)
    if array is not None:
        codes = add_initializer(graph, names.fresh(f"{base}_quantized"), linear.encode(array))
    else:
        codes = insert(family.quantize, source, ir.TensorType(ir.DataType.from_numpy(linear.dtype)))
    result = insert(family.dequantize, codes, source.type)
    substitute(graph, node, result, names)
