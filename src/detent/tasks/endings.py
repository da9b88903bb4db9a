"""What an output holds, by the last nodes before it: scores of classes, tags, a vector, a number.

after a Softmax, or called logits    scores of classes: one of them is the answer
after a Sigmoid, two or more         tags: each is there or not, whatever the others are
after a Sigmoid, only one            a probability
normalized, or called so             a vector, to compare with others
the state of an LSTM, GRU or RNN     the same
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import onnx_ir as ir

from detent.graph.values import is_constant, static_shape
from detent.observe.sources import Shape

SHARES = ("Softmax", "LogSoftmax")
SIGMOIDS = ("Sigmoid", "HardSigmoid")
_PASSING = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast")
_PICKING = ("Gather", "Slice")
_RECURRENT = ("LSTM", "GRU", "RNN", "Loop", "Scan")  # the last two as TensorFlow writes them
_EMBEDDING_WORDS = ("embed", "feat", "pooler", "last_hidden_state", "sentence")
_NUMBER_WORDS = ("box", "landmark", "coord", "keypoint", "angle", "offset", "delta")

HeadKind = Literal["classes", "tags", "number", "objects"]


def classes_beside_boxes(graph: ir.Graph) -> int | None:
    """Return how many scores of classes, each after a Sigmoid, an output has behind the four numbers of each box.

    None if there is no such output, or objectness comes first: then a Concat has three operands, or one Sigmoid gives
    objectness and classes, and a Split takes them apart.
    """
    for value in graph.outputs:
        node = last_node(value)
        if node is None or node.op_type != "Concat" or len(node.inputs) != 2:
            continue
        axis = node.attributes["axis"].as_int()
        boxes, scores = (None if each is None else static_shape(each) for each in node.inputs)
        after = node.inputs[1]
        if boxes and scores and after is not None and boxes[axis] == 4 and ends_in(after, SIGMOIDS):
            return scores[axis]
    return None


def passed_on(graph: ir.Graph) -> frozenset[str]:
    """Return the outputs that are inputs of the model, at most reshaped."""
    found = set()
    for value in graph.outputs:
        source: ir.Value | None = value
        while source is not None and (node := source.producer()) is not None and node.op_type in _PASSING:
            source = node.inputs[0]
        if source in graph.inputs:
            found.add(str(value.name))
    return frozenset(found)


def are_scores(value: ir.Value) -> bool:
    """Tell whether rows are scores of classes: after a Softmax, or called so. A score alone has nothing to exceed."""
    size = None if value.shape is None else value.shape[-1]
    return size != 1 and (ends_in(value, SHARES) or "logit" in str(value.name).lower())


def is_embedding(value: ir.Value) -> bool:
    """Tell whether a row is a vector to compare with others: by its name, normalized, or the state of a recurrence."""
    if _is_called(value, _EMBEDDING_WORDS):
        return True
    node = last_node(value)
    if _is_state(node):
        return True
    if node is None or node.op_type not in ("Div", "LpNormalization", "BatchNormalization", "LayerNormalization"):
        return False
    if node.op_type != "Div":
        return True
    divisor = node.inputs[1]
    while divisor is not None and (producer := divisor.producer()) is not None:
        if producer.op_type in ("ReduceL2", "ReduceL1", "Sqrt"):
            return True
        if producer.op_type not in (*_PASSING, "Clip", "Max", "Expand", "Add"):
            return False
        divisor = producer.inputs[0]
    return False


def _is_state(node: ir.Node | None) -> bool:
    """Tell whether a node computes, or picks, the state of a recurrence: no layer made scores of it."""
    while node is not None and node.op_type in _PICKING and node.inputs[0] is not None:
        node = last_node(node.inputs[0])
    return node is not None and node.op_type in _RECURRENT


def last_node(value: ir.Value) -> ir.Node | None:
    """Return the node that computes an output, before what only reshapes it."""
    node = value.producer()
    while node is not None and node.op_type in _PASSING and node.inputs and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node


def ends_in(value: ir.Value, op_types: Sequence[str]) -> bool:
    node = last_node(value)
    if node is not None and node.op_type == "Div" and "Softmax" in op_types:
        return _is_softmax(node)
    return node is not None and node.op_type in op_types


def _is_softmax(division: ir.Node) -> bool:
    """Tell whether a Div is exp(x) over its own sum: a Softmax as JAX and others write it."""
    shares, total = division.inputs
    above = None if shares is None else shares.producer()
    below = None if total is None else total.producer()
    while below is not None and below.op_type in (*_PASSING, "Expand", "Add", "Max", "Clip"):
        below = None if below.inputs[0] is None else below.inputs[0].producer()
    summed = below is not None and below.op_type == "ReduceSum" and below.inputs[0] is shares
    return above is not None and above.op_type == "Exp" and summed


def are_places(value: ir.Value) -> bool:
    """Tell whether the name of an output says that its numbers are places, sizes or angles."""
    return _is_called(value, _NUMBER_WORDS)


def are_tags(value: ir.Value) -> bool:
    """Tell whether rows are scores of things that may be there together. Places may be after a Sigmoid too."""
    size = None if value.shape is None else value.shape[-1]
    return size != 1 and ends_in(value, SIGMOIDS) and not are_places(value)


def score_rows(graph: ir.Graph, shapes: Mapping[str, Shape]) -> dict[str, HeadKind]:
    """Return what each output is that has a row of scores, or one number, for each sample.

    Rows whose ending does not tell are scores of classes if no other row is, or if one as long is (an auxiliary head);
    else they are numbers, such as places. A layer of weights computes them, and nothing else uses them: features that
    are given out beside them are not an answer.
    """
    found: dict[str, HeadKind] = {}
    for value in graph.outputs:
        shape = shapes.get(str(value.name), ())
        sizes = [size for size in shape[1:] if size != 1]
        if not shape or len(sizes) > 1 or not _is_float(value) or is_embedding(value):
            continue
        if are_places(value) or (not sizes and not ends_in(value, SIGMOIDS)):
            found[str(value.name)] = "number"
        elif sizes and ends_in(value, SIGMOIDS):
            found[str(value.name)] = "tags"
        elif are_scores(value) or not sizes:
            found[str(value.name)] = "classes"
    rows = [value for value in graph.outputs if _is_row(shapes.get(str(value.name), ())) and _is_float(value)]
    rows = [value for value in rows if str(value.name) not in found and not is_embedding(value)]
    certain = any(kind != "number" for kind in found.values())
    heads = [value for value in rows if is_weighted_sum(value)] or ([] if certain else rows[:1])
    scored = {shapes[name] for name, kind in found.items() if kind == "classes"}
    for name in (str(value.name) for value in heads):
        found[name] = "number" if certain and shapes[name] not in scored else "classes"
    return {str(value.name): found[str(value.name)] for value in graph.outputs if value.name in found}


def confidences(graph: ir.Graph, shapes: Mapping[str, Shape]) -> dict[str, str]:
    """Return each output of numbers beside which another says how sure they are, with the name of that one.

    It is of the same shape, and a probability for each number: of the pitch of each frame, the depth of each pixel.
    Neither may be computed from the other, as shares are from the logits that are given out beside them.
    """
    of_shape: dict[Shape, list[ir.Value]] = {}
    for value in graph.outputs:
        shape = shapes.get(str(value.name), ())
        if any(size != 1 for size in shape[1:]) and _is_float(value):
            of_shape.setdefault(shape, []).append(value)
    found: dict[str, str] = {}
    for values in of_shape.values():
        sure = [value for value in values if _are_probabilities(value)]
        numbers = [value for value in values if value not in sure and not ends_in(value, SHARES)]
        if len(sure) == 1 and not _is_above(numbers, sure[0]):
            found |= {str(value.name): str(sure[0].name) for value in numbers if not _is_above(sure, value)}
    return found


def _are_probabilities(value: ir.Value) -> bool:
    node = last_node(value)
    if node is not None and node.op_type == "Where":  # a constant where it is not asked for
        return any(branch is not None and ends_in(branch, SIGMOIDS) for branch in node.inputs[1:])
    return ends_in(value, SIGMOIDS) and not are_places(value)


def _is_above(values: Sequence[ir.Value], value: ir.Value) -> bool:
    """Tell whether one of the values is among those that a value is computed from."""
    seen: set[ir.Value] = set()
    waiting: list[ir.Value | None] = [value]
    while waiting:
        each = waiting.pop()
        node = None if each is None or each in seen else each.producer()
        seen |= set() if each is None else {each}
        waiting += [] if node is None else node.inputs
    return not seen.isdisjoint(values)


def _is_called(value: ir.Value, words: Sequence[str]) -> bool:
    return any(word in str(value.name).lower() for word in words)


def _is_row(shape: Shape) -> bool:
    return len(shape) > 1 and len([size for size in shape[1:] if size != 1]) == 1


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_floating_point()


def has_bias_of_its_own(value: ir.Value) -> bool:
    """Tell whether a layer adds a number of its own to each score. The bias of a normalization does not count."""
    node = last_node(value)
    if node is None or node.op_type != "Add":
        return node is not None and node.op_type == "Gemm" and len(node.inputs) > 2
    terms = [each for each in node.inputs if each is not None and not is_constant(each)]
    layers = [before for each in terms if (before := last_node(each)) is not None]
    return len(terms) == 1 and any(layer.op_type in ("MatMul", "Gemm", "Conv") for layer in layers)


def is_weighted_sum(value: ir.Value) -> bool:
    """Tell whether a layer of weights computes an output, and nothing else uses what it computes."""
    node = last_node(value)
    if node is None or value.uses() or len(node.outputs[0].uses()) > 1:
        return False
    return node.op_type in ("Gemm", "MatMul", "Add", "Conv", "FusedMatMul")
