"""What each output format can hold: asked before any work is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from onnx.defs import onnx_opset_version

from detent.errors import UsageError
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import ACCUMULATOR_BITS, IntegerFormat, has_power_of_two_scale
from detent.numerics.interface import NumberFormat
from detent.recipe import OutputFormat, Recipe

ACTIVATION_TYPES = ("int8", "uint8", "int16", "uint16")
WEIGHT_TYPES = (*ACTIVATION_TYPES, "int4", "uint4")
BIAS_TYPES = (*ACTIVATION_TYPES, "int32")
WIDE_TYPES = (*ACTIVATION_TYPES, "int32", "uint32")
FLOAT8_OPSET, BLOCKED_OPSET = 19, 21


def check_formats(recipe: Recipe) -> None:
    """Raise UsageError where a recipe asks for numbers that cannot be written in its output format."""
    for where, role, fmt in _all_formats(recipe):
        if isinstance(fmt, IntegerFormat):
            _check_integers(where, role, fmt)
        reason = _CHECKS[recipe.format](role, fmt)
        if reason is not None:
            raise UsageError(f"{where} are {fmt.label}, and format {recipe.format} {reason}")
        least = _least_opset(fmt)
        if (recipe.opset or 0) < least:
            has = f"are {fmt.granularity}" if isinstance(fmt, IntegerFormat) else f"are {fmt.label}"
            given = "" if recipe.opset is None else f", and opset is {recipe.opset}"
            raise UsageError(f"{where} {has}, which needs opset {least}{given}. Give --opset {least} or newer.")
    _check_opset(recipe)
    _check_products(recipe)
    if recipe.format == "qoperator":
        _check_narrow_biases(recipe)
    if recipe.format == "bfloat16":
        _check_whole(recipe)
    if recipe.dynamic:
        _check_dynamic(recipe)


def _check_whole(recipe: Recipe) -> None:
    """A model that computes in bfloat16 does so everywhere: no part of it is left out, or written otherwise."""
    usual = {"overrides": (), "operators": (), "all_operators": True, "products_of_activations": True}
    for field, plain in {**usual, "weight_pairs": False, "dedicated_pairs": False}.items():
        if getattr(recipe, field) != plain:
            raise UsageError(
                f"Format bfloat16 computes the whole model in bfloat16, and {field} of recipe {recipe.name} is "
                f"{getattr(recipe, field)}. Choose recipe BF16, or format cast."
            )
    for role, fmt in recipe.formats.items():
        if fmt is None:
            raise UsageError(f"Format bfloat16 computes the whole model in bfloat16, and the {role} stay float.")


def _least_opset(fmt: NumberFormat) -> int:
    """The operator set from which there are operators for a format; 0 where any will do."""
    if isinstance(fmt, FloatFormat):
        return FLOAT8_OPSET if fmt.bits == 8 else 0
    return BLOCKED_OPSET if isinstance(fmt, IntegerFormat) and fmt.group_size else 0


def _check_opset(recipe: Recipe) -> None:
    newest = onnx_opset_version()
    if recipe.opset is not None and not 1 <= recipe.opset <= newest:
        raise UsageError(
            f"opset of recipe {recipe.name} is {recipe.opset}, and the installed onnx knows 1 to {newest}. Choose one "
            "of these; without, the model keeps its own (17 at least)."
        )


def _check_products(recipe: Recipe) -> None:
    """A bias that is counted in the unit of its layer's products needs integers on both sides of them."""
    biases, weights = recipe.biases, recipe.weights
    if not isinstance(biases, IntegerFormat) or biases.bits != ACCUMULATOR_BITS:
        return
    counted = (
        f"The biases of recipe {recipe.name} are {biases.dtype}, counted in the unit of the layer's products (input "
        "scale times weight scale)"
    )
    if biases.dtype != "int32" or not biases.symmetric:
        raise UsageError(f"{counted}, around zero: they are symmetric int32. Choose that, or 8 or 16 bits.")
    for role, fmt in (("activations", recipe.activations), ("weights", weights)):
        if not isinstance(fmt, IntegerFormat):
            has = "stay float" if fmt is None else f"are {fmt.label}"
            raise UsageError(f'{counted}, and the {role} {has}: there is no such unit. Say biases = "float", or int8.')
    if isinstance(weights, IntegerFormat) and weights.group_size:
        raise UsageError(
            f"{counted}, and the weights have a scale for each group, {weights.granularity}: there is no one unit. Say "
            'biases = "float", or int8.'
        )


def _all_formats(recipe: Recipe) -> Iterator[tuple[str, str, NumberFormat]]:
    for role, fmt in recipe.formats.items():
        if fmt is not None:
            yield f"The {role} of recipe {recipe.name}", role, fmt
    for override in recipe.overrides:
        given = (("activations", override.activations), ("weights", override.weights), ("biases", override.biases))
        for role, fmt in given:
            if fmt is not None:
                yield f"The {role} of the override of {override.part}", role, fmt


def _check_integers(where: str, role: str, fmt: IntegerFormat) -> None:
    """What holds for integers in every format."""
    if fmt.granularity != "per_tensor" and role != "weights":
        what = "channel" if fmt.per_channel else "group"
        raise UsageError(f"{where} are {fmt.granularity}: only weights have a scale for each output {what}.")
    if fmt.power_of_two and not fmt.symmetric:
        raise UsageError(
            f"{where} have power_of_two scales and symmetric=False: with those the zero point is always the middle "
            "code. Choose one of the two."
        )


def _standard(role: str, fmt: NumberFormat) -> str | None:
    types = {"activations": ACTIVATION_TYPES, "weights": WEIGHT_TYPES, "biases": BIAS_TYPES}[role]
    if isinstance(fmt, IntegerFormat) and fmt.dtype not in types:
        return f"cannot write them as codes. Choose from {', '.join(types)}."
    return None


def _own_domain(role: str, fmt: NumberFormat) -> str | None:  # noqa: ARG001 - the common signature
    if isinstance(fmt, IntegerFormat):
        if fmt.dtype not in WIDE_TYPES:
            return f"has no operator for them. Choose from {', '.join(WIDE_TYPES)}, or format qdq."
        return "has no scales per group. Choose per_channel, or format qdq." if fmt.group_size else None
    if isinstance(fmt, FloatFormat) and fmt.bits == 8:
        return "has no operator for them. Choose bfloat16 or float16, or format qdq."
    if isinstance(fmt, FloatFormat) and fmt.clip:
        return "has no operator that clips them. Say clip = false, or format qdq."
    return None


def _fix_neuron(role: str, fmt: NumberFormat) -> str | None:  # noqa: ARG001 - the common signature
    if not isinstance(fmt, IntegerFormat) or fmt.dtype not in ("int8", "int16") or not fmt.power_of_two:
        return "has int8 or int16 with power-of-two scales only. Choose these, or format qdq."
    return None if fmt.granularity == "per_tensor" else "has one scale for each tensor. Choose per_tensor."


def _floats_only(role: str, fmt: NumberFormat) -> str | None:  # noqa: ARG001 - the common signature
    return None if isinstance(fmt, FloatFormat) else "is for bfloat16, float16 and float8. Choose these, or format qdq."


def _bfloat16_only(role: str, fmt: NumberFormat) -> str | None:  # noqa: ARG001 - the common signature
    plain = FloatFormat("bfloat16")
    return None if fmt == plain else "computes everything in plain bfloat16. Choose recipe BF16, or another format."


def _eight_bits(role: str, fmt: NumberFormat) -> str | None:
    types = ("int32", "int8", "uint8") if role == "biases" else ("int8", "uint8")
    if isinstance(fmt, IntegerFormat) and fmt.dtype in types and not fmt.group_size:
        return None
    return f"has operators for 8 bits only. Choose {' or '.join(types)}, or format qdq."


_CHECKS: Mapping[OutputFormat, Callable[[str, NumberFormat], str | None]] = {
    "qdq": _standard,
    "qoperator": _eight_bits,
    "extended-qdq": _own_domain,
    "vitis-qdq": _own_domain,
    "fix-neuron": _fix_neuron,
    "cast": _floats_only,
    "bfloat16": _bfloat16_only,
}


def _check_narrow_biases(recipe: Recipe) -> None:
    """An 8-bit bias can be counted in the 32-bit unit of its layer only where both are powers of two."""
    biases = recipe.biases
    shifted = all(has_power_of_two_scale(fmt) for fmt in recipe.formats.values())
    if isinstance(biases, IntegerFormat) and biases.dtype != "int32" and not shifted:
        raise UsageError(
            f"The biases of recipe {recipe.name} are {biases.dtype} with a scale of their own, and QLinearConv adds "
            "32-bit counts of input scale times weight scale: only power-of-two scales can be turned into these "
            "exactly. Choose int32 biases, or format qdq."
        )


def _check_dynamic(recipe: Recipe) -> None:
    """Activations that are quantized while the model runs are uint8, and so are the operators that read them."""
    for field, plain in (("format", "qdq"), ("overrides", ()), ("weight_pairs", False), ("dedicated_pairs", False)):
        if getattr(recipe, field) != plain:
            raise UsageError(
                f"Recipe {recipe.name} is dynamic: its operators are integer ones (ConvInteger, MatMulInteger), so it "
                f"takes no {field}. Leave that out, or choose a recipe that is calibrated."
            )
    weights, activations = recipe.weights, recipe.activations
    eight_bits = isinstance(weights, IntegerFormat) and weights.dtype in ("int8", "uint8") and not weights.group_size
    if not eight_bits or activations != IntegerFormat("uint8", symmetric=False):
        raise UsageError(
            f"Recipe {recipe.name} is dynamic: activations are asymmetric uint8 and weights 8-bit integers, per tensor "
            "or per channel; nothing else has operators."
        )
    if isinstance(weights, IntegerFormat) and weights.per_channel and not weights.symmetric:
        raise UsageError(
            f"Recipe {recipe.name} is dynamic with weights per_channel and symmetric=False: onnxruntime's ConvInteger "
            "takes one zero point for the whole weight. Choose symmetric weights, or per_tensor."
        )
    if recipe.refinement is not None:
        raise UsageError(
            f'Recipe {recipe.name} is dynamic, so there is no calibrated model to refine: say refinement = "none".'
        )
