"""What becomes of activations that are halfway between two codes, on a device that does not round half to even.

The DPU computes (X + 2^(cut-1)) >> cut: ties go upwards. Inputs of the model, and results of nodes that stay float, are
quantized by the host, which rounds ties away from zero.
"""

from __future__ import annotations

import onnx_ir as ir

from detent.graph.values import values_of
from detent.numerics.rounding import DeviceRounding, Rounding
from detent.plan.layout import Layout, Role


def ties_on_device(model: ir.Model, layout: Layout, rounding: DeviceRounding) -> dict[str, Rounding]:
    """The rounding of every activation site, where it is not half to even."""
    if rounding == "half-even":
        return {}
    sites = {site.value for site in layout.of_role(Role.ACTIVATION)}
    return {str(value.name): _ties(value, layout) for value in values_of(model.graph) if str(value.name) in sites}


def _ties(value: ir.Value, layout: Layout) -> Rounding:
    producer = value.producer()
    return "half_up" if producer is not None and layout.quantizes(producer) else "half_away"
