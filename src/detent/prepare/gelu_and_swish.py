"""A Gelu or a HardSwish that was written as a subgraph becomes one operator; and HardSigmoids get one slope.

    Gelu, exact:           x / 2 * (1 + erf(x / sqrt 2))
    Gelu, approximated:    x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
    HardSwish:             x * clip(x + 3, 0, 6) / 6

The factors and terms come in any order and grouping, so the subgraph is not compared with a drawing: whatever computes
one number from one number x by arithmetic with constants, around an Erf, a Tanh or a Clip, is evaluated in double
precision over a range, and is the function if it agrees. The two forms of Gelu differ by up to 5e-4, constants that
were rounded to float32 by 1e-7, and so each is told from the other and from anything else.

HardSwishToHardSigmoid is the way back, for devices that have HardSigmoid alone: x * HardSigmoid(x), with slope 1/6.

SetHardSigmoidSlope: clip(a x + b, 0, 1) is clip(x'/6 + 1/2, 0, 1) of x' = 6 a x + 6 b - 3, so that a HardSigmoid of any
slope becomes one of slope 1/6, the only one that devices have. The map before it goes into the layer that computes x.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from detent.graph.values import constant_scalar, take_over
from detent.prepare.base import OperatorPass
from detent.prepare.patterns import POINTS, Floats, erf, function_around, fuse


class FuseGelu(OperatorPass):
    """Replace the subgraph by Gelu.

    Cases:
    - the exact form around an Erf, and the approximated one around a Tanh, in every order of their factors;
    - declined: an opset before 20, which has no such operator; a value inside that is used elsewhere; an input that is
      not float32;
    - left alone without a note: an Erf or Tanh that is part of something else.
    """

    operators = ("Erf", "Tanh")

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        found = function_around(node, _gelu(node.op_type == "Tanh"))
        approximate = "tanh" if node.op_type == "Tanh" else "none"
        return None if found is None else fuse(self, model, found, "Gelu", {"approximate": approximate})


def _gelu(approximated: bool) -> Floats:
    x = POINTS
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3) if approximated else x / math.sqrt(2)
    gate: Floats = np.tanh(inner) if approximated else erf(inner)
    return x / 2 * (1 + gate)


_HARD_SWISH: Floats = POINTS * np.clip(POINTS + 3, 0, 6) / 6


class FuseHardSwish(OperatorPass):
    """Replace x * clip(x + 3, 0, 6) / 6, in every order of its factors, by HardSwish.

    Cases:
    - declined: a value inside that is used elsewhere; an input that is not float32;
    - left alone without a note: a Clip that is part of something else, and x * HardSigmoid(x), which devices know.
    """

    operators = ("Clip",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        if (constant_scalar(node, 1), constant_scalar(node, 2)) not in ((0.0, 6.0), (0.0, 1.0)):
            return None
        found = function_around(node, _HARD_SWISH)
        return None if found is None else fuse(self, model, found, "HardSwish", {})


class HardSwishToHardSigmoid(OperatorPass):
    """Replace HardSwish(x) by x * HardSigmoid(x)."""

    operators = ("HardSwish",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        source, result = node.inputs[0], node.outputs[0]
        gate = ir.node("HardSigmoid", [source], {"alpha": 1 / 6, "beta": 0.5}, name=self.fresh(model, node, "gate"))
        gate.outputs[0].name = self.fresh(model, node, "gated_by")
        gate.outputs[0].type, gate.outputs[0].shape = result.type, result.shape
        product = ir.node("Mul", [source, gate.outputs[0]], name=node.name)
        model.graph.insert_before(node, [gate, product])
        take_over(result, product.outputs[0])
        model.graph.remove(node, safe=True)
        self.replaced(node, gate, product)
        self.changed(product, "HardSwish became x * HardSigmoid(x)")
        return None


class SetHardSigmoidSlope(OperatorPass):
    """Give a HardSigmoid the slope 1/6 and the offset 1/2, by a factor and a term before it.

    Cases:
    - one with that slope and offset already is left alone;
    - declined: a slope of 0 or below, and an input that is not float32.
    """

    operators = ("HardSigmoid",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        slope, offset = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
        source = node.inputs[0]
        if math.isclose(slope, 1 / 6, abs_tol=1e-6) and math.isclose(offset, 0.5, abs_tol=1e-6):
            return None
        if slope <= 0:
            return f"its slope is {slope:g}"
        if source is None or source.dtype != ir.DataType.FLOAT:
            return "its input is not known to be float32"
        for op_type, role, number, neutral in (
            ("Mul", "slope", 6 * slope, 1.0),
            ("Add", "offset", 6 * offset - 3, 0.0),
        ):
            if not math.isclose(number, neutral, abs_tol=1e-6):
                operand = self.initializer(model, node, role, np.array(number, np.float32))
                before = ir.node(op_type, [source, operand], name=self.fresh(model, node, f"{role}_before"))
                before.outputs[0].name = self.fresh(model, node, f"with_{role}")
                before.outputs[0].type, before.outputs[0].shape = source.type, source.shape
                model.graph.insert_before(node, before)
                source = before.outputs[0]
        node.replace_input_with(0, source)
        node.attributes["alpha"], node.attributes["beta"] = ir.AttrFloat32("alpha", 1 / 6), ir.AttrFloat32("beta", 0.5)
        self.changed(node, f"slope {slope:g} and offset {offset:g} became 1/6 and 1/2, with an affine map before it")
        return None
