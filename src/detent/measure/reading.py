"""The float network inside a quantized model, whoever wrote it, and the codes that each of its values has.

Pairs of quantizing nodes disappear: readers of a rounded value read the value itself, which is noted to have codes. A
weight that is stored as codes becomes a float constant of the same name. So what is left is the network as its author
knew it, and questions about a node (is its result quantized, at which position?) are questions about its values.

| in the file                                              | becomes                                          |
| -------------------------------------------------------- | ------------------------------------------------ |
| x -> Quantize -> Dequantize -> readers (any generation)  | x -> readers, x has codes                        |
| integer constant -> Dequantize -> readers                | a float constant with codes -> readers           |
| x -> FixNeuron, BFP- or MXQuantizeDequantize -> readers  | x -> readers, x has codes                        |
| Cast from one float type to another                      | nothing; x has codes of a 16-bit float           |
| a second pair with another scale                         | an Identity, whose output has the second codes   |
| QLinearConv and its like, and what moves their codes     | the float operator; its values have codes        |
| codes that anything else computes                        | left as it is                                    |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.convert.fused import fix_neuron_linear
from detent.convert.linear import Linear, linear_of
from detent.convert.operators import dequantize_family, is_block_format, is_fix_neuron, quantize_family
from detent.emit.functions import Operator
from detent.graph.values import is_standard, tensor_of
from detent.measure.on_codes import spell_out
from detent.numerics.power_of_two import position_of

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True, eq=False)
class Codes:
    """How one value is stored: the type, the scale and zero point where it has any, and the operator that says so."""

    dtype: str
    linear: Linear | None
    operator: str
    domain: str

    @property
    def per_tensor(self) -> bool:
        """Whether there is at most one scale."""
        return self.linear is None or self.linear.per_tensor

    @property
    def position(self) -> int | None:
        """p of the one power-of-two scale 2^-p; None where there is none."""
        if self.linear is None or not self.linear.per_tensor:
            return None
        return position_of(float(self.linear.scale.reshape(-1)[0]))

    @property
    def zero_points(self) -> npt.NDArray[np.int64]:
        """All zero points."""
        return np.zeros(1, np.int64) if self.linear is None else self.linear.zero_point.reshape(-1).astype(np.int64)

    def same_as(self, other: Codes) -> bool:
        """Whether a value in these codes is one in the others too."""
        if self.linear is None or other.linear is None:
            return self.linear is other.linear and self.dtype == other.dtype
        return self.linear.same_as(other.linear)


@dataclass(frozen=True, eq=False)
class Reading:
    """A float network, and the codes of its values by name. `written` are the operators on codes that nodes were."""

    model: ir.Model
    codes: Mapping[str, Codes]
    written: Mapping[str, Operator] = field(default_factory=dict)

    @property
    def quantized(self) -> bool:
        """Whether anything in it has codes."""
        return bool(self.codes)


def read_codes(model: ir.Model) -> Reading:
    """Take the quantizing nodes out of a copy of `model`. What they stand for is in the result."""
    reader = _Reader(model.clone())
    written = spell_out(reader.model)
    for node in tuple(reader.graph):
        reader.visit(node)
    reader.drop_unread()
    return Reading(reader.model, reader.codes, written)


class _Reader:
    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.graph = model.graph
        self.codes: dict[str, Codes] = {}

    def visit(self, node: ir.Node) -> None:
        """Take one node out, if it is one that quantizes. Nodes come in topological order."""
        source = node.inputs[0] if node.inputs else None
        if source is None:
            return
        if dequantize_family(node) is not None:
            self._dequantize(node, source)
        elif is_fix_neuron(node):
            linear = fix_neuron_linear(node)
            self._join(node, source, Codes(linear.dtype.name, linear, node.op_type, node.domain))
        elif is_block_format(node):
            self._join(node, source, Codes("blocks", None, node.op_type, node.domain))
        elif is_standard(node, "Cast"):
            self._cast(node, source)

    def drop_unread(self) -> None:
        """Remove quantizing nodes whose codes nothing reads any more."""
        for node in reversed(tuple(self.graph)):
            output = node.outputs[0]
            if quantize_family(node) is not None and not output.uses() and not output.is_graph_output():
                self.graph.remove(node, safe=True)

    def _dequantize(self, node: ir.Node, source: ir.Value) -> None:
        linear = linear_of(node)
        if linear is None:
            return
        producer = source.producer()
        quantizes = quantize_family(producer) is not None and producer is not None
        if quantizes and producer is not None and producer.inputs[0] is not None:
            self._join(node, producer.inputs[0], Codes(linear.dtype.name, linear, producer.op_type, node.domain))
        elif tensor_of(source) is not None:
            self._store(node, source, linear)

    def _cast(self, node: ir.Node, source: ir.Value) -> None:
        """A Cast between float types rounds at most; it is transparent."""
        target = ir.DataType(node.attributes.get_int("to", 0))
        before = source.dtype
        if target not in _FLOATS or before not in _FLOATS:
            return
        half = target if target in _HALVES else before if before in _HALVES else None
        codes = None if half is None else Codes(half.name.lower(), None, "Cast", "")
        self._join(node, source, codes or self.codes.get(str(source.name)))

    def _store(self, node: ir.Node, stored: ir.Value, linear: Linear) -> None:
        """A float constant in the place of codes and the node that decodes them; decoded when somebody looks."""
        tensor, output = tensor_of(stored), node.outputs[0]
        assert tensor is not None
        name, held, shape = str(output.name), tensor, ir.Shape(tensor.shape.numpy())
        decoded = ir.LazyTensor(
            lambda: ir.tensor(linear.decode(held.numpy()).astype(np.float32)),
            dtype=ir.DataType.FLOAT,
            shape=shape,
            name=name,
        )
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType.FLOAT))
        value.const_value = decoded
        output.replace_all_uses_with(value, replace_graph_outputs=True)
        self.graph.remove(node, safe=True)
        self.graph.register_initializer(value)
        self.codes[name] = Codes(linear.dtype.name, linear, node.op_type, node.domain)

    def _join(self, node: ir.Node, source: ir.Value, codes: Codes | None) -> None:
        """Let the readers of a rounded value read the value itself."""
        output, known = node.outputs[0], self.codes.get(str(source.name))
        named = source.is_graph_input() or source.is_initializer() or source.is_graph_output()
        changed = known is not None and codes is not None and not known.same_as(codes)
        if changed or (output.is_graph_output() and named):
            self._convert(node, source, codes)
            return
        if output.is_graph_output():
            self.codes.pop(str(source.name), None)
            output.replace_all_uses_with(source, replace_graph_outputs=True)
            source.name = output.name
        else:
            output.replace_all_uses_with(source)
        self.graph.remove(node, safe=True)
        self._note(source, codes)

    def _note(self, value: ir.Value, codes: Codes | None) -> None:
        if codes is not None:
            self.codes[str(value.name)] = codes

    def _convert(self, node: ir.Node, source: ir.Value, codes: Codes | None) -> None:
        """Leave an Identity, which stands for the change from one kind of codes to another."""
        output = node.outputs[0]
        identity = ir.node("Identity", [source], name=node.name)
        result = identity.outputs[0]
        result.type, result.shape = output.type, output.shape
        self.graph.insert_before(node, identity)
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        self.graph.remove(node, safe=True)
        result.name = output.name
        self._note(result, codes)
