"""Values that one rule keeps at a finer position than the Concat that joins them, where a Concat cannot shift.

A HardSigmoid writes to position 7 or finer. Beside values of up to 15, which have position 3, its result breaks the
rule of the Concat: all that it joins has one position. A product may have a coarser position than its operands, so

    Concat(h, z)    becomes    Concat(1 h, z)        with 1 h at the position of z

which rounds h as the Concat would have. A product by a number is what SiLU by two gates has, too (`two_gates`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from detent.devices.constraints import Violation
from detent.devices.rewrites import Substitution
from detent.numerics.formats import is_integer
from detent.plan.layout import Decision, Layout, Role, Site
from detent.plan.plan import Plan


def contradicted(plan: Plan, violations: Sequence[Violation]) -> set[str]:
    """Return the Concats whose rule another contradicts: that one moved a joined value last."""
    rules = {move.value: move.rule for move in plan.moves}
    return {
        each.node
        for each in violations
        if each.op_type == "Concat" and rules.get(each.move.value, each.move.rule) != each.move.rule
    }


class RescaleIntoConcat(Substitution):
    """Multiply by one what some Concats, by name, join at a finer position than the coarsest in a plan."""

    operators = ("Concat",)

    def __init__(self, plan: Plan, concats: Collection[str]) -> None:
        super().__init__(plan.layout)
        self._torn, self._concats = plan, concats
        self._sources: dict[str, tuple[str, ir.Node]] = {}  # of each new value, what is multiplied, and the product

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        if node.name not in self._concats:
            return None
        sites = self._torn.layout.input_sites(node)
        coarsest = min(map(self._torn.position, self._torn.layout.sites_around(node)))
        for value in dict.fromkeys(node.inputs):
            if value is None or value.name not in sites or self._torn.position(value.name) == coarsest:
                continue
            one = self.initializer(model, node, "one", np.array(1, np.float32))
            product = ir.node("Mul", [value, one], name=self.fresh(model, node, "rescale"))
            result = product.outputs[0]
            result.name, result.type, result.shape = f"{product.name}_output", value.type, value.shape
            model.graph.insert_before(node, product)
            for index, each in enumerate(node.inputs):
                if each is value:
                    node.replace_input_with(index, result)
            self._sources |= {str(each): (value.name, product) for each in (one.name, result.name)}
            self.changed(node, f"'{value.name}' is multiplied by one, which brings it to the position of the others")
        return None

    def laid_out(self, layout: Layout) -> Layout:
        """Return the layout with the products, which are quantized, and their factors, which are weights."""
        sites, formats, ranges = dict(layout.sites), dict(layout.formats), dict(layout.ranges)
        decisions, ties = dict(layout.decisions), dict(layout.ties)
        for name, (source, product) in self._sources.items():
            fmt, node, is_result = layout.formats[source], str(product.name), product.outputs[0].name == name
            assert is_integer(fmt), f"'{source}' has a position"
            decisions[node] = Decision(node, "Mul", True, "quantized")
            role = Role.ACTIVATION if is_result else Role.WEIGHT
            sites[name] = Site(name, role, node, summed=layout.sites[source].summed)
            formats[name] = fmt if is_result else replace(fmt, dtype="int8")  # as all weights of the device are
            ranges[name] = -1.0, 1.0  # of a product, `planned` knows better
            if layout.ties and is_result:
                ties[name] = layout.ties_of(source)
        return replace(layout, sites=sites, formats=formats, ranges=ranges, decisions=decisions, ties=ties)

    def planned(self, plan: Plan) -> Plan:
        """Return the plan in which each product has the parameters of what is multiplied."""
        products = {
            name: plan.integers(source)
            for name, (source, _) in self._sources.items()
            if plan.layout.sites[name].role is Role.ACTIVATION
        }
        ranges = {**plan.layout.ranges, **{name: params.span for name, params in products.items()}}
        return replace(plan, layout=replace(plan.layout, ranges=ranges), params={**plan.params, **products})
