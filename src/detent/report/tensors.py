"""The report's entry for every quantized tensor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from detent.graph.values import constant
from detent.measure.fidelity import Closeness
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
        values = np.zeros(1) if array is None or array.size == 0 else array
        levels = np.rint(values / plan.scale(site.value))
        grid = plan.grid(site.value)
        clipped = float(((levels < grid.low_level) | (levels > grid.high_level)).mean())
        described.append(_entry(site, plan, float(values.min()), float(values.max()), clipped))
    return described


def describe_activations(
    plan: Plan, statistics: Mapping[str, TensorStatistics], measured: Mapping[str, Closeness]
) -> list[TensorReport]:
    """Activations: the observed range, that of the leader where a position is shared, and the closeness to float."""
    described = []
    for site in plan.layout.of_role(Role.ACTIVATION):
        leader = plan.layout.leader(site.value)
        seen = statistics[leader].histogram
        clipped = seen.clipped_fraction(plan.position(leader), plan.grid(leader))
        shares = leader if leader != site.value else None
        closeness = measured.get(site.value)
        described.append(_entry(site, plan, seen.minimum, seen.maximum, clipped, shares, closeness))
    return described


def _entry(
    site: Site,
    plan: Plan,
    minimum: float,
    maximum: float,
    clipped: float,
    shares: str | None = None,
    closeness: Closeness | None = None,
) -> TensorReport:
    return TensorReport(
        name=site.value,
        role=site.role.value,
        node=site.node,
        position=plan.position(site.value),
        scale=plan.scale(site.value),
        minimum=minimum,
        maximum=maximum,
        clipped=clipped,
        shares=shares,
        closeness=closeness,
    )
