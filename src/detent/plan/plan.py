"""The plan: a position for every site, from the statistics, the weights and the recipe.

Positions are the only thing that later stages change. Weights are encoded from float once, at emission, from the final
positions; so no adjustment can leave codes behind that belong to another scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from detent.graph.values import constant
from detent.methods import Method, NonOverflow
from detent.numerics.integer import IntegerGrid
from detent.numerics.power_of_two import (
    base_position,
    min_mse_position,
    min_mse_position_of,
    non_overflow_position,
    scale_of,
)
from detent.observe.histogram import Histogram
from detent.observe.statistics import TensorStatistics
from detent.plan.layout import Layout, Role, Site
from detent.recipe import Recipe


@dataclass(frozen=True)
class Move:
    """A position that a rule of the target changed."""

    value: str
    before: int
    after: int
    rule: str
    node: str


@dataclass
class Plan:
    """The position of every site, and how it came about.

    `finest`, for each bias, is the largest position at which it does not saturate: a rule should not move it further.
    `free` are the tensors that are zero throughout: every position is right for them, so none of theirs should decide.
    """

    layout: Layout
    grids: Mapping[Role, IntegerGrid]
    positions: dict[str, int]
    finest: Mapping[str, int] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    moves: list[Move] = field(default_factory=list)

    def position(self, value: str) -> int:
        """The position of a site, which is that of its leader."""
        return self.positions[self.layout.leader(value)]

    def scale(self, value: str) -> float:
        """The scale of a site: 2^-position."""
        return scale_of(self.position(value))

    def grid(self, value: str) -> IntegerGrid:
        """The codes that a site may hold."""
        return self.grids[self.layout.sites[value].role]

    def move(self, value: str, position: int, rule: str, node: str) -> bool:
        """Give a site (and all that share with it) another position; whether that changed anything."""
        leader = self.layout.leader(value)
        before = self.positions[leader]
        if before == position:
            return False
        self.positions[leader] = position
        self.moves.append(Move(leader, before, position, rule, node))
        return True


def make_plan(model: ir.Model, layout: Layout, statistics: Mapping[str, TensorStatistics], recipe: Recipe) -> Plan:
    """Choose a position for every site: activations from their histograms, weights and biases from their elements."""
    grids = {Role.ACTIVATION: recipe.activations, Role.WEIGHT: recipe.weights, Role.BIAS: recipe.biases}
    positions: dict[str, int] = {}
    finest = {
        site.value: _constant_position(model, site, grids[Role.BIAS], NonOverflow())
        for site in layout.of_role(Role.BIAS)
    }
    for site in layout.sites.values():
        if layout.leader(site.value) != site.value:
            continue
        grid = grids[site.role]
        if site.largest is not None:
            positions[site.value] = _settled_position(site.largest, grid, recipe.method)
        elif site.role is Role.ACTIVATION:
            positions[site.value] = _activation_position(statistics[site.value].histogram, grid, recipe.method)
        else:
            positions[site.value] = _constant_position(model, site, grid, recipe.method)
    free = frozenset(name for name in positions if _is_zero(model, layout.sites[name], statistics))
    return Plan(layout, grids, positions, finest, free)


def _is_zero(model: ir.Model, site: Site, statistics: Mapping[str, TensorStatistics]) -> bool:
    if site.role is Role.ACTIVATION:
        return statistics[site.value].histogram.largest == 0.0
    array = constant(model.graph.initializers[site.value])
    return array is None or not array.any()


def _settled_position(largest: float, grid: IntegerGrid, method: Method) -> int:
    """For an output whose range the operator settles, no data is needed."""
    if isinstance(method, NonOverflow):
        return non_overflow_position(0.0, largest, grid)
    return base_position(largest, grid)


def _activation_position(histogram: Histogram, grid: IntegerGrid, method: Method) -> int:
    if isinstance(method, NonOverflow):
        return non_overflow_position(min(histogram.minimum, 0.0), max(histogram.maximum, 0.0), grid)
    return min_mse_position(histogram.largest, grid, lambda position: histogram.squared_error(position, grid))


def _constant_position(model: ir.Model, site: Site, grid: IntegerGrid, method: Method) -> int:
    array = constant(model.graph.initializers[site.value])
    values = np.zeros(0) if array is None else array
    if isinstance(method, NonOverflow):
        return non_overflow_position(float(values.min(initial=0.0)), float(values.max(initial=0.0)), grid)
    return min_mse_position_of(values, grid)
