"""QOperator: operators that compute on codes (QLinearConv and the like) instead of Q, DQ and float operators.

    to_qoperator(model)     # a QDQ model, in place; returns the nodes that were left, with the reasons

An integer operator replaces a float operator between DequantizeLinear and QuantizeLinear: it takes the same codes,
works exactly or in float32 where they do, and rounds once at the end. So both forms give the same results, except for
codes that are off by one where float32 falls on the other side of a tie.

**Layers.** Conv, MatMul and Gemm sum exact products in 32 bits, and round once at the end.

    y = Q_y(sum (x - z_x)(w - z_w) s_x s_w + b)          the layer between DequantizeLinear and QuantizeLinear
      = Q_y((sum (x - z_x)(w - z_w) + b / (s_x s_w)) s_x s_w)

The bias must be a whole number of units s_x s_w. 32-bit biases are. An 8-bit bias with a power-of-two scale of its own,
b 2^-p_b, is b 2^(p_x + p_w - p_b) units: whole if p_b <= p_x + p_w. A finer one has a fraction f of a unit left over,
0 < f < 1. If a step of the result is 2^m units, m > 0, ties are at whole numbers A of units, so

    (A + f) 2^-m rounds as A 2^-m does, unless A is a tie, which A + f is not

and f is dropped: one sum in 2^(m + 1) is rounded to the neighbouring code. A layer with any other bias keeps its Q/DQ,
because rounding the bias would change the model more than float32 does.

**Arithmetic.** Operators with a twin in onnxruntime round once, at the end, as they do before QuantizeLinear.

**Moving values.** Operators that only select or rearrange elements of their input can do so on codes, if the result has
the scale and zero point of the input. MaxPool compares, and codes are ordered like the numbers that they stand for; a
padded value becomes its code. Max, Min, GlobalMaxPool and DepthToSpace are missing: onnxruntime's kernels for them took
no 8-bit integers for a long time, or take none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.emit.coded_node import (
    CLIPS_CODES,
    CodedInput,
    CodedNode,
    DeclinedError,
    EightBitGrid,
    NewConstant,
    Operand,
    Operation,
    QuantizedResult,
    clip_bounds,
    grid_of,
)
from detent.graph.values import bypass, constant, input_at, is_standard, is_unused, rank, remove_node, take_over
from detent.numerics.formats import LEAST_SCALE
from detent.prepare.base import Change, Pass, axes_of, main_opset
from detent.prepare.shapes import InferShapes
from detent.qdq.families import MICROSOFT, MOVES_CODES, is_native_dequantize, is_native_quantize
from detent.qdq.reader import dequantized

Rule = Callable[[CodedNode], Operation]

# A unit is the product of two float32 scales, rounded itself when it was written as the scale of a bias.
FLOAT32_ROUNDING = 2.0**-22

CONV_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def conv(coded: CodedNode) -> Operation:
    source, result = coded.like_result(0), coded.result.grid
    weight = _weight(coded, 0)
    unit = _unit(source.grid, weight.grid)
    inputs = [*source.operands, *weight.operands, *result.operands, _bias(coded, unit, 1.0)]
    return Operation("QLinearConv", inputs, coded.attributes(CONV_ATTRIBUTES), domain="")


def matmul(coded: CodedNode) -> Operation:
    """Write QLinearMatMul."""
    right = input_at(coded.node, 1)
    columns = rank(right)
    weight = _weight(coded, None if columns is None else columns - 1)
    if weight.grid.axis is not None and columns != 2:
        raise DeclinedError(f"'{weight.name}' has a scale for each column and is not a matrix")
    source = coded.like_result(0)
    return Operation("QLinearMatMul", [*source.operands, *weight.operands, *coded.result.grid.operands], domain="")


def gemm(coded: CodedNode) -> Operation:
    """Write QGemm. It has alpha, which makes the unit of the bias larger, and no beta: that goes into the bias."""
    attributes = coded.node.attributes
    weight = _weight(coded, 0 if attributes.get_int("transB", 0) else 1)
    source = coded.like_result(0)
    alpha, beta = attributes.get_float("alpha", 1.0), attributes.get_float("beta", 1.0)
    unit = _unit(source.grid, weight.grid) * alpha
    bias = _bias(coded, unit, beta)
    inputs = [*source.operands, *weight.operands, bias, *coded.result.grid.operands]
    return Operation("QGemm", inputs, coded.attributes(("alpha", "transA", "transB")))


def _weight(coded: CodedNode, axis: int | None) -> CodedInput:
    """Return the second factor: int8 codes if the result is int8, else any; a scale per channel lies along `axis`."""
    weight = coded.input(1)
    if weight.grid.axis is not None:
        if weight.grid.axis != axis:
            raise DeclinedError(f"the scales of '{weight.name}' are not along its output channels")
        if np.ptp(weight.grid.params.zero_point) != 0:
            raise DeclinedError(f"the channels of '{weight.name}' have different zero points")
    signed = coded.result.grid.dtype == ir.DataType.INT8
    return weight.as_type(ir.DataType.INT8) if signed else weight


def _unit(source: EightBitGrid, weight: EightBitGrid) -> npt.NDArray[np.float64]:
    """Return the unit of the products of codes. Kernels compute it in float32, where it must not become zero."""
    unit = source.scale.astype(np.float64) * weight.scale.astype(np.float64)
    if (unit < LEAST_SCALE).any():
        raise DeclinedError("the product of its scales is too small for float32")
    return unit


def _bias(coded: CodedNode, unit: npt.NDArray[np.float64], factor: float) -> Operand:
    """Return the bias times `factor` as 32-bit counts of `unit`: one number, or one for each output channel."""
    value = input_at(coded.node, 2)
    if value is None or factor == 0.0:
        return None
    codes, real = _real_bias(value)
    counts = real * factor / unit
    whole = np.rint(counts)
    exact = np.abs(counts - whole) <= FLOAT32_ROUNDING * np.maximum(np.abs(whole), 1.0)
    if not exact.all():
        step = float(coded.result.grid.scale)
        if not (_is_power_of_two(unit) and _is_power_of_two(step) and (unit < step).all()):
            raise DeclinedError(
                f"its bias '{value.name}' is not a whole number of products of the input's and the weight's scales, in "
                "which its integer operator counts"
            )
        whole = np.where(exact, whole, np.floor(counts))
    if np.abs(whole).max(initial=0.0) > np.iinfo(np.int32).max:
        raise DeclinedError(f"its bias '{value.name}' does not fit 32 bits in the unit of its products")
    held = constant(codes)
    if held is not None and held.dtype == np.int32 and np.array_equal(held, whole):
        return codes
    return NewConstant("bias", whole.astype(np.int32))


def _is_power_of_two(numbers: npt.ArrayLike) -> bool:
    return bool((np.frexp(numbers)[0] == 0.5).all())


def _real_bias(value: ir.Value) -> tuple[ir.Value | None, npt.NDArray[np.float64]]:
    """Return the codes of a bias, if it has some, and its values in double precision."""
    read = dequantized(value.producer())
    if read is None or not is_native_dequantize(read.node):
        array = constant(value)
        if array is None:
            raise DeclinedError(f"its bias '{value.name}' is not constant")
        return None, array.astype(np.float64)
    if read.stored is None or read.params is None:
        raise DeclinedError(f"its bias '{value.name}' is not constant")
    levels = read.stored.astype(np.float64) - read.params.zero_point.astype(np.float64)
    # Scales per channel lie along the last axis of a bias, whose only axis it is except in a Gemm.
    return read.codes, levels * read.params.scale.astype(np.float64)


POOL_ATTRIBUTES = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _on_one(op_type: str, attributes: tuple[str, ...] = ()) -> Rule:
    return lambda coded: _of_one(coded, op_type, coded.attributes(attributes))


def _on_two(op_type: str) -> Rule:
    return lambda coded: Operation(
        op_type, [*coded.like_result(0).operands, *coded.like_result(1).operands, *coded.result.grid.operands]
    )


def average_pool(coded: CodedNode) -> Operation:
    """Write QLinearAveragePool, unless the pool is dilated."""
    if any(step != 1 for step in coded.node.attributes.get_ints("dilations", ())):
        raise DeclinedError("its integer operator has no dilations")
    return _of_one(coded, "QLinearAveragePool", coded.attributes(POOL_ATTRIBUTES))


def reduce_mean(coded: CodedNode) -> Operation:
    """Write QLinearGlobalAveragePool, if the mean is over all axes from the third on."""
    node, axes, dims = coded.node, axes_of(coded.node), rank(coded.node.inputs[0])
    if dims is None or dims < 3 or axes is None or sorted(axis % dims for axis in axes) != list(range(2, dims)):
        raise DeclinedError("there is an integer operator only for the mean over height and width")
    pool = _of_one(coded, "QLinearGlobalAveragePool")
    return replace(pool, flattened=node.attributes.get_int("keepdims", 1) == 0)


def softmax(coded: CodedNode) -> Operation:
    """Write QLinearSoftmax. It has the opset as an attribute, because older Softmax flatten the axes from `axis` on.

    The kernel counts 1 / scale whole steps and rounds that number down. A scale of 1/255 is slightly larger in float32
    and would give 254 steps; the next smaller float32 gives the intended 255.
    """
    axis = coded.node.attributes.get_int("axis", -1 if coded.opset >= 13 else 1)
    grid = coded.result.grid
    steps = np.rint(1.0 / float(grid.scale))
    if abs(float(grid.scale) * steps - 1.0) > 1e-6:
        raise DeclinedError("its integer operator needs a result whose scale is 1 divided by a whole number")
    scale = grid.scale
    while np.floor(np.float32(1.0) / scale) < steps:
        scale = np.nextafter(scale, np.float32(0.0))
    inputs = [*coded.like_result(0).operands, NewConstant("result_scale", np.asarray(scale)), grid.operands[1]]
    return Operation("QLinearSoftmax", inputs, [ir.AttrInt64("axis", axis), ir.AttrInt64("opset", coded.opset)])


def where(coded: CodedNode) -> Operation:
    """Write QLinearWhere; the condition stays as it is."""
    yes, no = coded.like_result(1), coded.like_result(2)
    inputs = [input_at(coded.node, 0), *yes.operands, *no.operands, *coded.result.grid.operands]
    return Operation("QLinearWhere", inputs)


def concat(coded: CodedNode) -> Operation:
    """Write QLinearConcat, or Concat itself if every input has the scale and zero point of the result."""
    grid, axis = coded.result.grid, coded.attributes(("axis",))
    parts = [coded.like_result(index) for index in range(len(coded.node.inputs))]
    if all(part.grid.equals(grid) for part in parts):
        return Operation("Concat", [part.codes for part in parts], axis, domain="")
    return Operation("QLinearConcat", [*grid.operands, *(operand for part in parts for operand in part.operands)], axis)


def clip(coded: CodedNode) -> Operation:
    """Write a Relu or Clip that stands alone, as an Identity on the codes or as a change of scale.

    QLinearLeakyRelu changes the scale: with a slope of 0 it is a Relu as well, with a slope of 1 it does nothing else.
    """
    source, bounds = coded.like_result(0), clip_bounds(coded.node)
    if bounds is None:
        raise DeclinedError("its bounds are not constant")
    # The bounds are applied to the codes behind this node, unless they are the ends of the codes anyway.
    if source.grid.equals(coded.result.grid):
        return Operation("Identity", [source.codes], domain="")
    return _of_one(coded, "QLinearLeakyRelu", [ir.AttrFloat32("alpha", 0.0 if bounds[0] == 0.0 else 1.0)])


def _of_one(coded: CodedNode, op_type: str, attributes: list[ir.Attr] | None = None) -> Operation:
    return Operation(op_type, [*coded.like_result(0).operands, *coded.result.grid.operands], attributes or ())


# Operators whose results are shapes or indices, and the opset from which they take codes.
READS = {"Shape": 1, "Size": 1, "ArgMax": 13}

PADS_AT_RUNTIME = 11  # the opset from which the pads and sizes of Pad and Resize are inputs


def move(coded: CodedNode) -> Operation:
    """Write the operator itself, on the codes of its first input."""
    return Operation(
        coded.node.op_type,
        [_source(coded).codes, *coded.node.inputs[1:]],
        list(coded.node.attributes.values()),
        domain="",
    )


def max_pool(coded: CodedNode) -> Operation:
    """Write MaxPool on codes: what it pads with is below every code."""
    if coded.opset < CLIPS_CODES:
        raise DeclinedError(f"MaxPool on integers needs opset {CLIPS_CODES}")
    return move(coded)


def resize(coded: CodedNode) -> Operation:
    """Write Resize to the nearest element; interpolation makes new values, and so stays float."""
    attributes = coded.node.attributes
    mode = attributes.get_string("mode", "nearest")
    if mode != "nearest":
        raise DeclinedError(f"it interpolates ({mode}), which codes would round differently")
    if attributes.get_string("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise DeclinedError("it fills in values from outside the picture")
    if coded.opset < PADS_AT_RUNTIME:
        raise DeclinedError(f"Resize on integers needs opset {PADS_AT_RUNTIME}")
    return move(coded)


def pad(coded: CodedNode) -> Operation:
    """Write Pad with the code of the number."""
    if coded.opset < PADS_AT_RUNTIME:
        raise DeclinedError(f"Pad on integers needs opset {PADS_AT_RUNTIME}")
    source, filler = _source(coded), input_at(coded.node, 2)
    number = constant(filler) if filler is not None else np.zeros(())
    if number is None or number.size != 1:
        raise DeclinedError(f"it pads with '{'' if filler is None else filler.name}', which is not constant")
    grid = source.grid
    code = np.array(grid.encode(float(number.reshape(()))), grid.dtype.numpy())
    inputs = [source.codes, coded.node.inputs[1], NewConstant("padding", code), *coded.node.inputs[3:]]
    return Operation("Pad", inputs, list(coded.node.attributes.values()), domain="")


def _source(coded: CodedNode) -> CodedInput:
    """Return the first input, whose codes can be taken over."""
    source = coded.input(0).whole()
    if any(not result.grid.equals(source.grid) for result in coded.results):
        raise DeclinedError(f"its result has another scale or zero point than '{source.name}'")
    return source


# The rule of every operator that has one.
RULES: Mapping[str, Rule] = {
    "Conv": conv,
    "MatMul": matmul,
    "Gemm": gemm,
    "Add": _on_two("QLinearAdd"),
    "Mul": _on_two("QLinearMul"),
    "Sigmoid": _on_one("QLinearSigmoid"),
    "LeakyRelu": _on_one("QLinearLeakyRelu", ("alpha",)),
    "AveragePool": average_pool,
    "GlobalAveragePool": _on_one("QLinearGlobalAveragePool"),
    "ReduceMean": reduce_mean,
    "Softmax": softmax,
    "Where": where,
    "Concat": concat,
    "Relu": clip,
    "Clip": clip,
    "MaxPool": max_pool,
    "Resize": resize,
    "Pad": pad,
    **dict.fromkeys(MOVES_CODES, move),
}


def rule_of(node: ir.Node) -> Rule:
    """Return the rule of a node; decline it if there is none."""
    if node.domain != "" or node.op_type not in RULES:
        raise DeclinedError(f"there is no integer operator for {node.op_type}")
    return RULES[node.op_type]


def to_qoperator(model: ir.Model) -> list[Change]:
    """Turn a QDQ model into QOperator form in place; return a note, with the reason, for each node that was left.

    Ranks and types that are missing in the model are inferred if possible.
    """
    if any(value.shape is None for node in model.graph for value in node.outputs):
        InferShapes()(model)
    rewrite = ToQOperator()
    rewrite(model)
    return rewrite.declined


class ToQOperator(Pass):
    """Write integer operators instead of DequantizeLinear, operator, QuantizeLinear.

    Cases:
    - every data input is dequantized and every output quantized: one integer operator on the codes, and a Clip of codes
      for the Relu and Clip nodes behind it, if one is needed at all;
    - codes that are dequantized and quantized again with the same scale: both nodes are removed;
    - an operator whose result is a shape or the index of the largest element: it reads codes;
    - declined: an operator without an integer twin, and whatever its twin cannot hold; it keeps its Q/DQ.
    """

    def run(self, model: ir.Model) -> None:
        """Visit every node of the main graph that reads or makes quantized values."""
        opset = main_opset(model)
        _join_idle_pairs(model.graph)
        for node in list(model.graph):
            if node.graph is None or _is_pair_node(node) or not _is_quantized(node):
                continue
            try:
                self._convert(model, CodedNode(node, model.graph, opset))
            except DeclinedError as reason:
                self.decline(node, str(reason))
        # Backwards, so that a QuantizeLinear is removed before the DequantizeLinear that it read last.
        for node in reversed(list(model.graph)):
            if _is_pair_node(node) and is_unused(node.outputs[0]):
                remove_node(model.graph, node)
        if any(node.domain == MICROSOFT.domain for node in model.graph):
            model.graph.opset_imports[MICROSOFT.domain] = 1

    def _convert(self, model: ir.Model, coded: CodedNode) -> None:
        """Let one node work on codes. DeclinedError leaves the model as it was."""
        node = coded.node
        if is_standard(node, *READS) and coded.opset >= READS[node.op_type]:
            self._read(model, coded)
        else:
            self._write(model, node, rule_of(node)(coded), coded.results)

    def _read(self, model: ir.Model, coded: CodedNode) -> None:
        """Let a node whose result is not quantized read codes."""
        node = coded.node
        node.replace_input_with(0, self._value(model, node, coded.input(0).whole().codes))
        self.changed(node, f"{node.op_type} reads codes")

    def _write(self, model: ir.Model, node: ir.Node, operation: Operation, results: list[QuantizedResult]) -> None:
        """Replace the node, with its Q/DQ and clips, by the operation."""
        graph, name = model.graph, node.name
        inputs = [self._value(model, node, operand) for operand in operation.inputs]
        # Trailing inputs that are absent must not be written: the checker counts them.
        while inputs[-1] is None:
            inputs.pop()
        new = ir.Node(operation.domain, operation.op_type, inputs, operation.attributes, num_outputs=len(results))
        graph.insert_before(node, [new])
        self.changed(node, f"{node.op_type} computes on codes: {new.op_type}")
        outputs = self._flatten(model, node, new.outputs[0]) if operation.flattened else new.outputs
        for codes, result in zip(outputs, results, strict=True):
            self._connect(model, node, codes, result)
            for obsolete in (*result.quantizers, *reversed(result.clips)):
                remove_node(graph, obsolete)
        remove_node(graph, node)
        # The name is free only now.
        new.name = name
        if is_standard(new, "Identity"):
            bypass(graph, new)

    def _flatten(self, model: ir.Model, node: ir.Node, codes: ir.Value) -> Sequence[ir.Value]:
        codes.name = self.fresh(model, node, "pooled_codes")
        flatten = ir.Node("", "Flatten", [codes], name=self.fresh(model, node, "flatten_codes"))
        model.graph.insert_before(node, [flatten])
        return flatten.outputs

    def _connect(self, model: ir.Model, node: ir.Node, codes: ir.Value, result: QuantizedResult) -> None:
        """Let readers of the quantized result read these codes, cut off as the result was."""
        quantized, bounds = result.quantizers[0].outputs[0], result.code_bounds
        codes.type, codes.shape = ir.TensorType(result.grid.dtype), result.shape
        if bounds is not None:
            codes.name = self.fresh(model, node, "uncut_codes")
            low, high = (
                self.initializer(model, node, role, np.array(end, result.grid.dtype.numpy()))
                for role, end in zip(("lowest_code", "highest_code"), bounds, strict=True)
            )
            cut = ir.Node("", "Clip", [codes, low, high], name=self.fresh(model, node, "clip_codes"))
            model.graph.insert_before(node, [cut])
            codes = cut.outputs[0]
            codes.type, codes.shape = ir.TensorType(result.grid.dtype), result.shape
        # Several readers may each have had a QuantizeLinear of their own (dedicated pairs); all wrote the same codes.
        for quantizer in result.quantizers[1:]:
            quantizer.outputs[0].replace_all_uses_with(quantized)
        take_over(quantized, codes)

    def _value(self, model: ir.Model, node: ir.Node, operand: Operand) -> ir.Value | None:
        if isinstance(operand, NewConstant):
            return self.initializer(model, node, operand.role, operand.array)
        return operand


def _is_pair_node(node: ir.Node) -> bool:
    return is_native_quantize(node) or is_native_dequantize(node)


def _is_quantized(node: ir.Node) -> bool:
    """Return whether anything that the node reads or writes has codes."""
    reads = any(value is not None and is_native_dequantize(value.producer()) for value in node.inputs)
    return reads or any(is_native_quantize(use.node) for value in node.outputs for use in value.uses())


def _join_idle_pairs(graph: ir.Graph) -> None:
    """Remove pairs that dequantize codes and quantize them to the same codes."""
    for node in list(graph):
        source = node.inputs[0] if is_native_quantize(node) else None
        before = None if source is None else dequantized(source.producer())
        if before is None or not is_native_dequantize(before.node):
            continue
        try:
            same = grid_of(node).equals(grid_of(before.node))
        except DeclinedError:
            continue
        if same and not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(before.codes)
            remove_node(graph, node)
