"""Conv, MatMul and Gemm on codes: exact products in 32 bits, and one rounding at the end.

    y = Q_y(sum (x - z_x)(w - z_w) s_x s_w + b)          the layer between DequantizeLinear and QuantizeLinear
      = Q_y((sum (x - z_x)(w - z_w) + b / (s_x s_w)) s_x s_w)

The bias must be a whole number of units s_x s_w. One of 32 bits was made so. An 8-bit one with a power-of-two scale of
its own, b 2^-p_b, is b 2^(p_x + p_w - p_b) units: whole where p_b <= p_x + p_w. A finer one leaves a part f of a unit
over, 0 < f < 1. Where a step of the result is 2^m units, m > 0, ties are at whole numbers A of units, so

    (A + f) 2^-m rounds as A 2^-m does, unless A is a tie, which A + f is not

and f is left out: one sum in 2^(m + 1) goes to the code next door. Any other bias is left where it is, because rounding
it would change the model more than float32 does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.emit.qoperator.codes import Coded, Constant, DeclinedError, Grid, Operand, is_dequantize
from detent.emit.qoperator.site import Operation, Site
from detent.graph.values import constant, input_at, rank
from detent.numerics.formats import LEAST_SCALE

FLOAT32_ROUNDING = 2.0**-22
"""A unit is the product of two float32 scales, rounded itself when it was written as the scale of a bias."""

CONV_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def conv(site: Site) -> Operation:
    """QLinearConv."""
    source, result = site.like_result(0), site.result.grid
    weight = _weight(site, 0)
    unit = _unit(source.grid, weight.grid)
    inputs = [*source.operands, *weight.operands, *result.operands, _bias(site, unit, 1.0)]
    return Operation("QLinearConv", inputs, site.attributes(CONV_ATTRIBUTES), domain="")


def matmul(site: Site) -> Operation:
    """QLinearMatMul."""
    right = input_at(site.node, 1)
    columns = rank(right)
    weight = _weight(site, None if columns is None else columns - 1)
    if weight.grid.axis is not None and columns != 2:
        raise DeclinedError(f"'{weight.name}' has a scale for each column and is no matrix")
    source = site.like_result(0)
    return Operation("QLinearMatMul", [*source.operands, *weight.operands, *site.result.grid.operands], domain="")


def gemm(site: Site) -> Operation:
    """QGemm. It has alpha, which makes the unit of the bias larger, and no beta: that goes into the bias."""
    attributes = site.node.attributes
    weight = _weight(site, 0 if attributes.get_int("transB", 0) else 1)
    source = site.like_result(0)
    alpha, beta = attributes.get_float("alpha", 1.0), attributes.get_float("beta", 1.0)
    unit = _unit(source.grid, weight.grid) * alpha
    bias = _bias(site, unit, beta)
    inputs = [*source.operands, *weight.operands, bias, *site.result.grid.operands]
    return Operation("QGemm", inputs, site.attributes(("alpha", "transA", "transB")))


def _weight(site: Site, axis: int | None) -> Coded:
    """The second factor: with uint8 activations any codes, with int8 ones int8; a scale per channel along `axis`."""
    weight = site.input(1)
    if weight.grid.axis is not None:
        if weight.grid.axis != axis:
            raise DeclinedError(f"the scales of '{weight.name}' are not along its output channels")
        if np.ptp(weight.grid.zero_point) != 0:
            raise DeclinedError(f"the channels of '{weight.name}' have different zero points")
    signed = site.result.grid.dtype == ir.DataType.INT8
    return weight.as_type(ir.DataType.INT8) if signed else weight


def _unit(source: Grid, weight: Grid) -> npt.NDArray[np.float64]:
    """What the products of codes count. Kernels compute it in float32, which must not make it zero."""
    unit = source.scale.astype(np.float64) * weight.scale.astype(np.float64)
    if (unit < LEAST_SCALE).any():
        raise DeclinedError("the product of its scales is too small for float32")
    return unit


def _bias(site: Site, unit: npt.NDArray[np.float64], factor: float) -> Operand:
    """The bias times `factor`, as 32-bit counts of `unit`, which is one number or one for each output channel."""
    value = input_at(site.node, 2)
    if value is None or factor == 0.0:
        return None
    codes, real = _real_bias(value)
    counts = real * factor / unit
    whole = np.rint(counts)
    exact = np.abs(counts - whole) <= FLOAT32_ROUNDING * np.maximum(np.abs(whole), 1.0)
    if not exact.all():
        step = float(site.result.grid.scale)
        if not (_is_power_of_two(unit) and _is_power_of_two(step) and (unit < step).all()):
            raise DeclinedError(
                f"its bias '{value.name}' is no whole number of products of the input's and the weight's scales, which "
                "its integer operator counts in"
            )
        whole = np.where(exact, whole, np.floor(counts))
    if np.abs(whole).max(initial=0.0) > np.iinfo(np.int32).max:
        raise DeclinedError(f"its bias '{value.name}' does not fit 32 bits in the unit of its products")
    held = constant(codes)
    if held is not None and held.dtype == np.int32 and np.array_equal(held, whole):
        return codes
    return Constant("bias", whole.astype(np.int32))


def _is_power_of_two(numbers: npt.ArrayLike) -> bool:
    return bool((np.frexp(numbers)[0] == 0.5).all())


def _real_bias(value: ir.Value) -> tuple[ir.Value | None, npt.NDArray[np.float64]]:
    """What a bias stands for in double precision, and its codes where there are some."""
    node = value.producer()
    if node is None or not is_dequantize(node):
        array = constant(value)
        if array is None:
            raise DeclinedError(f"its bias '{value.name}' is not constant")
        return None, array.astype(np.float64)
    codes, scale = constant(node.inputs[0]), constant(node.inputs[1])
    zero_point = constant(input_at(node, 2))
    if codes is None or scale is None or (zero_point is None and input_at(node, 2) is not None):
        raise DeclinedError(f"its bias '{value.name}' is not constant")
    shift = 0 if zero_point is None else zero_point.astype(np.float64)
    # Scales per channel lie along the last axis of a bias, whose only axis it is except in a Gemm.
    return node.inputs[0], (codes.astype(np.float64) - shift) * scale.astype(np.float64)
