"""Reading a model: from a file or a ModelProto to an `onnx_ir.Model` that owns nothing of the caller's.

What comes out has opset 17 or newer, unique names on every node and value, and external data that was checked to lie
inside the model's own folder (a model file is untrusted input: it must not make us read /etc/passwd as a weight).

onnx's shape inference and version converter run without the weights. These C++ functions serialize what they are given,
which fails past 2 GB and is slow below, and they need only the small constants (axes, scales, shapes). So large
initializers become inputs for them, with their types and shapes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
import onnx.shape_inference
import onnx.version_converter
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes import common as common_passes

from detent.errors import ModelError, UsageError
from detent.graph.file_kinds import kind_of_file, kind_of_folder
from detent.graph.guard import finish_trial
from detent.graph.message import (
    SMALL,
    all_graphs,
    check_functions,
    check_message,
    classes_of,
    external_files,
    mended,
    zipped_outputs,
)
from detent.graph.values import bodies_of, rank, repair_names


def light_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the proto of `model`, with every initializer above SMALL bytes as an input. The model is unchanged."""
    graph = model.graph
    inputs, initializers = list(graph.inputs), list(graph.initializers.values())
    tensors = {value: value.const_value for value in initializers}
    for value, tensor in tensors.items():
        if tensor is not None and tensor.nbytes > SMALL:
            del graph.initializers[str(value.name)]
            value.const_value = None
            value.shape, value.dtype = ir.Shape(tensor.shape.numpy()), tensor.dtype
            graph.inputs.append(value)
    try:
        return ir.to_proto(model)
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        graph.initializers.clear()  # all of them, so that the order comes back as well
        for value, tensor in tensors.items():
            value.const_value = tensor
            graph.register_initializer(value)


def checker_complaint(model: ir.Model) -> str | None:
    """Return what onnx's checker has against a model; None if nothing that matters.

    Not held against it: a failing shape inference, because onnx fails on some of its own operators
    (MeanVarianceNormalization in 1.23), and an output of unknown rank, which the format allows and the checker does
    not. Whether a file can run, a session tells.
    """
    proto = light_proto(model)
    for full in (True, False):
        try:
            onnx.checker.check_model(proto, full_check=full)
        except onnx.checker.ValidationError as error:
            return None if _UNKNOWN_RANK in str(error) else str(error)
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:  # the last two are C++'s own
            if not full:
                return str(error)
            continue
        break
    return None


_UNKNOWN_RANK = "Field 'shape' of 'type' is required but missing"

# What the converter raises, of its own and of C++.
_CONVERTER_ERRORS: tuple[type[Exception], ...] = (
    onnx.version_converter.ConvertError,
    onnx.shape_inference.InferenceError,
    RuntimeError,
    ValueError,
    IndexError,
    TypeError,
)

_MINIMUM_IR_VERSION = 8  # the IR version that came with opset 17


def raise_opset(model: ir.Model, minimum: int, where: str) -> ir.Model:
    """Return the same model at opset `minimum` or newer; itself if it is that new already."""
    version = model.graph.opset_imports.get("", minimum)
    newest = onnx.defs.onnx_opset_version()
    if version > newest:
        raise ModelError(
            f"{where} has opset {version}, and the newest that onnx {onnx.__version__} knows is {newest}. Install a "
            f"newer onnx and onnxruntime, or export the model with opset {minimum} to {newest}."
        )
    if version < minimum:
        model = change_opset(model, minimum, where)
    model.ir_version = max(model.ir_version, _MINIMUM_IR_VERSION)
    return model


def lower_ir_version(model: ir.Model) -> None:
    """Give a model the IR version that its operator sets came with, in place: older runtimes refuse newer files.

    New exporters write the newest one, whatever the model needs. What needs more raises it again.
    """
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    needed = onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True)
    model.ir_version = min(model.ir_version, max(needed, _MINIMUM_IR_VERSION))


def change_opset(model: ir.Model, wanted: int, where: str) -> ir.Model:
    """Return the same model at opset `wanted`, newer or older. Raise ModelError if onnx cannot convert it."""
    version = model.graph.opset_imports.get("", 1)
    inline(model, where)  # the converter would drop functions
    if version < 13:
        _refuse_old_hardmax(model, where)
    model.ir_version = max(model.ir_version, 4)  # before version 4 an initializer had to be an input as well
    message = light_proto(model)
    apart = _set_apart(message, version)
    try:
        proto = onnx.version_converter.convert_version(message, wanted)
    except _CONVERTER_ERRORS as error:
        strange = f" Opset {version} does not have {', '.join(sorted(apart))}, which is in it." if apart else ""
        raise ModelError(
            f"{where} has opset {version}, and onnx cannot convert it to {wanted}: {_reason(error)}{strange} "
            f"Export it again with opset {wanted}."
        ) from error
    try:
        converted = ir.from_proto(proto)
    except UNREADABLE as error:  # the converter infers types, of which the graph library does not know all
        raise ModelError(f"{where} cannot be understood at opset {wanted}: {root_cause(error)}") from error
    for node in [each for each in converted.graph.all_nodes() if each.domain == _APART]:
        node.domain = ""
    converted.graph.opset_imports.pop(_APART, None)
    _keep_resize_meaning(model, converted)
    real_inputs = {value.name for value in model.graph.inputs}
    by_name = {str(value.name): value for value in converted.graph.inputs}
    for name, value in by_name.items():
        if name not in real_inputs and name in model.graph.initializers:
            value.const_value = model.graph.initializers[name].const_value
            converted.graph.register_initializer(value)
    converted.graph.inputs.clear()
    converted.graph.inputs.extend(by_name[str(value.name)] for value in model.graph.inputs)
    common_passes.RemoveInitializersFromInputsPass()(converted)
    repair_names(converted)
    converted.meta.update(model.meta)
    return converted


def inline(model: ir.Model, where: str, but: Collection[ir.OperatorIdentifier] = ()) -> None:
    """Replace calls of functions by their bodies. Raise ModelError if the result is not a valid graph."""
    try:
        common_passes.InlinePass(criteria=lambda function: function.identifier() not in but)(model)
    except (ir.passes.PreconditionError, ValueError) as error:  # the latter for two versions of one operator set
        raise ModelError(
            f"The functions of {where} cannot be inlined: {error}. Export the model without functions."
        ) from error
    _refuse_dangling(model, where)
    _refuse_malformed(model, where)


_APART = "apart"


def _set_apart(proto: onnx.ModelProto, version: int) -> set[str]:
    """Move operators that opset `version` does not have out of the converter's sight, in place; return them.

    onnxruntime had LayerNormalization and others before ONNX did, so it runs such files; the converter looks for what
    they were, and fails, as at operators that ONNX never had, which `check_operators` refuses with advice.
    """
    pending, domains, apart = [proto.graph], set[str](), set[str]()
    while pending:
        for node in pending.pop().node:
            pending += [body for attribute in node.attribute for body in (attribute.g, *attribute.graphs) if body.node]
            if node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type, max_inclusive_version=version):
                node.domain = _APART
                apart.add(node.op_type)
            domains.add(node.domain)
    for domain in sorted(domains - {"", "ai.onnx", *(each.domain for each in proto.opset_import)}):
        proto.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    return apart


def _reason(error: Exception) -> str:
    """Return what the converter says, without the place in its source where it says it."""
    text = str(error).strip().rpartition("failed: ")[2].replace("$", "")
    return text if text.endswith(".") else f"{text}."


def _keep_resize_meaning(before: ir.Model, after: ir.Model) -> None:
    """Write out that Upsample and the first Resize scale coordinates without an offset: the converter forgets to.

    Nearest then rounds down, except where the map shrinks: there the first Resize rounds up.
    """
    old = [node for node in before.graph.all_nodes() if node.op_type == "Upsample" or _is_first_resize(node, before)]
    names = {value.name for node in old for value in node.outputs}
    for node in after.graph.all_nodes():
        if node.op_type == "Resize" and node.outputs[0].name in names:
            node.attributes["coordinate_transformation_mode"] = ir.AttrString(
                "coordinate_transformation_mode", "asymmetric"
            )
            scales = node.inputs[2].const_value if len(node.inputs) > 2 and node.inputs[2] is not None else None
            shrinks = scales is not None and bool((scales.numpy() < 1).any())
            node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil" if shrinks else "floor")


def _is_first_resize(node: ir.Node, model: ir.Model) -> bool:
    return node.op_type == "Resize" and model.graph.opset_imports[""] < 11


def _refuse_old_hardmax(model: ir.Model, where: str) -> None:
    """Refuse a Hardmax from before opset 13: it flattened its input, and the converter keeps the axis alone."""
    for node in model.graph.all_nodes():
        if node.op_type != "Hardmax":
            continue
        dims = rank(node.inputs[0])
        if node.attributes.get_int("axis", 1) not in (-1, None if dims is None else dims - 1):
            raise ModelError(
                f"Node '{node.name}' of {where} is a Hardmax that opset 13 gave another meaning. "
                "Export the model again with opset 17."
            )


ModelLike = str | Path | onnx.ModelProto
MINIMUM_OPSET = 17


def load(model: ModelLike, opset: int = MINIMUM_OPSET) -> ir.Model:
    """Return the model with unique names, at opset 17 or the given one, or newer. The input is not modified."""
    return raise_opset(read(model), max(opset, MINIMUM_OPSET), name_of(model))


LARGE = 1 << 14  # elements
_WHOLE_BYTES = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.INT8, onnx.TensorProto.UINT8)

FILE = "file"  # the key of a loaded model's `meta` under which its path is kept; a ModelProto has none
ZIPPED = "zipped"  # the key of the classes of each output that is a map in the file; here it is a tensor


def read(model: ModelLike, *, keep_defaults: bool = False) -> ir.Model:
    """Return the model as a graph with unique names, at the opset that it has. The input is not modified.

    Initializers among the graph inputs are taken out of them, unless `keep_defaults`.
    """
    where = name_of(model)
    if isinstance(model, onnx.ModelProto):
        graph_model = _deserialize(model, where, path=None)
    else:
        path = Path(model)
        proto = read_proto(path)
        _EXTERNAL_FILES[_version_of(path)] = sorted(external_files(proto))
        check_functions(proto, where)  # first: native code would write them out
        finish_trial(path)
        graph_model = _deserialize(proto, where, path)
        graph_model.meta[FILE] = path  # exporters put files about the model beside it
    if not keep_defaults:
        common_passes.RemoveInitializersFromInputsPass()(graph_model)
        graph_model.ir_version = max(graph_model.ir_version, 4)  # before, an initializer had to be an input as well
    repair_names(graph_model)
    try:
        graph_model.graph.sort()
    except ValueError as error:
        raise ModelError(f"The nodes of {where} depend on each other in a circle: {error}") from error
    return graph_model


def unzipped(model: ir.Model) -> Iterator[tuple[str, str]]:
    """Yield the name of each output of a loaded model that was a map, and what it became."""
    for name, classes in model.meta.get(ZIPPED, {}).items():
        order = ", ".join(classes if len(classes) < 9 else [*classes[:4], "...", classes[-1]])
        yield name, f"a map from classes to numbers (ZipMap) is now a tensor, with its columns in this order: {order}"


_IN_MEMORY = "the given "  # how what a model without a file is called begins


def name_of(model: ModelLike) -> str:
    """Return how messages and reports call the model: by its file, or by the class of a PyTorch module."""
    if not isinstance(model, onnx.ModelProto):
        return str(model)
    of_class = model.producer_name == "pytorch" and model.graph.name.isidentifier() and model.graph.name[0].isupper()
    return f"{_IN_MEMORY}{model.graph.name if of_class else 'model'}"


def is_in_memory(name: str) -> bool:
    """Tell whether `name_of` gave this name to a model without a file."""
    return name.startswith(_IN_MEMORY)


def given_model(model: object) -> onnx.ModelProto | Path:
    """Return what a caller gives as a model. UsageError if it can be none."""
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, str | PathLike):
        return Path(model)
    raise UsageError(
        f"A {type(model).__name__} is no model: give the path of an .onnx file, an onnx.ModelProto or a torch module."
    )


def stored_bytes(model: ModelLike) -> int:
    """Return the size of the model on disk, its external data included."""
    if isinstance(model, onnx.ModelProto):
        return int(model.ByteSize())
    path = Path(model)
    return sum(file.stat().st_size for file in files_of(path))


def files_of(path: Path) -> list[Path]:
    """Return the model's file and those that hold its external data. To find these, all of a new file is read."""
    version = _version_of(path)
    if version not in _EXTERNAL_FILES:
        _EXTERNAL_FILES[version] = sorted(external_files(read_proto(path)))
    return [path, *(path.parent / location for location in _EXTERNAL_FILES[version])]


_EXTERNAL_FILES: dict[tuple[Path, int, int], list[str]] = {}  # of the files that this process has read


def _version_of(path: Path) -> tuple[Path, int, int]:
    """Return what tells a file that was replaced from the one before."""
    stat = path.stat() if path.is_file() else None
    return (path, 0, 0) if stat is None else (path, stat.st_mtime_ns, stat.st_size)


def read_proto(path: Path) -> onnx.ModelProto:
    """Return the message in a file, without its external data. Raise ModelError if there is none."""
    try:
        if path.is_dir():
            raise ModelError(f"{path} {kind_of_folder(path)}")
        if path.exists() and not path.is_file():  # a pipe would be waited for, and cannot be read twice
            raise ModelError(f"{path} is a pipe or a device. Save the model as a file first.")
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"There is no file {path}.") from None
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}.") from error
    proto, broken = onnx.ModelProto(), not data
    try:
        proto.ParseFromString(data)
        broken = broken or not proto.HasField("graph")  # another program's message may be read as one without a graph
    except DecodeError:
        broken = True
    if broken:
        known = kind_of_file(data[:4096] + data[max(4096, len(data) - 65536) :], path)  # archives list names at the end
        raise ModelError(
            f"{path} is not an ONNX model{f': {known}' if known else ', or only part of one'}"
            + ("" if known else f" ({len(data):,} bytes). Export or download it again.")
        )
    return proto


# What the graph library raises on messages that are not graphs.
UNREADABLE = (ir.serde.SerdeError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


def _deserialize(proto: onnx.ModelProto, where: str, path: Path | None) -> ir.Model:
    if not proto.opset_import or not proto.graph.output:
        raise ModelError(f"{where} is not an ONNX model: it has no operator set or no output. Export it again.")
    _refuse_unknown(proto, where)
    check_message(proto, where, path)
    try:
        zipped = {name: classes_of(node) for name, node in zipped_outputs(proto).items()}
        proto = mended(proto, owned=path is not None)
        large = _large_tensors(proto)
        model = ir.from_proto(_without(proto, large) if path is not None and large else proto)
        for name, tensor in large.items():
            model.graph.initializers[name].const_value = tensor
    except UNREADABLE as error:
        raise ModelError(f"{where} cannot be understood as an ONNX graph: {root_cause(error)}") from error
    _refuse_dangling(model, where)
    _refuse_malformed(model, where)
    model.meta[ZIPPED] = zipped
    if path is not None:
        ir.external_data.set_base_dir(model.graph, str(path.parent))
    return model


def _large_tensors(proto: onnx.ModelProto) -> dict[str, ir.Tensor[Any]]:
    """Return large weights as arrays: a tensor within a message is copied each time that somebody reads it."""
    found = {}
    for tensor in proto.graph.initializer:
        if tensor.data_type in _WHOLE_BYTES and math.prod(tensor.dims) >= LARGE and tensor.HasField("raw_data"):
            held = ir.TensorProtoTensor(tensor)
            found[tensor.name] = ir.Tensor(held.numpy(), held.dtype, name=held.name, doc_string=held.doc_string)
    return found


def _without(proto: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """Return a message without the data of these initializers. The given one loses it too.

    Any small part of a message keeps all of it in memory.
    """
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            tensor.ClearField("raw_data")
    light = onnx.ModelProto()
    light.CopyFrom(proto)
    return light


def _refuse_unknown(proto: onnx.ModelProto, where: str) -> None:
    """Refuse, naming the value, what the graph library has no word for: maps, sparse tensors, two inputs of a name."""
    held = {tensor.name for tensor in proto.graph.initializer}
    names = Counter(value.name for value in proto.graph.input if value.name not in held)
    if "" in names:
        raise ModelError(f"{where} has an input without a name. Export the model again.")
    for name in (name for name, count in names.items() if count > 1):
        raise ModelError(f"{where} has two inputs of the name '{name}'. Export the model again.")
    zipped = zipped_outputs(proto)
    for value in (*proto.graph.input, *(each for each in proto.graph.output if each.name not in zipped)):
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
    for node in (node for graph in all_graphs(proto) for node in graph.node):
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise ModelError(
                    f"'{attribute.name}' of node '{node.name}' ({node.op_type}) of {where} is a sparse tensor. Export "
                    "the model with dense ones."
                )


def _refuse_malformed(model: ir.Model, where: str) -> None:
    """Refuse, naming the node, what its operator does not take: too few or many inputs, an attribute of another type.

    onnxruntime refuses it as well. What is checked here, no later step has to.
    """
    newest = onnx.defs.onnx_opset_version()
    version = min(model.opset_imports.get("", newest), newest)  # what is newer still is like the newest
    inner = (node for function in model.functions.values() for node in function.all_nodes())
    for node in chain(model.graph.all_nodes(), inner):
        if not node.op_type or not node.outputs:
            raise ModelError(_malformed(node, where, "no outputs" if node.op_type else "no operator type"))
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.UNDEFINED:
                raise ModelError(_malformed(node, where, f"an attribute '{attribute.name}' without a type"))
    for node in model.graph.all_nodes():
        schema = None
        if node.domain == "":  # an operator that is newer than the file says is taken as it came to be
            schema = operator_schema(node.op_type, version) or operator_schema(node.op_type, newest)
        if schema is None or node.op_identifier() in model.functions:
            continue
        if wrong := _what_is_wrong(node, schema):
            raise ModelError(_malformed(node, where, wrong))


def _what_is_wrong(node: ir.Node, schema: onnx.defs.OpSchema) -> str:
    """Return what a node has, or has not, that its operator does not take; empty if nothing."""
    given = [value for value in node.inputs if value is not None]
    for name, attribute in node.attributes.items():
        wanted: Any = getattr(schema.attributes.get(name), "type", None)  # its stubs know no members
        if wanted is not None and wanted.value != attribute.type.value and not attribute.is_ref():
            return f"an attribute '{name}' of type {attribute.type.name}, and the operator takes {wanted.name}"
    if not schema.min_output <= len(node.outputs) <= schema.max_output:
        return f"{len(node.outputs)} outputs, and the operator makes {schema.min_output} to {schema.max_output}"
    if not schema.min_input <= len(node.inputs) <= schema.max_input or len(given) < min(schema.min_input, 1):
        held = f"{len(node.inputs)} inputs" if given else "no input with a name"
        return f"{held}, and the operator takes {schema.min_input} to {schema.max_input}"
    needed = onnx.defs.OpSchema.FormalParameterOption.Single
    for formal, value in zip(schema.inputs, node.inputs, strict=False):
        # The first Resize has no use for its regions, and exporters leave them out.
        if value is None and formal.option == needed and node.op_type != "Resize":
            return f"no input '{formal.name}'"
    return _what_is_wrong_inside(node)


def _what_is_wrong_inside(node: ir.Node) -> str:
    """Return how the body of a Loop, or a branch of an If, does not fit the node that holds it; empty if it does."""
    if node.op_type not in ("If", "Loop"):
        return ""
    wanted = (0, len(node.outputs)) if node.op_type == "If" else (len(node.inputs), len(node.outputs) + 1)
    for body in bodies_of(node):
        held = sum(not value.is_initializer() for value in body.inputs), len(body.outputs)
        if held != wanted:
            return "a graph of {} inputs and {} outputs, not {} and {}".format(*held, *wanted)
    return "a loop variable without a first value" if None in node.inputs[2:] else ""


def _malformed(node: ir.Node, where: str, what: str) -> str:
    return f"Node '{node.name}' ({node.op_type}) of {where} has {what}. Export the model again."


@cache
def operator_schema(operator: str, version: int) -> onnx.defs.OpSchema | None:
    """Return what an operator takes in a version of the standard operators; None if that is not known."""
    try:
        return onnx.defs.get_schema(operator, version, "")
    except onnx.defs.SchemaError:
        return None


def _refuse_dangling(model: ir.Model, where: str) -> None:
    """Refuse, naming the node, a value that is read and that nothing computes or holds."""
    inner = (node for function in model.functions.values() for node in function.all_nodes())
    for node in chain(model.graph.all_nodes(), inner):
        for value in node.inputs:
            if value is not None and value.name and _comes_from_nowhere(value):
                raise ModelError(
                    f"Node '{node.name}' ({node.op_type}) of {where} reads '{value.name}', which is neither an input "
                    "nor an initializer, nor the result of another node. Export the model again."
                )
    for graph in model.graphs():
        for value in graph.outputs:
            if _comes_from_nowhere(value):
                whose = "its output" if graph is model.graph else f"the output of its inner graph '{graph.name}',"
                raise ModelError(f"Nothing in {where} computes {whose} '{value.name}'. Export the model again.")


def _comes_from_nowhere(value: ir.Value) -> bool:
    return value.producer() is None and not value.is_graph_input() and not value.is_initializer()


def root_cause(error: BaseException) -> str:
    """Return what lies under errors that only say where they passed through."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip() or type(error).__name__
