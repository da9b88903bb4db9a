"""Options on which nodes are quantized."""

from __future__ import annotations

from typing import Any

from detent.compat.options.base import Option, boolean, field, honoured, names, refused
from detent.compat.options.overrides import tensors_by_type
from detent.compat.request import Request
from detent.numerics.formats import is_product_bias


def _only_with_weights(request: Request, value: Any) -> Request:
    return request.with_recipe(products_of_activations=not boolean("MatMulConstBOnly", value))


def _weights_only(request: Request, value: Any) -> Request:
    """Biases that are counted in the unit of a layer's products have none without the activations' scales."""
    if not boolean("WeightsOnly", value):
        return request
    biases = None if is_product_bias(request.recipe.biases) else request.recipe.biases
    return request.with_recipe(activations=None, biases=biases)


def _list(name: str, says: str, where: str) -> Option:
    return honoured(
        name,
        f"{says} (`{where}`)",
        lambda request, value: request.replace(**{where: (*getattr(request, where), *names(name, value))}),
    )


OPTIONS: tuple[Option, ...] = (
    field("OpTypesToQuantize", "only these operators are quantized", "operators", names),
    field("ExtraOpTypesToQuantize", "these operators are quantized too", "more_operators", names),
    field("QuantizeAllOpTypes", "every operator with float data is quantized", "all_operators"),
    _list("NodesToQuantize", "only these nodes are quantized", "include"),
    _list("InputNodes", "quantization starts at these nodes", "start"),
    _list("OutputNodes", "quantization ends at these nodes", "end"),
    honoured("WeightsOnly", "activations stay float, and 32-bit biases with them (`activations`)", _weights_only),
    honoured(
        "MatMulConstBOnly", "products of two activations stay float (`products_of_activations`)", _only_with_weights
    ),
    honoured(
        "MixedPrecisionTensor",
        "formats of single tensors (`overrides`), with specific_tensor_precision=True",
        tensors_by_type,
    ),
    refused("SpecificTensorPrecision", "it is a field of the configuration", "Give specific_tensor_precision=True."),
    refused("NodesWithMixedPrecision", "it is Quark's own bookkeeping", "Delete the option."),
)
