"""Run onnx's shape inference and version converter without moving the weights through them.

These C++ functions serialize what they are given, which fails past 2 GB and is slow below, and they need only the small
constants (axes, scales, shapes). So large initializers become inputs for them, with their types and shapes.
"""

from __future__ import annotations

import onnx
import onnx.shape_inference
import onnx.version_converter
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent.errors import ModelError
from detent.graph.message import SMALL
from detent.graph.values import rank, repair_names


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
        except onnx.shape_inference.InferenceError:
            continue
        except onnx.checker.ValidationError as error:
            return None if _UNKNOWN_RANK in str(error) else str(error)
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
    """Return the same model at opset `minimum` or newer; itself if it is there already."""
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
    common_passes.InlinePass()(model)  # the converter would drop functions
    if version < 13:
        _refuse_old_hardmax(model, where)
    model.ir_version = max(model.ir_version, 4)  # before version 4 an initializer had to be an input as well
    try:
        proto = onnx.version_converter.convert_version(light_proto(model), wanted)
    except _CONVERTER_ERRORS as error:
        raise ModelError(
            f"{where} has opset {version}, and onnx cannot convert it to {wanted}: {_reason(error)} "
            f"Export it again with opset {wanted}."
        ) from error
    converted = ir.from_proto(proto)
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
    return converted


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
