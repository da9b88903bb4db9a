"""Attributes that have a default are written out, and automatic padding becomes explicit.

A default that is written out means what it meant when it was absent. For `auto_pad` with input size n, stride s and
window k' = (k - 1) * dilation + 1 the standard says: SAME gives ceil(n / s) outputs, so the padding has to be
p = max((ceil(n / s) - 1) * s + k' - n, 0) in total, the odd one at the end for SAME_UPPER and at the start for
SAME_LOWER. VALID is a padding of zero. For ConvTranspose, SAME gives n * s outputs and p = k' + output_padding - s.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from detent.graph.values import input_at, static_shape, tensor_of
from detent.prepare.base import OperatorPass, int_attribute, ints_attribute, main_opset

_PER_AXIS = {"strides": 1, "dilations": 1, "output_padding": 0}
_SCALARS = {"group": 1, "ceil_mode": 0, "count_include_pad": 0, "storage_order": 0}


class WriteAttributes(OperatorPass):
    """Write out the attributes of Conv, ConvTranspose, MaxPool and AveragePool.

    Cases:
    - kernel_shape from the weight; strides, dilations, pads, output_padding, group, ceil_mode, count_include_pad and
      storage_order, as far as the operator has them in the model's opset;
    - the dilations of an AveragePool are taken away instead, if they are all 1;
    - auto_pad becomes pads: VALID always, SAME_UPPER and SAME_LOWER when the spatial shape is static;
    - declined: SAME without a static shape or with ceil_mode, ConvTranspose with output_shape, ConvTranspose with SAME
      and an odd padding (runtimes disagree which side gets the odd one), a weight of unknown shape.
    """

    operators = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        """Write what the node leaves out, as far as its operator has it in this opset."""
        known = onnx.defs.get_schema(node.op_type, main_opset(model), "").attributes
        kernel = ints_attribute(node, "kernel_shape") or _kernel_of_weight(node)
        if kernel is None:
            return "the shape of its weight is not known"
        defaults: dict[str, int | list[int]] = {"kernel_shape": kernel}
        defaults |= {name: [fill] * len(kernel) for name, fill in _PER_AXIS.items()}
        defaults |= _SCALARS
        pads = _pads(node, kernel)
        if not isinstance(pads, str):
            defaults["pads"] = pads
            node.attributes.pop("auto_pad", None)
        if node.op_type == "AveragePool" and set(ints_attribute(node, "dilations") or [1]) == {1}:
            # onnxruntime has a pool on codes that does not know the attribute, and refuses the whole model over it.
            del defaults["dilations"]
            node.attributes.pop("dilations", None)
        written = [name for name in defaults if name in known and name not in node.attributes]
        for name in written:
            node.attributes[name] = _attribute(name, defaults[name])
        if written:
            self.changed(node, f"wrote {', '.join(written)}")
        return pads if isinstance(pads, str) else None


def _attribute(name: str, value: int | list[int]) -> ir.Attr:
    return ir.AttrInt64(name, value) if isinstance(value, int) else ir.AttrInt64s(name, value)


def _kernel_of_weight(node: ir.Node) -> list[int] | None:
    """Return the kernel of a Conv, from the shape of its weight."""
    value = input_at(node, 1)
    tensor = tensor_of(value)
    shape: Sequence[int | None] | None = tensor.shape.numpy() if tensor is not None else static_shape(value)
    if shape is None:
        return None
    kernel = [size for size in shape[2:] if size is not None]
    return kernel if len(kernel) == len(shape) - 2 else None


def _pads(node: ir.Node, kernel: list[int]) -> list[int] | str:
    """Return the explicit padding, all starts before all ends, or the reason why it is not known."""
    mode = node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET"
    if ints_attribute(node, "output_shape"):
        return "its padding follows from output_shape"
    if mode == "NOTSET":
        return ints_attribute(node, "pads") or [0] * (2 * len(kernel))
    if mode == "VALID":
        return [0] * (2 * len(kernel))
    if int_attribute(node, "ceil_mode", 0):
        return f"auto_pad {mode} together with ceil_mode"
    totals = _same_totals(node, kernel)
    if isinstance(totals, str):
        return totals
    small = [total // 2 for total in totals]
    large = [total - half for total, half in zip(totals, small, strict=True)]
    if node.op_type == "ConvTranspose" and small != large:
        return f"auto_pad {mode} with an odd padding, which runtimes place differently"
    return small + large if mode == "SAME_UPPER" else large + small


def _same_totals(node: ir.Node, kernel: list[int]) -> list[int] | str:
    """Return the padding per spatial axis, both sides together, that SAME asks for."""
    ones = [1] * len(kernel)
    strides, dilations = ints_attribute(node, "strides") or ones, ints_attribute(node, "dilations") or ones
    windows = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if node.op_type == "ConvTranspose":
        extra = ints_attribute(node, "output_padding") or [0] * len(kernel)
        totals = [w + e - s for w, e, s in zip(windows, extra, strides, strict=True)]
        return totals if min(totals) >= 0 else "auto_pad with a stride that is larger than the window"
    shape = static_shape(node.inputs[0])
    sizes = [] if shape is None else [size for size in shape[2:] if size is not None]
    if len(sizes) != len(kernel):
        return "auto_pad needs a static height and width"
    return [max((-(-n // s) - 1) * s + w - n, 0) for n, s, w in zip(sizes, strides, windows, strict=True)]
