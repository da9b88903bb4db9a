"""Operators with an integer twin in onnxruntime that rounds once, at the end, as they do before QuantizeLinear."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from detent.emit.qoperator.codes import Constant, DeclinedError
from detent.emit.qoperator.site import Operation, Site, clip_bounds
from detent.graph.values import constant_ints, input_at, rank

POOL_ATTRIBUTES = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def add(site: Site) -> Operation:
    """QLinearAdd."""
    return _of_two(site, "QLinearAdd")


def mul(site: Site) -> Operation:
    """QLinearMul."""
    return _of_two(site, "QLinearMul")


def sigmoid(site: Site) -> Operation:
    """QLinearSigmoid, a table of 256 codes."""
    return _of_one(site, "QLinearSigmoid")


def leaky_relu(site: Site) -> Operation:
    """QLinearLeakyRelu, a table of 256 codes."""
    return _of_one(site, "QLinearLeakyRelu", site.attributes(("alpha",)))


def average_pool(site: Site) -> Operation:
    """QLinearAveragePool."""
    if any(step != 1 for step in site.node.attributes.get_ints("dilations", ())):
        raise DeclinedError("its integer operator has no dilations")
    return _of_one(site, "QLinearAveragePool", site.attributes(POOL_ATTRIBUTES))


def global_average_pool(site: Site) -> Operation:
    """QLinearGlobalAveragePool."""
    return _of_one(site, "QLinearGlobalAveragePool")


def reduce_mean(site: Site) -> Operation:
    """QLinearGlobalAveragePool, where the mean is over all axes from the third on."""
    node, axes_value = site.node, input_at(site.node, 1)
    axes = node.attributes.get_ints("axes") if axes_value is None else constant_ints(axes_value)
    dims = rank(node.inputs[0])
    if dims is None or dims < 3 or axes is None or sorted(axis % dims for axis in axes) != list(range(2, dims)):
        raise DeclinedError("there is an integer operator only for the mean over height and width")
    pool = _of_one(site, "QLinearGlobalAveragePool")
    return replace(pool, flattened=node.attributes.get_int("keepdims", 1) == 0)


def softmax(site: Site) -> Operation:
    """QLinearSoftmax, which asks for the opset because older ones flatten the axes from `axis` on.

    It counts in whole steps of 1 / scale, and rounds that down: a scale of 1/255 in float32 is a little more than that
    and would become 254 steps. The next smaller float32 gives the 255 that are meant.
    """
    axis = site.node.attributes.get_int("axis", -1 if site.opset >= 13 else 1)
    grid = site.result.grid
    steps = np.rint(1.0 / float(grid.scale))
    if abs(float(grid.scale) * steps - 1.0) > 1e-6:
        raise DeclinedError("its integer operator needs a result whose scale is 1 divided by a whole number")
    scale = grid.scale
    while np.floor(np.float32(1.0) / scale) < steps:
        scale = np.nextafter(scale, np.float32(0.0))
    inputs = [*site.like_result(0).operands, Constant("result_scale", np.asarray(scale)), grid.operands[1]]
    return Operation("QLinearSoftmax", inputs, [ir.AttrInt64("axis", axis), ir.AttrInt64("opset", site.opset)])


def where(site: Site) -> Operation:
    """QLinearWhere."""
    yes, no = site.like_result(1), site.like_result(2)
    inputs = [input_at(site.node, 0), *yes.operands, *no.operands, *site.result.grid.operands]
    return Operation("QLinearWhere", inputs)


def concat(site: Site) -> Operation:
    """QLinearConcat; Concat itself where every input is on the grid of the result."""
    grid, axis = site.result.grid, site.attributes(("axis",))
    parts = [site.like_result(index) for index in range(len(site.node.inputs))]
    if all(part.grid.equals(grid) for part in parts):
        return Operation("Concat", [part.codes for part in parts], axis, domain="")
    return Operation("QLinearConcat", [*grid.operands, *(operand for part in parts for operand in part.operands)], axis)


def clip(site: Site) -> Operation:
    """A Relu or Clip on its own: the codes themselves, cut off where the result is; or on another grid.

    QLinearLeakyRelu goes from one grid to another: with a slope of 0 it is Relu, with a slope of 1 nothing else.
    """
    source, bounds = site.like_result(0), clip_bounds(site.node)
    if bounds is None:
        raise DeclinedError("its bounds are not constant")
    if source.grid.equals(site.result.grid):
        return Operation("Identity", [source.codes], domain="")
    return _of_one(site, "QLinearLeakyRelu", [ir.AttrFloat32("alpha", 0.0 if bounds[0] == 0.0 else 1.0)])


def _of_one(site: Site, op_type: str, attributes: list[ir.Attr] | None = None) -> Operation:
    return Operation(op_type, [*site.like_result(0).operands, *site.result.grid.operands], attributes or ())


def _of_two(site: Site, op_type: str) -> Operation:
    return Operation(
        op_type, [*site.like_result(0).operands, *site.like_result(1).operands, *site.result.grid.operands]
    )
