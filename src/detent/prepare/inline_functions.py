"""Model-local functions are replaced by their bodies.

A call of a function means its body with the parameters put in, so writing the body in place of the call changes
nothing. The other passes see only the main graph; what is inside a function they would miss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, RemoveUnusedFunctionsPass

from detent.errors import ModelError
from detent.graph.values import repair_names
from detent.prepare.base import Pass


class InlineFunctions(Pass):
    """Inline all model-local functions, nested ones too.

    Cases:
    - a model without functions is left untouched;
    - a function written for another version of an operator set than the model's is declined;
    - a function that is called with a graph as an attribute is declined;
    - functions that call each other in a circle are a `ModelError`.
    """

    def run(self, model: ir.Model) -> None:
        """Inline what can be, and give values and nodes unique names."""
        if not model.functions:
            return
        with_graphs = _called_with_graphs(model)
        refused = set()
        for key, function in model.functions.items():
            reason = self._why_not(model, function, key in with_graphs)
            if reason is not None:
                refused.add(key)
                self.decline(f"{function.domain}::{function.name}", reason)
        before = {key: function.name for key, function in model.functions.items()}
        calls = _count_calls(model)
        called = [node for node in model.graph if node.op_identifier() in before]
        # The call will be gone. Its results keep their names, and lead to what computes them.
        results = {node: [value.name for value in node.outputs] for node in called}
        kept = set(model.graph)
        try:
            InlinePass(criteria=lambda function: function.identifier() not in refused)(model)
        except ir.passes.PreconditionError as error:
            raise ModelError(f"The model's functions cannot be inlined: {error}.") from error
        RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
        for key, name in before.items():
            if key not in refused:
                self.changed(f"{key[0]}::{name}", f"inlined ({calls.get(key, 0)} calls)")
        repair_names(model)
        makers = {value.name: node for node in model.graph for value in node.outputs}
        for node, names in results.items():
            if node.graph is None:
                self.replaced(node, *_computing([makers[name] for name in names if name in makers], kept))

    @staticmethod
    def _why_not(model: ir.Model, function: ir.Function, has_graphs: bool) -> str | None:
        if has_graphs:
            return "it is called with a graph as an attribute"
        for domain, version in function.opset_imports.items():
            known = model.opset_imports.get(domain)
            if known is not None and known != version:
                return f"it is written for version {version} of domain '{domain}', the model for version {known}"
        return None


def _computing(nodes: Iterable[ir.Node], kept: Collection[ir.Node]) -> list[ir.Node]:
    """Return these nodes and all that lead to them, up to those that were there before."""
    found: dict[ir.Node, None] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found and node not in kept:
            found[node] = None
            pending += node.predecessors()
    return list(found)


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of the graph, of the functions, and of all bodies in them."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _count_calls(model: ir.Model) -> dict[ir.OperatorIdentifier, int]:
    """Return how often the graph and the functions call each function."""
    calls: dict[ir.OperatorIdentifier, int] = {}
    for node in _all_nodes(model):
        key = node.op_identifier()
        if key in model.functions:
            calls[key] = calls.get(key, 0) + 1
    return calls


def _called_with_graphs(model: ir.Model) -> set[ir.OperatorIdentifier]:
    """Return the functions that some call gives a graph to."""
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return {
        node.op_identifier()
        for node in _all_nodes(model)
        if node.op_identifier() in model.functions and any(a.type in kinds for a in node.attributes.values())
    }
