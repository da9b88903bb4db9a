"""Bodies of If and Loop take the place of the node that holds them, where it is known how often they run.

An If with a constant condition always runs the same branch: its nodes stand in its place then. A Loop that runs a known
number of times, without a condition to end it, is its body, as often:

    Loop(n, v)        v1 = body(0, v)   v2 = body(1, v1)   ...   vn = body(n - 1, v(n-1))

What each step gives out beside that is stacked along a new first axis. In the main graph, all of these nodes can be
folded, fused, observed and quantized as any others; in a body they stay as they are.

On request, an If that chooses by what it is given computes both of its branches, and one result is taken:

    If(c, then, else)        Where(c, then, else)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from detent.errors import UsageError
from detent.graph import values
from detent.graph.values import Names
from detent.prepare.base import Pass, label_of
from detent.prepare.shapes import infer

MOST_NODES = 512
"""Nodes that a Loop may become: a decoder of a few steps does, one of a hundred would hide the network around it."""

MOST_BYTES = 16 << 20
"""Of the weights that it reads, in all steps together: each step's layers are quantized with weights of their own."""


def take_branch(step: Pass, model: ir.Model, node: ir.Node) -> bool:
    """Write the branch of an If in its place, if the condition is constant. Return whether it is."""
    condition = values.constant(node.inputs[0])
    if condition is None or condition.size != 1:
        return False
    chosen, other = ("then_branch", "else_branch")[:: 1 if condition.item() else -1]
    if not {chosen, other} <= node.attributes.keys():
        return False  # the checker says so
    _release(node.attributes[other].as_graph())
    # Names are unique along a path of graphs, not across branches: those of two may be the same.
    names = Names(model, apart_from=[each.as_graph() for each in node.attributes.values()])
    nodes, results = _write_out(model, node, node.attributes[chosen].as_graph(), names)
    _replace(step, model, node, nodes, results, names)
    step.changed(node, f"If with a constant condition: its {chosen} took its place")
    return True


class BothBranches(Pass):
    """Compute both branches of every If in the main graph, and take the result of one.

    Cases:
    - each result of the If is a Where of the results of both branches;
    - an If that becomes part of the main graph in this way is treated, too;
    - an If stays if a result is no tensor, or if the branches may give it different shapes: a Where would stretch one.
      If all of them do, that is a `UsageError`: it was asked for.

    The branch that is not chosen must be able to compute what it is given, which nothing here can know; quantizing
    compares both models on the data. It takes time on the device, and its ranges are those of all samples.
    """

    def run(self, model: ir.Model) -> None:
        while found := [node for node in model.graph if values.is_standard(node, "If")]:
            self.declined = []  # only the reasons of the last round hold
            infer(model)
            joined = [self._join(model, node) for node in found]
            if not any(joined):
                break
        if self.declined and not self.changes:
            why = self.declined[0]
            raise UsageError(
                f"both_branches: the If '{why.node}' stays: {why.what}. Leave the step out; if an input of the model "
                "chooses the branch, make it constant (--fix-input INPUT=VALUE)."
            )

    def _join(self, model: ir.Model, node: ir.Node) -> bool:
        condition, branches = node.inputs[0], [node.attributes.get(name) for name in ("then_branch", "else_branch")]
        if condition is None or None in branches:
            return False  # the checker says so
        bodies = [each.as_graph() for each in branches if each is not None]
        for pair in zip(*(body.outputs for body in bodies), strict=True):
            if (why := _unlike(condition, *pair)) is not None:
                self.decline(node, f"its result '{pair[0].name}' {why}")
                return False
        names = Names(model, apart_from=bodies)
        (first, ours), (second, others) = (_write_out(model, node, body, names) for body in bodies)
        chosen = []
        for pair in zip(ours, others, strict=True):
            where = ir.node("Where", [condition, *pair], name=names.fresh(f"{label_of(node)}/choice"))
            where.outputs[0].name = names.fresh(f"{where.name}/result")
            where.outputs[0].type, where.outputs[0].shape = pair[0].type, pair[0].shape
            chosen.append(where)
        model.graph.insert_before(node, chosen)
        _replace(self, model, node, [*first, *second, *chosen], [each.outputs[0] for each in chosen], names)
        self.changed(node, "both branches of this If are computed, and one result is taken")
        return True


def _unlike(condition: ir.Value, one: ir.Value, other: ir.Value) -> str | None:
    """Return why a Where cannot choose between two results, if it cannot."""
    if not all(isinstance(value.type, ir.TensorType) for value in (one, other)):
        return "is no tensor"
    if one.shape is None or any(getattr(dim, "value", dim) is None for dim in one.shape):
        return "has a shape that is known only when the model runs"
    if one.shape != other.shape:
        return f"has shape {one.shape} in one branch and {other.shape} in the other"
    # A condition is one element, of whatever shape; mostly it has no axes, or one.
    if (1 if condition.shape is None else len(condition.shape)) > len(one.shape):
        return "has fewer axes than the condition"
    return None


def unroll(step: Pass, model: ir.Model, node: ir.Node) -> bool:
    """Write the body of a Loop as often as it runs, if that is known and not many times. Return whether it is."""
    body = node.attributes["body"].as_graph() if "body" in node.attributes else None
    limit = values.constant(values.input_at(node, 0))
    if body is None:
        return False  # the checker says so
    if limit is None or limit.size != 1 or not _goes_on(node, body):
        step.decline(node, "how often it runs is known only when the model does")
        return False
    count = int(limit.item())
    size = count * sum(1 for _ in body.all_nodes())
    if not 0 < count <= size <= MOST_NODES:
        step.decline(node, f"its {count} steps are {size} nodes, and only 1 to {MOST_NODES} are written out")
        return False
    weights = count * sum(tensor.nbytes for tensor in _constants(body))
    if weights > MOST_BYTES:
        step.decline(node, f"written out, its {count} steps would have {weights / 2**20:.0f} MiB of weights")
        return False
    names, made = Names(model), list[ir.Node]()
    carried: list[ir.Value | None] = list(node.inputs[2:])
    scanned: list[list[ir.Value]] = [[] for _ in node.outputs[len(carried) :]]
    for number in range(count):
        known = [
            values.add_initializer(model.graph, names.fresh(f"{label_of(node)}/{role}/{number}"), np.array(value))
            for role, value in (("step", np.int64(number)), ("goes_on", True))
        ]
        copied = body.clone(allow_outer_scope_values=True)
        nodes, (_, *results) = _write_out(model, node, copied, names, [*known, *carried], f"/{number}")
        made += nodes
        for each, value in zip(scanned, results[len(carried) :], strict=True):
            each.append(value)
        carried = [*results[: len(carried)]]
    _release(body)  # what it captured is read by its copies now
    stacked = [_stacked(model, node, each, names) for each in scanned]
    _replace(step, model, node, made, [*carried, *stacked], names)
    step.changed(node, f"Loop of {count} steps: its body was written as often")
    return True


def _goes_on(node: ir.Node, body: ir.Graph) -> bool:
    """Tell whether nothing but the number of its steps ends a Loop."""
    first, after = values.input_at(node, 1), body.outputs[0]
    if first is not None and not _is_true(first):
        return False
    while (producer := after.producer()) is not None and values.is_standard(producer, "Identity", "Cast"):
        passed_on = producer.inputs[0]
        if passed_on is None:
            return False
        after = passed_on
    return after is body.inputs[1] or _is_true(after)


def _is_true(value: ir.Value) -> bool:
    tensor = values.tensor_of(value)
    return tensor is not None and tensor.size == 1 and bool(tensor.numpy().item())


def _constants(body: ir.Graph) -> Iterator[ir.TensorProtocol]:
    """Yield the tensors that a body reads, of its own or from outside."""
    read = {value for node in body.all_nodes() for value in node.inputs if value is not None}
    yield from (tensor for value in read if (tensor := values.tensor_of(value)) is not None)


def _release(body: ir.Graph) -> None:
    """Let what a body reads have no use there any more."""
    for each in body.all_nodes():
        for index in range(len(each.inputs)):
            each.replace_input_with(index, None)


def _write_out(
    model: ir.Model,
    node: ir.Node,
    body: ir.Graph,
    names: Names,
    given: Sequence[ir.Value | None] = (),
    suffix: str = "",
) -> tuple[list[ir.Node], list[ir.Value]]:
    """Move the nodes of a body before the node that holds it, and return them with the body's results.

    `given` are the values that its inputs stand for.
    """
    stands_for: dict[ir.Value, ir.Value] = {}
    results = list(body.outputs)
    body.outputs.clear()
    for initializer in list(body.initializers.values()):
        assert initializer.const_value is not None, "an initializer is constant"
        moved = initializer_of(own_tensor(initializer.const_value, names.fresh(f"{initializer.name}{suffix}")))
        model.graph.register_initializer(moved)
        stands_for[initializer] = moved
    for inner, outer in zip(body.inputs, given, strict=True):
        assert outer is not None, "every input of a body is given"
        stands_for[inner] = outer
    for inner, outer in stands_for.items():
        inner.replace_all_uses_with(outer)
    nodes = list(body)
    body.remove(nodes)
    for each in nodes:
        each.name = names.fresh(f"{label_of(each)}{suffix}")
        for value in each.outputs:
            value.name = names.fresh(f"{value.name}{suffix}") if value.name else value.name
    model.graph.insert_before(node, nodes)
    return nodes, [stands_for.get(value, value) for value in results]


def _stacked(model: ir.Model, node: ir.Node, rows: Sequence[ir.Value], names: Names) -> ir.Value:
    """Return the values of all steps along a new first axis."""
    axes = values.add_initializer(model.graph, names.fresh(f"{label_of(node)}/axes"), np.array([0], np.int64))
    parts = [ir.node("Unsqueeze", [row, axes], name=names.fresh(f"{label_of(node)}/row")) for row in rows]
    joined = ir.node(
        "Concat", [part.outputs[0] for part in parts], {"axis": 0}, name=names.fresh(f"{label_of(node)}/rows")
    )
    for each in (*parts, joined):
        each.outputs[0].name = names.fresh(f"{each.name}/result")
    model.graph.insert_before(node, [*parts, joined])
    return joined.outputs[0]


def _replace(
    step: Pass,
    model: ir.Model,
    node: ir.Node,
    nodes: Sequence[ir.Node],
    results: Sequence[ir.Value | None],
    names: Names,
) -> None:
    """Let values take the place of the node's results, and remove it."""
    for outer, inner in zip(node.outputs, results, strict=True):
        copy = ir.node("Identity", [inner], name=names.fresh(f"{label_of(node)}/result"))
        model.graph.insert_before(node, copy)
        values.take_over(outer, copy.outputs[0])
    step.forget_names()
    step.replaced(node, *nodes)
    model.graph.remove(node, safe=True)


def own_tensor(tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    """Return a tensor with the same numbers and its own name: another name would be written into the caller's file."""
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), shape=ir.Shape(tensor.shape.numpy()), name=name)
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)


def initializer_of(tensor: ir.TensorProtocol) -> ir.Value:
    """Return a value that holds a tensor under its name."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
