"""Build small models, run a pass on them, and check that the result is valid and computes the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from detent.prepare import Pass, prepare

FLOAT = TensorProto.FLOAT
rng = np.random.default_rng


def f32(*shape: int, seed: int = 0) -> np.ndarray:
    return rng(seed).standard_normal(shape).astype(np.float32)


def node(op: str, inputs: str, outputs: str, /, **attributes):
    """`node("Conv", "x w", "y", name="c")`: names are separated by spaces, `_` is an empty input."""
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attributes)


def info(name: str, shape, kind: int = FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def make(nodes, inputs, outputs, constants=None, opset: int = 17, value_info=(), functions=(), opsets=()):
    """A model. Inputs and outputs are `{name: shape}` or lists of value infos; constants are `{name: array}`."""
    ins = [info(*item) for item in inputs.items()] if isinstance(inputs, dict) else list(inputs)
    outs = [info(*item) for item in outputs.items()] if isinstance(outputs, dict) else list(outputs)
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", ins, outs, tensors, value_info=list(value_info))
    imports = [helper.make_opsetid("", opset), *opsets]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10, functions=list(functions))
    return with_output_shapes(model)


def with_output_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Declare the shapes of graph outputs that were given as None; the checker insists on them. Nothing else is."""
    inferred = onnx.shape_inference.infer_shapes(model)
    for output, known in zip(model.graph.output, inferred.graph.output, strict=True):
        if not output.type.tensor_type.HasField("shape"):
            output.type.CopyFrom(known.type)
    return model


def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    live = session(proto)
    names = [output.name for output in live.get_outputs()]
    wanted = {value.name for value in live.get_inputs()}
    return dict(zip(names, live.run(names, {k: v for k, v in feeds.items() if k in wanted}), strict=True))


def random_feeds(proto: onnx.ModelProto, free: int = 2, seed: int = 1) -> dict[str, np.ndarray]:
    """Random data for every graph input; dimensions that are not numbers get the size `free`."""
    source, feeds = rng(seed), {}
    held = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name in held:
            continue
        tensor = value.type.tensor_type
        shape = [dim.dim_value or free for dim in tensor.shape.dim]
        data = source.standard_normal(shape) if shape else np.asarray(source.standard_normal())
        kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[value.name] = np.asarray(data > 0) if np.issubdtype(kind, np.bool_) else data.astype(kind)
    return feeds


@dataclasses.dataclass
class Result:
    """A prepared model and what the pass said about it."""

    proto: onnx.ModelProto
    step: Pass

    @property
    def ops(self) -> list[str]:
        return [item.op_type for item in self.proto.graph.node]

    @property
    def why(self) -> str:
        return " | ".join(change.what for change in self.step.declined)

    @property
    def constants(self) -> dict[str, np.ndarray]:
        return {tensor.name: numpy_helper.to_array(tensor) for tensor in self.proto.graph.initializer}

    def named(self, op: str) -> onnx.NodeProto:
        (found,) = [item for item in self.proto.graph.node if item.op_type == op]
        return found

    def attributes(self, op: str) -> dict:
        return {a.name: helper.get_attribute_value(a) for a in self.named(op).attribute}


def check(step: Pass, proto: onnx.ModelProto, feeds=None, rtol: float = 1e-4, exact: bool = False) -> Result:
    """Run the pass and assert what holds for all of them: valid, same interface, same results, caller untouched."""
    before = proto.SerializeToString(deterministic=True)
    model = ir.from_proto(proto)
    prepare(model, [step])
    assert proto.SerializeToString(deterministic=True) == before, "the caller's model was written to"
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    assert [v.name for v in after.graph.output] == [v.name for v in proto.graph.output]
    names = [name for item in after.graph.node for name in item.output if name]
    names += [tensor.name for tensor in after.graph.initializer]
    assert len(names) == len(set(names)), "names collide"
    assert all(change.by == type(step).__name__ for change in (*step.changes, *step.declined))
    feeds = random_feeds(proto) if feeds is None else feeds
    want, got = run(proto, feeds), run(after, feeds)
    for name, array in want.items():
        if exact:
            np.testing.assert_array_equal(got[name], array)
        else:
            scale = float(np.abs(array).max()) if array.size else 1.0
            np.testing.assert_allclose(got[name], array, rtol=rtol, atol=rtol * max(scale, 1e-6))
    return Result(after, step)


def bn_constants(channels: int, prefix: str = "", shift: bool = True) -> dict[str, np.ndarray]:
    """Parameters of a BatchNormalization: `s b m v`. Small variances, so that a wrong epsilon shows."""
    scale, bias = f32(channels, seed=11) + 2, f32(channels, seed=12)
    mean, var = f32(channels, seed=13), np.abs(f32(channels, seed=14)) * 1e-4
    if not shift:
        bias, mean = np.zeros_like(bias), np.zeros_like(mean)
    return {f"{prefix}{key}": array for key, array in zip("sbmv", (scale, bias, mean, var), strict=True)}


def if_reading(name: str, rank: int = 4):
    """An If node both of whose bodies read a value of the outer graph."""
    bodies = {
        key: helper.make_graph([node(op, name, f"{key}_out")], key, [], [info(f"{key}_out", [None] * rank)])
        for key, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    return node("If", "flag", "picked", name="branch", **bodies)


def flag_input():
    return info("flag", [], TensorProto.BOOL)
