"""Check and mend the message of a model file before it becomes a graph: a file is untrusted input.

Checked, without reading any data: the opset is there, and a number that there can be; functions that call functions do
not grow into more nodes than a machine can hold; every tensor has a known type, no size below zero, and as many bytes
as these say (a few bytes that declare a terabyte are refused here, not by the machine); external data lies below the
model's own folder, in a file that is long enough. In a cache of downloads the model and its data are links to files in
another folder: a link beside the model may lead to where the model itself leads, and nowhere else.

Mended, because onnxruntime takes it and exporters write it; no number that is computed changes:

- a dimension below zero is one that is not known;
- the domain "ai.onnx" is the standard one, "";
- operators that onnxruntime brings along need no import of their domain;
- a graph without a name gets one;
- a ZipMap that computes an output (scikit-learn's exporters, Custom Vision) becomes an Identity: no map is compared;
- bytes that are not UTF-8, in a name or a note, are spelled out: \\xde.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import Message
from onnx import TensorProto

from detent.errors import ModelError
from detent.graph.file_kinds import kind_of_file

# The domains, besides the standard one, whose operators onnxruntime brings along.
RUNTIME_DOMAINS = ("ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc")

SMALL = 4096  # bytes; constants up to this size stay with the graph, since shapes may be computed from them

MOST_BYTES = 2**40  # no tensor is larger than this, whatever it declares
MOST_NODES = 10**6  # of a model without functions; the largest that are known have a tenth of that
_STANDARD = ("", "ai.onnx")

# Bits of an element.
_WIDTHS: dict[int, int] = {
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.INT64, TensorProto.UINT64, TensorProto.COMPLEX64), 64),
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT32), 32),
    **dict.fromkeys((TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT16, TensorProto.UINT16), 16),
    **dict.fromkeys((TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL), 8),
    **{code: 8 for name, code in TensorProto.DataType.items() if name.startswith("FLOAT8")},
    **{code: 4 for name, code in TensorProto.DataType.items() if name in ("INT4", "UINT4", "FLOAT4E2M1")},
    **{code: 2 for name, code in TensorProto.DataType.items() if name in ("INT2", "UINT2")},
    TensorProto.COMPLEX128: 128,
}

# Where elements stand that are not raw bytes; those of the other types are in int32_data.
_FIELDS: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.COMPLEX64: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.COMPLEX128: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
}


def check_message(proto: onnx.ModelProto, where: str, path: Path | None) -> None:
    """Raise ModelError for an opset that cannot be, and, naming it, for a tensor whose data is not what it declares or
    is not to be read.

    Data that is small, or that is not an initializer of the main graph, is read into the message if it is external.
    """
    for entry in (*proto.opset_import, *(each for function in proto.functions for each in function.opset_import)):
        if entry.domain in _STANDARD and not 1 <= entry.version < 2**31:
            raise ModelError(f"{where} has opset {entry.version}, which there cannot be. Export the model again.")
    if not any(entry.domain in _STANDARD for entry in proto.opset_import):
        _refuse_standard_nodes(proto, where)
    _refuse_hollow_attributes(proto, where)
    for tensor in proto.graph.initializer:
        _check_tensor(tensor, where, path, most_inside=SMALL)
    for tensor in _other_tensors(proto):
        _check_tensor(tensor, where, path, most_inside=MOST_BYTES)


def _refuse_standard_nodes(proto: onnx.ModelProto, where: str) -> None:
    """Refuse standard operators in a model that does not say of which version."""
    for graph in all_graphs(proto, functions=False):
        for node in graph.node:
            if node.domain in _STANDARD:
                raise ModelError(
                    f"Node '{_as_text(node.name)}' ({_as_text(node.op_type)}) of {where} is ONNX's own, and the model "
                    "does not say which version of ONNX's operators it uses. Export the model again."
                )


_HELD_IN = {onnx.AttributeProto.TENSOR: "t", onnx.AttributeProto.GRAPH: "g"}


def _refuse_hollow_attributes(proto: onnx.ModelProto, where: str) -> None:
    """Refuse an attribute that is said to be a tensor or a graph and holds none."""
    for node in (node for graph in all_graphs(proto) for node in graph.node):
        for attribute in node.attribute:
            field = _HELD_IN.get(attribute.type)
            if field is not None and not attribute.HasField(field) and not attribute.ref_attr_name:
                raise ModelError(
                    f"Node '{_as_text(node.name)}' ({_as_text(node.op_type)}) of {where} has an attribute "
                    f"'{_as_text(attribute.name)}' whose tensor or graph the file does not hold. Export it again."
                )


def check_functions(proto: onnx.ModelProto, where: str) -> None:
    """Raise ModelError for functions whose calls, written out, are more nodes than a machine can hold.

    Thirty functions that call the one before them twice are a billion nodes.
    """
    functions = {(each.domain, each.name): each for each in proto.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size_of(graph: Any) -> int:
        total = 0
        for node in graph.node:
            key = (node.domain, node.op_type)
            if key in functions and key not in sizes:
                sizes[key] = 1  # what calls itself is refused when it is inlined
                sizes[key] = size_of(functions[key])
            inner = (body for each in node.attribute for body in (each.g, *each.graphs) if body.node)
            total += sizes.get(key, 1) + sum(map(size_of, inner))
        return total

    try:
        nodes = size_of(proto.graph) if functions else 0
    except RecursionError:
        raise ModelError(f"The functions of {where} call each other too deeply to be followed.") from None
    if nodes > MOST_NODES:
        raise ModelError(
            f"The functions of {where} call each other so often that it has {nodes:,} nodes, and {MOST_NODES:,} can be "
            "worked with. Export the model without functions."
        )


def _check_tensor(tensor: onnx.TensorProto, where: str, path: Path | None, most_inside: int) -> None:
    """Check one tensor. External data up to `most_inside` bytes is read into it."""
    size = _declared_bytes(tensor, where)
    if tensor.data_location != TensorProto.EXTERNAL:
        _check_elements(tensor, where, size)
        return
    start, length, file = _external_place(tensor, where, path, size)
    if length <= most_inside:
        _read_into(tensor, file, start, length)


def _other_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield all tensors but the main graph's initializers: attributes, and what nested graphs and functions hold."""
    for graph in all_graphs(proto):
        if graph is not proto.graph:
            yield from getattr(graph, "initializer", ())
        for sparse in getattr(graph, "sparse_initializer", ()):
            yield from (sparse.values, sparse.indices)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def all_graphs(proto: onnx.ModelProto, *, functions: bool = True) -> Iterator[Any]:
    """Yield the main graph, the functions, unless they are not asked for, and all graphs inside them."""
    pending: list[Any] = [proto.graph, *(proto.functions if functions else ())]
    while pending:
        graph = pending.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                pending += [attribute.g] if attribute.HasField("g") else []
                pending += attribute.graphs


def external_files(proto: onnx.ModelProto) -> set[str]:
    return {
        _as_text(entry.value)
        for tensor in (*proto.graph.initializer, *_other_tensors(proto))
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }


def _declared_bytes(tensor: onnx.TensorProto, where: str) -> int:
    """Return the bytes that type and sizes of a tensor ask for; 0 for text, which has no size of its own."""
    if tensor.data_type == TensorProto.STRING:
        width = 0
    elif tensor.data_type in _WIDTHS:
        width = _WIDTHS[tensor.data_type]
    else:
        raise ModelError(f"Tensor '{tensor.name}' of {where} has the data type {tensor.data_type}, which ONNX has not.")
    if any(size < 0 for size in tensor.dims):
        raise ModelError(f"Tensor '{tensor.name}' of {where} has the shape {list(tensor.dims)}, with a size below 0.")
    size = -(-math.prod(int(dim) for dim in tensor.dims) * width // 8)
    if size > MOST_BYTES:
        raise ModelError(f"Tensor '{tensor.name}' of {where} declares the shape {list(tensor.dims)}: {size:,} bytes.")
    return size


def _check_elements(tensor: onnx.TensorProto, where: str, size: int) -> None:
    """Check that a tensor in the file itself has the data that it declares."""
    count = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        found, expected, unit = len(tensor.raw_data), size, "bytes"
    elif tensor.data_type == TensorProto.STRING:
        found, expected, unit = len(tensor.string_data), count, "texts"
    else:
        complex_parts = 2 if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128) else 1
        found, unit = len(getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data"))), "numbers"
        # Several elements of less than a byte share a number.
        expected = size if _WIDTHS[tensor.data_type] < 8 else count * complex_parts
    if found != expected:
        raise ModelError(
            f"Tensor '{tensor.name}' of {where} has the shape {list(tensor.dims)}, which is {expected:,} {unit}, but "
            f"the file holds {found:,} of them. Export or download it again."
        )


def _external_place(tensor: onnx.TensorProto, where: str, path: Path | None, size: int) -> tuple[int, int, Path]:
    """Return where external data starts, its bytes and its file, which may be read and is long enough."""
    entries = {_as_text(entry.key): _as_text(entry.value) for entry in tensor.external_data}
    location = entries.get("location", "")
    if path is None:
        raise ModelError(
            f"Tensor '{tensor.name}' of {where} has its data in another file ('{location}'). Load the model with "
            "onnx.load(path), which reads it, or give the path."
        )
    file = path.parent / location
    try:
        linked = file.parent == path.parent and file.is_symlink()
        homes = [path.parent.resolve(), *([path.resolve().parent] if linked else [])]
        inside = bool(location) and any(file.resolve().is_relative_to(home) for home in homes)
        found = file.stat().st_size if inside and file.is_file() else None
    except (ValueError, OSError, RuntimeError):  # a NUL in it, a name too long, a circle of links
        inside, found, linked = False, None, False
    if not inside:
        what, remedy = "", "put the data file beside the model and save it with a relative location"
        if linked:
            what, remedy = "which is a link to ", "copy the files that such links lead to (cp -L) into one folder"
        raise ModelError(
            f"Tensor '{tensor.name}' of {where} refers to {location!r}, {what}outside the model's folder. That is not "
            f"followed; {remedy}."
        )
    if found is None:
        there = [each.name for each in file.parent.iterdir()] if file.parent.is_dir() else []
        alike = [f" Rename '{name}'." for name in there if name != file.name and name.lower() == file.name.lower()]
        missing = "which is a pipe, a device or a folder" if file.exists() else "which is not there"
        remedy = alike[0] if alike else " Put it there, or export the model again."
        raise ModelError(f"Tensor '{tensor.name}' of {where} needs the file {file}, {missing}.{remedy}")
    start, length = _number(entries, "offset", 0, tensor, where), _number(entries, "length", size, tensor, where)
    if length != size:
        raise ModelError(
            f"Tensor '{tensor.name}' of {where} has the shape {list(tensor.dims)}, which is {size:,} bytes, but says "
            f"that {length:,} of {file} are its own. Export it again."
        )
    if found < start + length:
        with file.open("rb") as handle:
            kind = kind_of_file(handle.read(64))
        raise ModelError(
            f"{file} is too short: tensor '{tensor.name}' of {where} ends at byte {start + length:,}"
            + (f", and {kind}" if kind else ". Export or download it again.")
        )
    return start, length, file


def _number(entries: dict[str, str], key: str, default: int, tensor: onnx.TensorProto, where: str) -> int:
    """Return an entry of external data as a number that is not below 0."""
    text = entries.get(key, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ModelError(f"Tensor '{tensor.name}' of {where} has the {key} {text!r} in its external data: no number.")
    return int(text)


def _read_into(tensor: onnx.TensorProto, file: Path, start: int, length: int) -> None:
    with file.open("rb") as handle:
        handle.seek(start)
        tensor.raw_data = handle.read(length)
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def mended(proto: onnx.ModelProto, *, owned: bool) -> onnx.ModelProto:
    """Return the message with what onnxruntime would forgive put right; a copy if it is the caller's."""
    if not _needs_mending(proto):
        return proto
    if not owned:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        proto = copy
    _spell_out(proto)
    _unzip(proto)
    proto.graph.name = proto.graph.name or "graph"
    _use_standard_domain(proto)
    imported = {entry.domain for entry in proto.opset_import}
    for domain in sorted(_domains(proto) - imported):
        if domain in RUNTIME_DOMAINS:
            proto.opset_import.append(onnx.helper.make_opsetid(domain, 3 if domain == "ai.onnx.ml" else 1))
    for graph in all_graphs(proto):
        for dim in _dimensions(graph):
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
        for index in reversed(_declared_again(graph)):
            del graph.input[index]
    return proto


def zipped_outputs(proto: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """Return the outputs that a ZipMap computes from a tensor: a map from classes to numbers for each row of it."""
    nodes = [node for node in proto.graph.node if (node.domain, node.op_type) == ("ai.onnx.ml", "ZipMap")]
    computed = {name: node for node in nodes if len(node.input) == 1 for name in node.output}
    return {value.name: computed[value.name] for value in proto.graph.output if value.name in computed}


def classes_of(zip_map: onnx.NodeProto) -> list[str]:
    """Return the classes that a ZipMap names, in the order of its columns."""
    names = (entry for each in zip_map.attribute for entry in (*each.strings, *each.ints))
    return [_as_text(name) if isinstance(name, bytes) else str(name) for name in names]


def _unzip(proto: onnx.ModelProto) -> None:
    """Replace outputs that are maps by the tensors that the maps are made from."""
    for name, node in zipped_outputs(proto).items():
        shape = [None, len(classes_of(node))]
        node.op_type, node.domain = "Identity", ""
        del node.attribute[:]
        output = next(value for value in proto.graph.output if value.name == name)
        output.type.CopyFrom(onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, shape))


def _needs_mending(proto: onnx.ModelProto) -> bool:
    graphs = list(all_graphs(proto))
    domains = _domains(proto)
    imported = {entry.domain for entry in proto.opset_import}
    return (
        not proto.graph.name
        or bool(zipped_outputs(proto))
        or not all(isinstance(text, str) for text in _texts(proto, graphs))
        or "ai.onnx" in imported | domains
        or any(domain in RUNTIME_DOMAINS for domain in domains - imported)
        or any(dim.dim_value < 0 for graph in graphs for dim in _dimensions(graph))
        or any(_declared_again(graph) for graph in graphs)
    )


def _declared_again(graph: Any) -> list[int]:
    """Return which inputs only repeat the name of one before them that has a default."""
    names = [getattr(value, "name", value) for value in graph.input]  # inputs of a function are names
    if len(set(names)) == len(names):
        return []
    held = {tensor.name for tensor in getattr(graph, "initializer", ())}
    return [index for index, name in enumerate(names) if name in held and name in names[:index]]


def _texts(proto: onnx.ModelProto, graphs: Sequence[Any]) -> Iterator[str | bytes]:
    """Yield the texts that are worked with. What is not UTF-8 comes as bytes."""
    yield from (proto.producer_name, proto.producer_version, proto.domain, proto.doc_string)
    yield from (text for entry in proto.metadata_props for text in (entry.key, entry.value))
    yield from (entry.domain for entry in proto.opset_import)
    for function in proto.functions:
        yield from (function.domain, *function.attribute, *(entry.domain for entry in function.opset_import))
    for graph in graphs:
        yield from (graph.name, graph.doc_string)
        yield from (dim.dim_param for dim in _dimensions(graph))
        for node in graph.node:
            yield from (node.name, node.op_type, node.domain, node.doc_string, *node.input, *node.output)
            yield from (attribute.name for attribute in node.attribute)
        for value in (*graph.input, *graph.output, *graph.value_info, *getattr(graph, "initializer", ())):
            yield getattr(value, "name", value)  # inputs of a function are names


def _spell_out(message: Message) -> None:
    """Make text of bytes that are not UTF-8, in all fields that hold text, the same for the same bytes."""
    for field, value in message.ListFields():
        if isinstance(value, Message):
            _spell_out(value)
        elif field.type == field.TYPE_MESSAGE:
            for each in value:
                _spell_out(each)
        elif field.type == field.TYPE_STRING and isinstance(value, bytes):
            setattr(message, field.name, _as_text(value))
        elif field.type == field.TYPE_STRING and not isinstance(value, str):
            for index, each in enumerate(value):
                if isinstance(each, bytes):
                    value[index] = _as_text(each)


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def _domains(proto: onnx.ModelProto) -> set[str]:
    return {node.domain for graph in all_graphs(proto) for node in graph.node}


def _dimensions(graph: Any) -> Iterator[Any]:
    for value in (*getattr(graph, "input", ()), *getattr(graph, "output", ()), *getattr(graph, "value_info", ())):
        kind = getattr(value, "type", None)  # inputs of a function are names
        while kind is not None and kind.WhichOneof("value") in ("sequence_type", "optional_type"):
            kind = getattr(kind, kind.WhichOneof("value")).elem_type
        if kind is not None and kind.HasField("tensor_type"):
            yield from kind.tensor_type.shape.dim


def _use_standard_domain(proto: onnx.ModelProto) -> None:
    """Write the standard domain as the empty text; of two versions the newer holds, as in onnxruntime."""
    for imports in (proto.opset_import, *(function.opset_import for function in proto.functions)):
        standard = [entry.version for entry in imports if entry.domain in _STANDARD]
        others = [entry for entry in imports if entry.domain not in _STANDARD]
        if standard:
            kept = [onnx.helper.make_opsetid("", max(standard)), *others]
            del imports[:]
            imports.extend(kept)
    for graph in all_graphs(proto):
        for node in graph.node:
            if node.domain == "ai.onnx":
                node.domain = ""
