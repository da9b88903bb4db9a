"""The inputs of a model, as data must fit them."""

from __future__ import annotations

import onnx_ir as ir

from detent.errors import ModelError
from detent.observe.exporters import declared_images
from detent.observe.preprocess import DeclaredImages, InputSpec


def input_specs(model: ir.Model) -> tuple[InputSpec, ...]:
    """Name, type and shape of every graph input. Raises ModelError for one that is no tensor or has no rank."""
    declared = declared_images(model)
    return tuple(_spec(value, declared) for value in model.graph.inputs)


def _spec(value: ir.Value, declared: DeclaredImages | None) -> InputSpec:
    if value.dtype is None or value.shape is None:
        raise ModelError(
            f"Input '{value.name}' has no tensor type or no shape, so no data can be checked against it. "
            "Export the model with typed inputs."
        )
    shape = tuple(dim if isinstance(dim, int) else None for dim in value.shape)
    return InputSpec(str(value.name), value.dtype.numpy(), shape, declared)
