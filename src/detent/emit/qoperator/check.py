"""Which recipes have a QOperator form at all: known before any work is done."""

from __future__ import annotations

from detent.errors import UsageError
from detent.recipe import Recipe

CODE_TYPES = ("int8", "uint8")
BIAS_TYPES = ("int32", "int8", "uint8")


def check_qoperator(recipe: Recipe) -> None:
    """Raise UsageError where the integer operators of ONNX and onnxruntime have no such numbers.

    An 8-bit bias with a power-of-two scale can be counted in the 32-bit unit of its layer; see `layers`.
    """
    roles = (
        ("activations", recipe.activations.dtype, CODE_TYPES),
        ("weights", recipe.weights.dtype, CODE_TYPES),
        ("biases", recipe.biases.dtype, BIAS_TYPES),
    )
    for role, dtype, types in roles:
        if dtype not in types:
            raise UsageError(
                f"The {role} of recipe {recipe.name} are {dtype}, and integer operators (QLinearConv and the like) "
                f"take {' and '.join(types)}. Write this recipe as QDQ, or choose other {role}."
            )
    scales = (recipe.activations, recipe.weights, recipe.biases)
    if recipe.biases.dtype != "int32" and not all(fmt.power_of_two for fmt in scales):
        raise UsageError(
            f"The biases of recipe {recipe.name} are {recipe.biases.dtype} with a scale of their own, and QLinearConv "
            "adds 32-bit counts of input scale times weight scale: only power-of-two scales can be turned into these "
            "exactly. Choose int32 biases, or write this recipe as QDQ."
        )
