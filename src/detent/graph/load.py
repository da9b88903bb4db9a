"""Reading a model: from a file or a ModelProto to an `onnx_ir.Model` that owns nothing of the caller's.

What comes out has opset 17 or newer, unique names on every node and value, and external data that was checked to lie
inside the model's own folder (a model file is untrusted input: it must not make us read /etc/passwd as a weight).
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes import common as common_passes

from detent.errors import ModelError
from detent.graph.guard import finish_trial
from detent.graph.message import check_message, external_files, mended
from detent.graph.opset import raise_opset
from detent.graph.values import repair_names

ModelLike = str | Path | onnx.ModelProto
MINIMUM_OPSET = 17


def load(model: ModelLike, opset: int = MINIMUM_OPSET) -> ir.Model:
    """Return the model with unique names, at opset 17 or the given one, or newer. The input is not modified."""
    return raise_opset(read(model), max(opset, MINIMUM_OPSET), name_of(model))


# The key of a loaded model's `meta` under which the folder of its file is kept; a ModelProto has none.
FOLDER = "folder"


def read(model: ModelLike, *, keep_defaults: bool = False) -> ir.Model:
    """Return the model as a graph with unique names, at the opset that it has. The input is not modified.

    Initializers among the graph inputs are taken out of them, unless `keep_defaults`.
    """
    where = name_of(model)
    if isinstance(model, onnx.ModelProto):
        graph_model = _deserialize(model, where, folder=None)
    else:
        path = Path(model)
        finish_trial(path)
        graph_model = _deserialize(read_proto(path), where, folder=path.parent)
        graph_model.meta[FOLDER] = path.parent  # exporters put files about the model beside it
    if not keep_defaults:
        common_passes.RemoveInitializersFromInputsPass()(graph_model)
        graph_model.ir_version = max(graph_model.ir_version, 4)  # before, an initializer had to be an input as well
    repair_names(graph_model)
    try:
        graph_model.graph.sort()
    except ValueError as error:
        raise ModelError(f"The nodes of {where} depend on each other in a circle: {error}") from error
    return graph_model


IN_MEMORY = "the given ModelProto"  # what a model without a file is called


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
    return [path, *(path.parent / location for location in sorted(external_files(read_proto(path))))]


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


# What the graph library raises on messages that are no graphs.
UNREADABLE = (
    ir.serde.SerdeError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)


def _deserialize(proto: onnx.ModelProto, where: str, folder: Path | None) -> ir.Model:
    if not proto.opset_import or not proto.graph.output:
        raise ModelError(f"{where} is not an ONNX model: it has no operator set or no output. Export it again.")
    _refuse_unknown(proto, where)
    check_message(proto, where, folder)
    try:
        model = ir.from_proto(mended(proto, owned=folder is not None))
    except UNREADABLE as error:
        raise ModelError(f"{where} cannot be understood as an ONNX graph: {_root_cause(error)}") from error
    _refuse_dangling(model, where)
    if folder is not None:
        ir.external_data.set_base_dir(model.graph, str(folder) or ".")
    return model


def _refuse_unknown(proto: onnx.ModelProto, where: str) -> None:
    """Refuse, naming the value, what the graph library has no word for: maps, and sparse initializers."""
    for value in (*proto.graph.input, *proto.graph.output):
        kind = value.type
        while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
            kind = getattr(kind, kind.WhichOneof("value")).elem_type
        if kind.WhichOneof("value") in ("map_type", "sparse_tensor_type", "opaque_type"):
            raise ModelError(
                f"'{value.name}' of {where} is a {kind.WhichOneof('value').removesuffix('_type')}, and only tensors "
                "can be worked with. Export the model without it (scikit-learn: options={'zipmap': False})."
            )
    if proto.graph.sparse_initializer:
        name = proto.graph.sparse_initializer[0].values.name
        raise ModelError(f"Initializer '{name}' of {where} is sparse. Export the model with dense weights.")


def _refuse_dangling(model: ir.Model, where: str) -> None:
    """Refuse, naming the node, a value that is read and that nothing computes or holds."""
    inner = (node for function in model.functions.values() for node in function.all_nodes())
    for node in chain(model.graph.all_nodes(), inner):
        for value in node.inputs:
            if value is not None and value.name and _comes_from_nowhere(value):
                raise ModelError(
                    f"Node '{node.name}' ({node.op_type}) of {where} reads '{value.name}', which is no input, no "
                    "initializer and no result of another node. Export the model again."
                )
    for value in model.graph.outputs:
        if _comes_from_nowhere(value):
            raise ModelError(f"Nothing in {where} computes its output '{value.name}'. Export the model again.")


def _comes_from_nowhere(value: ir.Value) -> bool:
    return value.producer() is None and not value.is_graph_input() and not value.is_initializer()


def _root_cause(error: BaseException) -> str:
    """Return what lies under errors that only say where they passed through."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip() or type(error).__name__
