"""The position around average pools, on devices that give the input and the result of a pool the same one.

A mean over an image is several times smaller than the largest pixel. The rule `align_pool` takes the coarser of both
positions, which fits that pixel and leaves the mean a few codes. A finer one cuts the pixel off, which is one of many
in the mean, but may be the one that decides. So each position from that of the input to that of the mean is a
candidate, and what it costs at the outputs of the network chooses (`pipeline.planned`). The rule holds for any. A pool
of pools, as a large one is split, has one position throughout.
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
    """The values around a pool, or around several in a row, and the positions that all of them could have."""

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
    """Yield what average pools join, where calibration chose different positions for it."""
    joined: dict[str, tuple[str, list[str]]] = {}  # by value: the first pool, and the values that it belongs to
    for node in model.graph:
        if node.op_type not in POOLS or node.inputs[0] is None or not plan.layout.quantizes(node):
            continue
        # What is only moved, as by a MaxPool, has the position of the value before it.
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
