"""The report's entry for every quantized tensor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from detent.evaluation.noise import Closeness
from detent.graph.values import constant
from detent.numerics.formats import QuantParams
from detent.numerics.interface import Params
from detent.observe.methods.points import Points
from detent.observe.statistics import TensorStatistics
from detent.plan.layout import Role, Site
from detent.plan.plan import Plan
from detent.report.report import TensorReport


def describe_constants(model: ir.Model, plan: Plan) -> list[TensorReport]:
    """Weights and biases: their own range, and what of them saturates at the final position."""
    described = []
    for site in plan.layout.sites.values():
        if site.role is Role.ACTIVATION:
            continue
        array = constant(model.graph.initializers[site.value])
        values = plan.refined.get(site.value, np.zeros(0) if array is None else array)
        clipped = float(plan.of(site.value).clipped(values).mean()) if values.size else 0.0
        described.append(_entry(site, plan, float(values.min(initial=0.0)), float(values.max(initial=0.0)), clipped))
    return described


def describe_activations(
    plan: Plan, statistics: Mapping[str, TensorStatistics], measured: Mapping[str, Closeness]
) -> list[TensorReport]:
    """Activations: the observed range, that of the leader where a position is shared, and the closeness to float."""
    described = []
    for site in plan.layout.of_role(Role.ACTIVATION):
        leader = plan.layout.leader(site.value)
        shares = leader if leader != site.value else None
        closeness = measured.get(site.value)
        if leader not in statistics:
            described.append(_entry(site, plan, None, None, 0.0, shares, closeness))
            continue
        seen = statistics[leader].histogram
        clipped = _clipped_fraction(Points.of_histogram(seen), plan.of(leader))
        described.append(_entry(site, plan, seen.minimum, seen.maximum, clipped, shares, closeness))
    return described


def _clipped_fraction(points: Points, params: Params) -> float:
    total = points.counts.sum()
    return float(points.counts[params.clipped(points.centres)].sum() / total) if total else 0.0


def _entry(
    site: Site,
    plan: Plan,
    minimum: float | None,
    maximum: float | None,
    clipped: float,
    shares: str | None = None,
    closeness: Closeness | None = None,
) -> TensorReport:
    params = plan.of(site.value)
    integers = params if isinstance(params, QuantParams) else None
    one_scale = integers is not None and integers.axis is None
    return TensorReport(
        name=site.value,
        role=site.role.value,
        node=site.node,
        dtype=params.format.label,
        position=integers.position if integers and one_scale and integers.format.power_of_two else None,
        scale=None if params.scale is None else float(np.max(params.scale)),
        zero_point=int(integers.zero_point.flat[0]) if integers else 0,
        channels=integers.scale.size if integers and not one_scale else None,
        minimum=minimum,
        maximum=maximum,
        clipped=clipped,
        shares=shares,
        closeness=closeness,
    )
