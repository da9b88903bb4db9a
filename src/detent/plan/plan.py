"""The plan: the parameters of every site, from the statistics, the weights and the recipe.

Parameters are the only thing that later stages change. Weights are encoded from float once, at emission, from the final
parameters; so no adjustment can leave codes behind that belong to another scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import constant
from detent.methods import NonOverflow
from detent.numerics.formats import LEAST_SCALE, IntegerFormat, QuantParams, power_of_two_above
from detent.observe.methods.choose import check_method, choose_params, choose_params_of_values, settled_params
from detent.observe.methods.percentile import check_tensors
from detent.observe.statistics import TensorStatistics
from detent.plan.layout import Layout, Role, Site, bias_input
from detent.recipe import Recipe

ACCUMULATOR_BITS = 32
"""A bias of this width is added to the products of its layer, and so is counted in their unit."""

ROUNDING_MARGIN = 1.0 + 2.0**-22
"""A weight's scale and its product with the input's are each rounded to float32, by up to 2^-24 of it."""


@dataclass(frozen=True)
class Move:
    """Parameters that a rule of the target changed: positions of power-of-two scales, else the scales themselves."""

    value: str
    before: float
    after: float
    rule: str
    node: str


@dataclass
class Plan:
    """The parameters of every site, and how they came about.

    `params` are those of the leaders; the other sites share theirs. `products` names, for each bias that is counted in
    the unit of its layer's products, the input and the weight whose scales make up its own.
    `finest`, for each bias with a scale of its own, is the largest position at which it does not saturate: a rule
    should not move it further. `free` are the tensors that are zero throughout: every scale is right for them, so none
    of theirs should decide. `refined` holds the numbers to encode in the place of a weight's or bias's own.
    """

    layout: Layout
    params: dict[str, QuantParams]
    products: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    finest: Mapping[str, int] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    moves: list[Move] = field(default_factory=list)
    refined: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    def of(self, value: str) -> QuantParams:
        """The parameters of a site."""
        if value in self.products:
            source, weight = (self.of(name) for name in self.products[value])
            return _product(self.params[value].format, source, weight)
        return self.params[self.layout.leader(value)]

    @property
    def positions(self) -> dict[str, int]:
        """The position of every leader, where all scales are powers of two."""
        return {name: params.position for name, params in self.params.items()}

    def position(self, value: str) -> int:
        """The position of a site with a power-of-two scale."""
        return self.of(value).position

    def move(self, value: str, position: int, rule: str, node: str) -> bool:
        """Give a site (and all that share with it) another position; whether that changed anything."""
        leader = self.layout.leader(value)
        before = self.params[leader].position
        if before == position:
            return False
        self.params[leader] = QuantParams.at(self.params[leader].format, position)
        self.moves.append(Move(leader, before, position, rule, node))
        return True

    def assign(self, value: str, params: QuantParams, rule: str, node: str) -> bool:
        """Give a site (and all that share with it) other parameters; whether that changed anything."""
        leader = self.layout.leader(value)
        before = self.params[leader]
        same = np.array_equal(before.scale, params.scale) and np.array_equal(before.zero_point, params.zero_point)
        if same and before.format.dtype == params.format.dtype:
            return False
        self.params[leader] = params
        self.moves.append(Move(leader, float(before.scale.max()), float(params.scale.max()), rule, node))
        return True


def make_plan(model: ir.Model, layout: Layout, statistics: Mapping[str, TensorStatistics], recipe: Recipe) -> Plan:
    """Choose parameters for every site: activations from their statistics, weights and biases from their elements."""
    formats = {Role.ACTIVATION: recipe.activations, Role.WEIGHT: recipe.weights, Role.BIAS: recipe.biases}
    check_methods(recipe)
    check_tensors(recipe.method, layout.sites)
    params: dict[str, QuantParams] = {}
    outputs = {layout.leader(str(value.name)) for value in model.graph.outputs}
    for site in layout.sites.values():
        if layout.leader(site.value) != site.value:
            continue
        fmt = formats[site.role]
        if site.largest is not None:
            params[site.value] = settled_params(site.largest, fmt, recipe.method)
        elif site.role is Role.ACTIVATION:
            method = recipe.method_of_outputs if site.value in outputs else recipe.method
            params[site.value] = choose_params(statistics[site.value], fmt, method, site.value)
        elif site.role is Role.BIAS and fmt.bits == ACCUMULATOR_BITS:
            params[site.value] = QuantParams.of(fmt, 1.0, 0)
        else:
            axis = site.axis if fmt.per_channel else None
            values = _elements(model, site)
            params[site.value] = choose_params_of_values(values, fmt, recipe.method_of_weights, site.value, axis)
    free = frozenset(name for name in params if _is_zero(model, layout.sites[name], statistics))
    plan = Plan(layout, params, _products(model, layout, recipe.biases), _finest(model, layout, recipe.biases), free)
    make_room_for_biases(model, plan)
    return plan


def check_methods(recipe: Recipe) -> None:
    """Raise UsageError where a method of the recipe cannot choose parameters for the format that it is used on."""
    check_method(recipe.activations, recipe.method)
    check_method(recipe.weights, recipe.method_of_weights)
    if recipe.biases.bits != ACCUMULATOR_BITS:
        check_method(recipe.biases, recipe.method_of_weights)


def _products(model: ir.Model, layout: Layout, biases: IntegerFormat) -> dict[str, tuple[str, str]]:
    """The input and weight of each bias that is counted in the unit of their products."""
    found: dict[str, tuple[str, str]] = {}
    for node in model.graph if biases.bits == ACCUMULATOR_BITS else ():
        bias = bias_input(node) if layout.quantizes(node) else None
        if bias is not None and bias.name in layout.sites and layout.sites[bias.name].role is Role.BIAS:
            source, weight = layout.input_sites(node)
            found[str(bias.name)] = source, weight
    return found


def _finest(model: ir.Model, layout: Layout, biases: IntegerFormat) -> dict[str, int]:
    if not biases.power_of_two:
        return {}
    return {
        site.value: choose_params_of_values(
            _elements(model, site), biases, NonOverflow(), site.value, axis=None
        ).position
        for site in layout.of_role(Role.BIAS)
    }


def make_room_for_biases(model: ir.Model, plan: Plan) -> None:
    """Coarsen weights whose products are counted in so small a unit that the bias would not fit the accumulator.

    It happens with 16-bit activations: a bias that saturates ruins its channel, a slightly coarser weight does not.
    A rule that makes the scale of a layer's input smaller has to ask for it again.
    """
    for name, (source, weight) in plan.products.items():
        fmt, weights = plan.params[name].format, plan.of(weight)
        bias = np.abs(_elements(model, plan.layout.sites[name]).astype(np.float64))
        largest = bias.max(initial=0.0) if weights.axis is None else bias.reshape(-1, weights.scale.size).max(axis=0)
        needed = largest / (plan.of(source).scale * fmt.high) * ROUNDING_MARGIN
        short = needed > weights.scale
        if short.any():
            enough = power_of_two_above(needed) if weights.format.power_of_two else needed.astype(np.float32)
            wider = np.where(short, enough, weights.scale)
            roomy = QuantParams(weights.format, wider, weights.zero_point, weights.axis)
            plan.assign(weight, roomy, "room for the bias", plan.layout.sites[name].node)


def _product(fmt: IntegerFormat, source: QuantParams, weight: QuantParams) -> QuantParams:
    """The parameters of a bias. Its last axis is that of the output channels."""
    unit = (source.scale.astype(np.float32) * weight.scale.astype(np.float32)).astype(np.float64)
    scale = np.maximum(unit, LEAST_SCALE)
    return QuantParams(fmt, scale, np.zeros_like(scale, np.int64), None if weight.axis is None else -1)


def _elements(model: ir.Model, site: Site) -> npt.NDArray[np.float32]:
    array = constant(model.graph.initializers[site.value])
    return np.zeros(0, np.float32) if array is None else array.astype(np.float32, copy=False)


def _is_zero(model: ir.Model, site: Site, statistics: Mapping[str, TensorStatistics]) -> bool:
    if site.role is Role.ACTIVATION:
        return statistics[site.value].histogram.largest == 0.0
    return not _elements(model, site).any()
