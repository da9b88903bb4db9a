"""The plan: the parameters of every site, from the statistics, the weights and the recipe.

A method chooses the parameters of a tensor, a channel or a group. Later stages make new plans of it: with other
parameters, or with other numbers for weights and biases. Weights are encoded from float once, at emission, from the
final parameters; so no adjustment can leave codes behind that belong to another scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import UsageError
from detent.graph.values import constant
from detent.methods import Entropy, LayerwisePercentile, Method, MinMax, MinMSE, NonOverflow, Percentile
from detent.methods.method import ObservedTensor, Points, Range
from detent.numerics.floats import is_float
from detent.numerics.formats import (
    LEAST_SCALE,
    IntegerFormat,
    QuantParams,
    has_power_of_two_scale,
    holds_integers,
    is_integer,
    is_product_bias,
    power_of_two_above,
)
from detent.numerics.interface import NumberFormat, Params
from detent.observe.statistics import Histogram, TensorStatistics
from detent.plan.layout import Layout, Role, Site, bias_input
from detent.plan.mixed import assign_formats
from detent.recipe import Recipe
from detent.recipe.recipe import PRESETS

# Of what was seen, how far the codes of attention reach: other samples may attend somewhat more to one token.
HEADROOM = 1.25

# A constant of more values is counted into a histogram first: finer than its rounding needs, and far quicker.
RAW_LIMIT = 1 << 14


def choose_params(observed: ObservedTensor, fmt: IntegerFormat, method: Method, tensor: str) -> QuantParams:
    """Return the parameters of an activation, for the whole tensor."""
    method.check(fmt)
    return method.choose_observed(observed, fmt, tensor)


def choose_params_of_values(
    values: npt.NDArray[Any], fmt: IntegerFormat, method: Method, tensor: str, axis: int | None
) -> QuantParams:
    """Return the parameters of a constant: for the whole tensor, or for each index along `axis` apart."""
    method.check(fmt)
    array = np.asarray(values, np.float32)
    if axis is None or array.size == 0:
        return method.choose_values(array, fmt, tensor, points_of)
    channels = np.moveaxis(array, axis, 0)
    return QuantParams(fmt, *method.choose_each(channels, fmt, tensor, points_of), axis % array.ndim)


def choose_params_of_groups(
    values: npt.NDArray[Any], fmt: IntegerFormat, method: Method, tensor: str, axis: int
) -> QuantParams:
    """Return the parameters of a constant, for each run of `fmt.group_size` elements along `axis`."""
    method.check(fmt)
    array = np.moveaxis(np.asarray(values, np.float32), axis, -1)
    size = min(fmt.group_size, array.shape[-1])
    starts = range(0, array.shape[-1], size)
    groups = [row[start : start + size] for row in array.reshape(-1, array.shape[-1]) for start in starts]
    shape = (*array.shape[:-1], len(starts))
    scale, zero_point = (
        np.moveaxis(each.reshape(shape), -1, axis) for each in method.choose_each(groups, fmt, tensor, points_of)
    )
    return QuantParams(fmt, scale, zero_point, axis, size)


def settled_params(largest: float, fmt: IntegerFormat, method: Method) -> QuantParams:
    """Return the parameters of an output that the operator itself keeps within 0..largest, whatever the data."""
    method.check(fmt)
    return method.choose_extremes(Range(0.0, largest), fmt)


def points_of(values: npt.NDArray[np.float32]) -> Points:
    if values.size <= RAW_LIMIT:
        return Points.of_values(values)
    histogram = Histogram()
    histogram.add(values)
    return Points.of_histogram(histogram)


def method_choices(
    observed: ObservedTensor, fmt_float: IntegerFormat, fmt_power_of_two: IntegerFormat, tensor: str
) -> dict[str, Range]:
    """Return what each method would choose for one activation: the range that its codes would reach."""
    wanted: dict[str, tuple[IntegerFormat, Method]] = {
        "MinMax": (fmt_float, MinMax()),
        "MinMax (moving average)": (fmt_float, MinMax(moving_average=True)),
        "Percentile": (fmt_float, Percentile()),
        "LayerwisePercentile": (fmt_float, LayerwisePercentile()),
        "Entropy": (fmt_float, Entropy()),
        "MinMSE": (fmt_float, MinMSE()),
        "MinMSE (power of two)": (fmt_power_of_two, MinMSE()),
        "NonOverflow": (fmt_power_of_two, NonOverflow()),
    }
    if observed.votes:
        wanted["MinMSE (MostCommon)"] = (fmt_power_of_two, MinMSE("MostCommon"))
    return {name: Range(*choose_params(observed, fmt, method, tensor).span) for name, (fmt, method) in wanted.items()}


# A weight's scale and its product with the input's are each rounded to float32, by up to 2^-24 of it.
ROUNDING_MARGIN = 1.0 + 2.0**-22


@dataclass(frozen=True)
class Move:
    """Parameters that a rule of the target changed: positions of power-of-two scales, else the scales themselves."""

    value: str
    before: float
    after: float
    rule: str
    node: str


@dataclass(frozen=True, eq=False)
class Plan:
    """The parameters of every site, and how they came about. Changing it makes a new one.

    `params` are those of the leaders; the other sites share theirs. `products` names, for each bias that is counted in
    the unit of its layer's products, the input and the weight whose scales make up its own.
    `finest`, for each bias with a scale of its own, is the largest position at which it does not saturate: a rule
    should not move it further. `free` are the tensors that are zero throughout: every scale is right for them, so none
    of theirs should decide. `refined` holds the numbers to write instead of a weight's or bias's own:
    encoded, or as they are if the bias is not a site.
    """

    layout: Layout
    params: Mapping[str, Params]
    products: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    finest: Mapping[str, int] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    moves: tuple[Move, ...] = ()
    refined: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    def of(self, value: str) -> Params:
        if value in self.products:
            source, weight = (self.integers(name) for name in self.products[value])
            fmt = self.params[value].format
            assert is_integer(fmt)
            return _product(fmt, source, weight)
        return self.params[self.layout.leader(value)]

    def integers(self, value: str) -> QuantParams:
        """Return the parameters of a site that is known to hold integers."""
        params = self.of(value)
        assert holds_integers(params), f"'{value}' holds {params.format.label}"
        return params

    @property
    def positions(self) -> dict[str, int]:
        """The position of every leader, where all scales are powers of two."""
        return {name: params.position for name, params in self.params.items() if holds_integers(params)}

    def position(self, value: str) -> int:
        """Return the position of a site with a power-of-two scale."""
        return self.integers(value).position

    def with_position(self, value: str, position: int, rule: str, node: str) -> Plan:
        """Give a site (and all that share with it) another position. Return this very plan if it has it already."""
        leader = self.layout.leader(value)
        present = self.integers(leader)
        if present.position == position:
            return self
        return self._moved(
            QuantParams.at(present.format, position), Move(leader, present.position, position, rule, node)
        )

    def with_params(self, value: str, params: QuantParams, rule: str, node: str) -> Plan:
        """Give a site (and all that share with it) other parameters. Return this very plan if it has them already."""
        leader = self.layout.leader(value)
        before = self.integers(leader)
        same = np.array_equal(before.scale, params.scale) and np.array_equal(before.zero_point, params.zero_point)
        if same and before.format.dtype == params.format.dtype:
            return self
        return self._moved(params, Move(leader, float(before.scale.max()), float(params.scale.max()), rule, node))

    def _moved(self, params: QuantParams, move: Move) -> Plan:
        return replace(self, params={**self.params, move.value: params}, moves=(*self.moves, move))

    def with_refined(self, numbers: Mapping[str, npt.NDArray[np.float32]]) -> Plan:
        """Write these numbers instead of the own ones of weights and biases."""
        return replace(self, refined={**self.refined, **numbers})


def make_plan(model: ir.Model, layout: Layout, statistics: Mapping[str, TensorStatistics], recipe: Recipe) -> Plan:
    """Choose parameters for every site: activations from their statistics, weights and biases from their elements."""
    # Tests and other tools lay out without formats; a run has assigned them before equalization.
    if not layout.formats:
        layout = assign_formats(model, layout, recipe)
    check_methods(recipe)
    recipe.method.check_tensors(layout.sites)
    ends = [*(str(value.name) for value in model.graph.outputs), *layout.ends]
    # An output that only moves data shares the parameters of the value before it.
    outputs = {layout.leader(name) for name in ends}
    params: dict[str, Params] = {}
    for site in layout.sites.values():
        if layout.leader(site.value) == site.value:
            method = recipe.method_of_outputs if site.value in outputs else recipe.method
            # Steps of 16 bits are so fine that nothing is worth clipping, least of all what they were given for.
            method = MinMax() if site.value in layout.wide else method
            params[site.value] = _choose(
                model, layout, site, statistics, recipe, method, is_output=site.value in outputs
            )
    # A tensor of zeros gets an arbitrary scale; a rule must not coarsen its neighbours for it.
    free = frozenset(name for name in params if _is_zero(model, layout.sites[name], statistics))
    plan = Plan(layout, params, _products(model, layout), _finest(model, layout), free)
    return make_room_for_biases(model, plan)


def needs_statistics(layout: Layout, site: Site) -> bool:
    """Return whether the parameters of an activation depend on what it was observed to hold."""
    return layout.formats[site.value].needs_data


def check_methods(recipe: Recipe) -> None:
    """Raise UsageError where a method of the recipe cannot choose parameters for the format that it is used on.

    A method without anything to use it on is refused too, unless it is that of the preset and nobody asked for it.
    """
    for role, _, fmt in recipe.every_format():
        method = recipe.method if role == "activations" else recipe.method_of_weights
        if is_float(fmt):
            method.check_float(fmt)
        elif is_integer(fmt) and not (role == "biases" and is_product_bias(fmt)):
            method.check(fmt)
    activations = () if recipe.dynamic else (recipe.activations, *(each.activations for each in recipe.overrides))
    used = any(fmt is not None and fmt.needs_data for fmt in activations) or has_power_of_two_scale(recipe.weights)
    preset = PRESETS.get(recipe.name)
    if not used and recipe.method not in (MinMax(), None if preset is None else preset.method):
        raise UsageError(
            f"The method of recipe {recipe.name} is {recipe.method}, and no activation has a scale to choose: leave it "
            "out."
        )


def _choose(
    model: ir.Model,
    layout: Layout,
    site: Site,
    statistics: Mapping[str, TensorStatistics],
    recipe: Recipe,
    method: Method,
    *,
    is_output: bool = False,
) -> Params:
    """Return the parameters of one site; `method` is for an activation."""
    fmt = layout.formats[site.value]
    given = layout.ranges.get(site.value)
    if not fmt.needs_data:
        return fmt.along(site.summed)
    if is_float(fmt):
        if site.role is not Role.ACTIVATION:
            return params_of_constant(_elements(model, site), fmt, recipe.method_of_weights, site)
        seen = statistics[site.value].histogram
        return method.choose_float(lambda: Points.of_histogram(seen), float(seen.largest), fmt)
    assert is_integer(fmt), f"'{site.value}' is {fmt.label}"
    if given is not None:
        return fmt.fit(*given)
    if site.largest is not None and (site.spread or (is_output and not recipe.clip_outputs)):
        return settled_params(_reached(site, statistics, is_output), fmt, recipe.method)
    if site.role is Role.ACTIVATION:
        return choose_params(statistics[site.value], fmt, method, site.value)
    if site.role is Role.BIAS and is_product_bias(fmt):
        return QuantParams.of(fmt, 1.0, 0)
    return params_of_constant(_elements(model, site), fmt, recipe.method_of_weights, site)


def params_of_constant(values: npt.NDArray[np.float32], fmt: NumberFormat, method: Method, site: Site) -> Params:
    """Return the parameters of a weight or bias with these elements, for the whole of it or each channel or group."""
    if not fmt.needs_data:
        return fmt.along(site.summed)
    if is_float(fmt):
        return method.choose_float(lambda: Points.of_values(values), float(np.abs(values).max(initial=0.0)), fmt)
    assert is_integer(fmt), f"'{site.value}' is {fmt.label}"
    if fmt.group_size and values.ndim > 1:
        return choose_params_of_groups(values, fmt, method, site.value, site.summed)
    return choose_params_of_values(values, fmt, method, site.value, site.axis if fmt.per_channel else None)


def _reached(site: Site, statistics: Mapping[str, TensorStatistics], is_output: bool) -> float:
    """Return how far the codes of a value must reach whose operator keeps it within 0..largest.

    Scores at the output of a model must not be clipped, whatever comes: calibrated on samples without a wake word, a
    detector could else never say yes. Attention that is spread over many tokens never gets near 1, and on a grid that
    reaches there it would have a few codes: what was seen, and some more, is enough.
    """
    assert site.largest is not None, "the operator settles it"
    seen = statistics[site.value].histogram if site.value in statistics else None
    if is_output or seen is None or not 0.0 < seen.maximum < math.inf:
        return site.largest
    return min(site.largest, HEADROOM * seen.maximum)


def _products(model: ir.Model, layout: Layout) -> dict[str, tuple[str, str]]:
    """Return the input and weight of each bias that is counted in the unit of their products."""
    found: dict[str, tuple[str, str]] = {}
    for node in model.graph:
        bias = bias_input(node) if layout.quantizes(node) else None
        site = None if bias is None else layout.sites.get(str(bias.name))
        if site is not None and site.role is Role.BIAS and is_product_bias(layout.formats[site.value]):
            source, weight = layout.input_sites(node)
            found[site.value] = source, weight
    return found


def _finest(model: ir.Model, layout: Layout) -> dict[str, int]:
    finest: dict[str, int] = {}
    for site in layout.of_role(Role.BIAS):
        fmt = layout.formats[site.value]
        if is_integer(fmt) and fmt.power_of_two:
            params = choose_params_of_values(_elements(model, site), fmt, NonOverflow(), site.value, axis=None)
            finest[site.value] = params.position
    return finest


def make_room_for_biases(model: ir.Model, plan: Plan) -> Plan:
    """Coarsen weights whose products are counted in so small a unit that the bias would not fit the accumulator.

    It happens with 16-bit activations: a bias that saturates ruins its channel, a slightly coarser weight does not.
    A rule that makes the scale of a layer's input smaller has to ask for it again.
    """
    for name, (source, weight) in plan.products.items():
        fmt, weights = plan.integers(name).format, plan.integers(weight)
        bias = np.abs(_elements(model, plan.layout.sites[name]).astype(np.float64))
        largest = bias.max(initial=0.0) if weights.axis is None else bias.reshape(-1, weights.scale.size).max(axis=0)
        needed = largest / (plan.integers(source).scale * fmt.high) * ROUNDING_MARGIN
        short = needed > weights.scale
        if short.any():
            enough = power_of_two_above(needed) if weights.format.power_of_two else needed.astype(np.float32)
            wider = np.where(short, enough, weights.scale)
            roomy = QuantParams(weights.format, wider, weights.zero_point, weights.axis)
            plan = plan.with_params(weight, roomy, "room for the bias", plan.layout.sites[name].node)
    return plan


def _product(fmt: IntegerFormat, source: QuantParams, weight: QuantParams) -> QuantParams:
    """Return the parameters of a bias. Its last axis is that of the output channels."""
    # In float32, as the runtime multiplies the two scales.
    unit = (source.scale.astype(np.float32) * weight.scale.astype(np.float32)).astype(np.float64)
    scale = np.maximum(unit, LEAST_SCALE)
    return QuantParams(fmt, scale, np.zeros_like(scale, np.int64), None if weight.axis is None else -1)


def _elements(model: ir.Model, site: Site) -> npt.NDArray[np.float32]:
    array = constant(model.graph.initializers[site.value])
    return np.zeros(0, np.float32) if array is None else array.astype(np.float32, copy=False)


def _is_zero(model: ir.Model, site: Site, statistics: Mapping[str, TensorStatistics]) -> bool:
    if site.role is Role.ACTIVATION:
        seen = statistics.get(site.value)
        return seen is not None and seen.histogram.largest == 0.0
    return not _elements(model, site).any()
