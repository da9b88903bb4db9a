"""One-node models of operators that onnxruntime has only because their function comes with the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime

from detent.graph.runtime import runtime_errors
from detent.qdq import families
from detent.qdq.families import EXTENDED, VITIS, OperatorName
from detent.qdq.functions import add_functions

FIX_NEURON = OperatorName(families.FIX_NEURON.domain, families.FIX_NEURON.fix_neuron)


def both_generations(quark_name: str) -> tuple[OperatorName, OperatorName]:
    """An operator of com.amd.quark and its twin in com.vai.quantize."""
    twin = VITIS.operators[EXTENDED.operators.index(quark_name)]
    return OperatorName(EXTENDED.domain, quark_name), OperatorName(VITIS.domain, twin)


def _newest_opset() -> int:
    """The newest that both onnx and onnxruntime know."""
    for opset in range(onnx.defs.onnx_opset_version(), 21, -1):
        x, y = value("x", ir.DataType.FLOAT, ir.Shape([1])), value("y", ir.DataType.FLOAT, ir.Shape([1]))
        graph = ir.Graph([x], [y], nodes=[ir.Node("", "Abs", [x], outputs=[y])], opset_imports={"": opset}, name="g")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            onnxruntime.InferenceSession(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString(), options)
        except runtime_errors():
            continue
        return opset
    return 21


def value(name: str, dtype: ir.DataType, shape: ir.Shape) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=shape)


def initializer(name: str, array: npt.NDArray[Any]) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)


def model_of(
    operator: OperatorName,
    shape: ir.Shape,
    parameters: Sequence[npt.NDArray[Any]] = (),
    attributes: Mapping[str, Any] | None = None,
    *,
    codes_in: ir.DataType = ir.DataType.FLOAT,
    codes_out: ir.DataType = ir.DataType.FLOAT,
    opset: int = 17,
) -> ir.Model:
    """A model of one node, with its function; `parameters` are its further inputs.

    numpy has no bfloat16: such codes are made from floats, or into floats, by a Cast of the standard domain.
    """
    x, y = value("x", _outside(codes_in), shape), value("y", _outside(codes_out), shape)
    source = x if codes_in is x.dtype else value("codes_in", codes_in, shape)
    result = y if codes_out is y.dtype else value("codes_out", codes_out, shape)
    initializers = [initializer(f"p{index}", array) for index, array in enumerate(parameters)]
    written = ir.convenience.convert_attributes(attributes or {})
    nodes = [ir.Node(*operator, [source, *initializers], written, outputs=[result], name="n")]
    if source is not x:
        nodes.insert(0, ir.Node("", "Cast", [x], [ir.AttrInt64("to", int(codes_in))], outputs=[source]))
    if result is not y:
        nodes.append(ir.Node("", "Cast", [result], [ir.AttrInt64("to", int(ir.DataType.FLOAT))], outputs=[y]))
    graph = ir.Graph([x], [y], nodes=nodes, initializers=initializers, opset_imports={"": opset}, name="g")
    model = ir.Model(graph, ir_version=8)
    add_functions(model)
    return model


def _outside(dtype: ir.DataType) -> ir.DataType:
    return ir.DataType.FLOAT if dtype is ir.DataType.BFLOAT16 else dtype


def symbolic(rank: int) -> ir.Shape:
    """A shape of which nothing is known but the rank."""
    return ir.Shape([f"d{index}" for index in range(rank)])


def fixed_at(shape: Sequence[int], axis: int) -> ir.Shape:
    """A shape of which one dimension is known."""
    known = axis % len(shape)
    return ir.Shape([size if index == known else f"d{index}" for index, size in enumerate(shape)])


def session(model: ir.Model, *, optimize: bool = True) -> onnxruntime.InferenceSession:
    """Checked by onnx, loaded by a plain onnxruntime."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: ir.Model, x: npt.NDArray[Any], *, optimize: bool = True) -> npt.NDArray[Any]:
    """The output for one input."""
    (result,) = session(model, optimize=optimize).run(None, {"x": x})
    return np.asarray(result)


def same_bits(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    """Whether the arrays hold the same numbers to the last bit; a NaN is a NaN, and the sign of a zero is not one."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    return np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")


OPSETS = tuple(sorted({17, 21, _newest_opset()}))
