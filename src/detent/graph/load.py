"""Reading a model: from a file or a ModelProto to an `onnx_ir.Model` that owns nothing of the caller's.

What comes out has opset 17 or newer, unique names on every node and value, and external data that was checked to lie
inside the model's own folder (a model file is untrusted input: it must not make us read /etc/passwd as a weight).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes import common as common_passes

from detent.errors import ModelError
from detent.graph.opset import raise_opset
from detent.graph.values import repair_names

ModelLike = str | Path | onnx.ModelProto
MINIMUM_OPSET = 17


def load(model: ModelLike, opset: int = MINIMUM_OPSET) -> ir.Model:
    """Return the model with unique names, at opset 17 or the given one, or newer. The input is not modified."""
    return raise_opset(read(model), max(opset, MINIMUM_OPSET), name_of(model))


FOLDER = "folder"
"""The key of a loaded model's `meta` under which the folder of its file is kept; a ModelProto has none."""


def read(model: ModelLike, *, keep_defaults: bool = False) -> ir.Model:
    """Return the model as a graph with unique names, at the opset that it has. The input is not modified.

    Initializers among the graph inputs are taken out of them, unless `keep_defaults`.
    """
    where = name_of(model)
    if isinstance(model, onnx.ModelProto):
        graph_model = _deserialize(model, where, folder=None)
    else:
        path = Path(model)
        graph_model = _deserialize(read_proto(path), where, folder=path.parent)
        graph_model.meta[FOLDER] = path.parent  # exporters put files about the model beside it
    if not keep_defaults:
        common_passes.RemoveInitializersFromInputsPass()(graph_model)
    repair_names(graph_model)
    try:
        graph_model.graph.sort()
    except ValueError as error:
        raise ModelError(f"The nodes of {where} depend on each other in a circle: {error}") from error
    return graph_model


IN_MEMORY = "the given ModelProto"
"""What a model without a file is called."""


def name_of(model: ModelLike) -> str:
    """Return how messages and reports call the model."""
    return IN_MEMORY if isinstance(model, onnx.ModelProto) else str(model)


def stored_bytes(model: ModelLike) -> int:
    """Return the size of the model on disk, its external data included."""
    if isinstance(model, onnx.ModelProto):
        return int(model.ByteSize())
    path = Path(model)
    return sum(file.stat().st_size for file in files_of(path))


def files_of(path: Path) -> list[Path]:
    """Return the model's file and those that hold its external data."""
    tensors = _external_tensors(read_proto(path))
    locations = {str(entry.value) for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    return [path, *(path.parent / location for location in sorted(locations))]


def read_proto(path: Path) -> onnx.ModelProto:
    """Return the message in a file, without its external data. Raise ModelError if there is none."""
    if path.is_dir():
        raise ModelError(f"{path} is a folder. Give the .onnx file in it.")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"There is no file {path}.") from None
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}.") from error
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(
            f"{path} is not an ONNX model, or only part of one ({len(data):,} bytes). Export or download it again."
        ) from error
    return proto


def _deserialize(proto: onnx.ModelProto, where: str, folder: Path | None) -> ir.Model:
    if not proto.opset_import or not proto.graph.output:
        raise ModelError(f"{where} is not an ONNX model: it has no operator set or no output. Export it again.")
    _check_external_data(proto, where, folder)
    try:
        model = ir.from_proto(proto)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{where} cannot be understood as an ONNX graph: {error}") from error
    if folder is not None:
        ir.external_data.set_base_dir(model.graph, str(folder) or ".")
    return model


def _check_external_data(proto: onnx.ModelProto, where: str, folder: Path | None) -> None:
    """Check that every external tensor is in a file below the model's folder, which is long enough."""
    for tensor in _external_tensors(proto):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if folder is None:
            raise ModelError(
                f"Tensor '{tensor.name}' of {where} has its data in another file ('{location}'). Load the model with "
                "onnx.load(path), which reads it, or give the path."
            )
        file = folder / location
        if not location or not file.resolve().is_relative_to(folder.resolve()):
            raise ModelError(
                f"Tensor '{tensor.name}' of {where} refers to '{location}', outside the model's folder. "
                "That is not followed; put the data file beside the model and save it with a relative location."
            )
        if not file.is_file():
            raise ModelError(f"Tensor '{tensor.name}' of {where} needs the file {file}, which is not there.")
        end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
        if file.stat().st_size < end:
            raise ModelError(f"{file} is too short: tensor '{tensor.name}' of {where} ends at byte {end:,}.")


def _external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield all tensors with data in another file: initializers and attributes, of nested graphs and functions too."""
    pending: list[Any] = [proto.graph, *proto.functions]
    while pending:
        graph = pending.pop()
        tensors = list(getattr(graph, "initializer", ()))
        for attribute in (attribute for node in graph.node for attribute in node.attribute):
            tensors += [attribute.t, *attribute.tensors]
            pending += [nested for nested in (attribute.g, *attribute.graphs) if nested.node]
        yield from (tensor for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL)
