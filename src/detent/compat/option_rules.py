"""The rules of options that take more than a field of the recipe: how a value changes the request.

Every rule takes the request, the option's name and its value. The rows of `table` say which option has which rule.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from detent.compat.auto_mixprecision import MixedSearch, mixed_of
from detent.compat.data_types import block_float, format_of, microscaling
from detent.compat.enums import CalibrationMethod, ExtendedCalibrationMethod, PowerOfTwoMethod
from detent.compat.finetune import gptq_of, refinement_of
from detent.compat.option_kinds import Request, Rule, boolean, names, number, whole, with_setting
from detent.equalizations import CrossLayer
from detent.errors import UsageError, nearest
from detent.methods import Entropy, Method, MinMSE, NonOverflow, Percentile
from detent.numerics.floats import FloatFormat, is_float
from detent.numerics.formats import IntegerFormat, has_power_of_two_scale, is_integer, is_product_bias
from detent.numerics.interface import NumberFormat
from detent.recipe import Override
from detent.recipe.recipe import FUSABLE_ACTIVATIONS
from detent.refinements import BiasCorrection, Gptq

HISTOGRAM_BINS = 1 << 14


# -- numbers ----------------------------------------------------------------------------------------------------------


def symmetric(role: str) -> Rule:
    """Fix the zero point of a role, or let it follow the data."""

    def rule(request: Request, name: str, value: Any) -> Request:
        fmt = request.recipe.formats[role]
        if not is_integer(fmt):
            return request  # floats and blocks are symmetric around zero, whatever is said
        if fmt.power_of_two and not boolean(name, value):
            raise UsageError(f"{name}=False: power-of-two scales have a fixed zero point. Delete it, or give MinMax.")
        return request.with_recipe(**{role: fmt.replace(symmetric=boolean(name, value))})

    return rule


def quantize_bias(request: Request, name: str, value: Any) -> Request:
    """Leave biases float for False."""
    return request if boolean(name, value) else request.with_recipe(biases=None)


def bias_type(dtype: str) -> Rule:
    """Give biases a type; for False the type of the weights, if they have this one."""

    def rule(request: Request, name: str, value: Any) -> Request:
        current, weights = request.recipe.biases, request.recipe.weights
        if current is None:
            return request
        wanted = boolean(name, value)
        if not is_integer(weights):
            if wanted:
                raise UsageError(f"{name}=True: the weights are no integers, and biases have their format. Delete it.")
            return request
        if wanted:
            return request.with_recipe(biases=IntegerFormat(dtype, scale=weights.scale))
        narrow = weights.replace(symmetric=True, granularity="per_tensor")
        same = is_integer(current) and current.dtype == dtype
        return request.with_recipe(biases=narrow) if same else request

    return rule


def int16_scale(request: Request, name: str, value: Any) -> Request:
    """Make the scales of all integers a 16-bit integer over a power of two."""
    if not boolean(name, value):
        return request
    if has_power_of_two_scale(request.recipe.activations):
        raise UsageError(f"{name}=True: the method asks for power-of-two scales. Choose MinMax or Percentile.")
    formats = request.recipe.formats.items()
    return request.with_recipe(**{role: fmt.replace(scale="int16") for role, fmt in formats if is_integer(fmt)})


def power_of_two(request: Request, name: str, value: Any) -> Request:
    """Check what follows from the calibration method."""
    if boolean(name, value) != has_power_of_two_scale(request.recipe.activations):
        raise UsageError(
            f"{name}={value} contradicts calibrate_method, which chooses the scales: PowerOfTwoMethod.MinMSE "
            "for powers of two, CalibrationMethod.MinMax for others."
        )
    return request


def scaled(*roles: str) -> Rule:
    """Give small floats a scale from the data."""

    def rule(request: Request, name: str, value: Any) -> Request:
        wanted, formats = boolean(name, value), request.recipe.formats
        changed = {role: fmt.replace(scaled=wanted) for role in roles if is_float(fmt := formats[role])}
        if wanted and not changed:
            raise UsageError(f"{name}=True is for float16 and bfloat16, and the {roles[0]} are none. Delete it.")
        return request.with_recipe(**changed)

    return rule


# -- the float model --------------------------------------------------------------------------------------------------


def parse_shapes(option: str, text: str) -> dict[str, list[int]]:
    """Read `input:[1,3,224,224];other:[1,4]`."""
    shapes: dict[str, list[int]] = {}
    for part in filter(None, re.split(r";\s*", text.strip())):
        found = re.fullmatch(r"\s*(.+?)\s*:\s*\[([\d\s,]+)\]\s*", part)
        if found is None:
            raise UsageError(f"{option} is {text!r}: expected 'input:[1,3,224,224];other:[1,4]'.")
        shapes[found[1]] = [int(dim) for dim in found[2].split(",") if dim.strip()]
    return shapes


def fix_shapes(request: Request, name: str, value: Any) -> Request:
    """Give dynamic inputs these shapes."""
    return request.replace(fix_shapes=parse_shapes(f"The option {name}", str(value))) if value else request


def opset(request: Request, name: str, value: Any) -> Request:
    """Raise the operator set of the result."""
    if value is None:
        return request
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"The option {name} is {value!r}: it must be a number, such as 17.")
    return request.with_recipe(opset=value)


def channels_last(request: Request, name: str, value: Any) -> Request:
    """Convert the result to channels last."""
    return request.replace(conversions=("nhwc",) if boolean(name, value) else ())


# -- which nodes, and where pairs go ----------------------------------------------------------------------------------


def only_with_weights(request: Request, name: str, value: Any) -> Request:
    """Leave products of two activations float."""
    return request.with_recipe(products_of_activations=not boolean(name, value))


def weights_only(request: Request, name: str, value: Any) -> Request:
    """Leave activations float, and biases that are counted in the unit of products: there is no such unit then."""
    if not boolean(name, value):
        return request
    biases = None if is_product_bias(request.recipe.biases) else request.recipe.biases
    return request.with_recipe(activations=None, biases=biases)


def fused(op_type: str) -> Rule:
    """Let layers compute this activation function before they round, or not."""

    def rule(request: Request, name: str, value: Any) -> Request:
        wanted = set(request.recipe.fuse) - {op_type} | ({op_type} if boolean(name, value) else set())
        return request.with_recipe(fuse=tuple(each for each in FUSABLE_ACTIVATIONS if each in wanted))

    return rule


def between(request: Request, name: str, value: Any) -> Request:
    """Take out the pairs between operators: [("Conv", "Relu"), ("Mul", "Add")]."""
    if not value:
        return request
    pairs = [names(name, pair) for pair in value]
    if any(len(pair) != 2 for pair in pairs):
        raise UsageError(f"The option {name} is {value!r}: expected pairs, such as [('Mul', 'Add')].")
    step = "without-qdq-between:pairs=" + "+".join("/".join(pair) for pair in pairs)
    return request.replace(conversions=(step, *request.conversions))


def between_mul_and_add(request: Request, name: str, value: Any) -> Request:
    """Take out the pairs between Mul and Add."""
    return between(request, name, [("Mul", "Add")]) if boolean(name, value) else request


_OVERRIDE_KEYS = ("quant_type", "symmetric", "rmin", "rmax")


def tensor_overrides(request: Request, name: str, value: Any) -> Request:
    """Add onnxruntime's overrides, {tensor: [{"quant_type": ..., "symmetric": ..., ...}]}."""
    for tensor, entries in (value or {}).items():
        if len(entries) != 1:
            raise UsageError(f"{name} of '{tensor}': one entry for each tensor, not {len(entries)}.")
        entry = entries[0]
        for key in entry:
            if key not in _OVERRIDE_KEYS:
                raise UsageError(
                    f"{name} of '{tensor}' has '{key}'.{nearest(key, _OVERRIDE_KEYS)} Detent knows "
                    f"{', '.join(_OVERRIDE_KEYS)}."
                )
        if ("rmin" in entry) != ("rmax" in entry):
            raise UsageError(f"{name} of '{tensor}' has one of rmin and rmax. Give both.")
        request = request.with_override(_override(request, (tensor,), entry))
    return request


def tensors_by_type(request: Request, name: str, value: Any) -> Request:
    """Add overrides in the older form, {type: [tensor, ...]}."""
    for quant_type, tensors in (value or {}).items():
        part = names(name, tensors)
        request = request.with_override(_override(request, part, {"quant_type": quant_type}))
    return request


def _override(request: Request, tensors: tuple[str, ...], entry: dict[str, Any]) -> Override:
    return Override(
        tensors=tensors,
        activations=_changed(request.recipe.activations, entry),
        weights=_changed(request.recipe.weights, entry),
        range=(float(entry["rmin"]), float(entry["rmax"])) if "rmin" in entry else None,
    )


def _changed(usual: NumberFormat | None, entry: dict[str, Any]) -> NumberFormat | None:
    """Return the format that an entry asks for: what it leaves unsaid is as in the rest of the model."""
    if "quant_type" not in entry and "symmetric" not in entry:
        return None
    symmetric = entry.get("symmetric", is_integer(usual) and usual.symmetric)
    chosen = format_of(entry["quant_type"], symmetric=symmetric) if "quant_type" in entry else usual
    if is_integer(usual) and is_integer(chosen):
        return usual.replace(dtype=chosen.dtype, symmetric=symmetric)
    return chosen


# -- calibration ------------------------------------------------------------------------------------------------------


def percentile(request: Request, name: str, value: Any) -> Request:
    """Set the percentage of Percentile, or of MinMSE among those values."""
    value = number(name, value)
    method = "MinMSE" if getattr(request.recipe.method, "mode", "") == "Percentile" else "Percentile"
    return with_setting(request, name, value, method, percentile=value)


def min_mse_mode(request: Request, name: str, value: Any) -> Request:
    """Set the mode of MinMSE."""
    return with_setting(request, name, value, "MinMSE", mode=value)


def bins(request: Request, name: str, value: Any) -> Request:
    """Set the bins of Entropy; for other methods, check that histograms have as many."""
    if value is None:
        return request
    value = whole(name, value)
    if hasattr(request.recipe.method, "bins"):
        return with_setting(request, name, value, "Entropy", bins=value)
    if value > HISTOGRAM_BINS:
        raise UsageError(f"{name}={value}: histograms have {HISTOGRAM_BINS} bins. Delete the option.")
    return request


def limit(request: Request, name: str, value: Any) -> Request:
    """Limit the samples. Formats without a scale need no calibration; what refines them may see all the data."""
    activations = request.recipe.activations
    calibrated = activations is not None and activations.needs_data
    return request.replace(limit=whole(name, value)) if calibrated and value else request


def range_symmetric(request: Request, name: str, value: Any) -> Request:
    """Check what follows from the format."""
    activations = request.recipe.activations
    if boolean(name, value) != (is_integer(activations) and activations.symmetric):
        raise UsageError(
            f"{name}={value}: ranges are symmetric where the format is. "
            f"Give ActivationSymmetric={value} as well, or delete the option."
        )
    return request


def moving_average(request: Request, name: str, value: Any) -> Request:
    """Take the mean of each sample's range."""
    return with_setting(request, name, value, "MinMax", moving_average=True) if boolean(name, value) else request


_WEIGHT_METHODS: dict[Any, Method | None] = {
    None: None,
    CalibrationMethod.MinMax: None,
    CalibrationMethod.Percentile: Percentile(),
    CalibrationMethod.Entropy: Entropy(),
    ExtendedCalibrationMethod.MinMSE: MinMSE(),
    PowerOfTwoMethod.MinMSE: MinMSE(),
    PowerOfTwoMethod.NonOverflow: NonOverflow(),
}
_WEIGHT_MODES = {"All": "All", "HistCenter": "All", "Percentile": "Percentile"}


def weight_method(request: Request, name: str, value: Any) -> Request:
    """Choose the method for weights."""
    contradicts = isinstance(value, PowerOfTwoMethod) and not has_power_of_two_scale(request.recipe.weights)
    if value not in _WEIGHT_METHODS or contradicts:
        raise UsageError(f"{name}={value!r} is not for weights. Choose MinMax, Percentile, Entropy or MinMSE.")
    return request.with_recipe(weight_method=_WEIGHT_METHODS[value])


def weight_mode(request: Request, name: str, value: Any) -> Request:
    """Set the mode of the weights' MinMSE."""
    if value not in _WEIGHT_MODES:
        raise UsageError(f"{name}={value!r}. Choose from {', '.join(_WEIGHT_MODES)}.")
    if not hasattr(request.recipe.weight_method, "mode"):
        raise UsageError(f"{name} is for WeightCalibrateMethod=MinMSE, which is not asked for.")
    return request.with_recipe(weight_method=MinMSE(_WEIGHT_MODES[value]))  # type: ignore[arg-type]


def worker_threads(request: Request, name: str, value: Any) -> Request:
    """Set the threads, if there are several."""
    count = whole(name, value)
    return request.replace(threads=count) if count > 1 else request


def always_random(request: Request, name: str, value: Any) -> Request:
    """Calibrate with random numbers, whatever data there is."""
    return request.replace(always_random=boolean(name, value))


def random_data(key: str) -> Rule:
    """Set the shapes or ranges of random data."""
    return lambda request, _, value: request.replace(random=dataclasses.replace(request.random, **{key: value or None}))


def statistics_file(request: Request, name: str, value: Any) -> Request:  # noqa: ARG001
    """Keep statistics in a file, and use them again."""
    return request.replace(statistics=Path(value)) if value else request


# -- bfloat16, blocks, language models --------------------------------------------------------------------------------


def _floats_of(request: Request, name: str) -> dict[str, FloatFormat]:
    found = {role: fmt for role, fmt in request.recipe.formats.items() if is_float(fmt)}
    if not found:
        raise UsageError(f"{name}=True is for float16 and bfloat16, and this configuration has neither. Delete it.")
    return found


def clip_floats(request: Request, name: str, value: Any) -> Request:
    """Move numbers past the largest one to it."""
    if not boolean(name, value):
        return request
    return request.with_recipe(**{role: fmt.replace(clip=True) for role, fmt in _floats_of(request, name).items()})


def with_casts(request: Request, name: str, value: Any) -> Request:
    """Write pairs of Cast; for False pairs of custom operators."""
    if boolean(name, value):
        _floats_of(request, name)
        return request.with_recipe(format="cast")
    return request.with_recipe(format="extended-qdq") if request.recipe.format == "cast" else request


def blocks(kind: str) -> Rule:
    """Set sizes and rounding of the blocks of one kind."""
    parse = {"block_float": block_float, "microscaling": microscaling}[kind]

    def rule(request: Request, name: str, value: Any) -> Request:
        chosen = parse(value or {})
        roles = [role for role, fmt in request.recipe.formats.items() if fmt is not None and fmt.kind == kind]
        if not roles:
            raise UsageError(f"{name}: no tensor of this configuration has that format. Delete it.")
        return request.with_recipe(**dict.fromkeys(roles, chosen))

    return rule


_NBITS = {"Algorithm": "DEFAULT", "GroupSize": 128, "Symmetric": True, "Bits": 4, "AccuracyLevel": 0}


def few_bits(request: Request, name: str, value: Any) -> Request:
    """Give weights 4 bits in groups of 128, which MatMulNBitsParams may change."""
    return _in_groups(request, {}) if boolean(name, value) else request


def few_bits_params(request: Request, name: str, value: Any) -> Request:
    """Set size and symmetry of these groups."""
    weights = request.recipe.weights
    if weights is None or not weights.group_size:
        raise UsageError(f"The option {name} has no effect without UseMatMulNBits=True. Give both.")
    return _in_groups(request, value)


def _in_groups(request: Request, value: Any) -> Request:
    unknown = set(value or {}) - set(_NBITS)
    if unknown:
        raise UsageError(f"MatMulNBitsParams has no {', '.join(sorted(unknown))}. It has {', '.join(_NBITS)}.")
    params = {**_NBITS, **(value or {})}
    if params["Algorithm"] != "DEFAULT":
        raise UsageError(f"MatMulNBitsParams: Algorithm {params['Algorithm']!r} is not part of Detent. Delete it.")
    if params["Bits"] != 4:
        raise UsageError(f"MatMulNBitsParams: Bits {params['Bits']}: there are weights of 4 bits. Give 4, or A8W8.")
    if params["AccuracyLevel"] not in (0, 1):
        raise UsageError("MatMulNBitsParams: AccuracyLevel is 0 or 1: activations stay float32. Delete it.")
    dtype, symmetric = ("int4", True) if params["Symmetric"] else ("uint4", False)
    return request.with_recipe(
        activations=None,
        weights=IntegerFormat(dtype, symmetric, granularity=f"per_group:{params['GroupSize']}"),
        biases=None,
        operators=("MatMul", "Gemm"),
        equalize=None,
        refinement=None,
        opset=21,
        products_of_activations=False,
    )


def use_gptq(request: Request, name: str, value: Any) -> Request:
    """Round weights by GPTQ, with its parameters unsaid."""
    return request.with_recipe(**gptq_of({}, request.recipe.weights)) if boolean(name, value) else request


def gptq_params(request: Request, name: str, value: Any) -> Request:
    """Set the parameters of GPTQ."""
    if type(request.recipe.refinement) is not Gptq:
        raise UsageError(f"The option {name} has no effect without UseGPTQ=True. Give both.")
    return request.with_recipe(**gptq_of(value or {}, request.recipe.weights))


# -- accuracy ---------------------------------------------------------------------------------------------------------


def cross_layer(key: str, read: Any = number) -> Rule:
    """Equalize layer by layer, since the script says how; nothing if it does not want channels equalized."""
    return lambda request, name, value: _equalized(request, **{key: read(name, value)})


def cross_layer_threshold(request: Request, name: str, value: Any) -> Request:
    """Equalize layer by layer; for False whatever the weights are."""
    return _equalized(request) if boolean(name, value) else _equalized(request, threshold=0.0)


def _equalized(request: Request, **settings: Any) -> Request:
    present = request.recipe.equalize
    if present is None:
        return request
    pairs = present if type(present) is CrossLayer else CrossLayer()
    return request.with_recipe(equalize=dataclasses.replace(pairs, **settings))


def real(name: str, value: Any) -> float:
    """Return a number as a float."""
    return float(number(name, value))


def smooth_alpha(request: Request, name: str, value: Any) -> Request:
    """Set the alpha of a SmoothQuant that another option has switched on."""
    if request.recipe.smooth is None:
        raise UsageError(f"The option {name}={value!r} has no effect without SmoothQuant=True. Give both.")
    return request.with_recipe(smooth=real(name, value))


def smooth_switch(request: Request, name: str, value: Any) -> Request:
    """Switch SmoothQuant on."""
    return request.with_recipe(smooth=0.5) if boolean(name, value) else request


def bias_correction(request: Request, name: str, value: Any) -> Request:
    """Correct biases unless something else refines the model; for False do not correct them."""
    refinement = request.recipe.refinement
    if boolean(name, value):
        return request if refinement is not None else request.with_recipe(refinement=BiasCorrection())
    learns = refinement is not None and refinement.learns_weights
    return request if learns else request.with_recipe(refinement=None)


def finetune(request: Request, name: str, value: Any) -> Request:
    """Learn weights by AdaRound or AdaQuant."""
    if value and type(request.recipe.refinement) is Gptq:
        raise UsageError(f"UseGPTQ and {name} both choose the weights. Give one of them.")
    return request.with_recipe(refinement=refinement_of(value)) if value else request


def mixed_precision(request: Request, name: str, value: Any) -> Request:  # noqa: ARG001
    """Give layers another format: all of them, or those that a search finds."""
    if not value:
        return request
    mixed = mixed_of(value)
    return request.replace(search=mixed) if isinstance(mixed, MixedSearch) else request.with_override(mixed)


# -- runtime ----------------------------------------------------------------------------------------------------------


def providers(request: Request, name: str, value: Any) -> Request:
    """Choose onnxruntime's providers."""
    return request.replace(providers=names(name, value))


def summary(request: Request, name: str, value: Any) -> Request:
    """Print the report, or not."""
    return request.replace(summary=boolean(name, value))


def device(request: Request, name: str, value: Any) -> Request:
    """Check the value: it was taken for enable_npu_cnn before anything else, because much depends on it."""
    boolean(name, value)
    return request
