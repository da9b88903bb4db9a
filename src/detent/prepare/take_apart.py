"""Take operators apart that onnxruntime's transformer optimizer puts together (domain com.microsoft).

A quantizer has no grid for what goes on inside such an operator, and no NPU has one of them. Each is, by definition:

    Gelu, BiasGelu          u / 2 * (1 + erf(u / sqrt 2))                           u = x, or x + bias
    FastGelu                u / 2 * (1 + tanh(sqrt(2 / pi) * (u + 0.044715 u^3)))
    QuickGelu               x * sigmoid(alpha x)
    FusedMatMul             alpha * A' B', A' and B' transposed where it says so
    SkipLayerNormalization  LayerNormalization(x + skip + bias); Simplified: the norm without mean and term
    EmbedLayerNormalization LayerNormalization(words[ids] + positions[0 ... length) + segments[segment ids])
    Attention               softmax(q k' * scale + mask) v for each head; q, k and v are thirds of x W + b
    MultiHeadAttention      the same of a query, a key and a value that are given

A mask of zeros and ones, or one of lengths, becomes (1 - mask) * filter, which is added to the scores; a causal one
adds the lowest number there is. The scale of Attention goes into the weight of the query.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.session import EXPERIMENTAL
from detent.graph.values import constant, drop_if_unused, input_at, is_unused, rank, remove_node, take_over
from detent.prepare.base import Pass, main_opset
from detent.prepare.shapes import infer

DOMAIN = "com.microsoft"
MASK_FILTER = -10000.0
EPSILON = 1e-12
"""What the operators add, and divide by, if they do not say."""

Parts = dict[int, ir.Value]
"""What computes the outputs of a node now, by their positions."""


class TakeApart(Pass):
    """Write the standard operators that a fused one stands for.

    Cases:
    - all of the table above, with float32 numbers; a model of opset 23 gets RMSNormalization for the simplified norm;
    - declined: what has been computed before (past keys and values), packed inputs, relative positions, masks of other
      forms than one or two dimensions, weights that are not constant, and results that only training needs.
    """

    def run(self, model: ir.Model) -> None:
        # Embeddings first: the masks that they hand on have shapes only then.
        for wanted in (("EmbedLayerNormalization",), tuple(_RULES)):
            for node in list(model.graph):
                if node.op_type in wanted and (node.domain == DOMAIN or node.op_type in EXPERIMENTAL):
                    self._visit(model, node)
            if self.changes:
                infer(model)

    def _visit(self, model: ir.Model, node: ir.Node) -> None:
        write = _Writer(self, model, node)
        parts = _RULES[node.op_type](write, node)
        used = [index for index, value in enumerate(node.outputs) if not is_unused(value)]
        if not isinstance(parts, str) and any(index not in parts for index in used):
            parts = "one of its further outputs is used"
        if isinstance(parts, str):
            self.decline(node, parts)
            write.undo()
            return
        model.graph.insert_before(node, write.nodes)
        for index in used:
            take_over(node.outputs[index], parts[index])
        remove_node(model.graph, node)
        self.replaced(node, *write.nodes)
        self.changed(node, f"{node.op_type} became {len(write.nodes)} operators of ONNX")


class _Writer:
    """Makes the nodes and constants that replace one node; nothing enters the graph before all of them are made."""

    def __init__(self, owner: Pass, model: ir.Model, node: ir.Node) -> None:
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self.opset = main_opset(model)
        self._owner, self._model, self._node = owner, model, node

    def __call__(
        self, op_type: str, *inputs: ir.Value | float | npt.NDArray[Any] | None, **attributes: Any
    ) -> ir.Value:
        """Return the result of a new node. Numbers become constants."""
        values = [each if isinstance(each, ir.Value) or each is None else self._constant(each) for each in inputs]
        made = ir.node(op_type, values, attributes, name=self._owner.fresh(self._model, self._node, op_type.lower()))
        made.outputs[0].name = self._owner.fresh(self._model, self._node, f"{op_type.lower()}_result")
        self.nodes.append(made)
        return made.outputs[0]

    def _constant(self, given: float | npt.NDArray[Any]) -> ir.Value:
        array = given if isinstance(given, np.ndarray) else np.array(given, np.float32)
        self.constants.append(self._owner.initializer(self._model, self._node, "constant", array))
        return self.constants[-1]

    def undo(self) -> None:
        """Forget all nodes and constants."""
        for made in reversed(self.nodes):
            for index in range(len(made.inputs)):
                made.replace_input_with(index, None)
        for value in self.constants:
            drop_if_unused(value)

    def sum(self, *terms: ir.Value | None) -> ir.Value:
        """Return the sum of those that are there; at least the first is."""
        first, *others = [term for term in terms if term is not None]
        for term in others:
            first = self("Add", first, term)
        return first

    def gelu(self, x: ir.Value, approximated: bool = False) -> ir.Value:
        """Return the Gelu: the operator, where the model's operators have one."""
        if self.opset >= 20:
            return self("Gelu", x, approximate="tanh" if approximated else "none")
        if approximated:
            cube = self("Mul", self("Pow", x, 3.0), 0.044715)
            gate = self("Tanh", self("Mul", self("Add", x, cube), math.sqrt(2 / math.pi)))
        else:
            gate = self("Erf", self("Div", x, math.sqrt(2)))
        return self("Mul", self("Mul", x, self("Add", gate, 1.0)), 0.5)

    def norm(self, x: ir.Value, node: ir.Node, gamma: ir.Value | None, beta: ir.Value | None, simple: bool) -> ir.Value:
        """Return the norm over the last axis; a `simple` one divides by the root of the mean of squares and no more."""
        epsilon = node.attributes.get_float("epsilon", EPSILON)
        if not simple:
            return self("LayerNormalization", x, gamma, *([beta] if beta is not None else []), axis=-1, epsilon=epsilon)
        if self.opset >= 23:
            return self("RMSNormalization", x, gamma, axis=-1, epsilon=epsilon)
        squares, last = self("Mul", x, x), np.array([-1])
        mean = self("ReduceMean", squares, last) if self.opset >= 18 else self("ReduceMean", squares, axes=[-1])
        return self("Mul", self("Div", x, self("Sqrt", self("Add", mean, epsilon))), gamma)

    def size(self, x: ir.Value, axis: int) -> ir.Value:
        """Return one dimension of a value, as a scalar."""
        return self("Gather", self("Shape", x), np.array(axis), axis=0)


def _gelu(write: _Writer, node: ir.Node) -> Parts | str:
    total = write.sum(node.inputs[0], input_at(node, 1))
    return {0: write.gelu(total, approximated=node.op_type == "FastGelu")}


def _quick_gelu(write: _Writer, node: ir.Node) -> Parts | str:
    x = node.inputs[0]
    return {0: write("Mul", x, write("Sigmoid", write("Mul", x, node.attributes.get_float("alpha", 1.702))))}


def _fused_matmul(write: _Writer, node: ir.Node) -> Parts | str:
    operands = []
    for value, flag in zip(node.inputs[:2], ("transA", "transB"), strict=True):
        axes, turned = rank(value), node.attributes.get_int(flag, 0)
        if node.attributes.get_int(flag.replace("trans", "transBatch"), 0) or (turned and axes is None):
            return "it transposes a batch, or a value of unknown rank"
        order = [] if axes is None else [*range(axes - 2), axes - 1, axes - 2]
        operands.append(write("Transpose", value, perm=order) if turned else value)
    product, alpha = write("MatMul", *operands), node.attributes.get_float("alpha", 1.0)
    return {0: product if alpha == 1 else write("Mul", product, alpha)}


def _skip_norm(write: _Writer, node: ir.Node) -> Parts | str:
    simple = node.op_type.startswith("SkipSimplified")
    gamma, beta = input_at(node, 2), None if simple else input_at(node, 3)
    bias = input_at(node, 3 if simple else 4)
    total = write.sum(node.inputs[0], node.inputs[1], bias)
    return {0: write.norm(total, node, gamma, beta, simple), 3: total}


def _simple_norm(write: _Writer, node: ir.Node) -> Parts | str:
    x, axis = node.inputs[0], node.attributes.get_int("axis", -1)
    if x is None or axis not in (-1, (rank(x) or 0) - 1):
        return "it is not over the last axis"
    return {0: write.norm(x, node, node.inputs[1], None, simple=True)}


def _embeddings(write: _Writer, node: ir.Node) -> Parts | str:
    ids, segment_ids, words, positions, segments, gamma, beta, mask, position_ids = (
        input_at(node, index) for index in range(9)
    )
    table = constant(positions)
    if ids is None or table is None:
        return "its table of positions is not constant"
    if position_ids is not None:
        placed = write("Gather", positions, position_ids)
    else:
        length = write("Unsqueeze", write.size(ids, 1), np.array([0]))
        placed = write("Slice", positions, np.array([0]), length, np.array([0]))
    typed = None if segment_ids is None or segments is None else write("Gather", segments, segment_ids)
    total = write.sum(write("Gather", words, ids), placed, typed)
    lengths = None
    if mask is not None:
        ones = write("Cast", write("Equal", mask, np.array(1, np.int32)), to=int(ir.DataType.INT32))
        lengths = write("ReduceSum", ones, np.array([1]), keepdims=0)
    parts = {0: write.norm(total, node, gamma, beta, simple=False), 2: total}
    return parts if lengths is None else {**parts, 1: lengths}


def _attention(write: _Writer, node: ir.Node) -> Parts | str:
    x, weight, bias = node.inputs[0], constant(input_at(node, 1)), constant(input_at(node, 2))
    if x is None or weight is None or (bias is None and input_at(node, 2) is not None):
        return "its weights are not constant"
    if any(input_at(node, index) is not None for index in range(4, 7)) or node.attributes.get_int("do_rotary", 0) != 0:
        return "it takes what was computed before, a bias of positions or rotated ones"
    heads = node.attributes.get_int("num_heads", 1)
    sizes = list(node.attributes.get_ints("qkv_hidden_sizes") or [weight.shape[-1] // 3] * 3 if weight.ndim else ())
    columns = (sum(sizes),)
    if weight.ndim != 2 or len(sizes) != 3 or {weight.shape[1:], columns if bias is None else bias.shape} != {columns}:
        return "its weights have other shapes than it declares"
    ends = np.cumsum(sizes)[:-1]
    if heads < 1 or any(size % heads for size in sizes):
        return f"its {sizes[0]} columns cannot be divided among {heads} heads"
    weights, scale = np.split(weight, ends, axis=1), _scale(node, sizes[0] // heads)
    biases = [None] * 3 if bias is None else np.split(bias, ends)
    projected = []
    for matrix, term, factor in zip(weights, biases, (scale, 1.0, 1.0), strict=True):
        product = write("MatMul", x, np.ascontiguousarray(matrix * np.float32(factor)))
        projected.append(product if term is None else write("Add", product, term * np.float32(factor)))
    masks = _masks(write, node, input_at(node, 3), projected)
    return masks if isinstance(masks, str) else {0: _attend(write, projected, masks, (heads, sizes[2]), 1.0)}


def _multi_head(write: _Writer, node: ir.Node) -> Parts | str:
    given, bias = [input_at(node, index) for index in range(3)], input_at(node, 3)
    if any(value is None for value in given) or any(rank(value) not in (3, None) for value in given):
        return "its query, key and value are not three values of three dimensions"
    if any(input_at(node, index) is not None for index in range(6, len(node.inputs))):
        return "it takes what was computed before"
    query, key, value = (each for each in given if each is not None)
    width, depth = (each.shape[-1] if each.shape is not None else None for each in (query, value))
    terms = constant(bias)
    if not isinstance(width, int) or not isinstance(depth, int) or (bias is not None and terms is None):
        return "the sizes of its inputs are not known, or its bias is not constant"
    parts = [query, key, value]
    if terms is not None:
        pieces = np.split(terms, [width, 2 * width])
        parts = [write("Add", part, np.ascontiguousarray(piece)) for part, piece in zip(parts, pieces, strict=True)]
    heads = node.attributes.get_int("num_heads", 1)
    if heads < 1 or width % heads:
        return f"its {width} columns cannot be divided among {heads} heads"
    masks = _masks(write, node, input_at(node, 4), parts)
    if isinstance(masks, str):
        return masks
    masks += [each for each in (input_at(node, 5),) if each is not None]
    return {0: _attend(write, parts, masks, (heads, depth), _scale(node, width // heads))}


def _scale(node: ir.Node, head: int) -> float:
    return node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(head)


def _masks(write: _Writer, node: ir.Node, mask: ir.Value | None, parts: list[ir.Value]) -> list[ir.Value] | str:
    """Return what is added to the scores, or why that cannot be written."""
    found = []
    if mask is not None:
        kept = _kept(write, mask, parts[1])
        if isinstance(kept, str):
            return kept
        spread = write("Unsqueeze", write("Cast", kept, to=int(ir.DataType.FLOAT)), np.array([1, 2]))
        filtered = node.attributes.get_float("mask_filter_value", MASK_FILTER)
        found.append(write("Mul", write("Sub", 1.0, spread), filtered))
    if node.attributes.get_int("unidirectional", 0):
        rows, columns = (write("Range", np.array(0), write.size(part, 1), np.array(1)) for part in parts[:2])
        later = write("Less", write("Unsqueeze", rows, np.array([1])), columns)
        found.append(write("Where", later, float(np.finfo(np.float32).min), 0.0))
    return found


def _kept(write: _Writer, mask: ir.Value, key: ir.Value) -> ir.Value | str:
    """Return a mask of (batch, key): the one that is given, or that of lengths."""
    axes = rank(mask)
    if axes == 2:
        return write("Not", write("Equal", mask, np.array(0, np.int32)))
    if axes != 1:
        return f"its mask has {axes or 'unknown'} dimensions"
    if mask.shape is not None and key.shape is not None and mask.shape[0] not in (key.shape[0], 1):
        return "its mask has lengths in another form than one for each sample"
    positions = write("Range", np.array(0), write.size(key, 1), np.array(1))
    lengths = write("Cast", mask, to=int(ir.DataType.INT64))
    return write("Less", write("Unsqueeze", positions, np.array([0])), write("Unsqueeze", lengths, np.array([1])))


def _attend(
    write: _Writer, parts: list[ir.Value], masks: list[ir.Value], heads: tuple[int, int], scale: float
) -> ir.Value:
    """Return softmax(q k' * scale + masks) v with the heads joined. `heads`: how many, and their width together."""
    count, width = heads
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    split = [
        write("Transpose", write("Reshape", part, np.array([0, 0, count, -1])), perm=order)
        for part, order in zip(parts, orders, strict=True)
    ]
    scores = write("MatMul", split[0], split[1])
    if scale != 1:
        scores = write("Mul", scores, scale)
    weights = write("Softmax", write.sum(scores, *masks), axis=-1)
    joined = write("Transpose", write("MatMul", weights, split[2]), perm=[0, 2, 1, 3])
    return write("Reshape", joined, np.array([0, 0, width]))


_RULES: dict[str, Callable[[_Writer, ir.Node], Parts | str]] = {
    **dict.fromkeys(("Gelu", "BiasGelu", "FastGelu"), _gelu),
    "QuickGelu": _quick_gelu,
    "FusedMatMul": _fused_matmul,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_norm),
    "SimplifiedLayerNormalization": _simple_norm,
    "EmbedLayerNormalization": _embeddings,
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
}
