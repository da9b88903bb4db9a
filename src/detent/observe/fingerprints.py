"""Fingerprints of models and data: short texts that differ when anything differs that changes what is counted.

Statistics are valid only for the model that they were counted with, and a file name says nothing about that. So the
contents are hashed: operators, attributes, connections and constants; not metadata, doc strings, or the order in which
nodes are listed. Values keep their names in the hash, because statistics are found by them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detent.errors import DataError

if TYPE_CHECKING:
    import onnx_ir as ir  # reading data does not load onnx

WHOLE_FILE_LIMIT = 1 << 26  # files up to this many bytes are hashed whole

PAGE = 1 << 12
# Of a larger file, one page of each stride is hashed, so an exchange of that many bytes is always noticed.
PAGE_STRIDE = 1 << 16


class Digest:
    """A hash over a sequence of items. Each goes in with its kind and length, so no two sequences can look the same."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    @property
    def text(self) -> str:
        """The fingerprint of all that was added."""
        return self._hash.hexdigest()

    def add(self, *items: str | int | float | None) -> None:
        """Add plain values."""
        for item in items:
            encoded = repr(item).encode("utf-8", "backslashreplace")
            self._hash.update(b"v%d:" % len(encoded) + encoded)

    def add_plain(self, value: object) -> None:
        """Add nested lists and dicts of plain values; the order of keys does not matter."""
        self.add(json.dumps(value, sort_keys=True))

    def add_array(self, array: np.ndarray[Any, Any]) -> None:
        """Add an array: type, shape and contents. A contiguous one is not copied."""
        self.add("array", array.dtype.str if array.dtype.kind != "V" else array.dtype.name, *array.shape)
        if array.dtype.hasobject:
            self.add(*(repr(item) for item in array.reshape(-1)))
        else:
            self._hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def add_file(self, path: Path) -> None:
        """Add a file's size and contents (of a large one: a page of every stride, and the end). Not its name."""
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.add("file", size)
                if size <= WHOLE_FILE_LIMIT:
                    self._hash.update(file.read())
                    return
                for start in (*range(0, size - PAGE, PAGE_STRIDE), size - PAGE):
                    file.seek(start)
                    self._hash.update(file.read(PAGE))
        except OSError as error:
            raise DataError(f"{path}: this file cannot be read ({error.strerror or error}).") from error


def fingerprint_of(model: ir.Model) -> str:
    """Return the fingerprint of a model. One tensor after the other is read; none is copied."""
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
    """Add the nodes, in an order that does not depend on how they were listed."""
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
    add = _ATTRIBUTE_PARTS.get(attribute.type.name)
    if add is None:
        digest.add(repr(attribute.value))
        return
    several = attribute.type.name in ("TENSORS", "GRAPHS")
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


_ATTRIBUTE_PARTS: Mapping[str, Callable[[Digest, Any], None]] = {
    "TENSOR": _add_tensor,
    "TENSORS": _add_tensor,
    "GRAPH": _add_graph,
    "GRAPHS": _add_graph,
}
