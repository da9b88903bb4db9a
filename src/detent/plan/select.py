"""Which nodes stay float although their operator could be quantized: by the user's choice, or for what they compute.

# Selections and overrides

The user names nodes, patterns, operator types or a range between two nodes. A pattern is a node name in which `*` and
`?` stand for other characters. A pattern that matches nothing is an error: a misspelt exclusion that is ignored is the
kind of thing that costs a day. Names are those of the file that the user sees; where preparation has split, merged or
replaced a node, its name means what became of it.

# Attention masks

Attention adds 0 to the scores that count and -inf, -1e4 or the lowest float to those that do not, and Softmax turns the
latter into 0. On a grid that reaches so far down all scores that count would be one code, and -inf has no code at all.
So the scores are quantized before they are masked, and what Softmax makes of them after it: in between, the node that
masks them, the mask itself and Softmax's input stay float, which is exactly the function of the model.

A node masks scores where its result reaches a Softmax through nothing but reshaping and a factor, and it is

    Add, Sub, Where, Max    of scores and a mask: a constant with numbers beyond MASKING, or what is computed from the
                            model's inputs and constants with no layer in between, as (1 - input) * -1e4 is.

A bias of positions, which is a constant of ordinary numbers, masks nothing.

An Attention that gives its masked scores out gives them out as float.

Where every score of a row is -inf, Softmax gives NaN, and exporters put Where(IsNaN(y), 0, y) behind it. Then it is the
result of that which is quantized, and not y.

# Infinity

A constant may hold infinity on purpose, also where no Softmax follows: Pad with -inf before MaxPool, Where with -inf
before ReduceMax or TopK. No grid holds it, so the values that it is carried to stay float, up to the node that takes
the largest or bounds them.

# Logarithms of signals

A network that listens often begins with a spectrogram: products with waves, squares, their sums, and a Log. Powers of
sound span eight orders of magnitude, and the Log makes all of them count; on a grid of 256 equal steps all but the
loudest would be 0. So what leads from the model's inputs to a Log stays float in recipes of integers, if it is
arithmetic alone: an activation function before a product would make it a network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from detent.errors import UsageError, nearest
from detent.graph.values import bodies_of, constant, constant_scalar, is_constant, is_standard
from detent.prepare.base import Successor
from detent.recipe import Override, Recipe

Became = Mapping[str, Successor]  # what became of the nodes that a model had before it was prepared

NOTHING: Became = MappingProxyType({})


@dataclass(frozen=True)
class Selection:
    """What the user asked for. Empty means everything."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    end: tuple[str, ...] = ()

    def reasons_to_leave(self, graph: ir.Graph, became: Became = NOTHING) -> Mapping[str, str]:
        """Return the reason for each node (by name) that is not to be quantized. UsageError: an empty match.

        `became` says where the nodes are now that the model had before it was prepared: their names count as well.
        """
        nodes = list(graph)
        names = [str(node.name) for node in nodes]
        reasons: dict[str, str] = {}
        if self.start or self.end:
            inside = self._between(nodes, became)
            reasons.update({name: "outside the range of --from and --to" for name in names if name not in inside})
        if self.include:
            kept = _matching(self.include, names, "--include", became)
            reasons.update({name: "not matched by --include" for name in names if name not in kept})
        if self.op_types:
            present = {node.op_type for node in nodes}
            for op_type in self.op_types:
                if op_type not in present:
                    raise UsageError(
                        f"--op-types {op_type}: the model has no such operator.{nearest(op_type, present)}"
                    )
            other = (str(node.name) for node in nodes if node.op_type not in self.op_types)
            reasons.update(dict.fromkeys(other, "operator type not in --op-types"))
        excluded = _matching(self.exclude, names, "--exclude", became, needed=False)
        reasons.update({name: f"excluded by '{by}'" for name, by in excluded.items()})
        return reasons

    def _between(self, nodes: Sequence[ir.Node], became: Became) -> set[str]:
        """Return the names of nodes that lie on a path from a start node to an end node, both included."""
        names = [str(node.name) for node in nodes]
        starts = _matching(self.start, names, "--from", became)
        ends = _matching(self.end, names, "--to", became)
        after = _reach(nodes, starts, lambda node: node.predecessors()) if starts else set(names)
        before = _reach(list(reversed(nodes)), ends, lambda node: node.successors()) if ends else set(names)
        inside = after & before
        if not inside:
            raise UsageError(
                f"No node lies between --from {', '.join(self.start)} and --to {', '.join(self.end)}. "
                "Check their order: `detent inspect MODEL --nodes` lists them."
            )
        return inside


def _reach(
    nodes: Sequence[ir.Node], seeds: Iterable[str], neighbours: Callable[[ir.Node], Iterable[ir.Node]]
) -> set[str]:
    """Return the seeds and everything that depends on them through `neighbours`; `nodes` in an order that fits."""
    reached = set(seeds)
    for node in nodes:
        if any(neighbour.name in reached for neighbour in neighbours(node)):
            reached.add(str(node.name))
    return reached


def names_matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches; brackets in it are just brackets."""
    literal_brackets = pattern.replace("[", "[[]")
    return [name for name in names if name == pattern or fnmatchcase(name, literal_brackets)]


def _matching(
    patterns: Sequence[str], names: Sequence[str], option: str, became: Became, *, needed: bool = True
) -> dict[str, str]:
    """Return each matched name with the pattern that matched it.

    With `needed`, it is an error if a pattern matches only nodes that preparation has removed.
    """
    matched: dict[str, str] = {}
    for pattern in patterns:
        hits = _followed(pattern, names, became)
        if hits is None:
            raise UsageError(
                f"{option} '{pattern}' matches no node.{nearest(pattern, [*names, *became])} "
                "`detent inspect MODEL --nodes` lists them."
            )
        if needed and not hits:
            raise UsageError(
                f"{option} '{pattern}' matches only nodes that compute constants or pass data on: nothing of them is "
                "left. Name the layer that reads their results; --dry-run --json lists all names."
            )
        matched.update(dict.fromkeys(hits, pattern))
    return matched


def _followed(pattern: str, names: Sequence[str], became: Became) -> list[str] | None:
    """Return the nodes that a pattern means, by the names that they have or had; None if it matches no name at all.

    A node that replaced another is meant by the other's name. A node that took another in is so only if the pattern
    is that name itself, or has nothing else to mean: '*Mul*' is not to leave a Conv float that took a Mul in.
    """
    found = names_matching(pattern, names)
    gone = names_matching(pattern, became)
    if not found and not gone:
        return None
    found += [new for old in gone if not became[old].merged for new in became[old].nodes]
    if not found or pattern in became:
        found += [new for old in gone for new in became[old].nodes]
    return list(dict.fromkeys(found))


_SHORT = 60  # characters of an override shown as a reason; a proposal may name dozens of nodes


def nodes_of(override: Override, graph: ir.Graph, became: Became = NOTHING) -> set[str]:
    """Return the names of the nodes that an override is about. Raise UsageError where a part of it matches nothing."""
    names = [str(node.name) for node in graph]
    found: set[str] = set()
    for pattern in override.nodes:
        matches = _followed(pattern, names, became) or []
        if not matches and not override.optional:
            raise UsageError(f"The override of '{pattern}' matches no node.{nearest(pattern, [*names, *became])}")
        found.update(matches)
    types = {node.op_type for node in graph}
    if override.op_types and not (types & set(override.op_types) or override.nodes or override.optional):
        raise UsageError(f"The override of {', '.join(override.op_types)}: the model has no such operators.")
    found.update(str(node.name) for node in graph if node.op_type in override.op_types)
    if any(override.between):
        start, end = override.between
        try:
            left = Selection(start=start, end=end).reasons_to_leave(graph, became)
        except UsageError as error:
            raise UsageError(f"The override of {override.part}: {error}") from error
        found.update(name for name in names if name not in left)
    return found


@cache
def _operator_types() -> frozenset[str]:
    """Return the names of ONNX's operators. onnx copies all schemas, with their documentation, to tell."""
    return frozenset(schema.name for schema in onnx.defs.get_all_schemas())


def check_operator_types(recipe: Recipe) -> None:
    """Raise UsageError where a recipe names an operator type that ONNX does not have."""
    named = [("operators", recipe.operators), ("more_operators", recipe.more_operators)]
    named += [(f"the override of {override.part}", override.op_types) for override in recipe.overrides]
    known = _operator_types()
    for where, op_types in named:
        for op_type in op_types:
            if op_type not in known:
                raise UsageError(
                    f"Recipe {recipe.name}, {where}: ONNX has no operator '{op_type}'.{nearest(op_type, known)}"
                )


def left_float(recipe: Recipe, graph: ir.Graph, became: Became = NOTHING) -> dict[str, str]:
    """Return the reason for each node that an override leaves float."""
    found: dict[str, str] = {}
    for number, override in enumerate(recipe.overrides, 1):
        names = nodes_of(override, graph, became) if override.leave_float else set()
        short = len(override.part) <= _SHORT
        by = f"the override of {override.part}" if short else f"override {number} ({len(names)} nodes)"
        found |= dict.fromkeys(names, f"left float by {by}")
    return found


MASKING = 64.0  # scores that are so far apart are 0 and 1 after Softmax, to any number of bits: exp(-64) is 1.6e-28

SCORE_REASON = "masks attention scores: a grid that reaches the masked ones would lose the others"
INFINITE_REASON = "a constant brings infinity here, which no integer stands for"
MASK_REASON = "part of an attention mask: its numbers are too large for the grid of the scores"

_RESHAPING = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast", "CastLike")
_SPREADING = ("Expand", "Slice", "Gather", "Tile", "Trilu", "Pad")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg", "Min", "Max", "Concat")
_CARRYING = (*_RESHAPING, *_SPREADING, *_ARITHMETIC, "Where")  # what an infinite number passes through

SIGNAL_REASON = "leads from an input to a logarithm, for which the small numbers count that equal steps would lose"

_LINEAR = ("Conv", "MatMul", "Gemm")
_REDUCING = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceSumSquare", "ReduceL1", "ReduceL2")
_SIGNAL = (*_CARRYING, *_LINEAR, *_REDUCING, "Split", "Pow", "Sqrt", "Abs", "STFT", "DFT")

_FLAGS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Not", "And", "Or", "Shape", "Range", "IsNaN")


@dataclass(frozen=True)
class Masks:
    """Why nodes stay float, by name, and the values that no grid holds: masked scores, what may be NaN, infinity."""

    reasons: Mapping[str, str] = field(default_factory=dict)
    masked: frozenset[str] = frozenset()


def find_masks(graph: ir.Graph) -> Masks:
    reasons: dict[str, str] = {}
    masked: set[str] = set()
    infinite: set[str] = set()
    for node in graph:
        if is_standard(node, "Softmax"):
            _search(node.inputs[0], reasons, masked)
            # What is asked whether it is NaN may be that.
            asked = (value for value in node.outputs if any(is_standard(use.node, "IsNaN") for use in value.uses()))
            masked.update(str(value.name) for value in asked)
        elif is_standard(node, "Attention"):
            masked.update(_scores_given_out(node))
        elif is_standard(node, *_CARRYING, "ConstantOfShape") or _is_only_compared(node):
            infinite.update(_infinite(node, infinite, reasons))
    return Masks(reasons, frozenset(masked | infinite))


_MASKED_SCORES = (1, 2)  # values of qk_matmul_output_mode: before the mask is 0, and behind Softmax 3


def _scores_given_out(node: ir.Node) -> list[str]:
    """Return the fourth output of an Attention if it is scores with the lowest float for those that are masked."""
    scores = node.outputs[3:] if node.attributes.get_int("qk_matmul_output_mode", 0) in _MASKED_SCORES else ()
    return [str(value.name) for value in scores]


def _is_only_compared(node: ir.Node) -> bool:
    """Return whether a node takes the largest of each row to see whether all of it is masked."""
    uses = [use.node for value in node.outputs for use in value.uses()]
    return is_standard(node, "ReduceMax") and bool(uses) and all(is_standard(use, "Equal", "IsInf") for use in uses)


def _infinite(node: ir.Node, known: Collection[str], reasons: dict[str, str]) -> list[str]:
    """Return the results of a node that hold infinity, those of nodes before it being known; note the reason."""
    filling = node.attributes.get_tensor("value") if node.op_type == "ConstantOfShape" else None
    data = [*_data(node), *(node.inputs[2:3] if node.op_type == "Pad" else ())]
    arrays = [constant(value) for value in data if value is not None and is_constant(value)]
    arrays += [] if filling is None else [filling.numpy()]
    if not any(map(_has_infinity, arrays)) and not any(value is not None and value.name in known for value in data):
        return []
    reasons.setdefault(str(node.name), INFINITE_REASON)
    # The larger of a number and -inf is the number.
    return [] if node.op_type in ("Max", "Min") else [str(value.name) for value in node.outputs]


def _has_infinity(array: npt.NDArray[Any] | None) -> bool:
    """Return whether an array holds infinity on purpose: one with NaN is broken."""
    return array is not None and array.dtype.kind == "f" and bool(np.isinf(array).any() and not np.isnan(array).any())


def _search(value: ir.Value | None, reasons: dict[str, str], masked: set[str]) -> None:
    """Walk up from Softmax's input to the nodes that mask it; there may be several in a row."""
    between: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None:
        scaled = is_standard(node, "Mul", "Div") and constant_scalar(node, 1) is not None
        if scaled or is_standard(node, *_RESHAPING):
            between.append(node)
            value = node.inputs[0]
            continue
        found = _masking(node)
        if found is None:
            return
        value, mask = found
        for each in (*between, node):
            reasons[str(each.name)] = SCORE_REASON
            masked.update(str(output.name) for output in each.outputs)
        reasons.update({str(each.name): MASK_REASON for each in mask})
        between = []


def _masking(node: ir.Node) -> tuple[ir.Value, list[ir.Node]] | None:
    """Return the scores that a node masks, and the nodes that compute the mask; None if the node does not mask."""
    data = _data(node)
    if not is_standard(node, "Add", "Sub", "Where", "Max") or len(data) != 2:
        return None
    for mask, scores in (data[::-1], data):
        nodes = None if is_constant(scores) else _nodes_of_mask(mask)
        # What could be a mask as well is taken for the scores only beside a mask that is a constant.
        if nodes is not None and (is_constant(mask) or _nodes_of_mask(scores) is None):
            return scores, nodes
    return None


def _data(node: ir.Node) -> list[ir.Value]:
    """Return the inputs whose numbers reach the output: not a condition, a shape or an index."""
    if node.op_type == "Where":
        chosen = node.inputs[1:3]
    else:
        chosen = node.inputs if node.op_type in _ARITHMETIC else node.inputs[:1]
    return [value for value in chosen if value is not None]


def _nodes_of_mask(value: ir.Value) -> list[ir.Node] | None:
    """Return the nodes that compute a mask; None if the value is not a mask.

    A mask is made of the model's inputs and of constants with no layer in between. How large the numbers of an input
    are, only the data could tell: large, or it would mask nothing. Where all is constant, one number has to be large.
    """
    found: dict[ir.Node, None] = {}
    masks, pending = False, [value]
    while pending:
        each = pending.pop()
        node = each.producer()
        if node is None:
            masks |= _is_large(constant(each)) if is_constant(each) else True
        elif node in found:
            continue
        elif is_standard(node, *_CARRYING):
            found[node] = None
            pending += _data(node)
        elif is_standard(node, "ConstantOfShape"):
            filling = node.attributes.get_tensor("value")
            masks |= filling is not None and _is_large(filling.numpy())
        elif not is_standard(node, *_FLAGS):
            return None
    return list(found) if masks else None


def _is_large(array: npt.NDArray[Any] | None) -> bool:
    return array is not None and array.dtype.kind == "f" and bool((np.abs(array) >= MASKING).any())


def find_signals(graph: ir.Graph) -> dict[str, str]:
    """Return the reason for each node that leads from the model's inputs to a Log by arithmetic alone."""
    logs = (node for node in graph if is_standard(node, "Log"))
    return {str(each.name): SIGNAL_REASON for node in logs for each in _arithmetic_before(node)}


def _arithmetic_before(log: ir.Node) -> Collection[ir.Node]:
    """Return the nodes before a Log, up to the inputs; none if they are a network."""
    found: dict[tuple[ir.Node, bool], None] = {}
    pending = [(log, False)]
    while pending:
        node, multiplied = pending.pop()
        multiplied |= node.op_type in _LINEAR  # what is before it goes into a product
        for value in node.inputs if node.op_type in (*_LINEAR, "Scan") else _data(node):
            before = None if value is None else value.producer()
            if before is None or (before, multiplied) in found:
                continue
            arithmetic = is_standard(before, *_SIGNAL) or _cuts_frames(before)
            if not (arithmetic or _bounds(before, from_zero=not multiplied)):
                return ()
            found[before, multiplied] = None
            pending.append((before, multiplied))
    return dict.fromkeys(node for node, _ in found)


def _cuts_frames(node: ir.Node) -> bool:
    """Return whether a node goes along a signal and only moves parts of it."""
    return is_standard(node, "Scan") and all(is_standard(each, *_CARRYING) for body in bodies_of(node) for each in body)


def _bounds(node: ir.Node, *, from_zero: bool) -> bool:
    """Return whether a node keeps numbers away from zero; with `from_zero`, what keeps them from falling below it."""
    lowest = constant_scalar(node, 1) if is_standard(node, "Clip") else None
    return (lowest is not None and lowest > 0) or (from_zero and is_standard(node, "Clip", "Relu"))
