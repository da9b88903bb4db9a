"""Raising a model to a newer opset with onnx's version converter, without moving its weights through it.

The converter serialises the whole model, which fails past 2 GB and is slow below; and it needs only the small
constants (axes, scales, shapes). So large initializers become inputs for the time of the conversion and are put back.
"""

from __future__ import annotations

import onnx
import onnx.version_converter
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent.errors import ModelError

_SMALL = 4096  # bytes; constants up to this size go through the converter, which may need their values
_MINIMUM_IR_VERSION = 8  # the IR version that came with opset 17


def raise_opset(model: ir.Model, minimum: int, where: str) -> ir.Model:
    """The same model at opset `minimum` or newer; itself where it is there already."""
    version = model.graph.opset_imports.get("", minimum)
    if version >= minimum:
        model.ir_version = max(model.ir_version, _MINIMUM_IR_VERSION)
        return model
    return _convert(model, version, minimum, where)


def _convert(model: ir.Model, version: int, minimum: int, where: str) -> ir.Model:
    large = {
        name: value.const_value
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and value.const_value.nbytes > _SMALL
    }
    real_inputs = [value.name for value in model.graph.inputs]
    for name, tensor in large.items():
        value = model.graph.initializers.pop(name)
        value.const_value = None
        value.shape, value.dtype = ir.Shape(tensor.numpy().shape), tensor.dtype
        model.graph.inputs.append(value)
    model.ir_version = max(model.ir_version, 4)  # before version 4 an initializer had to be an input as well
    try:
        proto = onnx.version_converter.convert_version(ir.to_proto(model), minimum)
    except (RuntimeError, ValueError, IndexError) as error:
        raise ModelError(
            f"{where} has opset {version}, and onnx cannot convert it to {minimum}: {str(error).strip()} "
            f"Export it again with opset {minimum}."
        ) from error
    converted = ir.from_proto(proto)
    by_name = {value.name: value for value in converted.graph.inputs}
    for name, data in large.items():
        value = by_name[name]
        value.const_value = data
        converted.graph.register_initializer(value)
    kept = [by_name[name] for name in real_inputs]
    converted.graph.inputs.clear()
    converted.graph.inputs.extend(kept)
    converted.ir_version = max(model.ir_version, _MINIMUM_IR_VERSION)
    common_passes.RemoveInitializersFromInputsPass()(converted)
    common_passes.NameFixPass()(converted)
    return converted
