"""Candidate positions around average pools, on devices where the input and the result of a pool share one.

The mean of an image is several times smaller than its largest pixel. The rule `align_pool` takes the coarser of both
positions, which fits that pixel and leaves few codes for the mean. A finer position clips the pixel. It is one of many
in the mean, but it may be the one that matters. So each position from that of the input to that of the mean is a
candidate, and the one that costs least at the outputs of the network is taken (`pipeline.planned`); each satisfies the
rule. Pools in a row, into which a large pool is split, share one position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from detent.numerics.formats import QuantParams, holds_integers
from detent.plan.plan import Plan

STEP = "pool_positions"  # as `without` of a recipe calls it

MOVE = "pool"  # the rule of a Move

POOLS = ("AveragePool", "GlobalAveragePool")


@dataclass(frozen=True)
class PoolChoice:
    """The values around one or several joined pools, and the positions that all of them could have."""

    node: str
    values: tuple[str, ...]
    positions: range

    def rounding(self, plan: Plan, position: int) -> dict[str, QuantParams]:
        """Return the parameters of the values at one position."""
        return {name: QuantParams.at(plan.integers(name).format, position) for name in self.values}

    def at(self, plan: Plan, position: int) -> Plan:
        """Return the plan with the values at one position."""
        for name in self.values:
            plan = plan.with_position(name, position, MOVE, self.node)
        return plan


def pool_choices(model: ir.Model, plan: Plan) -> Iterator[PoolChoice]:
    """Yield the groups of values that average pools join and that calibration gave different positions."""
    joined: dict[str, tuple[str, list[str]]] = {}  # by value: the first pool, and the values that it belongs to
    for node in model.graph:
        if node.op_type not in POOLS or node.inputs[0] is None or not plan.layout.quantizes(node):
            continue
        # A value that is only moved, by a MaxPool for example, has the position of the value before it.
        source, result = (plan.layout.leader(str(value.name)) for value in (node.inputs[0], node.outputs[0]))
        if _has_position(source, plan) and _has_position(result, plan):
            group = joined.setdefault(source, (str(node.name), [source]))
            group[1].append(result)
            joined[result] = group
    for node_name, values in {id(group): group for group in joined.values()}.values():
        positions = [plan.position(name) for name in values]
        if min(positions) < max(positions):
            yield PoolChoice(node_name, tuple(values), range(min(positions), max(positions) + 1))


def _has_position(name: str, plan: Plan) -> bool:
    """Return whether a value is quantized with one power-of-two scale."""
    params = plan.params.get(name)
    return params is not None and holds_integers(params) and params.format.power_of_two and params.scale.size == 1
