"""The fingerprint of a model: a short text that differs when it differs in anything that changes what is counted.

Statistics are worth something only for the model that they were counted with, and the name of a file says nothing about
that. So the contents are hashed: operators, attributes, connections and constants; not metadata, doc strings, or the
order in which nodes are listed. Values keep their names in the hash, because statistics are found by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from detent.observe.digest import Digest


def fingerprint_of(model: ir.Model) -> str:
    """The fingerprint of a model. One tensor after the other is read; none is copied."""
    digest = Digest()
    digest.add_plain(dict(model.opset_imports))
    _add_graph(digest, model.graph)
    for key in sorted(model.functions):
        function = model.functions[key]
        digest.add(*key, len(function.attributes))
        digest.add_plain(dict(function.opset_imports))
        for name in sorted(function.attributes):
            _add_attribute(digest, function.attributes[name])
        _add_body(digest, function)
    return digest.text


def _add_graph(digest: Digest, graph: ir.Graph) -> None:
    digest.add(len(graph.inputs), len(graph.initializers))
    for value in graph.inputs:
        digest.add(value.name, str(value.dtype), str(value.shape))
    for name in sorted(graph.initializers):
        digest.add(name)
        _add_tensor(digest, graph.initializers[name].const_value)
    _add_body(digest, graph)


def _add_body(digest: Digest, graph: ir.Graph | ir.Function) -> None:
    """The nodes, in an order that does not depend on how they were listed."""
    _add_values(digest, graph.inputs)
    _add_values(digest, graph.outputs)
    digest.add(len(graph))
    for node in sorted(graph, key=lambda node: [str(value.name) for value in node.outputs]):
        digest.add(node.domain, node.op_type, node.overload, len(node.attributes))
        _add_values(digest, node.inputs)
        _add_values(digest, node.outputs)
        for name in sorted(node.attributes):
            _add_attribute(digest, node.attributes[name])


def _add_values(digest: Digest, values: Sequence[ir.Value | None]) -> None:
    digest.add(len(values), *(None if value is None else value.name for value in values))


def _add_attribute(digest: Digest, attribute: ir.Attr) -> None:
    digest.add(attribute.name, str(attribute.type), attribute.ref_attr_name)
    if attribute.is_ref() or attribute.value is None:
        return
    add = _ATTRIBUTE_PARTS.get(attribute.type)
    if add is None:
        digest.add(repr(attribute.value))
        return
    several = attribute.type in (ir.AttributeType.TENSORS, ir.AttributeType.GRAPHS)
    parts: Sequence[Any] = attribute.value if several else (attribute.value,)
    digest.add(len(parts))
    for part in parts:
        add(digest, part)


def _add_tensor(digest: Digest, tensor: ir.TensorProtocol | None) -> None:
    if tensor is None:
        digest.add(None)
    else:
        digest.add(str(tensor.dtype))
        digest.add_array(tensor.numpy())


_ATTRIBUTE_PARTS: Mapping[ir.AttributeType, Callable[[Digest, Any], None]] = {
    ir.AttributeType.TENSOR: _add_tensor,
    ir.AttributeType.TENSORS: _add_tensor,
    ir.AttributeType.GRAPH: _add_graph,
    ir.AttributeType.GRAPHS: _add_graph,
}
