"""Rules that devices impose on the scales around a node, solved on the plan.

Devices with power-of-two scales (`SHIFTS`) multiply and add integers, and move between positions by shifting. A shift
has a limited width, so the positions around a node must not be too far apart; and an operator that only moves data
cannot shift at all. Below, in[i], out, weight and bias stand for the positions around one node.

| rule         | operators                   | what must hold                                 | what moves      |
| ------------ | --------------------------- | ---------------------------------------------- | --------------- |
| align        | Concat                      | all in = out                                   | all, to the min |
| align        | pools, Pad, Slice           | in = out                                       | the larger one  |
| shift read   | Add, Sub                    | max in - min in <= 7                           | the largest in  |
| shift write  | Add                         | -7 <= min in - out <= 25                       | out             |
| shift write  | Mul                         | 0 <= sum of in - out <= 32                     | out             |
| shift cut    | Conv, Gemm                  | 0 <= cut <= 16, where cut = weight + in - out  | weight          |
| shift bias   | Conv, Gemm                  | min(0, cut - 16) <= weight + in - bias <= 15   | bias, or weight |
|              | ... before a LeakyRelu      | 0 <= weight + in - bias <= 15                  | bias            |
| hard sigmoid | HardSigmoid                 | 0 <= in <= 15, out >= 7, 14 + in - out >= 0    | in, out         |
| shift swish  | Mul of x and HardSigmoid(x) | 0 <= sum of in - out <= 15                     | out             |

A bias moves towards finer positions only until it would saturate; the weight moves for the rest. The rules are applied
in this order, round after round, until none moves anything. Where `hard sigmoid` and `align` contradict each other, a
product is put between them (`rescales`).

Devices with float scales (`CONCATS`) have one rule: a Concat copies codes, so its inputs and its output share one
scale, whose range spans all of theirs. Joined values may meet again in another Concat, so this is done once for each
group of values that Concats join, directly or through each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from detent.numerics.formats import HIGHEST_POSITION, LOWEST_POSITION, IntegerFormat, QuantParams, holds_integers
from detent.plan.layout import Role, bias_input
from detent.plan.plan import Move, Plan, make_room_for_biases

MAX_ROUNDS = 20  # a move may break another rule, so all are applied until none moves anything
_NEIGHBOURLY = ("Concat", "MaxPool", "AveragePool", "GlobalAveragePool", "Pad", "Slice", "Add", "Sub")
_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool")
ALIGN_POOL = "align_pool"


@dataclass(frozen=True)
class Violation:
    """A rule that a node breaks, and the first move that it would make."""

    node: str
    op_type: str
    move: Move

    def __str__(self) -> str:
        return f"{self.op_type} '{self.node}' breaks the device's rule {self.what}."

    @property
    def what(self) -> str:
        """Name the rule and the move, without the node."""
        move = self.move
        return f"'{move.rule}': position {move.before} of '{move.value}' should be {move.after}"


class Constraints:
    """The rules of a device on scales. This class has none; subclasses override what they need.

    `names` are the rules as a recipe's `without` calls them. The parameter `without` of each method is that list.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the rules, in the order in which they are applied."""
        return ()

    def constrain(self, model: ir.Model, plan: Plan, without: Collection[str] = ()) -> Plan:  # noqa: ARG002
        """Move the plan's parameters until every rule holds, or none can be moved any further."""
        return plan

    def permits(self, node: ir.Node, plan: Plan, without: Collection[str] = ()) -> bool:  # noqa: ARG002
        """Return whether the parameters around one node satisfy its rules."""
        return True

    def violations(self, model: ir.Model, plan: Plan, without: Collection[str] = ()) -> list[Violation]:  # noqa: ARG002
        """Return the rules that do not hold, node by node. The plan stays as it is."""
        return []


UNCONSTRAINED = Constraints()


# Moves parameters around one node; returns the same object if nothing has to move.
Rule = Callable[[ir.Node, Plan], Plan]


@dataclass(frozen=True)
class ShiftConstraints(Constraints):
    """Rules on positions: each with its name in a recipe's `without`, and the operators that it applies to."""

    rules: Sequence[tuple[str, Rule, tuple[str, ...]]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _, _ in self.rules))

    def constrain(self, model: ir.Model, plan: Plan, without: Collection[str] = ()) -> Plan:
        """Move positions until every rule holds.

        Contradictory rules may move positions without end (x beside x * x in a Concat, with x below position 0). Once
        a position leaves the valid range, all are put back to those that the data asked for.
        """
        nodes = [node for node in model.graph if plan.layout.quantizes(node)]
        rules = [(rule, op_types) for name, rule, op_types in self.rules if name not in without]
        asked_for = plan = _place_zeros(nodes, plan)
        for _ in range(MAX_ROUNDS):
            before = plan
            for rule, op_types in rules:
                for node in nodes:
                    plan = rule(node, plan) if node.op_type in op_types else plan
            if plan is before:
                break
            if not all(LOWEST_POSITION <= position <= HIGHEST_POSITION for position in plan.positions.values()):
                return asked_for
        return plan

    def permits(self, node: ir.Node, plan: Plan, without: Collection[str] = ()) -> bool:
        """Return whether no rule would move anything around the node."""
        rules = [rule for name, rule, op_types in self.rules if node.op_type in op_types and name not in without]
        return all(_first_move(rule, node, plan) is None for rule in rules)

    def violations(self, model: ir.Model, plan: Plan, without: Collection[str] = ()) -> list[Violation]:
        """Return the rules that would move something, node by node, each with its first move."""
        return [
            Violation(str(node.name), node.op_type, move)
            for name, rule, op_types in self.rules
            for node in (model.graph if name not in without else ())
            if node.op_type in op_types and (move := _first_move(rule, node, plan)) is not None
        ]


def _place_zeros(nodes: Sequence[ir.Node], plan: Plan) -> Plan:
    """Give tensors that are zero throughout the position of their neighbours, so that they move none of these."""
    free = set(plan.free)
    aligned = [node for node in nodes if node.op_type in _NEIGHBOURLY]
    for node in (*aligned, *reversed(aligned)):
        sites = plan.layout.sites_around(node)
        fixed = [site for site in sites if plan.layout.leader(site) not in free]
        for site in sites if fixed else ():
            if plan.layout.leader(site) in free:
                position = min(plan.position(other) for other in fixed)
                plan = plan.with_position(site, position, "zero throughout", str(node.name))
                free.discard(plan.layout.leader(site))
    return plan


def _first_move(rule: Rule, node: ir.Node, plan: Plan) -> Move | None:
    if not plan.layout.quantizes(node):
        return None
    moves = rule(node, plan).moves[len(plan.moves) :]
    return moves[0] if moves else None


def _clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def _align(node: ir.Node, plan: Plan) -> Plan:
    sites = plan.layout.sites_around(node)
    if plan.layout.output_site(node) is None or len(sites) < 2:
        return plan
    lowest = min(plan.position(site) for site in sites)
    for site in sites:
        plan = plan.with_position(site, lowest, "align", str(node.name))
    return plan


def _shift_read(node: ir.Node, plan: Plan) -> Plan:
    sites = plan.layout.input_sites(node)
    if len(sites) != 2:
        return plan
    lowest = min(plan.position(site) for site in sites)
    highest = max(sites, key=plan.position)
    return plan.with_position(highest, min(plan.position(highest), lowest + 7), "shift read", str(node.name))


def _shift_write(
    node: ir.Node, plan: Plan, *, of: Callable[[list[int]], int], low: int, high: int, rule: str = "shift write"
) -> Plan:
    """Move the output of a node with two operands to between `low` and `high` from the `of` (min, sum) of theirs."""
    positions = [plan.position(site) for site in plan.layout.input_sites(node)]
    output = plan.layout.output_site(node)
    if len(positions) != 2 or output is None:
        return plan
    position = _clamp(plan.position(output), of(positions) + low, of(positions) + high)
    return plan.with_position(output, position, rule, str(node.name))


def _shift_swish(node: ir.Node, plan: Plan) -> Plan:
    """Move the output of a Mul if one operand also feeds a HardSigmoid: in practice x times HardSigmoid(x)."""
    readers = (reader for value in node.inputs if value is not None for reader in value.consumers())
    is_swish = any(reader.op_type == "HardSigmoid" for reader in readers)
    return _shift_write(node, plan, of=sum, low=-15, high=0, rule="shift swish") if is_swish else plan


def _shift_cut(node: ir.Node, plan: Plan) -> Plan:
    output, sites = plan.layout.output_site(node), plan.layout.input_sites(node)
    if output is None or len(sites) != 2:
        return plan
    source, weight = sites
    cut = plan.position(weight) + plan.position(source) - plan.position(output)
    return plan.with_position(weight, plan.position(weight) + _clamp(cut, 0, 16) - cut, "shift cut", str(node.name))


def _shift_bias(node: ir.Node, plan: Plan) -> Plan:
    output, sites, bias = plan.layout.output_site(node), plan.layout.input_sites(node), bias_input(node)
    if output is None or len(sites) != 2 or bias is None or not bias.name or bias.name not in plan.layout.sites:
        return plan
    name, (source, weight) = str(node.name), sites
    products = plan.position(source) + plan.position(weight)
    cut = products - plan.position(output)
    before_leaky_relu = any(consumer.op_type == "LeakyRelu" for consumer in node.outputs[0].consumers())
    lowest = 0 if before_leaky_relu else min(0, cut - 16)
    position = plan.position(bias.name)
    wanted = _clamp(position, products - 15, products - lowest)
    # A saturated bias ruins its channel; a coarser weight beside so large a bias does little harm. So the weight moves.
    reached = min(wanted, max(position, plan.finest.get(bias.name, wanted)))
    plan = plan.with_position(bias.name, reached, "shift bias", name)
    return plan.with_position(weight, plan.position(weight) - (wanted - reached), "shift bias", name)


def _hard_sigmoid(node: ir.Node, plan: Plan) -> Plan:
    output, sites = plan.layout.output_site(node), plan.layout.input_sites(node)
    if output is None or not sites:
        return plan
    source, name = sites[0], str(node.name)
    plan = plan.with_position(source, _clamp(plan.position(source), 0, 15), "hard sigmoid", name)
    position = min(max(plan.position(output), 7), 14 + plan.position(source))
    return plan.with_position(output, position, "hard sigmoid", name)


SHIFTS = ShiftConstraints(
    (
        ("align_concat", _align, ("Concat",)),
        (ALIGN_POOL, _align, _POOLS),
        ("align_pad", _align, ("Pad",)),
        ("align_slice", _align, ("Slice",)),
        ("shift_read", _shift_read, ("Add", "Sub")),
        ("shift_write", partial(_shift_write, of=min, low=-25, high=7), ("Add",)),
        ("shift_write", partial(_shift_write, of=sum, low=-32, high=0), ("Mul",)),
        ("shift_cut", _shift_cut, ("Conv", "Gemm")),
        ("shift_bias", _shift_bias, ("Conv", "Gemm")),
        ("hard_sigmoid", _hard_sigmoid, ("HardSigmoid",)),
        ("shift_swish", _shift_swish, ("Mul",)),
    )
)


class ConcatConstraints(Constraints):
    """What a Concat joins has one type, scale and zero point."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of the rule, the one that shifting devices have for Concats too."""
        return ("align_concat",)

    def constrain(self, model: ir.Model, plan: Plan, without: Collection[str] = ()) -> Plan:
        """Give everything that a Concat joins the same parameters. This always succeeds."""
        for group in _joined(model, plan) if "align_concat" not in without else ():
            given = [plan.integers(leader) for leader in group if leader not in plan.free]
            # The format is that of the activations: a constant among them is copied into their codes.
            activation = next(name for name in group if plan.layout.sites[name].role is Role.ACTIVATION)
            fmt = plan.integers(activation).format
            shared = _union(given or [plan.integers(leader) for leader in group], fmt)
            for leader, node in group.items():
                plan = plan.with_params(leader, shared, "align", node)
        # A tensor that is zero throughout may have got a smaller scale than it had.
        return make_room_for_biases(model, plan)


CONCATS = ConcatConstraints()


def _joined(model: ir.Model, plan: Plan) -> list[dict[str, str]]:
    """Group the leaders that Concats join, directly or through each other, each with the first Concat that joins it."""
    groups: list[dict[str, str]] = []
    for node in model.graph:
        if node.op_type != "Concat" or not plan.layout.quantizes(node):
            continue
        group = {plan.layout.leader(site): str(node.name) for site in plan.layout.sites_around(node)}
        if not any(plan.layout.sites[leader].role is Role.ACTIVATION for leader in group):
            continue  # activations stay float, and nothing is copied
        if not all(holds_integers(plan.params[leader]) for leader in group):
            continue  # floats have no scale to share
        met = [other for other in groups if other.keys() & group.keys()]
        for other in met:
            group = {**group, **other}
        groups = [other for other in groups if other not in met] + [group]
    return groups


def _union(params: list[QuantParams], fmt: IntegerFormat) -> QuantParams:
    """Return parameters of a format that span all ranges of `params`: one of them if it does already."""
    low, high = min(each.span[0] for each in params), max(each.span[1] for each in params)
    for each in params:
        if each.format == fmt and each.span == (low, high):
            return each
    return fmt.fit(low, high)
