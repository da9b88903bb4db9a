"""Compute once what does not depend on the inputs, and tidy what is left.

FoldConstants: a node whose inputs are all constants gives the same result in every run, so an initializer with that
result replaces it. All such nodes are cut out into one small model, which onnxruntime runs once with the kernels that
would have run them every time. The shape of a value whose dimensions are all known is a constant as well. Bodies of If
and Loop that run a known number of times stand in the place of these: `bodies`.

RemoveIdentity: Identity copies its input, and at inference so does Dropout. So do x * 1, x / 1, x + 0 and x - 0, which
would cost a rounding each. Readers of the copy read the original.

SeparateInitializers: an initializer that several inputs read gets one copy for each. The copies hold the same numbers,
so the function is unchanged. Each use can then have its own scale, and a pass can rewrite one layer's weight without
touching another layer. Copies share their memory until something replaces them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from detent.graph import values
from detent.graph.runtime import onnxruntime, runtime_errors
from detent.graph.session import first_line, session_options
from detent.prepare.base import Pass
from detent.prepare.bodies import initializer_of, own_tensor, take_branch, unroll
from detent.prepare.shapes import infer

_INLINE_LIMIT = 1024  # bytes; larger constants are fed as inputs


def run_constants(model: ir.Model, nodes: list[ir.Node], wanted: list[ir.Value]) -> list[Any] | str:
    """Return the arrays of the wanted outputs of the nodes, or the first line of onnxruntime's reason why not.

    Large constants are fed as inputs, so that they are neither copied into the model nor limited by its format. Small
    ones are initializers, because some kernels want their axes and sizes when the session is made.
    """
    produced = {value for node in nodes for value in node.outputs}
    sources: dict[str, ir.TensorProtocol] = {}
    for node in nodes:
        for value in node.inputs:
            tensor = values.tensor_of(value)
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
    # Before IR version 4 an initializer had to be a graph input as well.
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=max(model.ir_version, 4))
    options = session_options()
    # To optimize takes longer than to run every node once.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results: list[Any] = session.run([str(value.name) for value in wanted], feeds)
    except runtime_errors() as error:
        return first_line(str(error))
    return results


# A result larger than this many bytes is kept as a computation, unless its inputs were larger still.
SIZE_LIMIT = 16 * 2**20

# How often shapes are inferred again because a constant that was folded may have made further ones static. A window
# attention computes its shapes one from the other through all layers: some twenty rounds. Every round folds at least
# one node, so there is an end.
MAX_ROUNDS = 100

_NEVER = frozenset(
    {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"),
        *("If", "Loop", "Scan", "SequenceMap"),
        # Evaluated, they would turn stored codes back into float numbers.
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
    }
)
_NUMPY_TYPES = frozenset(
    {
        *(ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BOOL),
        *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
    }
)


class FoldConstants(Pass):
    """Turn everything constant into initializers, and remove what nothing needs.

    Cases:
    - Constant nodes become initializers of the same name;
    - Shape and Size of a value with a static shape (`start` and `end` respected);
    - nodes of the standard domain all of whose inputs are constant, in one onnxruntime session. Not: random operators,
      control flow, QuantizeLinear and DequantizeLinear, and results over 16 MiB that outgrow their inputs;
    - Cast to the type that its input has already;
    - an If whose condition is constant, as many are once shapes are: the branch that it chooses takes its place; a Loop
      that runs a known number of times, and becomes few enough nodes, is written out;
    - a constant that is itself a graph output keeps its node;
    - while Shape nodes are left, shapes are inferred again from what was folded, and the search is repeated;
    - then nodes and initializers without a use are removed.
    """

    def run(self, model: ir.Model) -> None:
        removed = 0
        for _ in range(MAX_ROUNDS):
            before = len(self.changes)
            # Only the reasons of the last round hold: an earlier one may have been overcome.
            self.declined = []
            for node in model.graph:
                if values.is_standard(node, "Constant"):
                    self._lift(model.graph, node)
                elif values.is_standard(node, "Shape", "Size"):
                    self._measure(model, node)
                elif values.is_standard(node, "Cast"):
                    self._drop_cast(model.graph, node)
            self._evaluate(model)
            count = len(model.graph)
            _remove_unused(model)  # first: what is left of large models is inferred several times as fast
            removed += count - len(model.graph)
            # A shape that is not known yet would make further constants, and so may what stood in a branch.
            taken = [take_branch(self, model, node) for node in model.graph if values.is_standard(node, "If")]
            taken += [unroll(self, model, node) for node in model.graph if values.is_standard(node, "Loop")]
            if len(self.changes) == before or not (
                any(taken) or any(values.is_standard(node, "Shape", "Size") for node in model.graph)
            ):
                break
            reason = infer(model)
            if reason is not None:
                self.decline("model", f"shape inference failed: {reason}")
        if removed:
            self.changed("model", f"{removed} nodes without a use removed")

    def _lift(self, graph: ir.Graph, node: ir.Node) -> None:
        (output,) = node.outputs
        if output.is_graph_output():
            self.decline(node, f"its result '{output.name}' is a graph output")
            return
        tensor = _constant_tensor(node)
        if tensor is None:
            self.decline(node, "it is sparse, or refers to a function's parameter")
            return
        value = initializer_of(tensor)
        output.replace_all_uses_with(value)
        graph.remove(node, safe=True)
        graph.register_initializer(value)
        self.replaced(node)
        self.changed(node, "Constant became an initializer")

    def _measure(self, model: ir.Model, node: ir.Node) -> None:
        """Replace Shape or Size of a static shape by an initializer."""
        source, output = node.inputs[0], node.outputs[0]
        if source is None or source.shape is None or not source.shape.is_static() or output.is_graph_output():
            return
        dims = source.shape.numpy()
        if node.op_type == "Size":
            array = np.array(math.prod(dims), np.int64)
        else:
            end = node.attributes.get_int("end", len(dims))
            array = np.array(dims[node.attributes.get_int("start", 0) : end], np.int64)
        self._replace(model, output, array)
        self.changed(node, f"{node.op_type} of the static '{source.name}' is {array.tolist()}")

    def _drop_cast(self, graph: ir.Graph, node: ir.Node) -> None:
        source = node.inputs[0]
        if source is None or source.dtype is None or source.dtype != node.attributes.get_int("to", 0):
            return
        reason = values.bypass(graph, node)
        if reason is None:
            self.replaced(node)
            self.changed(node, f"Cast of a {source.dtype} to its own type removed")
        else:
            self.decline(node, reason)

    def _evaluate(self, model: ir.Model) -> None:
        folded, sizes = self._find(model.graph)
        results_of = (value for node in folded for value in node.outputs)
        wanted = [value for value in results_of if any(use.node not in folded for use in value.uses())]
        if not wanted:
            return
        results = run_constants(model, list(folded), wanted)
        if isinstance(results, str):
            self.decline("model", f"{len(folded)} constant nodes could not be evaluated: {results}")
            return
        for value, result in zip(wanted, results, strict=True):
            node = value.producer()
            if node is None:
                continue
            if not isinstance(result, np.ndarray) or result.dtype == object:
                self.decline(node, f"its result '{value.name}' is not a tensor of numbers")
            elif result.nbytes > SIZE_LIMIT and result.nbytes > sizes[node]:
                self.decline(node, f"its result would take {result.nbytes / 2**20:.0f} MiB")
            else:
                self._replace(model, value, result)
                self.changed(node, f"{node.op_type} of constants evaluated")

    def _find(self, graph: ir.Graph) -> tuple[dict[ir.Node, None], dict[ir.Node, int]]:
        """Return the nodes to evaluate, in order, and the bytes of the constants that each is computed from."""
        folded: dict[ir.Node, None] = {}
        sizes: dict[ir.Node, int] = {}
        for node in graph:
            if node.domain != "" or node.op_type in _NEVER or values.is_standard(node, "Constant"):
                continue
            size = _input_bytes(node, sizes)
            if size is None:
                continue
            if any(value.is_graph_output() for value in node.outputs):
                self.decline(node, f"its result '{node.outputs[0].name}' is a graph output")
            elif any(value.dtype is not None and value.dtype not in _NUMPY_TYPES for value in node.outputs):
                self.decline(node, f"its result is of type {node.outputs[0].dtype}")
            elif _known_bytes(node) > max(SIZE_LIMIT, size):
                self.decline(node, f"its result would take {_known_bytes(node) / 2**20:.0f} MiB")
            else:
                folded[node] = None
                sizes[node] = size
        return folded, sizes

    def _replace(self, model: ir.Model, value: ir.Value, array: npt.NDArray[Any]) -> None:
        """Replace a value by an initializer of the same name; its node is removed once nothing needs it."""
        name = str(value.name)
        node = value.producer()
        value.replace_all_uses_with(values.add_initializer(model.graph, name, array))
        if node is not None and len(node.outputs) == 1:
            values.remove_node(model.graph, node)
        elif node is not None:
            # The node stays for its other results, and the initializer has the name now.
            value.name = self.fresh(model, node, "unused")


def _constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a Constant node, as a new object; whichever attribute holds it."""
    if len(node.attributes) != 1:
        return None
    ((kind, attribute),) = node.attributes.items()
    name = node.outputs[0].name
    if attribute.is_ref():
        return None
    if kind == "value":
        return own_tensor(attribute.value, name)
    if kind in ("value_int", "value_ints"):
        return ir.Tensor(np.array(attribute.value, np.int64), name=name)
    if kind in ("value_float", "value_floats"):
        return ir.Tensor(np.array(attribute.value, np.float32), name=name)
    return None


def _input_bytes(node: ir.Node, sizes: dict[ir.Node, int]) -> int | None:
    """Return the bytes of the constants behind a node, or None if an input is not constant or not numpy's."""
    if values.bodies_of(node):
        return None
    total = 0
    for value in node.inputs:
        if value is None:
            continue
        producer = value.producer()
        if producer in sizes:
            total += sizes[producer]
            continue
        tensor = values.tensor_of(value)
        if tensor is None or tensor.dtype not in _NUMPY_TYPES:
            return None
        total += tensor.nbytes
    return total


def _known_bytes(node: ir.Node) -> int:
    """Return the bytes of the outputs, as far as shapes are known before the evaluation."""
    return sum(
        int(math.prod(value.shape.numpy()) * value.dtype.itemsize)
        for value in node.outputs
        if value.shape is not None and value.shape.is_static() and value.dtype is not None
    )


def _remove_unused(model: ir.Model) -> None:
    """Remove nodes that nothing needs. Nobody need read the statistics of a BatchNormalization for it to train."""
    norms = (node for node in model.graph.all_nodes() if values.is_standard(node, "BatchNormalization"))
    training = [node for node in norms if node.attributes.get_int("training_mode", 0)]
    for node in training:
        node.domain = "training"  # out of sight of the graph library, which thinks otherwise
    RemoveUnusedNodesPass()(model)
    for node in training:
        node.domain = ""


_NEUTRAL = {"Mul": 1, "Div": 1, "Add": 0, "Sub": 0}


class RemoveIdentity(Pass):
    """Remove Identity, Dropout in inference mode, a Reshape to the shape that is there, and arithmetic with a neutral
    constant.

    Cases:
    - the result is an inner value: its readers read the input;
    - the result is a graph output: the input's producer takes over the output's name;
    - the input is a graph input, an initializer or itself a graph output, and the result is a graph output: both names
      are fixed, so the node stays;
    - Dropout stays when its mask is used, or when `training_mode` is true or not constant;
    - arithmetic goes when the constant is one neutral number, on the right, and does not raise the rank.
    """

    def run(self, model: ir.Model) -> None:
        for node in model.graph:
            if not values.is_standard(node, "Identity", "Dropout") and not _is_neutral(node) and not _keeps_shape(node):
                continue
            reason = _why_trains(node) if node.op_type == "Dropout" else None
            if reason is None:
                reason = values.bypass(model.graph, node)
            if reason is None:
                self.replaced(node)
                self.changed(node, f"{node.op_type} removed")
            else:
                self.decline(node, reason)


def _is_neutral(node: ir.Node) -> bool:
    """Return whether the node multiplies or divides by 1, or adds or subtracts 0, and leaves the shape as it is."""
    if not values.is_standard(node, *_NEUTRAL) or node.inputs[0] is None:
        return False
    array, dims = values.constant(values.input_at(node, 1)), values.rank(node.inputs[0])
    if array is None or array.size != 1 or dims is None or array.ndim > dims:
        return False
    return bool(array.reshape(-1)[0] == _NEUTRAL[node.op_type])


def _keeps_shape(node: ir.Node) -> bool:
    """Return whether the node is a Reshape to the very shape that its input has: constant, and known to the last."""
    if not values.is_standard(node, "Reshape"):
        return False
    wanted, shape = values.constant_ints(values.input_at(node, 1)), values.static_shape(node.inputs[0])
    if wanted is None or shape is None or None in shape or len(wanted) != len(shape) or 0 in shape:
        return False
    return all(size in (known, -1) for size, known in zip(wanted, shape, strict=True))


def _why_trains(node: ir.Node) -> str | None:
    if any(not values.is_unused(value) for value in node.outputs[1:]):
        return "the mask of Dropout is used"
    training = values.input_at(node, 2)
    if training is None:
        return None
    flag = values.constant(training)
    if flag is None:
        return "the training mode of Dropout is not constant"
    return "Dropout is in training mode" if bool(flag.reshape(-1)[0]) else None


class SeparateInitializers(Pass):
    """One float initializer per use.

    Cases:
    - FLOAT initializers only: integers are shapes, axes and indices, and have no scale, nor have the bounds of a Clip;
    - the first use in graph order keeps the original and its name, the others get `<node>/<name>`;
    - uses in bodies of If and Loop, and a graph output, keep the original; then all uses in the main graph get copies;
    - declined: an initializer that is a graph input too, since the caller may replace it.
    """

    def run(self, model: ir.Model) -> None:
        shared = self._shared(model.graph)
        # The original is needed where this pass does not look: as a graph output, or in a body.
        taken = {value for value in shared if any(use.node.graph is not model.graph for use in value.uses())}
        taken |= {value for value in shared if value.is_graph_output()}
        copies: dict[ir.Value, int] = {}
        for node in model.graph:
            for index, value in enumerate(node.inputs):
                if value is None or value not in shared or value.const_value is None or node.op_type == "Clip":
                    continue
                if value not in taken:
                    taken.add(value)
                    continue
                name = self.fresh(model, node, str(value.name).lstrip("/"))
                copy = values.add_initializer(model.graph, name, value.const_value.numpy())
                node.replace_input_with(index, copy)
                copies[value] = copies.get(value, 0) + 1
        for value, count in copies.items():
            self.changed(str(value.name), f"{count} more uses got copies of it")

    def _shared(self, graph: ir.Graph) -> set[ir.Value]:
        shared = set()
        for value in graph.initializers.values():
            if value.dtype != ir.DataType.FLOAT or sum(use.node.op_type != "Clip" for use in value.uses()) < 2:
                continue
            if value.is_graph_input():
                self.decline(str(value.name), "it is a graph input too, so the caller may replace it")
            else:
                shared.add(value)
        return shared
