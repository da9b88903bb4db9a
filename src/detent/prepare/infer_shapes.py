"""Shapes and types of all values, as far as ONNX's shape inference finds them.

Only annotations are written, so the function of the model is unchanged. Data propagation follows the integers that
flow through Shape, Gather and Concat, so that a Reshape whose target is computed from known dimensions gets a shape.
"""

from __future__ import annotations

import onnx.shape_inference
import onnx_ir as ir

from detent.graph.light import light_proto
from detent.prepare.base import Pass


class InferShapes(Pass):
    """Write inferred shapes and types on all values.

    Cases:
    - inference as a whole fails (the model contradicts itself): declined with the reason, the model is unchanged;
    - a node's output stays without a shape (an operator that ONNX does not know, a shape that depends on data):
      declined for that node, but not for those behind it, which follow; the others are annotated.
    """

    def run(self, model: ir.Model) -> None:
        """Infer, then note what has no shape."""
        infer_with_notes(self, model)


def infer(model: ir.Model) -> str | None:
    """Infer shapes; returns the reason where inference as a whole failed and nothing was changed."""
    try:
        proto = onnx.shape_inference.infer_shapes(
            light_proto(model), check_type=True, strict_mode=False, data_prop=True
        )
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        return str(error).strip()
    for graph, inferred in zip(model.graphs(), ir.from_proto(proto).graphs(), strict=True):
        known = ir.convenience.create_value_mapping(inferred)
        for name, value in ir.convenience.create_value_mapping(graph).items():
            if name in known and not value.is_initializer():
                value.shape = known[name].shape if known[name].shape is not None else value.shape
                value.type = known[name].type if known[name].type is not None else value.type
    return None


def infer_with_notes(owner: Pass, model: ir.Model) -> None:
    """Infer shapes and write the notes of it into a pass's lists."""
    missing = _without_shape(model.graph)
    reason = infer(model)
    if reason is not None:
        owner.decline("model", f"shape inference failed: {reason}")
    left = _without_shape(model.graph)
    unknown = set(left)
    for value in left:
        node = value.producer()
        if node is not None and unknown.isdisjoint(node.inputs):
            owner.decline(node, f"no shape could be inferred for '{value.name}'")
    if len(left) < len(missing):
        owner.changed("model", f"shapes of {len(missing) - len(left)} values inferred")


def _without_shape(graph: ir.Graph) -> list[ir.Value]:
    return [value for node in graph for value in node.outputs if value.name and value.shape is None]
