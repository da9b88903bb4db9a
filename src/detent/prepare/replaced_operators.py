"""Replace operators by equivalent ones that more devices run.

SplitToSlice: output i of Split holds the entries from size_0 + ... + size_(i-1) up to, but not including, the same sum
with size_i, along one axis. A Slice with these two numbers takes exactly those entries.

GatherToSlice: Gather with one constant index i takes the entries from i up to i + 1 along its axis, and that axis goes:
a Slice and a Squeeze.

ReduceMeanToPool: ReduceMean over height and width of (batch, channel, height, width) is GlobalAveragePool, which keeps
these dimensions with size 1, as ReduceMean does with keepdims=1.

KeepMeanDims: with keepdims=0 it is the mean with keepdims=1, and a Flatten, so that the pass above takes it. The output
of a pool shares the scale of its input, though a mean is smaller and might have a finer one. Before the last layer that
costs nothing that can be measured (MobileNetV2: 1 of 1000 images). It costs much where the mean is the answer itself
(SqueezeNet: 147 instead of 100 of 1000 classes change) and where others read the same input too, as in
squeeze-and-excite: there the mean stays.

SplitGlobalPool: with H = h1 * h2 and W = w1 * w2, the mean over H x W is the mean over h2 x w2 tiles of the means over
the h1 x w1 entries of each, because all tiles have the same size. An NPU sums at most 512 entries at a time, so each of
the two parts has to stay within that.

EinsumToMatMul: an Einsum of two operands that sums over one letter is a MatMul of transposed operands.

SumToAdd: Sum of n values is n - 1 Add, each broadcast as Sum is.

MergeClips: Min and Max with a number are a Clip with one bound, and Relu is Clip(0, inf). Of a Clip to [a, b] after one
to [c, d] remains a Clip to [max(a, c), min(b, d)], if the two overlap. So Keras' older ReLU6, Max(Min(Relu(x), 6), 0),
is Clip(x, 0, 6), which goes with the layer before it.

HardSwishToRelu6: HardSwish(x) = x/6 * clip(x + 3, 0, 6), and with x' = s x / 6 for any factor s > 0 of a channel

    s HardSwish(x) = x' * clip(6/s x' + 3, 0, 6)

So a layer's channels, which differ in size by orders of magnitude, can be brought to one size (equalize/) before they
are rounded, with s in the layers before and behind. Through HardSwish itself no factor passes. The map 6 x' + 3 is a
depthwise convolution of one pixel, whose weights take 1/s in.

HardSwishToHardSigmoid: for devices that have HardSigmoid alone, x * HardSigmoid(x), with slope 1/6.

SetHardSigmoidSlope: clip(a x + b, 0, 1) is clip(x'/6 + 1/2, 0, 1) of x' = 6 a x + 6 b - 3, so that a HardSigmoid of any
slope becomes one of slope 1/6, the only one that devices have. The map before it goes into the layer that computes x.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx_ir as ir

from detent.graph import values
from detent.prepare.affine import Affine, fold_after
from detent.prepare.base import OperatorPass, Pass, axes_of, main_opset


class SplitToSlice(OperatorPass):
    """Replace Split.

    Cases:
    - sizes from a constant input, or equal parts of a known dimension;
    - `num_outputs` of opset 18, where the last part may be smaller;
    - axis absent (0) or negative;
    - outputs that nothing reads get no Slice; the others keep their names;
    - declined: sizes that are computed, and equal parts of a dimension that is not known or not divisible.
    """

    operators = ("Split",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        sizes = _sizes(node, main_opset(model))
        if isinstance(sizes, str):
            return sizes
        axis = node.attributes.get_int("axis", 0)
        shape = values.static_shape(node.inputs[0])
        if axis < 0 and shape is not None:
            axis += len(shape)
        pieces: list[ir.Node] = []
        ends = list(itertools.accumulate(sizes))
        for index, output in enumerate(node.outputs):
            if values.is_unused(output):
                continue
            where = (ends[index] - sizes[index], ends[index], axis)
            piece = _slice(self, model, node, where, f"slice{index}", f"slice{index}_")
            model.graph.insert_before(node, piece)
            values.take_over(output, piece.outputs[0])
            pieces.append(piece)
        values.remove_node(model.graph, node)
        self.replaced(node, *pieces)
        self.changed(node, f"Split into sizes {sizes} became Slices")
        return None


def _slice(
    owner: Pass, model: ir.Model, node: ir.Node, where: tuple[int, int, int], role: str, prefix: str = ""
) -> ir.Node:
    """Make a Slice of the node's first input: `where` is start, end and axis. It is in no graph yet."""
    fields = zip(("starts", "ends", "axes", "steps"), (*where, 1), strict=True)
    inputs = [owner.initializer(model, node, f"{prefix}{key}", np.array([number], np.int64)) for key, number in fields]
    return ir.Node("", "Slice", [node.inputs[0], *inputs], name=owner.fresh(model, node, role))


def _sizes(node: ir.Node, opset: int) -> list[int] | str:
    """Return the sizes of the parts, or the reason why they are not known."""
    count = len(node.outputs)
    value = values.input_at(node, 1)
    if value is not None:
        given = values.constant_ints(value)
        if given is None:
            return f"its sizes '{value.name}' are not constant"
        return given if len(given) == count else f"it has {count} outputs and {len(given)} sizes"
    axis, shape = node.attributes.get_int("axis", 0), values.static_shape(node.inputs[0])
    dim = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    if dim is None:
        return f"the size of dimension {axis} of its input is not known"
    # From opset 18 on, the last part may be smaller.
    if opset < 18 and dim % count:
        return f"dimension {axis} of size {dim} cannot be split into {count} equal parts"
    part = -(-dim // count)
    if part * (count - 1) > dim:
        return f"dimension {axis} of size {dim} cannot be split into {count} parts of {part}"
    return [part] * (count - 1) + [dim - part * (count - 1)]


_LAST = np.iinfo(np.int64).max  # where a Slice ends that takes the last entry, whatever the size


class GatherToSlice(OperatorPass):
    """Replace Gather of float data with one constant index, as x[:, 0] is exported.

    Cases:
    - the index is a scalar, positive or negative;
    - left alone without a note: several indices, computed ones, integers, and a constant that is looked up in.
    """

    operators = ("Gather",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        source, index = node.inputs[0], values.constant(node.inputs[1])
        if source is None or source.dtype != ir.DataType.FLOAT or values.is_constant(source):
            return None
        if index is None or index.ndim:
            return None
        start, axis, rank = int(index), node.attributes.get_int("axis", 0), values.rank(source)
        if rank is not None and not -rank <= axis < rank:
            return f"the input has {rank} dimensions, and its axis is {axis}"
        piece = _slice(self, model, node, (start, _LAST if start == -1 else start + 1, axis), "slice")
        piece.outputs[0].name = self.fresh(model, node, "sliced")
        piece.outputs[0].type = source.type
        if source.shape is not None:
            dims = list(source.shape)
            dims[axis] = 1
            piece.outputs[0].shape = ir.Shape(dims)
        axes = self.initializer(model, node, "squeezed", np.array([axis]))
        squeezed = ir.node("Squeeze", [piece.outputs[0], axes], name=node.name)
        model.graph.insert_before(node, [piece, squeezed])
        values.take_over(node.outputs[0], squeezed.outputs[0])
        values.remove_node(model.graph, node)
        self.replaced(node, piece, squeezed)
        self.changed(squeezed, f"Gather at {start} became Slice and Squeeze")
        return None


class KeepMeanDims(OperatorPass):
    """Write ReduceMean over height and width with keepdims=0 as one with keepdims=1, and Flatten.

    Cases:
    - those of ReduceMeanToPool, but with keepdims=0;
    - declined: the input has other readers, or no layer with weights reads the mean (see above).
    """

    operators = ("ReduceMean",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        source, result = node.inputs[0], node.outputs[0]
        if _keeps_dims(node) or source is None or _why_not(node) is not None:
            return None
        if len(source.uses()) > 1:
            return "keepdims is 0 within the network: a pool would tie the scale of its output to that of its input"
        if not _reaches_layer(node):
            return "keepdims is 0 at the output: a pool would give the answer the coarser scale of its input"
        node.attributes["keepdims"] = ir.AttrInt64("keepdims", 1)
        flat = ir.node("Flatten", [result], {"axis": 1}, name=self.fresh(model, node, "flatten"))
        model.graph.insert_after(node, flat)
        values.take_over(result, flat.outputs[0])
        flat.replace_input_with(0, result)
        result.name = self.fresh(model, node, "mean")
        result.shape = None if result.shape is None else ir.Shape([*result.shape, 1, 1])
        self.changed(node, "ReduceMean keeps height and width, a Flatten takes them away")
        return None


def _reaches_layer(node: ir.Node) -> bool:
    """Tell whether a layer with weights, or a node with a body, reads what a node computes, however far behind it."""
    seen, pending = {node}, [node]
    while pending:
        for reader in pending.pop().successors():
            if reader.op_type in _LAYERS or values.bodies_of(reader):
                return True
            if reader not in seen:
                seen.add(reader)
                pending.append(reader)
    return False


_LAYERS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN"))


class ReduceMeanToPool(OperatorPass):
    """Replace ReduceMean by GlobalAveragePool.

    Cases:
    - axes are exactly 2 and 3, in any order, negative or not, from the attribute or the input of opset 18;
    - the input is float32 and has rank 4;
    - declined: keepdims=0, other axes, another or an unknown rank or type, axes that are computed.
    """

    operators = ("ReduceMean",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:  # noqa: ARG002
        reason = _why_not(node) or (None if _keeps_dims(node) else "keepdims is 0, and a pool keeps dimensions")
        if reason is None:
            node.op_type = "GlobalAveragePool"
            node.attributes.clear()
            values.cut_inputs(node, 1)
            self.changed(node, "ReduceMean over height and width became GlobalAveragePool")
        return reason


def _why_not(node: ir.Node) -> str | None:
    """Return why a ReduceMean is not over height and width, or None if it is."""
    source, axes = node.inputs[0], axes_of(node)
    if values.input_at(node, 1) is not None and axes is None:
        return "its axes are not constant"
    if values.rank(source) != 4:
        return "its input is not known to have rank 4"
    if axes is None or {axis % 4 for axis in axes} != {2, 3}:
        return f"it reduces over {axes or 'all axes'}, not over height and width"
    if source is None or source.dtype != ir.DataType.FLOAT:
        return "its input is not known to be float32"
    return None


def _keeps_dims(node: ir.Node) -> bool:
    return node.attributes.get_int("keepdims", 1) != 0


LIMIT = 512  # the largest number of entries that one pool may average over


class SplitGlobalPool(OperatorPass):
    """Put an AveragePool in front of a GlobalAveragePool over more than 512 entries.

    Cases:
    - kernel and stride of the AveragePool are (h1, w1): the largest divisors of H and W that are at most their roots;
    - declined: a height or width that is not known, neither of them divisible, a part that is still larger than 512;
    - GlobalAveragePool over other than two dimensions is left alone.
    """

    operators = ("GlobalAveragePool",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        source = node.inputs[0]
        shape = values.static_shape(source)
        if source is None or shape is None:
            return "the shape of its input is not known"
        if len(shape) != 4:
            return None
        height, width = shape[2:]
        if height is None or width is None:
            return "the height or width of its input is not known"
        if height * width <= LIMIT:
            return None
        h1, w1 = _divisor(height), _divisor(width)
        if h1 * w1 == 1:
            return f"{height}x{width} cannot be divided into tiles"
        rest = height * width // (h1 * w1)
        if h1 * w1 > LIMIT or rest > LIMIT:
            return f"{height}x{width} would leave {rest} tiles of {h1 * w1}, and {LIMIT} is the limit"
        kernel = [h1, w1]
        name = self.fresh(model, node, "tiles")
        attributes = [ir.AttrInt64s("kernel_shape", kernel), ir.AttrInt64s("strides", kernel)]
        pool = ir.Node("", "AveragePool", [source], attributes, name=name)
        pool.outputs[0].name = self.fresh(model, node, "tile_means")
        pool.outputs[0].type = source.type
        if source.shape is not None:
            pool.outputs[0].shape = ir.Shape([*source.shape[:2], height // h1, width // w1])
        model.graph.insert_before(node, pool)
        node.replace_input_with(0, pool.outputs[0])
        self.replaced(node, pool, node)
        self.changed(node, f"{height}x{width} averaged over tiles of {h1}x{w1} first")
        return None


def _divisor(size: int) -> int:
    """Return the largest divisor that is at most the square root."""
    return next(d for d in range(math.isqrt(size), 0, -1) if size % d == 0)


class EinsumToMatMul(OperatorPass):
    """Replace Einsum of two operands by MatMul, with a Transpose where an operand or the result has another order.

    Letters are those of both operands and the result (batch), of both alone (summed), and of one operand and the
    result (row, column): the sum is MatMul of (batch, row, summed) and (batch, summed, column). More rows, or more
    columns, stand before the batch of their operand: MatMul repeats the other operand along them.

    Cases:
    - one letter is summed; of rows and columns, one kind has one letter; any number are batch; constants are transposed
      at once;
    - declined: other numbers of letters, a letter twice in one operand, an ellipsis, sums over one operand alone.
    """

    operators = ("Einsum",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        equation = node.attributes.get_string("equation", "") or ""
        terms, arrow, result = equation.replace(" ", "").partition("->")
        left, comma, right = terms.partition(",")
        if not arrow or not comma or "," in right or "." in equation:
            return f"'{equation}' is not of two operands whose letters are all there"
        batch = [letter for letter in result if letter in left and letter in right]
        summed = [letter for letter in left if letter in right and letter not in result]
        row, column = ([x for x in side if x not in batch and x not in summed] for side in (left, right))
        if len(summed) != 1 or min(len(row), len(column)) != 1 or len({*result}) != len(result):
            return f"'{equation}' is not one sum over rows and columns"
        if sorted(left) != sorted([*batch, *row, *summed]) or sorted(right) != sorted([*batch, *summed, *column]):
            return f"'{equation}' has a letter twice in one operand"
        if sorted(result) != sorted([*batch, *row, *column]):
            return f"'{equation}' sums over one operand alone"
        front = [*row[:-1], *column[:-1]]
        orders = (
            (left, [*row[:-1], *batch, row[-1], *summed]),
            (right, [*column[:-1], *batch, *summed, column[-1]]),
        )
        operands = [
            self._ordered(model, node, value, [letters.index(letter) for letter in order], role)
            for value, (letters, order), role in zip(node.inputs, orders, ("left", "right"), strict=True)
        ]
        made, back = [*front, *batch, row[-1], column[-1]], node.outputs[0]
        product = ir.node("MatMul", operands, name=node.name)
        product.outputs[0].type = back.type
        model.graph.insert_before(node, product)
        if made == [*result]:
            values.take_over(back, product.outputs[0])
        else:
            product.outputs[0].name = self.fresh(model, node, "product")
            perm = [made.index(letter) for letter in result]
            turned = ir.node("Transpose", product.outputs, {"perm": perm}, name=self.fresh(model, node, "turn"))
            model.graph.insert_before(node, turned)
            values.take_over(back, turned.outputs[0])
        values.remove_node(model.graph, node)
        self.replaced(node, product)
        self.changed(product, f"Einsum '{equation}' became MatMul")
        return None

    def _ordered(
        self, model: ir.Model, node: ir.Node, value: ir.Value | None, perm: list[int], role: str
    ) -> ir.Value | None:
        array = values.constant(value)
        if value is None or perm == sorted(perm):
            return value
        if array is not None:
            return self.initializer(model, node, role, np.ascontiguousarray(array.transpose(perm)))
        turned = ir.node("Transpose", [value], {"perm": perm}, name=self.fresh(model, node, f"turn_{role}"))
        turned.outputs[0].name = self.fresh(model, node, role)
        turned.outputs[0].type = value.type
        model.graph.insert_before(node, turned)
        return turned.outputs[0]


class SumToAdd(OperatorPass):
    """Replace Sum of several values by Add, from the left to the right: few devices have Sum, and all have Add.

    Cases:
    - two values become one Add of the same name, more of them a chain;
    - declined: a single value, which is the sum.
    """

    operators = ("Sum",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        total, *others = node.inputs
        if not others:
            return "it has one input"
        result, made = node.outputs[0], []
        for at, term in enumerate(others, 1):
            last = at == len(others)
            made.append(ir.node("Add", [total, term], name=node.name if last else self.fresh(model, node, f"add_{at}")))
            total = made[-1].outputs[0]
            if not last:
                total.name, total.type = self.fresh(model, node, f"sum_{at}"), result.type
        model.graph.insert_before(node, made)
        values.take_over(result, made[-1].outputs[0])
        model.graph.remove(node, safe=True)
        self.replaced(node, *made)
        self.changed(made[-1], f"Sum of {len(others) + 1} values became Add")
        return None


class MergeClips(OperatorPass):
    """Replace Min and Max with a number by Clip, and merge neighbours that clip into one.

    Cases:
    - Min, Max, Relu and Clip in any order; what is clipped at 0 from below alone becomes Relu;
    - left alone: bounds that are computed, are arrays or not float32, a value between that is used elsewhere, ranges
      that do not overlap.
    """

    operators = ("Min", "Max", "Relu", "Clip")

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        found = _clipped(node)
        if found is None:
            return None
        source, low, high = found
        before = source.producer()
        inner = None if before is None or values.sole_use(source, model.graph) is None else _clipped(before)
        if inner is not None and max(low, inner[1]) <= min(high, inner[2]):
            source, low, high = inner[0], max(low, inner[1]), min(high, inner[2])
        elif node.op_type in ("Relu", "Clip"):
            return None
        else:
            before = None
        made = self._clip(model, node, source, low, high)
        model.graph.insert_before(node, made)
        values.take_over(node.outputs[0], made.outputs[0])
        values.remove_node(model.graph, node)
        self.replaced(node, made)
        if before is not None:
            values.remove_node(model.graph, before)
            self.merged(before, made)
        self.changed(made, f"became {made.op_type}, from {low:g} to {high:g}")
        return None

    def _clip(self, model: ir.Model, node: ir.Node, source: ir.Value, low: float, high: float) -> ir.Node:
        if (low, high) == (0.0, math.inf):
            return ir.node("Relu", [source], name=node.name)
        bounds = [
            self.initializer(model, node, role, np.array(number, np.float32)) if math.isfinite(number) else None
            for role, number in (("min", low), ("max", high))
        ]
        return ir.node("Clip", [source, *bounds], name=node.name)


def _clipped(node: ir.Node) -> tuple[ir.Value, float, float] | None:
    """Return what a node clips, and the ends; None if it does something else, or its ends are not known."""
    source = node.inputs[0] if node.inputs else None
    if not values.is_standard(node, *MergeClips.operators) or source is None:
        return None
    if node.op_type == "Relu":
        return source, 0.0, math.inf
    if node.op_type == "Clip":
        low, high = _bound(values.input_at(node, 1), -math.inf), _bound(values.input_at(node, 2), math.inf)
        return None if low is None or high is None else (source, low, high)
    if len(node.inputs) != 2:
        return None
    for value, operand in itertools.permutations(node.inputs):
        array, number = values.constant(operand), _bound(operand, None)
        # A number of more axes than the value would give it these axes.
        if value is None or values.constant(value) is not None or number is None or array is None:
            continue
        if array.ndim == 0 or array.ndim <= (values.rank(value) or 0):
            return (value, -math.inf, number) if node.op_type == "Min" else (value, number, math.inf)
    return None


def _bound(value: ir.Value | None, absent: float | None) -> float | None:
    """Return the one float32 number that an input holds, or `absent` without an input; None if it is another."""
    if value is None:
        return absent
    array = values.constant(value)
    return None if array is None or array.dtype != np.float32 else values.scalar_of(value)


class HardSwishToRelu6(OperatorPass):
    """Replace HardSwish(x) behind a convolution by x/6 * clip(x + 3, 0, 6): its channels can be equalized.

    Cases:
    - the factor 1/6 goes into the convolution;
    - declined: x is not the result of a Conv on images, it is read by others as well, or its weights are computed.
    """

    operators = ("HardSwish",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        source, result = node.inputs[0], node.outputs[0]
        layer = None if source is None else source.producer()
        weight = values.constant(layer.inputs[1]) if layer is not None and values.is_standard(layer, "Conv") else None
        if source is None or layer is None or weight is None or weight.ndim != 4:
            return "its input is not the result of a Conv on images, with constant weights"
        if len(source.uses()) != 1 or source.is_graph_output():
            return f"others read the result of Conv '{layer.name}' too"
        reason = fold_after(self, model, layer, Affine(np.full(1, 1 / 6), np.zeros(1)))
        if reason is not None:
            return reason
        channels = len(weight)
        factor = self.initializer(model, node, "slope", np.full((channels, 1, 1, 1), 6, weight.dtype))
        offset = self.initializer(model, node, "offset", np.full(channels, 3, weight.dtype))
        low, high = (self.initializer(model, node, f"at_{at}", np.array(at, weight.dtype)) for at in (0, 6))
        attributes: dict[str, int | list[int]] = {"group": channels, "kernel_shape": [1, 1]}
        shift = ir.node("Conv", [source, factor, offset], attributes, name=self.fresh(model, node, "shift"))
        gate = ir.node("Clip", [shift.outputs[0], low, high], name=self.fresh(model, node, "gate"))
        for inner in (shift, gate):
            inner.outputs[0].name = self.fresh(model, inner, "output")
            inner.outputs[0].type, inner.outputs[0].shape = result.type, result.shape
        product = ir.node("Mul", [source, gate.outputs[0]], name=node.name)
        model.graph.insert_before(node, [shift, gate, product])
        values.take_over(result, product.outputs[0])
        model.graph.remove(node, safe=True)
        self.replaced(node, shift, gate, product)
        self.changed(product, "HardSwish became x/6 * clip(x + 3, 0, 6), so that channels can be equalized")
        return None


class HardSwishToHardSigmoid(OperatorPass):
    """Replace HardSwish(x) by x * HardSigmoid(x)."""

    operators = ("HardSwish",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        source, result = node.inputs[0], node.outputs[0]
        gate = ir.node("HardSigmoid", [source], {"alpha": 1 / 6, "beta": 0.5}, name=self.fresh(model, node, "gate"))
        gate.outputs[0].name = self.fresh(model, node, "gated_by")
        gate.outputs[0].type, gate.outputs[0].shape = result.type, result.shape
        product = ir.node("Mul", [source, gate.outputs[0]], name=node.name)
        model.graph.insert_before(node, [gate, product])
        values.take_over(result, product.outputs[0])
        model.graph.remove(node, safe=True)
        self.replaced(node, gate, product)
        self.changed(product, "HardSwish became x * HardSigmoid(x)")
        return None


class SetHardSigmoidSlope(OperatorPass):
    """Give a HardSigmoid the slope 1/6 and the offset 1/2, by a factor and a term before it.

    Cases:
    - one with that slope and offset already is left alone;
    - declined: a slope of 0 or below, and an input that is not float32.
    """

    operators = ("HardSigmoid",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        slope, offset = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
        source = node.inputs[0]
        if math.isclose(slope, 1 / 6, abs_tol=1e-6) and math.isclose(offset, 0.5, abs_tol=1e-6):
            return None
        if slope <= 0:
            return f"its slope is {slope:g}"
        if source is None or source.dtype != ir.DataType.FLOAT:
            return "its input is not known to be float32"
        for op_type, role, number, neutral in (
            ("Mul", "slope", 6 * slope, 1.0),
            ("Add", "offset", 6 * offset - 3, 0.0),
        ):
            if not math.isclose(number, neutral, abs_tol=1e-6):
                operand = self.initializer(model, node, role, np.array(number, np.float32))
                before = ir.node(op_type, [source, operand], name=self.fresh(model, node, f"{role}_before"))
                before.outputs[0].name = self.fresh(model, node, f"with_{role}")
                before.outputs[0].type, before.outputs[0].shape = source.type, source.shape
                model.graph.insert_before(node, before)
                source = before.outputs[0]
        node.replace_input_with(0, source)
        node.attributes["alpha"], node.attributes["beta"] = ir.AttrFloat32("alpha", 1 / 6), ir.AttrFloat32("beta", 0.5)
        self.changed(node, f"slope {slope:g} and offset {offset:g} became 1/6 and 1/2, with an affine map before it")
        return None
