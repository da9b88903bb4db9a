"""Other scales of a layer's weights: a method that looks at the weights alone cannot tell which the layer is best with.

Powers of two have the next finer and the next coarser one, where the device's rules allow it; float scales some finer
ones, at which the largest weights are cut. A bias that is counted in the unit of the products follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from detent.numerics.formats import QuantParams
from detent.plan.plan import Plan
from detent.refine.build import why_no_steps
from detent.refine.choose import Spacing
from detent.refine.layers import Layer
from detent.refine.means import params_of_bias

Permits = Callable[[ir.Node, Plan], bool]
"""Whether the device can compute a node with the parameters of a plan."""

FACTORS = {"power_of_two": (0.5, 2.0), "float": (0.9, 0.8)}
"""Scales of other kinds stay as they are."""

RULE = "rounding"
"""How the plan's moves name a scale that was changed here."""


def spacings(layer: Layer, plan: Plan, permits: Permits) -> list[Spacing]:
    """The scales to try beside the present one."""
    name = str(layer.weight.name)
    present = plan.of(name)
    if not isinstance(present, QuantParams) or why_no_steps(present) is not None:
        return []
    groups, channels, _ = layer.matrix().shape
    found = []
    for factor in FACTORS.get(present.format.scale, ()):
        scale = present.scale * factor
        if present.format.scale == "float":
            scale = scale.astype(np.float32).astype(np.float64)
        other = replace(present, scale=scale)
        trial = replace(plan, params={**plan.params, plan.layout.leader(name): other}, moves=[])
        if permits(layer.node, trial):
            each = np.broadcast_to(scale.reshape(-1 if scale.size == 1 else (groups, channels)), (groups, channels))
            bias = None if layer.bias is None else params_of_bias(layer, trial)
            found.append(Spacing(other, each.copy(), bias))
    return found


def adopt(other: QuantParams, layer: Layer, plan: Plan) -> None:
    """Give the weights of a layer another scale."""
    name = str(layer.weight.name)
    if other.format.power_of_two and other.axis is None:
        plan.move(name, other.position, RULE, layer.name)
    else:
        plan.assign(name, other, RULE, layer.name)
