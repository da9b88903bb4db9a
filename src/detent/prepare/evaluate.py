"""Run a set of nodes of a model, all of whose inputs are constants, in one onnxruntime session."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime

from detent.graph.session import RUNTIME_ERRORS, first_line
from detent.graph.values import tensor_of

_INLINE_LIMIT = 1024


def run(model: ir.Model, nodes: list[ir.Node], wanted: list[ir.Value]) -> list[Any] | str:
    """The arrays of the wanted outputs of the nodes, or the first line of onnxruntime's reason why not.

    Large constants are fed as inputs, so that they are neither copied into the model nor limited by its format. Small
    ones are initializers, because some kernels want their axes and sizes when the session is made.
    """
    produced = {value for node in nodes for value in node.outputs}
    sources: dict[str, ir.TensorProtocol] = {}
    for node in nodes:
        for value in node.inputs:
            tensor = tensor_of(value)
            if value is not None and value not in produced and tensor is not None:
                sources[str(value.name)] = tensor
    inputs, initializers, feeds = [], [], {}
    for name, tensor in sources.items():
        array: npt.NDArray[Any] = tensor.numpy()
        if array.nbytes <= _INLINE_LIMIT:
            initializers.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        else:
            inputs.append(onnx.helper.make_tensor_value_info(name, int(tensor.dtype), array.shape))
            feeds[name] = array
    outputs = [onnx.ValueInfoProto(name=str(value.name)) for value in wanted]
    graph = onnx.helper.make_graph(
        [ir.serde.serialize_node(node) for node in nodes], "constants", inputs, outputs, initializers
    )
    opsets = [onnx.helper.make_opsetid("", model.opset_imports.get("", 1))]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=max(model.ir_version, 4))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results: list[Any] = session.run([str(value.name) for value in wanted], feeds)
    except RUNTIME_ERRORS as error:
        return first_line(str(error))
    return results
