"""SiLU on a device whose only sigmoid is HardSigmoid: two of them, one steep and one flat, instead of one.

    x * sigmoid(x)    is about    x/2 * (H(a x) + H(b x))        with H(z) = clip(z/6 + 1/2, 0, 1)

A single H (a = b = 1) is off by up to 0.14, and its SQNR is 21 dB on average over normal distributions with means from
-2 to 1 and deviations from 1 to 3. That is worse than rounding to 8 bits, it is the same in every layer, and no weight
or bias behind it can undo it. The a and b below maximize the mean over those distributions: 31 dB, off by at most 0.08.

Each SiLU gets five elementwise nodes more, which take time. The device was seen to take each of these operators, but
not yet a network of this form. So it is used only if a recipe asks for it (`also`), or if the model with one gate was
measured to be worse than float and two gates to be nearer (`pipeline.trials`).

    x ---- Mul a ---- HardSigmoid --+
    x ---- Mul b ---- HardSigmoid --+-- Add --+
    x ---- Mul 1/2 ---------------------------+-- Mul ----> y

The new values need no statistics. HardSigmoid is constant beyond 3, so a x and b x are clipped a little further out, on
a grid that is finer than that of x. x/2 has the codes of x on a grid of half the step. So these add little rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from detent.devices.rewrites import Substitution, harden
from detent.graph.values import input_at, is_standard
from detent.numerics.formats import holds_integers, is_integer
from detent.numerics.interface import NumberFormat
from detent.plan.layout import Decision, Layout, Role, Site
from detent.plan.plan import Plan

STEEP, FLAT = 118 / 64, 100 / 128  # a and b; 8 bits hold them as they are

_INSIDE = 127 / 32  # HardSigmoid ends at 3; with 8 bits in steps of a power of two, the next bound is this
_SHARE = 127 / 128  # the largest of the codes for 0 to 1


@dataclass(frozen=True)
class NewValue:
    """A new value of a rewritten SiLU.

    `source` is the input of the SiLU, `node` the node that makes or reads the value, `largest` its largest magnitude,
    or None for half of the input.
    """

    name: str
    source: str
    node: ir.Node
    largest: float | None

    @property
    def role(self) -> Role:
        """A factor is a constant, everything else an activation."""
        return Role.ACTIVATION if self.node.outputs[0].name == self.name else Role.WEIGHT

    def format(self, fmt: NumberFormat) -> NumberFormat:
        """Return its format, given that of the input: a constant is signed, as all weights of the device are."""
        assert is_integer(fmt), f"'{self.source}' is on a grid"
        return fmt if self.role is Role.ACTIVATION else replace(fmt, dtype="int8")


class SiluToTwoGates(Substitution):
    """Compute x * sigmoid(x) by two HardSigmoids.

    Cases:
    - a Sigmoid that only one Mul reads, together with the input of the Sigmoid, on grids of 8 bits and powers of two;
    - declined: other grids, since their devices have a Sigmoid;
    - left to SigmoidToHardSigmoid: any other Sigmoid, such as scores, or the gates of squeeze-and-excite.
    """

    operators = ("Sigmoid",)

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._layout = layout
        self._new: list[NewValue] = []

    def run(self, model: ir.Model) -> None:
        """Visit every Sigmoid of the main graph."""
        self._new = []
        super().run(model)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        source, product = input_at(node, 0), _product_with_input(node)
        if source is None or product is None or not self._layout.quantizes(product):
            return None
        fmt = self._layout.formats.get(str(source.name))
        if fmt is None or not is_integer(fmt) or not fmt.power_of_two or fmt.bits != 8:
            return f"'{source.name}' does not have 8 bits with a power of two for a scale: its device has a Sigmoid"

        def add(operator: str, role: str, inputs: Sequence[ir.Value], largest: float | None) -> ir.Value:
            made = ir.node(operator, inputs, name=self.fresh(model, node, role))
            result = made.outputs[0]
            result.name, result.type, result.shape = (
                self.fresh(model, node, f"{role}_output"),
                source.type,
                source.shape,
            )
            model.graph.insert_before(node if operator == "Mul" else product, made)
            self._new.append(NewValue(str(result.name), str(source.name), made, largest))
            return result

        def times(factor: float, role: str, largest: float | None) -> ir.Value:
            number = self.initializer(model, node, f"{role}_factor", np.array(factor, np.float32))
            scaled = add("Mul", role, [source, number], largest)
            self._new.append(NewValue(str(number.name), str(source.name), self._new[-1].node, factor))
            return scaled

        steep, flat, half = times(STEEP, "steep", _INSIDE), times(FLAT, "flat", _INSIDE), times(0.5, "half", None)
        other = add("HardSigmoid", "flat_gate", [flat], _SHARE)
        harden(self._new[-1].node)
        # The Sigmoid itself becomes the steep gate, so that its name and result stay those of the float model.
        node.replace_input_with(0, steep)
        harden(node)
        both = add("Add", "both", [node.outputs[0], other], 2 * _SHARE)
        product.replace_input_with(0, half)
        product.replace_input_with(1, both)
        self.changed(node, f"x * Sigmoid(x) became x/2 * (HardSigmoid({STEEP:g} x) + HardSigmoid({FLAT:g} x))")
        return None

    def laid_out(self, layout: Layout) -> Layout:
        """Return the layout with the new nodes, all quantized, and the new values."""
        sites, formats, ranges = dict(layout.sites), dict(layout.formats), dict(layout.ranges)
        decisions, ties = dict(layout.decisions), dict(layout.ties)
        for new in self._new:
            node = str(new.node.name)
            decisions[node] = Decision(node, new.node.op_type, True, "quantized")
            sites[new.name] = Site(new.name, new.role, node, summed=layout.sites[new.source].summed)
            formats[new.name] = new.format(layout.formats[new.source])
            largest = 1.0 if new.largest is None else new.largest  # `planned` knows better
            ranges[new.name] = -largest, largest
            if layout.ties and new.role is Role.ACTIVATION:
                ties[new.name] = layout.ties_of(new.source)
        return replace(layout, sites=sites, formats=formats, ranges=ranges, decisions=decisions, ties=ties)

    def planned(self, plan: Plan) -> Plan:
        """Return the plan with half of each input on half of its steps."""
        halves = {
            new.name: replace(params, scale=params.scale / 2)
            for new in self._new
            if new.largest is None and holds_integers(params := plan.of(new.source))
        }
        ranges = {**plan.layout.ranges, **{name: params.span for name, params in halves.items()}}
        return replace(plan, layout=replace(plan.layout, ranges=ranges), params={**plan.params, **halves})


def _product_with_input(node: ir.Node) -> ir.Node | None:
    """Return the Mul that computes x * sigmoid(x) from a Sigmoid; None if anything else reads the Sigmoid."""
    source, result = node.inputs[0], node.outputs[0]
    readers = list(result.consumers())
    if len(readers) != 1 or result.is_graph_output() or not is_standard(readers[0], "Mul"):
        return None
    operands = list(readers[0].inputs)
    return readers[0] if operands in ([source, result], [result, source]) else None
