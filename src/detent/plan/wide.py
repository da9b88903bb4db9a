"""Where 8 bits are too coarse: wide activations, and divisors.

**Wide activations** get 16 bits in a plan of 8 bits. A normalization layer divides by what it measures, so training
does not keep the channels before it, nor the sums around it, alike: in trained transformers a few channels of the
residual stream are 10 to 1000 times as large as the others, and one 8-bit step for all of them leaves the others
nothing. No factor can be folded away there, because the sum and the normalization read the same value. With 16 bits the
step is 1/256 of that.

**Divisors** never round to zero. One that was positive on every sample may still be less than half a step of its grid
somewhere: its code is then that of zero, the quotient infinite or NaN, and what QuantizeLinear makes of that has
nothing to do with the model. Attention with a linear kernel divides by such sums. There

    a / d    becomes    a / max(d, s)    with s one step of d's grid

which is what rounding up instead of down would do. The maximum lives on the same grid as d.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from detent.graph.values import input_at
from detent.numerics.formats import IntegerFormat, QuantParams, holds_integers, is_integer
from detent.numerics.interface import NumberFormat
from detent.observe.statistics import TensorStatistics
from detent.plan.layout import Decision, Layout, Role, Site
from detent.plan.plan import Plan
from detent.prepare.base import OperatorPass

# Layers that normalize each sample anew; a BatchNorm is a fixed factor.
NORMALIZATIONS = frozenset(
    (
        *("LayerNormalization", "RMSNormalization", "GroupNormalization", "SimplifiedLayerNormalization"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization"),
    )
)


def normalizes(graph: ir.Graph) -> bool:
    """Return whether a network has normalization layers, and so may have a few channels far larger than the others."""
    return any(node.op_type in NORMALIZATIONS for node in graph)


def wide_format(fmt: NumberFormat | None) -> IntegerFormat | None:
    """Return an 8-bit format of float scales with 16 bits; None for any other, which would not gain or cannot."""
    if fmt is None or not is_integer(fmt) or fmt.bits != 8 or fmt.scale != "float":
        return None
    return fmt.replace(dtype=fmt.dtype.replace("8", "16"))


def wide_candidates(model: ir.Model, layout: Layout) -> list[tuple[str, ...]]:
    """Group the activations that may get 16 bits, in graph order.

    Those of a group share their codes, so all of them do or none. A group is a leader with all values that share its
    parameters, and whatever Concats join with it.
    """
    groups = {
        site.value: {site.value}
        for site in layout.of_role(Role.ACTIVATION)
        if layout.leader(site.value) == site.value and wide_format(layout.formats[site.value]) is not None
    }
    for node in model.graph:
        if node.op_type == "Concat" and layout.quantizes(node):
            joined = {layout.leader(site) for site in layout.sites_around(node)}
            _merge(groups, joined)
    found: dict[int, tuple[str, ...]] = {}
    for group in groups.values():
        sharing = (name for name in layout.sites if layout.leader(name) in group)
        found.setdefault(id(group), tuple(sharing))
    return list(found.values())


def _merge(groups: dict[str, set[str]], joined: Iterable[str]) -> None:
    """Let the groups of all `joined` leaders be one; constants and values of other formats have none."""
    met = [groups[leader] for leader in joined if leader in groups]
    together = set[str]().union(*met)
    groups.update(dict.fromkeys(together, together))


def with_wide(layout: Layout, values: Collection[str]) -> Layout:
    """Return the layout with 16 bits for these activations."""
    wide = {name: wide_format(layout.formats[name]) for name in values}
    formats = {**layout.formats, **{name: fmt for name, fmt in wide.items() if fmt is not None}}
    return replace(layout, formats=formats, wide=layout.wide | frozenset(values))


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
