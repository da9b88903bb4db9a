"""Divisors never round to zero.

A divisor that was positive on every sample may still be less than half a step of its grid somewhere: its code is then
that of zero, the quotient infinite or NaN, and what QuantizeLinear makes of that has nothing to do with the model.
Attention with a linear kernel divides by such sums. There

    a / d    becomes    a / max(d, s)    with s one step of d's grid

which is what rounding up instead of down would do. The maximum lives on the same grid as d.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from detent.graph.values import input_at
from detent.numerics.formats import QuantParams, holds_integers
from detent.observe.statistics import TensorStatistics
from detent.plan.layout import Decision, Role, Site
from detent.plan.plan import Plan
from detent.prepare.base import OperatorPass

_DIVISORS = {"Div": 1, "Reciprocal": 0}


class GuardDivisors(OperatorPass):
    """Put a Max before quantized nodes that divide by what would round to zero. `plan` is then that of the new graph.

    Cases:
    - left alone: constants, divisors that were 0 or below on a sample,
      and those whose smallest value has a code of its own.
    """

    operators = tuple(_DIVISORS)

    def __init__(self, plan: Plan, statistics: Mapping[str, TensorStatistics]) -> None:
        super().__init__(plan.layout.quantizes)
        self.plan = plan
        self._statistics = statistics

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        """Insert the Max, and give it the grid of the divisor."""
        index = _DIVISORS[node.op_type]
        divisor = input_at(node, index)
        params = None if divisor is None else self._rounding_to_zero(str(divisor.name))
        if divisor is None or params is None:
            return None
        step = float(params.scale.max())
        least = self.initializer(model, node, "least_divisor", np.array(step, np.float32))
        guard = ir.node("Max", [divisor, least], name=self.fresh(model, node, "guard"))
        guard.outputs[0].name = self.fresh(model, node, "guarded_divisor")
        guard.outputs[0].type, guard.outputs[0].shape = divisor.type, divisor.shape
        model.graph.insert_before(node, guard)
        node.replace_input_with(index, guard.outputs[0])
        self.plan = _on_one_grid(self.plan, str(divisor.name), guard, least)
        self.changed(node, f"divides by max('{divisor.name}', {step:g}): smaller ones would be rounded to 0")
        return None

    def _rounding_to_zero(self, name: str) -> QuantParams | None:
        """Return the grid of a divisor that was positive on all samples, and would not be on its grid; else None."""
        statistics = self._statistics.get(self.plan.layout.leader(name))
        params = self.plan.of(name) if name in self.plan.layout.sites else None
        if params is None or not holds_integers(params) or statistics is None:
            return None
        least = statistics.histogram.minimum
        return params if least > 0 and bool((params.decode(params.encode(least)) <= 0).all()) else None


def _on_one_grid(plan: Plan, divisor: str, guard: ir.Node, least: ir.Value) -> Plan:
    """Return the plan with a Max of the divisor and a constant: both, and the result, have the divisor's grid."""
    layout, name = plan.layout, str(guard.name)
    new = {str(guard.outputs[0].name): Role.ACTIVATION, str(least.name): Role.WEIGHT}
    summed = layout.sites[divisor].summed
    layout = replace(
        layout,
        sites={**layout.sites, **{value: Site(value, role, name, summed=summed) for value, role in new.items()}},
        leaders={**layout.leaders, **dict.fromkeys(new, layout.leader(divisor))},
        formats={**layout.formats, **dict.fromkeys(new, layout.formats[divisor])},
        decisions={**layout.decisions, name: Decision(name, "Max", True, "quantized")},
    )
    return replace(plan, layout=layout)
