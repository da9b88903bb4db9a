"""From a float model and a recipe to the emitted model, and what must hold for every one of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from detent.emit import emit
from detent.graph.load import load
from detent.numerics.formats import holds_integers
from detent.numerics.interface import Params
from detent.observe.statistics import TensorStatistics
from detent.plan.layout import Role
from detent.plan.mixed import arrange
from detent.plan.plan import Plan, make_plan, needs_statistics
from detent.plan.select import Selection
from detent.prepare import prepare
from detent.prepare.shapes import InferShapes
from detent.recipe import Recipe
from tests.models import build, count_sample, info, node, normal, values_of


class Emitted(NamedTuple):
    """An emitted model, its plan, and the value that each activation became."""

    proto: onnx.ModelProto
    plan: Plan
    rounded: Mapping[str, str]
    float_proto: onnx.ModelProto


def plan_of(proto: onnx.ModelProto, recipe: Recipe, feeds: Mapping[str, np.ndarray]) -> tuple[ir.Model, Plan]:
    """A plan from one sample, with the formats and overrides of the recipe, before any rule of a target."""
    model = load(proto, recipe.least_opset)
    prepare(model, [InferShapes()])
    layout = arrange(model, Selection(), recipe)
    statistics = {}
    seen = values_of(ir.to_proto(model), [site.value for site in layout.of_role(Role.ACTIVATION)], feeds)
    for site in layout.of_role(Role.ACTIVATION):
        if layout.leader(site.value) == site.value and needs_statistics(layout, site):
            statistics[site.value] = TensorStatistics()
            count_sample(statistics[site.value], seen[site.value])
    return model, make_plan(model, layout, statistics, recipe)


def emitted(proto: onnx.ModelProto, recipe: Recipe, feeds: Mapping[str, np.ndarray]) -> Emitted:
    """The emitted model, checked for what holds for all."""
    model, plan = plan_of(proto, recipe, feeds)
    before = ir.to_proto(model)
    pairs = {"weight_pairs": recipe.weight_pairs, "dedicated_pairs": recipe.dedicated_pairs}
    rounded = emit(model, plan, recipe.format, **pairs)
    result = ir.to_proto(model)
    onnx.checker.check_model(result, full_check=True)
    for ends in ("input", "output"):
        assert [value.name for value in getattr(result.graph, ends)] == [
            value.name for value in getattr(proto.graph, ends)
        ]
        assert [value.type for value in getattr(result.graph, ends)] == [
            value.type for value in getattr(before.graph, ends)
        ]
    names = [one.name for one in result.graph.node]
    assert len(names) == len(set(names))
    assert set(rounded) == {site.value for site in plan.layout.of_role(Role.ACTIVATION)}
    return Emitted(result, plan, rounded, before)


def snapped(params: Params, array: np.ndarray) -> np.ndarray:
    """What a runtime makes of float32 numbers: integers are found by a division of float32 numbers."""
    if not holds_integers(params):
        return params.snap(array)
    scale, zero_point = params.broadcast(array.shape)
    codes = np.rint((array / scale.astype(np.float32)).astype(np.float64)) + zero_point
    signed, bits = params.format.signed, params.format.bits
    low = -(1 << (bits - 1)) if signed else 0  # the whole type: QuantizeLinear knows no other end
    codes = codes.clip(low, params.format.high)
    return ((codes - zero_point) * scale).astype(np.float32)


LAYERS = {
    "Conv": ([node("Conv", "x w b", "y", pads=[1, 1, 1, 1])], {"w": (5, 3, 3, 3), "b": (5,)}, (1, 3, 6, 6)),
    "Gemm": ([node("Gemm", "x w b", "y", transB=1)], {"w": (5, 24), "b": (5,)}, (4, 24)),
    "MatMul": ([node("MatMul", "x w", "y")], {"w": (24, 5)}, (2, 3, 24)),
}


def layer(kind: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A model of one layer, an input for it, and its constants."""
    nodes, shapes, size = LAYERS[kind]
    constants = {
        name: normal(*shape, seed=len(name + kind) + index) for index, (name, shape) in enumerate(shapes.items())
    }
    return build(nodes, "y", constants, inputs=[info("x", size)]), {"x": normal(*size, seed=9)}, constants
