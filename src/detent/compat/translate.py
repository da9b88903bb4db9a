"""From a configuration of another tool to a Request: first what the fields say, then the extra options in table order.

    scales          PowerOfTwoMethod: powers of two; Int16Method: 16-bit integers over these; all others: any float
    target          power-of-two scales: npu-cnn with enable_npu_cnn, or 8 bits in one of vai_q_onnx's formats, else
                    npu-vaiml;
                    other scales: npu-float-scale with enable_npu_cnn or AlignConcat, else cpu;
                    small floats and blocks: npu-bf16
    biases          npu-cnn: the weights' type with a scale of their own; other integers: 32 bits; floats: as weights
    accuracy        channels are equalized unless include_cle=False, and biases corrected

A configuration that equals one of Quark's presets, or asks for the same, becomes Detent's preset of that name, with
Quark's granularity: one scale for each weight, 8 bits for all activations of A8W8.

Quark's newer QConfig is turned into an older configuration first, and its layers into formats of tensors:

    activations MinMax, Percentile, ...     the method; with power-of-two scales MinMax is NonOverflow
    both PowerOf2, of 8 bits                enable_npu_cnn, unless EnableNPUCnn says otherwise; other types: no device
    weight per channel                      per_channel
    weights Percentile                      MinMax: the specifications have it by default, and Quark does not do it
    no CLEConfig in algo_config             no equalization: the newer API does none unless it is asked for
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from detent.compat import enums
from detent.compat.algorithms import AdaQuantConfig, AdaRoundConfig, AlgoConfig
from detent.compat.configs import PRESET_FIELDS, AnyConfig, Config, QConfig, QuantizationConfig, get_default_config
from detent.compat.data_types import SCALES, TYPES, QLayerConfig, QTensorConfig, check_layer, format_of, spec_format
from detent.compat.layer_tensors import LayerFormats, is_regex
from detent.compat.option_rows import ScriptNote, apply_rows, boolean, honoured, names, note, noted
from detent.compat.option_rules import METHODS, SEVEN_BITS, SHIFTED_METHODS, Request, equalized, rotated
from detent.compat.shapeshifter import options_of_passes
from detent.compat.table import OPTIONS, apply_options
from detent.convert.quantizing_nodes import WithoutClippedRelu
from detent.devices.catalog import WHERE_IT_HELPS, find_device
from detent.equalizations import equalization_of
from detent.errors import UsageError
from detent.methods import MinMax
from detent.numerics.floats import is_float
from detent.numerics.formats import IntegerFormat, Scale, has_power_of_two_scale, is_integer
from detent.numerics.interface import NumberFormat
from detent.plan import concats, pools
from detent.prepare import KeepMeanDims
from detent.recipe import Override, Recipe
from detent.recipe.recipe import DYNAMIC_OPERATORS, PRESETS, OutputFormat
from detent.refinements import BiasCorrection, QuickRounding

_FORMATS: dict[Any, OutputFormat] = {
    enums.QuantFormat.QDQ: "qdq",
    enums.QuantFormat.QOperator: "qoperator",
    enums.ExtendedQuantFormat.QDQ: "qdq",
    enums.ExtendedQuantFormat.QOperator: "qoperator",
    enums.VitisQuantFormat.QDQ: "vitis-qdq",
    enums.VitisQuantFormat.FixNeuron: "fix-neuron",
    enums.VitisQuantFormat.BFPFixNeuron: "extended-qdq",
    enums.VitisQuantFormat.MXFixNeuron: "extended-qdq",
}
_SAME_AS_OPTION = {
    **{"nodes_to_quantize": "NodesToQuantize", "input_nodes": "InputNodes", "output_nodes": "OutputNodes"},
    **{"extra_op_types_to_quantize": "ExtraOpTypesToQuantize", "execution_providers": "ExecutionProviders"},
    **{"convert_nchw_to_nhwc": "ConvertNCHWToNHWC", "print_summary": "PrintSummary", "crypto_mode": "CryptoMode"},
    "debug_mode": "DebugMode",
}
_FIELDS = {
    "reduce_range": noted("reduce_range", SEVEN_BITS),
    "include_rotation": honoured("include_rotation", "rotates residual streams (`also`)", rotated, boolean),
    **{field: dataclasses.replace(OPTIONS[option], name=field) for field, option in _SAME_AS_OPTION.items()},
}
# Parameters, the field that asks for what they are parameters of, and their default if there is one.
_SWITCHES: dict[str, tuple[str, Any]] = {
    "FastFinetune": ("include_fast_ft", {"OptimAlgorithm": "adaround"}),
    "SmoothAlpha": ("include_sq", 0.5),
    "AutoMixprecision": ("include_auto_mp", None),
    "MixedPrecisionTensor": ("specific_tensor_precision", None),
}


QUARK_BINS = 2048  # of its calibration histograms
# What Quark quantizes in plain Q/DQ pairs, for no device.
_QDQ_OPERATORS = (
    *("Add", "ArgMax", "AveragePool", "Clip", "Concat", "Conv", "ConvTranspose", "Gather", "Gelu"),
    *("Gemm", "GlobalAveragePool", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "MatMul"),
    *("MaxPool", "Mul", "Pad", "Relu", "Reshape", "Resize", "Sigmoid", "Softmax", "Split", "Squeeze", "Tanh"),
    *("Transpose", "Unsqueeze", "Where"),
)


def translate(config: AnyConfig, *, as_quark: bool = False) -> Request:
    """Return what a configuration asks for. Raise UsageError, naming the field or option, for what Detent cannot do.

    With `as_quark` it is what Quark does with it, without accuracy steps of Detent's own.
    """
    request, older, options = _asked(config)
    if as_quark:
        # onnxruntime's quantizer, which Quark builds on, takes a Relu out where codes begin at zero.
        relu = () if options.get("QDQKeepRemovableActivations") else (WithoutClippedRelu(),)
        conversions = (*request.conversions, *relu)
        percentile = getattr(request.recipe.method, "percentile", None)
        counts = older.calibrate_method == enums.CalibrationMethod.Percentile and request.is_calibrated
        if counts and percentile is not None and options.get("CalibTensorRangeSymmetric") is not False:
            request = request.replace(counted=(int(options.get("NumBins") or QUARK_BINS), percentile))
        recipe = _as_quark(request.recipe, options)
        on_cpu = older.quant_format == enums.QuantFormat.QDQ and not (older.enable_npu_cnn or recipe.operators)
        if on_cpu and not (recipe.all_operators or recipe.dynamic):
            recipe = recipe.replace(operators=_QDQ_OPERATORS)
        return request.replace(recipe=recipe, postprocessing="keep", conversions=conversions)
    return request.replace(recipe=_named(request, older))


def _asked(config: AnyConfig) -> tuple[Request, QuantizationConfig, dict[str, Any]]:
    """Return the request of a configuration, with its older form and its extra options."""
    layers: tuple[Override | LayerFormats, ...] = ()
    biases: NumberFormat | None = None
    if isinstance(config, QConfig):
        biases = spec_format(config.global_config.bias)
        config, layers = _older(config)
    older = config.global_quant_config if isinstance(config, Config) else config
    if not isinstance(older, QuantizationConfig):
        raise UsageError(f"Expected a Config or a QConfig, found {type(older).__name__}.")
    older = _with_block_types(older)
    options = _with_passes(dict(older.extra_options or {}))
    older = dataclasses.replace(older, enable_npu_cnn=options.get("EnableNPUCnn", older.enable_npu_cnn))
    request = apply_rows(_FIELDS, Request(_recipe(older, options)), {name: getattr(older, name) for name in _FIELDS})
    request = apply_options(_excluded(request, older), _without_unused(older, options))
    if biases is not None:
        request = request.with_recipe(biases=biases)
    excluded = tuple(each for each in layers if isinstance(each, Override))
    request = request.with_recipe(overrides=(*request.recipe.overrides, *excluded))
    request = request.replace(layers=(*request.layers, *(each for each in layers if not isinstance(each, Override))))
    request = request.with_recipe(format=_with_layers(request))
    if request.recipe.activations is None and not has_power_of_two_scale(request.recipe.weights):
        request = request.with_recipe(method=MinMax())  # the given one is for activations
    return request.with_recipe(opset=_sufficient_opset(request.recipe)), older, options


def _with_layers(request: Request) -> OutputFormat:
    """Return a format that writes what single layers have, too: Casts hold no integers and no blocks."""
    usual = request.recipe.format
    formats = [fmt for each in request.recipe.overrides for fmt in each.formats.values()]
    formats += [fmt for each in request.layers for fmt in each.every_format]
    if usual in ("cast", "extended-qdq") and any(is_integer(fmt) for fmt in formats):
        return "qdq"
    return "extended-qdq" if usual == "cast" and any(fmt.in_blocks for fmt in formats) else usual


def _sufficient_opset(recipe: Recipe) -> int | None:
    """Return an opset that has the types of the recipe: the other tools raise it by themselves, too."""
    needed = [fmt.least_opset for fmt in recipe.formats.values() if fmt is not None and not fmt.has_twin]
    least = max(needed, default=0)
    return max(least, recipe.opset or 0) if least > (recipe.opset or 0) else recipe.opset


def _as_quark(recipe: Recipe, options: Mapping[str, Any]) -> Recipe:
    """Return the recipe whose numbers are Quark's: equalized pair by pair, biases as they are, outputs clipped too.

    Numbers in blocks are rounded between a layer and its activation function as well, and small floats are written in
    Quark's own operators.
    """
    refinement = recipe.refinement
    if refinement is not None and not refinement.learns_weights:  # that of Detent's own recipes
        refinement = BiasCorrection() if options.get("BiasCorrection") else None
    blocks = recipe.activations is not None and recipe.activations.in_blocks
    cast = recipe.format == "cast" and not options.get("BF16QDQToCast")
    return recipe.replace(
        format="extended-qdq" if cast else recipe.format,
        equalize=None if recipe.equalize is None else equalized(Request(recipe), through_pools=False).recipe.equalize,
        weight_pairs=recipe.weight_pairs or cast,
        refinement=refinement,
        clip_outputs=True,
        # Quark leaves a mean with keepdims=0 and HardSwish, quantizes every Concat, has one HardSigmoid for a SiLU, and
        # the coarser position of two at a pool.
        without=tuple(dict.fromkeys((*recipe.without, KeepMeanDims.step(), concats.STEP, pools.STEP, *WHERE_IT_HELPS))),
        fuse=() if blocks else recipe.fuse,
    )


_BLOCK_TYPES = {
    enums.VitisQuantFormat.BFPFixNeuron: enums.ExtendedQuantType.QBFP,
    enums.VitisQuantFormat.MXFixNeuron: enums.ExtendedQuantType.QMX,
}


def _with_block_types(config: QuantizationConfig) -> QuantizationConfig:
    """Give a format for blocks the types that it holds: vai_q_onnx ignores the types given beside it."""
    kind = _BLOCK_TYPES.get(config.quant_format)
    if kind is None or kind in (config.activation_type, config.weight_type):
        return config
    note(f"quant_format {config.quant_format!r}: activations and weights are {kind}, whatever their types say.")
    return dataclasses.replace(
        config, activation_type=kind, weight_type=kind, calibrate_method=enums.CalibrationMethod.MinMax
    )


def _with_passes(options: dict[str, Any]) -> dict[str, Any]:
    """Add what a file of passes asks for; options that are given win."""
    spec = options.get("ShapeShifterYaml") or options.get("PreprocessYAML")
    return {**options_of_passes(str(spec)), **options} if spec else options


def _recipe(config: QuantizationConfig, options: Mapping[str, Any]) -> Recipe:
    """Return the recipe that the fields ask for, without the extra options."""
    methods = {**METHODS, **SHIFTED_METHODS}
    for field, known, accepted in (
        ("calibrate_method", METHODS, methods),
        ("quant_format", _FORMATS, _FORMATS),
    ):
        if getattr(config, field) not in accepted:
            raise UsageError(f"{field} is {getattr(config, field)!r}. Choose from {', '.join(map(repr, known))}.")
    dynamic = config.use_dynamic_quant
    method, scale = methods[config.calibrate_method]
    activations: NumberFormat = IntegerFormat("uint8", symmetric=False)  # the only type that dynamic operators take
    if not dynamic:
        activations = format_of(config.activation_type, symmetric=scale == "power_of_two", scale=scale)
    weights = _weights(config, scale)
    if config.calibrate_method == enums.CalibrationMethod.Distribution:  # it chooses the scales of float8 types
        activations, weights = (fmt.replace(scaled=True) if is_float(fmt) else fmt for fmt in (activations, weights))
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
        dynamic=dynamic,
        equalize=equalization_of(config.include_cle and integers and not dynamic),
        refinement=None if dynamic else QuickRounding() if is_integer(weights) else BiasCorrection(),
        smooth=0.5 if config.include_sq else None,
        operators=_operators(config),
        products_of_activations=not (config.enable_npu_transformer or dynamic),
    )


def _weights(config: QuantizationConfig, scale: Scale) -> NumberFormat:
    fmt = format_of(config.weight_type, symmetric=True, scale=scale)
    if not is_integer(fmt):
        if config.per_channel:
            note(f"per_channel=True: {fmt.label} has no scales.")
        return fmt
    symmetric = fmt.signed or fmt.power_of_two or config.use_dynamic_quant
    granularity = "per_channel" if config.per_channel else "per_tensor"
    return fmt.replace(symmetric=symmetric, granularity=granularity)


def _biases(weights: NumberFormat, target: str, integers: bool) -> NumberFormat:
    """Return the type of the weights on the CNN device and beside floats, else 32 bits."""
    if not is_integer(weights):
        return weights
    own = target == "npu-cnn" or not integers
    return IntegerFormat(weights.dtype if own else "int32", scale=weights.scale)


def _written(config: QuantizationConfig, activations: NumberFormat, weights: NumberFormat) -> OutputFormat:
    chosen = _FORMATS[config.quant_format]
    kinds = {fmt.kind for fmt in (activations, weights)}
    if chosen == "extended-qdq" and not any(fmt.in_blocks for fmt in (activations, weights)):
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
            note("enable_npu_cnn=True is for integers, and this configuration has other types: it has no effect.")
        return "npu-bf16"
    if not weights.power_of_two:
        return "npu-float-scale" if config.enable_npu_cnn or options.get("AlignConcat") else "cpu"
    # The device that shifts stores few types.
    stored = find_device("npu-xint8").types
    fits = activations.dtype in stored["activations"] and weights.dtype in stored["weights"]
    if config.enable_npu_cnn and not fits:
        note(
            f"enable_npu_cnn=True is for 8 bits, and this configuration has {activations.dtype} activations and "
            f"{weights.dtype} weights: the rules of that device are left out."
        )
    return "npu-cnn" if fits and (config.enable_npu_cnn or written in ("vitis-qdq", "fix-neuron")) else "npu-vaiml"


def _operators(config: QuantizationConfig) -> tuple[str, ...]:
    if given := _names(config, "op_types_to_quantize"):
        return given
    if config.enable_npu_transformer:
        return ("MatMul", "Gemm")
    return DYNAMIC_OPERATORS if config.use_dynamic_quant else ()


def _names(config: QuantizationConfig, field: str) -> tuple[str, ...]:
    """Return a field that lists names; a single text would be a list of its letters."""
    try:
        return names(getattr(config, field))
    except UsageError as error:
        raise UsageError(f"{field}={getattr(config, field)!r}: {error}") from None


def _excluded(request: Request, config: QuantizationConfig) -> Request:
    """Return the request with the nodes that stay float."""
    given = _names(config, "nodes_to_exclude")
    patterns = tuple(name for name in given if is_regex(name))
    exclude = tuple(name for name in given if name not in patterns)
    request = request.replace(exclude=exclude, patterns=patterns, external_data=config.use_external_data_format)
    for part in config.subgraphs_to_exclude or ():
        request = request.with_override(Override(between=_ends(part, "to exclude"), leave_float=True))
    return request


def _ends(part: Any, why: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the nodes that a part of the model begins and ends with."""
    if isinstance(part, str) or not isinstance(part, Sequence) or len(part) != 2:
        raise UsageError(f"A subgraph {why} is {part!r}: expected (['first', ...], ['last', ...]).")
    starts, ends = ((side,) if isinstance(side, str) else tuple(side) for side in part)
    return starts, ends


def _without_unused(config: QuantizationConfig, options: dict[str, Any]) -> dict[str, Any]:
    """Leave out parameters without their switch, with a note; a switch needs parameters unless it has defaults."""
    for name, (field, default) in _SWITCHES.items():
        if getattr(config, field):
            options.setdefault(name, default)
            if not options[name] and default is None:
                raise UsageError(f"{field}=True has no effect without the option {name}. Give both, or neither.")
        elif options.get(name):
            note(f"The option {name} has no effect without {field}=True.")
    return {
        name: value for name, value in options.items() if name not in _SWITCHES or getattr(config, _SWITCHES[name][0])
    }


# Fields that say nothing about numbers: a preset with one of them changed is still that preset.
_BESIDE_THE_RECIPE = (
    *("input_nodes", "output_nodes", "nodes_to_quantize", "nodes_to_exclude", "execution_providers", "print_summary"),
    *("use_external_data_format", "convert_fp16_to_fp32", "convert_nchw_to_nhwc", "ignore_warnings", "optimize_model"),
    "log_severity_level",
)


def _named(request: Request, config: QuantizationConfig) -> Recipe:
    """Return the preset that has the same values or asks for the same, or else the recipe."""
    recipe = request.recipe
    # By Quark's values first: fields that say nothing about numbers may make another recipe than the preset's.
    same = {field: getattr(config, field) for field in _BESIDE_THE_RECIPE}
    for name in PRESET_FIELDS:
        if config == dataclasses.replace(get_default_config(name), **same):
            preset = as_quark_writes(PRESETS[name])
            return preset.replace(overrides=()) if request.layers else preset  # which they are, of tensors
    # An option that changes nothing, or single layers, do not make another method of A8W8.
    for name in PRESET_FIELDS if request.search is None else ():
        spelled = _spelled(name) if _is_made_from(config, name) else None
        if spelled is not None and recipe.replace(overrides=(), opset=spelled.opset) == spelled:
            preset = as_quark_writes(PRESETS[name])
            return preset.replace(overrides=recipe.overrides, opset=recipe.opset or preset.opset)
    for preset in PRESETS.values():
        for form in (preset, as_quark_writes(preset)):
            if recipe.replace(name=preset.name, description=preset.description) == form:
                return form
    return recipe


def _is_made_from(config: QuantizationConfig, name: str) -> bool:
    """Return whether all that a preset says is still in a configuration: one that says MinMax itself keeps it."""
    fields = dict(PRESET_FIELDS[name])
    options = fields.pop("extra_options", {})
    unchanged = all(getattr(config, field) == value for field, value in fields.items())
    return unchanged and options.items() <= (config.extra_options or {}).items()


@cache
def _spelled(name: str) -> Recipe | None:
    """Return the recipe that a preset's own fields translate to; None if layers are searched for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScriptNote)
        request = _asked(get_default_config(name))[0]
    return None if request.search is not None else request.recipe


def as_quark_writes(preset: Recipe) -> Recipe:
    """Return a preset with the layout of tensors that Quark's own of that name has: what a script was tried with.

    There a weight has one scale unless per_channel is asked for, no activation gets more bits, and nothing is smoothed
    unless include_sq is.
    """
    weights = preset.weights
    if is_integer(weights) and weights.per_channel:
        weights = weights.replace(granularity="per_tensor")
    return preset.replace(weights=weights, smooth=None, widen=None)


# -- the newer configuration -------------------------------------------------------------------------------------------

_SPEC_METHODS: dict[Any, dict[Any, Any]] = {
    enums.ScaleType.Float32: {
        **{enums.CalibMethod[member.name]: member for member in enums.CalibrationMethod},
        enums.CalibMethod.LayerwisePercentile: enums.LayerWiseMethod.LayerWisePercentile,
        enums.CalibMethod.MinMSE: enums.ExtendedCalibrationMethod.MinMSE,
    },
    enums.ScaleType.PowerOf2: {
        enums.CalibMethod.MinMax: enums.PowerOfTwoMethod.NonOverflow,
        enums.CalibMethod.MinMSE: enums.PowerOfTwoMethod.MinMSE,
        **{method: (scale, method) for scale, method in SHIFTED_METHODS},
    },
    enums.ScaleType.Int16: {enums.CalibMethod.MinMax: enums.Int16Method.MinMax},
}


def _older(config: QConfig) -> tuple[QuantizationConfig, tuple[Override | LayerFormats, ...]]:
    """Return the older configuration, and what layers and operator types have: overrides if they stay float."""
    inputs, weight = config.global_config.inputs, config.global_config.weight
    if inputs is None or weight is None:
        raise UsageError("global_config needs both input_tensors (or activation) and weight.")
    check_layer(config.global_config)
    if config.global_config.output_tensors not in (None, inputs):
        note("output_tensors of global_config: the input_tensors of the layers that read a tensor decide, as in Quark.")
    if type(_method(inputs)) is tuple and is_integer(spec_format(inputs)):
        note(
            f"calibration_method {inputs.calibration_method} with scale_type PowerOf2: its ranges, with scales that "
            "are powers of two. Quark writes other scales then, which the device does not take."
        )
    algorithms = _options_of(config.algo_config)
    if inputs.scale_type != weight.scale_type and is_integer(spec_format(weight)):
        note(
            f"scale_type {weight.scale_type} of weights: they have scales as the method of activations chooses, "
            f"{inputs.scale_type}, as in Quark."
        )
    eight_bits = (TYPES["Int8"], TYPES["UInt8"])
    plain = inputs.kind in eight_bits and weight.kind in eight_bits
    shifted = {inputs.scale_type, weight.scale_type} == {enums.ScaleType.PowerOf2}
    device = plain and weight.kind is TYPES["Int8"] and shifted
    layers = [each for each in (*config.layer_type_config, *config.specific_layer_config) if each is not None]
    others = [spec for each in layers for spec in each.roles.values() if spec is not None]
    device = device and all(spec.kind in eight_bits for spec in others)
    given: Any = config.exclude
    if isinstance(given, str):
        raise UsageError(f"exclude={given!r}: it must be a list of names and subgraphs.")
    parts = [each for each in given if not isinstance(each, str)]
    older = QuantizationConfig(
        calibrate_method=_method(_calibrating(config, "activations")),
        quant_format=enums.QuantFormat.QDQ if plain else enums.ExtendedQuantFormat.QDQ,
        activation_type=inputs.data_type,
        weight_type=weight.data_type,
        nodes_to_exclude=[each for each in given if isinstance(each, str)],
        subgraphs_to_exclude=[pair for part in parts for pair in ([part] if _is_pair(part) else part)],
        per_channel=weight.quant_granularity == enums.QuantGranularity.Channel,
        use_external_data_format=config.use_external_data_format,
        include_cle="CLESteps" in algorithms,
        include_sq="SmoothAlpha" in algorithms,
        include_rotation="RMatrixDim" in algorithms,
        include_fast_ft="FastFinetune" in algorithms,
        include_auto_mp="AutoMixprecision" in algorithms,
        enable_npu_cnn=config.extra_options.get("EnableNPUCnn", device),
        extra_options={**_spec_options(config, inputs, weight), **algorithms, **config.extra_options},
    )
    scale = SCALES[inputs.scale_type]
    by_type = [(layer, {"op_types": tuple(types)}) for layer, types in config.layer_type_config.items()]
    by_name = [(layer, part) for layer, names in config.specific_layer_config.items() for part in _parts(names)]
    return older, tuple(_layer(layer, scale, **part) for layer, part in (*by_type, *by_name))


def _parts(names: Sequence[Any]) -> list[dict[str, Any]]:
    """Return what a list of names and of parts of the model names: nodes, and what lies between nodes."""
    single = tuple(each for each in names if isinstance(each, str))
    between = [_ends(each, "with formats of its own") for each in names if not isinstance(each, str)]
    return [*([{"nodes": single}] if single else []), *({"between": each} for each in between)]


def _is_pair(part: Any) -> bool:
    """Return whether this is one pair of lists of names, as a tuple or read from a file, and not a list of pairs."""
    of_names = isinstance(part, list) and all(isinstance(name, str) for side in part for name in side)
    return not isinstance(part, list) or of_names


def _method(spec: QTensorConfig) -> Any:
    methods = _SPEC_METHODS[spec.scale_type]
    if spec.calibration_method not in methods:
        raise UsageError(
            f"calibration_method {spec.calibration_method} is not for {spec.scale_type} scales. "
            f"Choose from {', '.join(map(str, methods))}."
        )
    return methods[spec.calibration_method]


def _spec_options(config: QConfig, inputs: QTensorConfig, weight: QTensorConfig) -> dict[str, Any]:
    """Return what the specifications say that the older configuration has as options."""
    options: dict[str, Any] = {"ActivationSymmetric": inputs.symmetric, "WeightSymmetric": weight.symmetric}
    shifted = inputs.scale_type == enums.ScaleType.PowerOf2
    follows = inputs.calibration_method if shifted else enums.CalibMethod.MinMax
    usual = (follows, enums.CalibMethod.Percentile)  # which the specifications have by default
    calibrated = dataclasses.replace(_calibrating(config, "weights"), scale_type=inputs.scale_type)
    if calibrated.calibration_method not in usual:
        options["WeightCalibrateMethod"] = _method(calibrated)
    return options


def _options_of(algorithms: Sequence[AlgoConfig]) -> dict[str, Any]:
    for each in algorithms:
        if not isinstance(each, AlgoConfig):
            raise UsageError(f"algo_config lists {each!r}: give configurations, such as AdaRoundConfig().")
    tuning = [each for each in algorithms if isinstance(each, (AdaRoundConfig, AdaQuantConfig))]
    if len(tuning) > 1:
        raise UsageError("algo_config lists both AdaRoundConfig and AdaQuantConfig: a layer learns by one. Choose one.")
    options: dict[str, Any] = {}
    for each in algorithms:
        options.update(each.options())
    return options


def _layer(layer: QLayerConfig | None, scale: Scale, **part: Any) -> Override | LayerFormats:
    """Return what a layer is given; its integers have scales like those of the model, whose method chooses them."""
    named = Override(leave_float=True, optional=True, **part)
    if layer is None:
        return named
    check_layer(layer)
    specs = {**layer.roles, "written": layer.output_tensors}
    formats = {role: fmt for role, spec in specs.items() if (fmt := spec_format(spec)) is not None}
    formats |= {role: fmt.replace(scale=scale) for role, fmt in formats.items() if is_integer(fmt)}
    written = formats.pop("written", None)
    return LayerFormats(named, formats, written)


def _calibrating(config: QConfig, role: str) -> QTensorConfig:
    """Return the specification whose method calibrates: that of the model, or of layers if only they are integers."""
    layers = [config.global_config, *config.specific_layer_config, *config.layer_type_config]
    specs = [spec for layer in layers if layer is not None and (spec := layer.roles[role]) is not None]
    integers = [spec for spec in specs if is_integer(spec_format(spec))]
    for spec in integers:
        if spec.calibration_method != integers[0].calibration_method:
            note(
                f"calibration_method {spec.calibration_method} of a layer: {integers[0].calibration_method} calibrates "
                "the whole model."
            )
    return (integers or specs)[0]
