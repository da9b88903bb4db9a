"""Raising a model to a newer opset with onnx's version converter, without moving its weights through it."""

from __future__ import annotations

import onnx.version_converter
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent.errors import ModelError
from detent.graph.light import light_proto
from detent.graph.names import repair_names

_MINIMUM_IR_VERSION = 8  # the IR version that came with opset 17


def raise_opset(model: ir.Model, minimum: int, where: str) -> ir.Model:
    """The same model at opset `minimum` or newer; itself where it is there already."""
    version = model.graph.opset_imports.get("", minimum)
    if version < minimum:
        model = _convert(model, version, minimum, where)
    model.ir_version = max(model.ir_version, _MINIMUM_IR_VERSION)
    return model


def _convert(model: ir.Model, version: int, minimum: int, where: str) -> ir.Model:
    model.ir_version = max(model.ir_version, 4)  # before version 4 an initializer had to be an input as well
    try:
        proto = onnx.version_converter.convert_version(light_proto(model), minimum)
    except (RuntimeError, ValueError, IndexError) as error:
        raise ModelError(
            f"{where} has opset {version}, and onnx cannot convert it to {minimum}: {str(error).strip()} "
            f"Export it again with opset {minimum}."
        ) from error
    converted = ir.from_proto(proto)
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
