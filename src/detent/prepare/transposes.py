"""Cancel Transposes that undo each other, also across operators that treat every element alike.

CancelTransposes: Transpose(f(a, b)) = f(Transpose(a), Transpose(b)) where f works element by element, and what is
transposed there and back is what it was. So a Transpose goes if all that reaches it, through such operators, is

    x after the inverse Transpose         x itself
    a constant                            transposed at once
    a value of at most one axis above 1   a Reshape: its elements stay in their order

Exporters of networks with channels last leave such pairs around every activation, and each would cut the network on a
device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from detent.graph import values
from detent.prepare.base import OperatorPass, Pass, ints_attribute

_UNARY = (
    *("Relu", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign", "Clip", "Sigmoid", "HardSigmoid", "HardSwish"),
    *("Tanh", "Erf", "Gelu", "Mish", "Abs", "Neg", "Exp", "Sqrt", "Reciprocal", "Identity"),
)
_BINARY = ("Add", "Sub", "Mul", "Div", "Min", "Max")


class CancelTransposes(OperatorPass):
    """Remove a Transpose whose inverse is before it, directly or behind elementwise operators.

    Cases:
    - one behind the other, whatever else reads the first;
    - behind elementwise operators that nothing else reads, on all of their operands;
    - left alone: what would need another Transpose on an operand.
    """

    operators = ("Transpose",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        perm, source, result = ints_attribute(node, "perm"), node.inputs[0], node.outputs[0]
        if perm is None or source is None or not _saves(source, perm, model.graph):
            return None
        if _before(source, perm) is not None and result.is_graph_output():
            return None  # the names of both ends may be fixed
        moved = _Moved(self, model, node, perm)
        replacement = moved.value(source)
        if replacement.producer() in moved.made:
            values.take_over(result, replacement)
        else:
            result.replace_all_uses_with(replacement)
        values.remove_node(model.graph, node)
        self.replaced(node, *moved.made)
        _drop_unread(self, model, source)
        self.changed(node, "cancelled by the inverse Transpose before it")
        return None


def _before(value: ir.Value, perm: Sequence[int]) -> ir.Value | None:
    """Return what an inverse Transpose computes a value from; None if no such does."""
    node = value.producer()
    if node is None or not values.is_standard(node, "Transpose"):
        return None
    other = ints_attribute(node, "perm")
    inverse = other is not None and [other[at] for at in perm] == list(range(len(perm)))
    return node.inputs[0] if inverse else None


def _saves(value: ir.Value, perm: Sequence[int], graph: ir.Graph) -> bool:
    """Tell whether a value can be had transposed without a Transpose, and one before it is saved thereby."""
    if _before(value, perm) is not None:
        return True
    node = value.producer()
    if node is None or not values.is_standard(node, *_UNARY, *_BINARY) or values.sole_use(value, graph) is None:
        return False
    operands = _operands(node)
    if any(not _is_free(each, perm) and not _saves(each, perm, graph) for each in operands):
        return False
    return any(not _is_free(each, perm) for each in operands)


def _operands(node: ir.Node) -> list[ir.Value]:
    return [each for each in (node.inputs if node.op_type in _BINARY else node.inputs[:1]) if each is not None]


def _is_free(value: ir.Value, perm: Sequence[int]) -> bool:
    """Tell whether a constant, or a value of one axis above 1, can be transposed at no cost."""
    array = values.constant(value)
    if array is not None:
        return array.ndim <= len(perm)
    shape = values.static_shape(value)
    known = shape is not None and None not in shape and len(shape) == len(perm)
    return known and shape is not None and sum(size != 1 for size in shape) <= 1


class _Moved:
    """Makes transposed twins of values in front of a node. `made` are the nodes that compute them, in order."""

    def __init__(self, step: Pass, model: ir.Model, node: ir.Node, perm: Sequence[int]) -> None:
        self._step, self._model, self._node, self._perm = step, model, node, perm
        self.made: list[ir.Node] = []

    def value(self, value: ir.Value) -> ir.Value:
        """Return a value transposed."""
        before = _before(value, self._perm)
        if before is not None:
            return before
        if _is_free(value, self._perm):
            return self._free(value)
        node = value.producer()
        assert node is not None, "it can be moved"
        operands = {id(each): self.value(each) for each in _operands(node)}
        inputs = [each if each is None else operands.get(id(each), each) for each in node.inputs]
        twin = ir.node(node.op_type, inputs, dict(node.attributes), name=self._step.fresh(self._model, node, "turned"))
        return self._added(twin, value)

    def _free(self, value: ir.Value) -> ir.Value:
        array = values.constant(value)
        rank = len(self._perm)
        if array is not None:
            full = array.reshape((1,) * (rank - array.ndim) + array.shape)
            turned = np.ascontiguousarray(full.transpose(self._perm))
            return self._step.initializer(self._model, self._node, "turned_operand", turned)
        shape = values.static_shape(value) or []
        target = np.array([shape[at] for at in self._perm], np.int64)
        wanted = self._step.initializer(self._model, self._node, "turned_shape", target)
        twin = ir.node("Reshape", [value, wanted], name=self._step.fresh(self._model, self._node, "turned"))
        return self._added(twin, value)

    def _added(self, twin: ir.Node, like: ir.Value) -> ir.Value:
        made = twin.outputs[0]
        made.name, made.type = self._step.fresh(self._model, self._node, "turned_value"), like.type
        shape = values.static_shape(like)
        if shape is not None and len(shape) == len(self._perm):
            made.shape = ir.Shape([shape[at] for at in self._perm])
        self._model.graph.insert_before(self._node, twin)
        self.made.append(twin)
        return made


def _drop_unread(step: Pass, model: ir.Model, value: ir.Value) -> None:
    """Remove what computes a value that nothing reads any more, and what computes that."""
    node = value.producer()
    if node is None or not all(values.is_unused(each) for each in node.outputs):
        return
    sources = [each for each in node.inputs if each is not None]
    values.remove_node(model.graph, node)
    step.replaced(node)
    for each in sources:
        _drop_unread(step, model, each)
