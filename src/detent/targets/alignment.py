"""The one rule of devices with float scales: a Concat copies codes, so what it joins must have one scale.

The inputs and the output of a Concat take the parameters that span all of them. Joined values may meet again in another
Concat, so this is done once for everything that Concats join, directly or through each other.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from detent.numerics.formats import IntegerFormat, QuantParams
from detent.plan.layout import Role
from detent.plan.plan import Plan, make_room_for_biases


def align_concats(model: ir.Model, plan: Plan, without: Collection[str] = ()) -> list[str]:
    """Give everything that a Concat joins one type, scale and zero point. Nothing is left unsatisfied."""
    for group in _groups(model, plan) if "align_concat" not in without else ():
        joined = [plan.integers(leader) for leader in group if leader not in plan.free]
        shared = _union(joined or [plan.integers(leader) for leader in group], _format(group, plan))
        for leader, node in group.items():
            plan.assign(leader, shared, "align", node)
    # A tensor that is zero throughout may have got a smaller scale than it had.
    make_room_for_biases(model, plan)
    return []


def _groups(model: ir.Model, plan: Plan) -> list[dict[str, str]]:
    """The leaders that Concats join, directly or through each other, each with the first Concat that joins it."""
    groups: list[dict[str, str]] = []
    for node in model.graph:
        if node.op_type != "Concat" or not plan.layout.quantizes(node):
            continue
        output = plan.layout.output_site(node)
        sites = plan.layout.input_sites(node) + ([output] if output else [])
        group = {plan.layout.leader(site): str(node.name) for site in sites}
        if not any(plan.layout.sites[leader].role is Role.ACTIVATION for leader in group):
            continue  # activations stay float, and nothing is copied
        if not all(isinstance(plan.params[leader], QuantParams) for leader in group):
            continue  # floats have no scale to share
        met = [other for other in groups if other.keys() & group.keys()]
        for other in met:
            group = {**group, **other}
        groups = [other for other in groups if other not in met] + [group]
    return groups


def _format(group: dict[str, str], plan: Plan) -> IntegerFormat:
    """That of the activations: a constant among them is copied into their codes."""
    return next(plan.integers(name).format for name in group if plan.layout.sites[name].role is Role.ACTIVATION)


def _union(params: list[QuantParams], fmt: IntegerFormat) -> QuantParams:
    """Parameters of a format that span everything that `params` span: one of them, where it does already."""
    low, high = min(each.span[0] for each in params), max(each.span[1] for each in params)
    for each in params:
        if each.format == fmt and each.span == (low, high):
            return each
    return fmt.fit(low, high)
