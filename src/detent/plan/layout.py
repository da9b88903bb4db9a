"""Where a model is quantized: known before any data is seen, so that only these values are observed.

A *site* is a value that will live as integer codes: an activation, a weight or a bias. A node is quantized when its
operator is in the table, its data is float and the user did not leave it out; then every data input and output of it
is a site, except on a fused edge, where the device never forms the value. Values that hold the same numbers (the two
sides of a Reshape or a MaxPool) share one position: they have one *leader*, whose statistics decide.

A norm that is written out in operators (what divides by a root of a mean of squares) stays float as a whole:

    x / sqrt(mean(x^2) + eps)    or with Reciprocal, Pow, ReduceSum, and a factor or a bound in between

Squares of ordinary numbers reach from 1e-4 to 100, and their root divides everything that follows: on a grid of 8 bits,
the small ones among them would all be one code. Operators for such norms round only what goes in and what comes out,
and so is done here: the nodes in between stay float. ONNX has an operator for this norm from opset 23 on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
import onnx_ir as ir

from detent.errors import ModelError
from detent.graph.values import (
    all_finite,
    bodies_of,
    constant,
    input_at,
    is_constant,
    is_square,
    is_standard,
    made_by,
    scalar_of,
    shape_of,
)
from detent.numerics.codec import Rounding
from detent.numerics.formats import is_integer
from detent.numerics.interface import NumberFormat
from detent.plan.operators import OPERATORS, Operator, channel_axis, is_fused_edge, operator_of, summed_axis
from detent.plan.postprocessing import Postprocessing
from detent.plan.select import NOTHING, Became, Selection, find_masks, find_signals, left_float
from detent.prepare.affine import read_batchnorm
from detent.recipe import Recipe
from detent.recipe.recipe import DYNAMIC_OPERATORS, FUSED_ACTIVATIONS, LAYERS

REASON = "part of a norm by the root of a mean of squares, which is computed in float from its input to its result"

_MOVING = ("Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Clip", "Relu")
_ON_THE_WAY = ("Add", "Sub", "Div", "Max", *_MOVING)
MOST_NODES = 24  # a written-out norm has about ten; more is something else


def find_unfused_norms(graph: ir.Graph) -> dict[str, str]:
    """Return the reason for each node that is part of such a norm, by name."""
    found: dict[str, str] = {}
    for node in graph:
        if is_standard(node, "Sqrt") or (is_standard(node, "Pow") and abs(_exponent(node)) == 0.5):
            inside = _squares_before(node)
            dividing = [] if inside is None else _divisions_after(node)
            if inside is not None and dividing:
                found |= {str(each.name): REASON for each in (*inside, node, *dividing)}
    return found


def _exponent(node: ir.Node) -> float:
    return scalar_of(input_at(node, 1)) or 0.0


def _squares_before(root: ir.Node) -> list[ir.Node] | None:
    """Return the nodes from the squares to the root, without it; None if it is not a root of a mean of squares.

    A variance may be written as mean(x^2) - mean(x)^2: the search follows both.
    """
    found: dict[ir.Node, None] = {}
    squares, pending = False, [root]
    while pending:
        reader = pending.pop()
        for value in reader.inputs[:1] if is_standard(reader, *_MOVING) else reader.inputs:
            node = None if value is None else value.producer()
            if value is None or is_constant(value) or node in found:
                continue
            if node is None or len(found) >= MOST_NODES:
                return None
            found[node] = None
            if is_standard(node, "ReduceMean", "ReduceSum", "GlobalAveragePool"):
                source = node.inputs[0].producer() if node.inputs[0] is not None else None
                if source is not None and is_square(source):
                    squares, found = True, {**found, source: None}
            elif is_standard(node, *_ON_THE_WAY) or is_square(node) or _multiplies_by_constant(node):
                pending.append(node)
            else:
                return None
    return list(found) if squares else None


def _multiplies_by_constant(node: ir.Node) -> bool:
    return is_standard(node, "Mul") and any(is_constant(value) for value in node.inputs)


def _divisions_after(root: ir.Node) -> list[ir.Node]:
    """Return the nodes that divide by the root, and those between; none if nothing divides by it."""
    found: list[ir.Node] = []
    inverse = is_standard(root, "Pow") and _exponent(root) < 0
    for reader in root.outputs[0].consumers():
        if inverse and is_standard(reader, "Mul"):
            found += [reader, *_products_after(reader)]
        elif is_standard(reader, "Reciprocal") or (is_standard(reader, "Div") and is_constant(reader.inputs[0])):
            products = [each for each in reader.outputs[0].consumers() if is_standard(each, "Mul")]
            found += [reader, *products, *(later for each in products for later in _products_after(each))]
        elif is_standard(reader, "Div") and reader.inputs[1] is root.outputs[0]:
            found.append(reader)
        elif is_standard(reader, "Add", "Max", "Clip"):  # x / (root + eps)
            later = [each for each in reader.outputs[0].consumers() if is_standard(each, "Div")]
            found += [reader, *later] if later else []
    return found


def _products_after(product: ir.Node) -> list[ir.Node]:
    """Return the Muls behind an inverse root that was only multiplied with a constant: 1 / root * gain * x."""
    if not _multiplies_by_constant(product):
        return []
    return [each for each in product.outputs[0].consumers() if is_standard(each, "Mul")]


class Role(Enum):
    """What a site is to its layer."""

    ACTIVATION = "activation"
    WEIGHT = "weight"
    BIAS = "bias"

    @property
    def plural(self) -> str:
        """The name of the role in a recipe."""
        return "biases" if self is Role.BIAS else f"{self.value}s"


@dataclass(frozen=True)
class Site:
    """A value that will be quantized, and the node that asks for it.

    `largest` is its largest magnitude where the operator that computes it settles that (a Softmax: 1); `spread`: it is
    shared out among many. `axis` is, for the weight of a layer, the axis of its output channels, and `summed` the one
    along which blocks lie.
    """

    value: str
    role: Role
    node: str
    largest: float | None = None
    axis: int | None = None
    summed: int = 0
    spread: bool = False


@dataclass(frozen=True)
class Decision:
    """What becomes of one node, and why."""

    node: str
    op_type: str
    quantized: bool
    reason: str


@dataclass(frozen=True)
class Layout:
    """All sites by value name, the leader of each, and the decision for every node. Changing it makes a new one.

    `formats` are those of the sites, and `ranges` what the user gave instead of observed ones. `fuse` are the
    activation functions that belong to the node before them. `masked` are attention scores after masking: never sites,
    whoever reads them. `ends` are the values that a float post-processing starts from. `ties` says what becomes of
    activations halfway between two codes, where that is not what QuantizeLinear does. `wide` are the activations that
    got more bits than the recipe gives.
    """

    sites: Mapping[str, Site] = field(default_factory=dict)
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    leaders: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, NumberFormat] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    fuse: Collection[str] = FUSED_ACTIVATIONS
    masked: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()
    ties: Mapping[str, Rounding] = field(default_factory=dict)
    wide: frozenset[str] = frozenset()

    def leader(self, value: str) -> str:
        """Return the value whose statistics and position `value` shares; itself where it shares with none."""
        # A chain of nodes that move data shares the parameters of the first value.
        while value in self.leaders:
            value = self.leaders[value]
        return value

    def ties_of(self, value: str) -> Rounding:
        """Return how an activation is rounded when it becomes codes."""
        return self.ties.get(value, "half_even")

    def of_role(self, role: Role) -> Iterator[Site]:
        """Return the sites of one role, in graph order."""
        return (site for site in self.sites.values() if site.role is role)

    def input_sites(self, node: ir.Node) -> list[str]:
        """Return the sites that feed the node's data inputs, across the fused edges that have none."""
        return [site for value in data_inputs(node) if (site := self._site_before(value)) is not None]

    def sites_around(self, node: ir.Node) -> list[str]:
        """Return the sites of the node's data inputs, and that of its result."""
        output = self.output_site(node)
        return self.input_sites(node) + ([output] if output else [])

    def output_site(self, node: ir.Node) -> str | None:
        """Return the site of the node's result: its output, or that of the activation fused behind it."""
        value = node.outputs[0]
        if value.name in self.sites:
            return value.name
        consumers = value.consumers()
        after = consumers[0].outputs[0].name if len(consumers) == 1 else None
        return after if after in self.sites else None

    def _site_before(self, value: ir.Value) -> str | None:
        producer = value.producer()
        if value.name not in self.sites and producer is not None and producer.op_type == "Pad":
            value = producer.inputs[0] or value
        return value.name if value.name in self.sites else None

    def quantizes(self, node: ir.Node) -> bool:
        decision = self.decisions.get(str(node.name))
        return decision is not None and decision.quantized

    def layer_of(self, node: ir.Node) -> ir.Node:
        """Return the node that a user knows as the layer: for a fused activation function, the node before it."""
        source = input_at(node, 0)
        producer = made_by(source)
        fused = source is not None and producer is not None and _on_fused_edge(source, self)
        return producer if fused and producer is not None else node


def lay_out(
    model: ir.Model,
    selection: Selection,
    recipe: Recipe,
    became: Became = NOTHING,
    tail: Postprocessing | None = None,
) -> Layout:
    """Decide for every node whether it is quantized, and which values become sites.

    `became` says what preparation made of nodes, which the user names as they were. `tail` is to stay float.
    """
    left: dict[str, str] = {} if tail is None else dict.fromkeys(tail.nodes, tail.reason)
    # What the user asked for is the reason to tell, also where several hold.
    left |= {**left_float(recipe, model.graph, became), **selection.reasons_to_leave(model.graph, became)}
    masks, norms = find_masks(model.graph), find_unfused_norms(model.graph)
    signals = find_signals(model.graph) if is_integer(recipe.activations) else {}
    decisions: dict[str, Decision] = {}
    for node in model.graph:
        name = str(node.name)
        found = (each.get(name) for each in (left, masks.reasons, norms, signals))
        reason = next(filter(None, found), None) or _reason_to_leave(node, recipe)
        decisions[name] = Decision(name, node.op_type, reason is None, reason or "quantized")
    for node in _moves_among_float(model.graph, decisions):
        name = str(node.name)
        decisions[name] = Decision(name, node.op_type, False, "moves data from float nodes to float nodes")
    ends = frozenset[str]() if tail is None else frozenset(tail.starts)
    return _with_sites(model, Layout(decisions=decisions, fuse=recipe.fuse, masked=masks.masked, ends=ends))


def _moves_among_float(graph: ir.Graph, decisions: Mapping[str, Decision]) -> list[ir.Node]:
    """Return the nodes that move what float nodes, or the model's inputs, make, to float nodes alone.

    On a grid they would round what nothing else rounds: a Transpose before an excluded LSTM, for instance. What picks
    from a constant table is no such node: its table is a weight.
    """

    def is_quantized(node: ir.Node) -> bool:
        # What is left of Identities after preparing are conversions from one grid to another.
        decision = decisions.get(str(node.name))
        return node.op_type == "Identity" or (decision is not None and decision.quantized)

    moving = (node for node in graph if is_quantized(node) and operator_of(node).moves_data)
    nodes = [node for node in moving if not any(map(is_constant, data_inputs(node)))]
    to_float: set[ir.Node] = set()
    for node in reversed(nodes):
        readers = [use for value in node.outputs for use in value.consumers()]
        ends = any(value.is_graph_output() for value in node.outputs)
        if readers and not ends and not any(is_quantized(use) and use not in to_float for use in readers):
            to_float.add(node)
    found: dict[ir.Node, None] = {}
    for node in nodes:
        makers = [maker for value in data_inputs(node) if (maker := value.producer()) is not None]
        if node in to_float and not any(is_quantized(maker) and maker not in found for maker in makers):
            found[node] = None
    return list(found)


def leave_float(model: ir.Model, layout: Layout, values: Collection[str], reason: str) -> Layout:
    """Return a layout without formats in which these values, and those that share a position with one, are no sites.

    The nodes that compute or read one stay float. Raise ModelError if no site is left.
    """
    named = {*values, *(name for name in layout.sites if layout.leader(name) in values)}
    decisions = dict(layout.decisions)
    for node in model.graph:
        found = next((each.name for each in (*node.outputs, *node.inputs) if each and each.name in named), None)
        if found is not None and layout.quantizes(node):
            decisions[str(node.name)] = Decision(str(node.name), node.op_type, False, f"'{found}' {reason}")
    return _with_sites(model, replace(layout, decisions=decisions))


def _with_sites(model: ir.Model, decided: Layout) -> Layout:
    """Return the layout with the values that become sites by its decisions."""
    sites: dict[str, Site] = {}
    leaders: dict[str, str] = {}
    for node in model.graph:
        if decided.quantizes(node):
            # The first node that reads or makes a value names it in reports.
            for site in _sites_of(node, decided):
                sites.setdefault(site.value, site)
            leaders |= _shared(node, sites)
    if not sites:
        raise ModelError(_nothing_to_quantize(model.graph, decided.decisions))
    return replace(decided, sites=sites, leaders=leaders)


def data_inputs(node: ir.Node) -> list[ir.Value]:
    """Return the float inputs of a quantizable node that carry data (no shapes, bounds or bias)."""
    values = (input_at(node, index) for index in _data_indices(node))
    return [value for value in values if value is not None and _is_float(value)]


def _data_indices(node: ir.Node) -> Sequence[int]:
    chosen = operator_of(node).data
    return range(len(node.inputs)) if chosen is None else chosen


def site_inputs(node: ir.Node) -> set[int]:
    """Return the indices of a quantizable node's inputs that may be sites: its data and its bias."""
    bias = operator_of(node).bias
    return {*_data_indices(node), *(() if bias is None else (bias,))}


def bias_input(node: ir.Node) -> ir.Value | None:
    """Return the bias of a Conv, ConvTranspose or Gemm."""
    index = operator_of(node).bias
    return None if index is None else input_at(node, index)


def _is_float(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.FLOAT and isinstance(value.type, ir.TensorType)  # a sequence has a dtype too


def _reason_to_leave(node: ir.Node, recipe: Recipe) -> str | None:
    if bodies_of(node):
        return "control flow: the graphs inside stay float"
    if node.op_type == "Identity":
        return "rounds nothing; between two formats it stands for the conversion"
    if is_standard(node, "BatchNormalization") and isinstance(why := read_batchnorm(node), str):
        return f"it could not be folded into a layer: {why}"
    if node.op_type == "MatMulNBits":
        return "its weights are codes already"
    if unwanted := _unwanted(node, recipe):
        return unwanted
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.name and value.dtype is None:
            return f"the type of '{value.name}' is unknown (shape inference stopped before it)"
    inputs = data_inputs(node)
    if not inputs:
        return "holds no float data"
    # As in the adapters of a network that was not adapted yet.
    empty = [value.name for value in inputs if 0 in (shape_of(value) or ())]
    if empty:
        return f"'{empty[0]}' has no elements"
    if all(is_constant(value) for value in inputs) and not _looks_up(node):
        return "its data is constant"
    if node.op_type in ("MatMul", "Gemm") and not recipe.products_of_activations and not is_constant(node.inputs[1]):
        return "a product of two activations, which this recipe leaves float"
    if recipe.dynamic:
        return _reason_not_dynamic(node)
    declines = operator_of(node).declines
    return declines(node) if declines else None


def _reason_not_dynamic(node: ir.Node) -> str | None:
    if node.op_type == "Gather":
        return None if is_constant(node.inputs[0]) else "what it picks from is not constant"
    if node.op_type not in DYNAMIC_OPERATORS:
        return "only Conv, Gemm and MatMul have integer operators for scales that are found at run time"
    if not is_constant(node.inputs[1]):
        return "its weight is not constant"
    alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    return None if alpha == beta == 1.0 else "a factor of it could not be folded into a constant"


def _unwanted(node: ir.Node, recipe: Recipe) -> str | None:
    if node.domain:
        return f"operator {node.op_type} is of domain {node.domain}, which no recipe quantizes"
    wanted = node.op_type in (*recipe.more_operators, *(recipe.operators or OPERATORS))
    return None if wanted or recipe.all_operators else f"operator {node.op_type} is not quantized by this recipe"


def _looks_up(node: ir.Node) -> bool:
    """Return whether a node picks entries of a constant table, as of the embeddings of words: the table is a weight."""
    return node.op_type == "Gather" and not is_constant(node.inputs[1])


def _sites_of(node: ir.Node, layout: Layout) -> Iterator[Site]:
    """Yield what a quantized node makes a site of: its data, its bias and its results."""
    found = [(value, Role.WEIGHT) for value in data_inputs(node)]
    bias = bias_input(node)
    if bias is not None and _is_float(bias):
        found.append((bias, Role.BIAS))
    for value, role in found:
        yield from _site(value, role if is_constant(value) else Role.ACTIVATION, node, layout)
    for value in node.outputs:
        if value.name and _is_float(value):  # one without a name is an optional one that nobody asked for
            yield from _site(value, Role.ACTIVATION, node, layout)


def _shared(node: ir.Node, sites: Mapping[str, Site]) -> dict[str, str]:
    """Return the result of a node that only moves data, with the input whose parameters it shares."""
    first = data_inputs(node)[0]
    source, result = str(first.name), str(node.outputs[0].name)
    shares = operator_of(node).moves_data and not is_constant(first)
    return {result: source} if shares and source in sites and result in sites else {}


def _site(value: ir.Value, role: Role, node: ir.Node, layout: Layout) -> Iterator[Site]:
    """Yield the site of a value, unless the device never forms it."""
    name = str(value.name)
    if name in layout.masked or (role is Role.ACTIVATION and _on_fused_edge(value, layout)):
        return
    if role is not Role.ACTIVATION:
        array = constant(value)
        if array is not None and not all_finite(array):
            if node.op_type not in LAYERS and not np.isnan(array).any():
                return  # infinity to compare with, or to choose
            raise ModelError(
                f"The {role.value} '{name}' of node '{node.name}' holds NaN or infinity, which no integer stands for. "
                f"Repair the model, or leave the node float with --exclude '{node.name}'."
            )
    producer = value.producer()
    settled = operator_of(producer) if producer is not None and layout.quantizes(producer) else Operator()
    axis = channel_axis(node, value, bias_input(node)) if role is Role.WEIGHT else None
    layer = str(layout.layer_of(node).name)
    yield Site(name, role, layer, settled.largest, axis, summed_axis(value), settled.spread)


def _on_fused_edge(value: ir.Value, layout: Layout) -> bool:
    """Return whether `value` only exists inside a fused pair of quantized nodes."""
    producer, consumers = value.producer(), value.consumers()
    if producer is None or len(consumers) != 1 or value.is_graph_output():
        return False
    consumer = consumers[0]
    if consumer.graph is not producer.graph:  # a node of an If body, which may have the name of one out here
        return False
    both = layout.quantizes(producer) and layout.quantizes(consumer)
    return both and consumer.inputs[0] is value and is_fused_edge(producer, consumer, layout.fuse)


def _nothing_to_quantize(nodes: Iterable[ir.Node], decisions: Mapping[str, Decision]) -> str:
    reasons = Counter(decision.reason for decision in decisions.values())
    listed = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(4))
    wide = any(value.dtype == ir.DataType.DOUBLE for node in nodes for value in node.outputs)
    if not decisions:
        advice = "Is it the right file?"
    elif wide:
        advice = "It computes in float64; export it in float32, which is what can be quantized."
    elif all(decision.reason.startswith("operator ") for decision in decisions.values()):
        advice = (
            "`detent recipes` lists recipes; --set all_operators=true quantizes every operator on float data."
            if any(node.domain == "" and data_inputs(node) for node in nodes)
            else "Only operators of ONNX on float32 data can be quantized."
        )
    elif any(decision.reason.startswith("control flow") for decision in decisions.values()):
        advice = (
            "If an input chooses between the graphs inside, make it constant: --fix-input INPUT=VALUE. `detent "
            "inspect` shows the inputs. --set also=both_branches computes both branches of an If, and quantizes them."
        )
    else:
        advice = "`detent inspect` shows what is in it."
    return f"The model has no node to quantize ({listed or 'it is empty'}). {advice}"
