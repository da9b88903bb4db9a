"""From a configuration of another tool to a Request: first what the fields say, then the extra options in table order.

    scales          PowerOfTwoMethod: powers of two; Int16Method: 16-bit integers over these; all others: any float
    target          power-of-two scales: npu-cnn with enable_npu_cnn, or 8 bits in one of vai_q_onnx's formats, else
                    npu-vaiml;
                    other scales: npu-float-scale with enable_npu_cnn or AlignConcat, else cpu;
                    small floats and blocks: npu-bf16
    biases          npu-cnn: the weights' type with a scale of their own; other integers: 32 bits; floats: as weights
    accuracy        channels are equalized unless include_cle=False, and biases corrected

What has the very values of one of Quark's presets is Detent's preset of that name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from detent.compat.configs import AnyConfig, Config, QConfig, QuantizationConfig
from detent.compat.data_types import format_of, spec_format
from detent.compat.enums import (
    CalibrationMethod,
    ExtendedCalibrationMethod,
    ExtendedQuantFormat,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
    QuantFormat,
    VitisQuantFormat,
)
from detent.compat.newer_config import legacy_of
from detent.compat.option_kinds import Request
from detent.compat.preset_configs import PRESET_FIELDS, get_default_config
from detent.compat.table import apply_options
from detent.devices.catalog import find_device
from detent.equalizations import equalization_of
from detent.errors import UsageError
from detent.methods import Distribution, Entropy, LayerwisePercentile, Method, MinMax, MinMSE, NonOverflow, Percentile
from detent.numerics.formats import IntegerFormat, Scale, is_integer
from detent.numerics.interface import NumberFormat
from detent.recipe import Override, Recipe
from detent.recipe.presets import LAYERS, PRESETS
from detent.recipe.recipe import OutputFormat
from detent.refinements import BiasCorrection

_METHODS: dict[Any, tuple[Method, Scale]] = {
    PowerOfTwoMethod.MinMSE: (MinMSE(), "power_of_two"),
    PowerOfTwoMethod.NonOverflow: (NonOverflow(), "power_of_two"),
    Int16Method.MinMax: (MinMax(), "int16"),
    CalibrationMethod.MinMax: (MinMax(), "float"),
    CalibrationMethod.Percentile: (Percentile(), "float"),
    CalibrationMethod.Entropy: (Entropy(), "float"),
    CalibrationMethod.Distribution: (Distribution(), "float"),
    LayerWiseMethod.LayerWisePercentile: (LayerwisePercentile(), "float"),
    ExtendedCalibrationMethod.MinMSE: (MinMSE(), "float"),
}
_FORMATS: dict[Any, OutputFormat] = {
    QuantFormat.QDQ: "qdq",
    QuantFormat.QOperator: "qoperator",
    ExtendedQuantFormat.QDQ: "qdq",
    ExtendedQuantFormat.QOperator: "qoperator",
    VitisQuantFormat.QDQ: "vitis-qdq",
    VitisQuantFormat.FixNeuron: "fix-neuron",
    VitisQuantFormat.BFPFixNeuron: "extended-qdq",
    VitisQuantFormat.MXFixNeuron: "extended-qdq",
}
_BLOCK_FORMATS = (VitisQuantFormat.BFPFixNeuron, VitisQuantFormat.MXFixNeuron)
_DEVICE_FORMATS = ("vitis-qdq", "fix-neuron")
_REFUSED_FIELDS = {
    "reduce_range": "7-bit weights are for old CPUs. Delete it; sessions can be told to be exact instead",
    "include_rotation": "rotations are for language models. Give include_sq=True: SmoothQuant",
    "debug_mode": "intermediate models are not written. The report says what was done",
    "crypto_mode": "temporary files are not encrypted: point TMPDIR at an encrypted disk. Delete it",
}


_SWITCHES = {
    "FastFinetune": "include_fast_ft",
    "SmoothAlpha": "include_sq",
    "AutoMixprecision": "include_auto_mp",
    "MixedPrecisionTensor": "specific_tensor_precision",
}
"""Parameters, and the field that asks for what they are parameters of."""


def translate(config: AnyConfig) -> Request:
    """What a configuration asks for. Raises UsageError, naming the field or option, for what cannot be had."""
    overrides: tuple[Override, ...] = ()
    biases: NumberFormat | None = None
    if isinstance(config, QConfig):
        biases = spec_format(config.global_config.bias)
        config, overrides = legacy_of(config)
    legacy = config.global_quant_config if isinstance(config, Config) else config
    if not isinstance(legacy, QuantizationConfig):
        raise UsageError(f"Expected a Config or a QConfig, found {type(legacy).__name__}.")
    options = dict(legacy.extra_options or {})
    legacy = dataclasses.replace(legacy, enable_npu_cnn=options.get("EnableNPUCnn", legacy.enable_npu_cnn))
    _refuse(legacy)
    request = _selected(Request(_recipe(legacy, options)), legacy)
    request = apply_options(request, _without_unused(legacy, options))
    if biases is not None:
        request = request.with_recipe(biases=biases)
    if overrides:
        request = request.with_recipe(overrides=(*request.recipe.overrides, *overrides))
    if request.recipe.format == "cast" and any(_has_blocks(override) for override in request.recipe.overrides):
        request = request.with_recipe(format="extended-qdq")
    return request.replace(recipe=_named(request.recipe, legacy))


def _has_blocks(override: Override) -> bool:
    return any(fmt is not None and fmt.in_blocks for fmt in (override.activations, override.weights, override.biases))


def _refuse(config: QuantizationConfig) -> None:
    for name, instead in _REFUSED_FIELDS.items():
        if getattr(config, name):
            raise UsageError(f"{name}=True is not part of Detent: {instead}.")


def _recipe(config: QuantizationConfig, options: Mapping[str, Any]) -> Recipe:
    """What the fields alone say."""
    if config.calibrate_method not in _METHODS:
        listed = ", ".join(repr(known) for known in _METHODS)
        raise UsageError(f"calibrate_method is {config.calibrate_method!r}. Choose from {listed}.")
    if config.quant_format not in _FORMATS:
        raise UsageError(f"quant_format is {config.quant_format!r}. Choose from {', '.join(map(repr, _FORMATS))}.")
    method, scale = _METHODS[config.calibrate_method]
    activations = _activations(config, scale, options)
    weights = _weights(config, scale, options)
    integers = is_integer(activations) and is_integer(weights)
    written = _written(config, activations, weights)
    target = _target(config, options, activations, weights, written)
    return Recipe(
        name="custom",
        description="as the script says",
        activations=activations,
        weights=weights,
        biases=_biases(weights, target, integers),
        method=method if integers or scale != "power_of_two" else MinMax(),
        target=target,
        format=written,
        dynamic=config.use_dynamic_quant,
        equalize=equalization_of(config.include_cle and integers and not config.use_dynamic_quant),
        refinement=None if config.use_dynamic_quant else BiasCorrection(),
        smooth=0.5 if config.include_sq else None,
        operators=_operators(config),
        more_operators=tuple(config.extra_op_types_to_quantize),
        products_of_activations=not (config.enable_npu_transformer or config.use_dynamic_quant),
    )


def _activations(config: QuantizationConfig, scale: Scale, options: Mapping[str, Any]) -> NumberFormat:
    if config.use_dynamic_quant:
        return IntegerFormat("uint8", symmetric=False)
    blocks = _blocks(config.activation_type, options)
    return format_of(config.activation_type, symmetric=scale == "power_of_two", scale=scale, attributes=blocks)


def _blocks(quant_type: Any, options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The attributes that the options have for a type."""
    option = {"QBFP": "BFPAttributes", "QMX": "MXAttributes"}.get(getattr(quant_type, "name", ""))
    return None if option is None else options.get(option)


def _weights(config: QuantizationConfig, scale: Scale, options: Mapping[str, Any]) -> NumberFormat:
    fmt = format_of(config.weight_type, symmetric=True, scale=scale, attributes=_blocks(config.weight_type, options))
    if not is_integer(fmt):
        if config.per_channel:
            raise UsageError(f"per_channel=True: {fmt.label} has no scales. Delete it.")
        return fmt
    symmetric = fmt.signed or fmt.power_of_two or config.use_dynamic_quant
    granularity = "per_channel" if config.per_channel else "per_tensor"
    return fmt.replace(symmetric=symmetric, granularity=granularity)


def _biases(weights: NumberFormat, target: str, integers: bool) -> NumberFormat:
    """In the type of the weights on the CNN device and beside floats, else 32 bits."""
    if not is_integer(weights):
        return weights
    own = target == "npu-cnn" or not integers
    return IntegerFormat(weights.dtype if own else "int32", scale=weights.scale)


def _written(config: QuantizationConfig, activations: NumberFormat, weights: NumberFormat) -> OutputFormat:
    chosen = _FORMATS[config.quant_format]
    kinds = {fmt.kind for fmt in (activations, weights)}
    if config.quant_format in _BLOCK_FORMATS and not any(fmt.in_blocks for fmt in (activations, weights)):
        raise UsageError(f"{config.quant_format!r} is for QBFP and QMX, and this configuration has neither.")
    if chosen != "qdq" or kinds == {"integer"}:
        return chosen
    return "cast" if kinds == {"float"} else "extended-qdq"


def _target(
    config: QuantizationConfig,
    options: Mapping[str, Any],
    activations: NumberFormat,
    weights: NumberFormat,
    written: OutputFormat,
) -> str:
    if not is_integer(activations) or not is_integer(weights):
        if config.enable_npu_cnn:
            raise UsageError("enable_npu_cnn=True is for integers, and this configuration has other types. Delete it.")
        return "npu-bf16"
    if weights.power_of_two:
        return "npu-cnn" if _on_device(config, activations, weights, written) else "npu-vaiml"
    return "npu-float-scale" if config.enable_npu_cnn or options.get("AlignConcat") else "cpu"


def _on_device(
    config: QuantizationConfig, activations: IntegerFormat, weights: IntegerFormat, written: OutputFormat
) -> bool:
    """Whether a model with power-of-two scales is for the device that shifts, which stores few types."""
    device = find_device("npu-xint8")
    stored = activations.dtype in device.types["activations"] and weights.dtype in device.types["weights"]
    if config.enable_npu_cnn and not stored:
        raise UsageError(
            f"enable_npu_cnn=True is for 8 bits, and this configuration has {activations.dtype} activations and "
            f"{weights.dtype} weights. Delete it, or choose {' or '.join(device.types['activations'])} activations and "
            f"{' or '.join(device.types['weights'])} weights."
        )
    return stored and (config.enable_npu_cnn or written in _DEVICE_FORMATS)


def _operators(config: QuantizationConfig) -> tuple[str, ...]:
    if config.op_types_to_quantize:
        return tuple(config.op_types_to_quantize)
    if config.enable_npu_transformer:
        return ("MatMul", "Gemm")
    return (LAYERS[0], *LAYERS[2:]) if config.use_dynamic_quant else ()


def _selected(request: Request, config: QuantizationConfig) -> Request:
    """What the fields say beside the recipe."""
    request = request.replace(
        include=tuple(config.nodes_to_quantize),
        start=tuple(config.input_nodes),
        end=tuple(config.output_nodes),
        exclude=tuple(name for name in config.nodes_to_exclude if not _is_regex(name)),
        patterns=tuple(name for name in config.nodes_to_exclude if _is_regex(name)),
        providers=tuple(config.execution_providers or ()),
        external_data=config.use_external_data_format,
        conversions=("nhwc",) if config.convert_nchw_to_nhwc else (),
        summary=config.print_summary,
    )
    for part in config.subgraphs_to_exclude:
        if isinstance(part, str) or not isinstance(part, Sequence) or len(part) != 2:
            raise UsageError(f"A subgraph to exclude is {part!r}: expected (['first', ...], ['last', ...]).")
        starts, ends = part
        request = request.with_override(Override(between=(_tuple(starts), _tuple(ends)), leave_float=True))
    return request


def _tuple(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _is_regex(name: str) -> bool:
    """How Quark tells them from names, which may hold a dot."""
    if not (name.startswith("^") and ".*" in name):
        return False
    try:
        re.compile(name)
    except re.error as error:
        raise UsageError(f"nodes_to_exclude has '{name}', which is no regular expression: {error}.") from None
    return True


def _without_unused(config: QuantizationConfig, options: dict[str, Any]) -> dict[str, Any]:
    """Parameters of algorithms count only where the algorithm is asked for; asked for without, they have defaults."""
    defaults: dict[str, Any] = {"FastFinetune": {"OptimAlgorithm": "adaround"}, "SmoothAlpha": 0.5}
    for name, field in _SWITCHES.items():
        if getattr(config, field):
            options.setdefault(name, defaults.get(name))
            if not options[name] and name not in defaults:
                raise UsageError(f"{field}=True has no effect without the option {name}. Give both, or neither.")
        elif name in options:
            raise UsageError(f"The option {name} has no effect without {field}=True. Give both, or neither.")
    return options


_BESIDE_THE_RECIPE = (
    *("input_nodes", "output_nodes", "nodes_to_quantize", "nodes_to_exclude", "execution_providers", "print_summary"),
    *("use_external_data_format", "convert_fp16_to_fp32", "convert_nchw_to_nhwc", "ignore_warnings", "optimize_model"),
    "log_severity_level",
)
"""Fields that say nothing about numbers: a preset with one of them changed is still that preset."""


def _named(recipe: Recipe, config: QuantizationConfig) -> Recipe:
    """The preset that has the same values, or the recipe with a description of what it is."""
    for name in PRESET_FIELDS:
        same = {field: getattr(config, field) for field in _BESIDE_THE_RECIPE}
        if config == dataclasses.replace(get_default_config(name), **same):
            return PRESETS[name]
    for preset in PRESETS.values():
        if recipe.replace(name=preset.name, description=preset.description) == preset:
            return preset
    return recipe
