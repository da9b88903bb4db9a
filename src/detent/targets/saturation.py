"""Clips that the codes make superfluous.

The device computes Relu, and Clip at 0 and 6 or 0 and 1. Equalization gives Clips other bounds b, such that b itself
has the largest code of all. Then a Relu gives the same codes, because whatever is beyond the bound gets the largest
code either way.
"""

from __future__ import annotations

import onnx_ir as ir

from detent.graph.values import constant_scalar, cut_inputs
from detent.numerics.formats import QuantParams
from detent.plan.operators import DEVICE_CLIPS
from detent.plan.plan import Plan
from detent.prepare import Pass


class SaturatingClip(Pass):
    """A Clip from 0 with a bound that the device has not becomes a Relu, where the bound has the largest code."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan

    def run(self, model: ir.Model) -> None:
        """Rewrite every such node, under the same names."""
        layout = self._plan.layout
        for node in model.graph:
            result = str(node.outputs[0].name)
            if node.op_type != "Clip" or not layout.quantizes(node) or result not in layout.sites:
                continue
            low, high = constant_scalar(node, 1), constant_scalar(node, 2)
            if low != 0.0 or high is None or (low, high) in DEVICE_CLIPS:
                continue
            params = self._plan.of(result)
            if isinstance(params, QuantParams) and (params.encode(high) == params.format.high).all():
                cut_inputs(node, 1)
                node.op_type = "Relu"
                self.changed(node, f"Clip at {high:g} became Relu: its codes end at {params.span[1]:g}")
