"""The base of all conversions. A step is a frozen value with settings; it notes what it did and what it left alone."""

from __future__ import annotations

import abc
import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from detent.graph.values import Names, is_standard, is_unused, remove_node, take_over
from detent.prepare.base import Pass, RewriteNotes, main_opset
from detent.qdq.functions import settle_domains


class ConversionNotes(RewriteNotes):
    """The notes of one step."""

    def run(self, step: Pass, model: ir.Model) -> None:
        """Run a pass of `prepare`, and take its notes over."""
        step(model)
        self.changes += [dataclasses.replace(change, by=self.by) for change in step.changes]
        self.declined += [dataclasses.replace(change, by=self.by) for change in step.declined]


class ConversionStep(abc.ABC):
    """One conversion. A subclass is a frozen dataclass whose fields are the settings after the colon.

    `nothing` completes the sentence "the model is left as it is: ..." if there is nothing to convert. `retypes` says
    that operators compute in another type afterwards.
    """

    nothing: ClassVar[str]
    retypes: ClassVar[bool] = False

    def apply(self, model: ir.Model, notes: ConversionNotes) -> ir.Model:
        """Convert the model, in place if possible, and return it."""
        return self._convert(model, notes) or model

    @abc.abstractmethod
    def _convert(self, model: ir.Model, notes: ConversionNotes) -> ir.Model | None:
        """Convert the model in place, or return another one."""


@dataclass(frozen=True, eq=False)
class GraphEdit:
    """One graph of a model while a step converts it."""

    model: ir.Model
    graph: ir.Graph
    names: Names
    notes: ConversionNotes

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return main_opset(self.model)

    def substitute(self, node: ir.Node, source: ir.Value) -> None:
        """Let `source` replace the first output of a node, and remove the node with what only it read.

        The name of a graph output stays: the source takes it, or if its own name is fixed an Identity joins the two.
        """
        output = node.outputs[0]
        if output.is_graph_output():
            producer = source.producer()
            if producer is None or producer.graph is not self.graph or source.is_graph_output():
                identity = ir.node("Identity", [source], name=self.names.fresh(f"{output.name}_Identity"))
                self.graph.insert_before(node, [identity])
                source = identity.outputs[0]
            take_over(output, source)
        else:
            output.replace_all_uses_with(source)
        self.remove(node)

    def changed(self, where: ir.Node | ir.Value | str, what: str) -> str | None:
        """Note a change. Return None, so that `NodeStep._visit` can return it: a change has no reason to decline."""
        self.notes.changed(where, what)
        return None

    def replace(self, node: ir.Node, nodes: list[ir.Node], like: ir.Value) -> None:
        """Replace a node by others; the result of the last one gets the type and shape of `like`."""
        result = nodes[-1].outputs[0]
        result.type, result.shape = like.type, like.shape
        self.graph.insert_before(node, nodes)
        self.substitute(node, result)

    def remove(self, node: ir.Node) -> None:
        """Remove a node, and the Constant nodes and initializers that only it read."""
        inputs = [value for value in node.inputs if value is not None]
        remove_node(self.graph, node)
        for value in inputs:
            made = value.producer()  # initializers go with their last reader; Constant nodes do not
            if made is not None and is_standard(made, "Constant") and is_unused(value) and made.graph is self.graph:
                remove_node(self.graph, made)

    def original_name(self, codes: str) -> str:
        """Return a free name for a float constant whose codes are called `codes`: its own former name, if known."""
        return self.names.fresh(codes.removesuffix("_quantized") if codes.endswith("_quantized") else f"{codes}_float")


class NodeStep(ConversionStep):
    """A conversion of quantizing nodes, one by one, in all graphs of a model."""

    def _convert(self, model: ir.Model, notes: ConversionNotes) -> None:
        names = Names(model)
        for graph in tuple(model.graphs()):
            edit = GraphEdit(model, graph, names, notes)
            for node in tuple(graph):
                reason = self._visit(edit, node) if node.graph is not None else None  # removed with an earlier one
                if reason is not None:
                    notes.decline(node, reason)
            self._clean_up(edit)
        settle_domains(model)

    @abc.abstractmethod
    def _visit(self, edit: GraphEdit, node: ir.Node) -> str | None:
        """Convert one node; return the reason if it is of the right kind but cannot be converted, else None."""

    def _clean_up(self, edit: GraphEdit) -> None:
        """Remove from a graph what its converted nodes left behind."""


def cast_node(names: Names, value: ir.Value, target: ir.DataType, name: str) -> ir.Node:
    """Make a Cast of a value, whose output has a fresh name. It is in no graph yet."""
    node = ir.node("Cast", [value], {"to": int(target)}, name=names.fresh(f"{name}_Cast"))
    result = node.outputs[0]
    result.name, result.type, result.shape = names.fresh(name), ir.TensorType(target), value.shape
    return node


def readers_of(value: ir.Value) -> list[str]:
    """Return the kinds of what reads a value, for a message."""
    return sorted(
        {use.node.op_type for use in value.uses()} | ({"a graph output"} if value.is_graph_output() else set())
    )


def casts_to(node: ir.Node, target: ir.DataType) -> bool:
    return is_standard(node, "Cast") and node.attributes.get_int("to", 0) == target
