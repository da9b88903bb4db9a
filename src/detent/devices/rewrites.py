"""Operators that the NPU computes its own way, rewritten so that the file says what the device will answer.

| operator            | on the device                                                                            |
| ------------------- | ---------------------------------------------------------------------------------------- |
| LeakyRelu           | the slope is a whole number of 256ths: 0.1 becomes 26/256                                |
| Sigmoid             | HardSigmoid(x) = clip(x/6 + 1/2, 0, 1); there is no other (SiLU: see `two_gates`)        |
| HardSigmoid         | 1/6 is 2731/16384: the result is 1.00012 times as large                                  |
| mean of n numbers   | the sum times k/2^m instead of 1/n: n*k/2^m times as large (1.0049 for a 7x7 average)    |

The first two change what the node computes and come before the rules on positions. The last two multiply the result by
a constant close to 1 before it is rounded. The factor has no codes of its own, so they come after the rules.

The other passes are about Clips. The device computes Relu, and Clip at 0 and 6 or 0 and 1. Equalization gives Clips
other bounds b, chosen so that b has the largest code. Then a Relu gives the same codes, because everything beyond the
bound saturates at that code.

GuardDivisors: divisors never round to zero. A divisor that was positive on every sample may still be less than half a
step of its grid: its code then stands for zero, the quotient is infinite or NaN, and so the result is meaningless.
Attention with a linear kernel divides by such sums. There

    a / d    becomes    a / max(d, s)    with s one step of d's grid

which is what rounding up instead of down would do. The maximum has the same grid as d.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from detent.graph.values import constant_scalar, cut_inputs, input_at, set_input, static_shape
from detent.numerics.formats import QuantParams, holds_integers
from detent.observe.statistics import TensorStatistics
from detent.plan.layout import Decision, Layout, Role, Site
from detent.plan.operators import DEVICE_CLIPS
from detent.plan.plan import Plan
from detent.prepare.base import OperatorPass, axes_of, ints_attribute

HARD_SIGMOID_FACTOR = (2731 / 16384) * 6

# The device's own tables for common square windows; k / 2^m stands for 1 / (side * side).
_WINDOW_RECIPROCALS = {3: 7 / 64, 5: 10 / 256, 6: 7 / 256, 7: 21 / 1024, 14: 21 / 4096}
_LARGEST_SIDE = 255


def reciprocal_factor(count: int) -> float:
    """Return count * k / 2^m, with k / 2^m the best approximation of 1 / count that the device's shifter allows."""
    exponents = range(7 + math.ceil(math.log2(count)))
    best = min(exponents, key=lambda m: abs(round((1 << m) / count) / (1 << m) - 1 / count))
    return count * round((1 << best) / count) / (1 << best)


def window_factor(side: int) -> float:
    """Return what the device's average over a side x side window is multiplied by."""
    if side > _LARGEST_SIDE:
        return 1.0
    if side in _WINDOW_RECIPROCALS:
        return side * side * _WINDOW_RECIPROCALS[side]
    return reciprocal_factor(side * side)


class Substitution(OperatorPass):
    """A rewrite of quantized nodes, after calibration, into operators that the device has.

    A rewrite that adds nodes adds them to the layout, and may set the parameters of their values. Without a layout all
    nodes are rewritten.
    """

    def __init__(self, layout: Layout | None = None) -> None:
        super().__init__(None if layout is None else layout.quantizes)

    def laid_out(self, layout: Layout) -> Layout:
        """Return the layout of the rewritten model."""
        return layout

    def planned(self, plan: Plan) -> Plan:
        """Return the plan of the rewritten model, before the rules of the device."""
        return plan


class RoundLeakySlope(Substitution):
    """LeakyRelu with a slope that is a whole number of 256ths."""

    operators = ("LeakyRelu",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:  # noqa: ARG002
        slope = node.attributes.get_float("alpha", 0.01)
        rounded = round(256 * slope) / 256
        if rounded != slope:
            node.attributes["alpha"] = ir.AttrFloat32("alpha", rounded)
            self.changed(node, f"slope {slope:g} rounded to {rounded:g} ({round(256 * slope)}/256)")
        return None


def harden(node: ir.Node) -> None:
    """Turn a node into the HardSigmoid of the device."""
    node.op_type = "HardSigmoid"
    node.attributes["alpha"] = ir.AttrFloat32("alpha", 1 / 6)
    node.attributes["beta"] = ir.AttrFloat32("beta", 0.5)


class SigmoidToHardSigmoid(Substitution):
    """Sigmoid becomes the piecewise linear one that the device has."""

    operators = ("Sigmoid",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:  # noqa: ARG002
        harden(node)
        self.changed(node, "Sigmoid replaced by HardSigmoid, the only one that the device has")
        return None


class _FactorPass(OperatorPass):
    """Multiply a node's result by a constant; the product takes over the result's name."""

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        factor = self.factor(node)
        if isinstance(factor, str) or factor == 1.0:
            return factor if isinstance(factor, str) else None
        result = node.outputs[0]
        constant = self.initializer(model, node, "device_factor", np.array(factor, np.float32))
        product = ir.node("Mul", [result, constant], name=f"{node.name}/device_factor")
        scaled = product.outputs[0]
        scaled.type, scaled.shape = result.type, result.shape
        result.replace_all_uses_with(scaled, replace_graph_outputs=True)
        # The line above redirected the product's own input too.
        product.replace_input_with(0, result)
        scaled.name, result.name = result.name, self.fresh(model, node, "before_device_factor")
        model.graph.insert_after(node, product)
        self.changed(node, f"result multiplied by {factor:.7g}, as the device computes it")
        return None

    @abstractmethod
    def factor(self, node: ir.Node) -> float | str:
        """Return the factor, or why it is not known."""


class ScaleHardSigmoid(_FactorPass):
    """HardSigmoid with 2731/16384 for 1/6."""

    operators = ("HardSigmoid",)

    def factor(self, node: ir.Node) -> float | str:  # noqa: ARG002
        return HARD_SIGMOID_FACTOR


class ScalePools(_FactorPass):
    """AveragePool and GlobalAveragePool over square windows."""

    operators = ("AveragePool", "GlobalAveragePool")

    def factor(self, node: ir.Node) -> float | str:
        if node.op_type == "AveragePool":
            window = ints_attribute(node, "kernel_shape")
        else:
            shape = static_shape(node.inputs[0])
            window = [side for side in shape[2:] if side is not None] if shape else None
        if window is None or len(window) != 2 or window[0] != window[1]:
            return "its window is not square or not known, so the device's factor is not simulated"
        return window_factor(window[0])


class ScaleReduceMean(_FactorPass):
    """ReduceMean over dimensions of known size."""

    operators = ("ReduceMean",)

    def factor(self, node: ir.Node) -> float | str:
        shape = static_shape(node.inputs[0])
        axes = axes_of(node)
        unknown = shape is None or (input_at(node, 1) is not None and axes is None)
        sizes = [None] if unknown or shape is None else [shape[axis] for axis in axes] if axes else shape
        if any(not size for size in sizes):
            return "the number of elements it averages is not known, so the device's factor is not simulated"
        return reciprocal_factor(math.prod(size for size in sizes if size is not None))


class SaturatingClip(OperatorPass):
    """A Clip from 0 whose upper bound has the largest code becomes a Relu, unless its bounds are among `kept`."""

    operators = ("Clip",)

    def __init__(self, plan: Plan, kept: Collection[tuple[float, float]] = DEVICE_CLIPS) -> None:
        super().__init__(plan.layout.quantizes)
        self._plan, self._kept = plan, kept

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:  # noqa: ARG002
        result, low, high = str(node.outputs[0].name), constant_scalar(node, 1), constant_scalar(node, 2)
        if result not in self._plan.layout.sites or low != 0.0 or high is None or (low, high) in self._kept:
            return None
        params = self._plan.of(result)
        if holds_integers(params) and (params.encode(high) == params.format.high).all():
            cut_inputs(node, 1)
            node.op_type = "Relu"
            self.changed(node, f"Clip at {high:g} became Relu: its codes end at {params.span[1]:g}")
        return None


class ClipToRelu(Substitution):
    """A Clip whose lower bound is 0 loses its upper one."""

    operators = ("Clip",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:  # noqa: ARG002
        low, high = constant_scalar(node, 1), constant_scalar(node, 2)
        if low != 0.0:
            return f"its lower bound is {'none' if low is None else f'{low:g}'}, not 0"
        cut_inputs(node, 1)
        node.op_type = "Relu"
        self.changed(node, "Clip became Relu" if high is None else f"Clip became Relu: {high:g} is no longer a bound")
        return None


class WholeClip(Substitution):
    """A Clip whose bounds are whole numbers of 8 bits."""

    operators = ("Clip",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        if any(input_at(node, index) is not None and constant_scalar(node, index) is None for index in (1, 2)):
            return "one of its bounds is not a constant"
        for index, (role, end) in enumerate((("low", -128.0), ("high", 127.0)), start=1):
            bound = constant_scalar(node, index)
            whole = end if bound is None else min(max(float(np.rint(bound)), -128.0), 127.0)
            if whole != bound:
                set_input(node, index, self.initializer(model, node, role, np.array(whole, np.float32)))
                before = "none" if bound is None else f"{bound:g}"
                self.changed(node, f"its {role} bound, {before}, became {whole:g}")
        return None


_DIVISORS = {"Div": 1, "Reciprocal": 0}


class GuardDivisors(OperatorPass):
    """Put a Max before quantized nodes whose divisor would round to zero. Then `plan` is the plan of the new graph.

    Constants are left alone, and so are divisors that were 0 or below on a sample, or whose smallest value does not
    round to zero.
    """

    operators = tuple(_DIVISORS)

    def __init__(self, plan: Plan, statistics: Mapping[str, TensorStatistics]) -> None:
        super().__init__(plan.layout.quantizes)
        self.plan = plan
        self._statistics = statistics

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
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
        """Return the grid of a divisor that was positive on all samples but may round to zero; None for others."""
        statistics = self._statistics.get(self.plan.layout.leader(name))
        params = self.plan.of(name) if name in self.plan.layout.sites else None
        if params is None or not holds_integers(params) or statistics is None:
            return None
        least = statistics.histogram.minimum
        return params if least > 0 and bool((params.decode(params.encode(least)) <= 0).all()) else None


def _on_one_grid(plan: Plan, divisor: str, guard: ir.Node, least: ir.Value) -> Plan:
    """Return the plan with a Max of the divisor and a constant; the constant and the result get the divisor's grid."""
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
