"""The configurations that scripts build: Quark's older QuantizationConfig in a Config, its newer QConfig, its presets.

They are plain, mutable records with Quark's names and defaults; `translate` says what they mean. Printing one shows
the recipe that it stands for.

A preset becomes Detent's of that name. Number types, calibration methods and fine-tuning are those of Detent's recipe;
the tables have what Quark adds to these. Its newer constants, such as XINT8_QCONFIG, are not the presets of the
same name: channels are not equalized, activations are signed, calibration differs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

from detent.compat import enums
from detent.compat.algorithms import AdaQuantConfig, AdaRoundConfig, AlgoConfig
from detent.compat.data_types import BLOCKS, SPECS, TYPES, DataType, QLayerConfig, Serializable
from detent.errors import UsageError, check_known
from detent.numerics import BLOCK_FORMATS
from detent.numerics.formats import has_power_of_two_scale, is_integer
from detent.numerics.interface import NumberFormat
from detent.recipe import Recipe
from detent.recipe.recipe import PRESETS


@dataclass
class QuantizationConfig(Serializable):
    """Quark's older configuration."""

    calibrate_method: Any = enums.CalibrationMethod.MinMax
    quant_format: Any = enums.QuantFormat.QDQ
    activation_type: Any = enums.QuantType.QInt8
    weight_type: Any = enums.QuantType.QInt8
    input_nodes: list[str] = field(default_factory=list)
    output_nodes: list[str] = field(default_factory=list)
    op_types_to_quantize: list[str] = field(default_factory=list)
    nodes_to_quantize: list[str] = field(default_factory=list)
    extra_op_types_to_quantize: list[str] = field(default_factory=list)
    nodes_to_exclude: list[str] = field(default_factory=list)
    subgraphs_to_exclude: list[Any] = field(default_factory=list)
    specific_tensor_precision: bool = False
    execution_providers: list[str] = field(default_factory=lambda: ["CPUExecutionProvider"])
    per_channel: bool = False
    reduce_range: bool = False
    optimize_model: bool = True
    use_dynamic_quant: bool = False
    use_external_data_format: bool = False
    convert_fp16_to_fp32: bool = False
    convert_nchw_to_nhwc: bool = False
    include_sq: bool = False
    include_rotation: bool = False
    include_cle: bool = True
    include_auto_mp: bool = False
    include_fast_ft: bool = False
    enable_npu_cnn: bool = False
    enable_npu_transformer: bool = False
    debug_mode: bool = False
    crypto_mode: bool = False
    print_summary: bool = True
    ignore_warnings: bool = True
    log_severity_level: Any = None  # for Quark's own log, which Detent does not have
    extra_options: dict[str, Any] = field(default_factory=dict)
    # What older versions had.
    random_data_reader_input_shape: InitVar[Any] = None
    enable_dpu: InitVar[bool] = False

    def __post_init__(self, random_data_reader_input_shape: Any, enable_dpu: bool) -> None:
        self.enable_npu_cnn = self.enable_npu_cnn or enable_dpu
        if random_data_reader_input_shape:
            self.extra_options = {
                "RandomDataReaderInputShape": random_data_reader_input_shape,
                **(self.extra_options or {}),
            }

    def __str__(self) -> str:
        return _text_of(self, QuantizationConfig())


@dataclass
class Config(Serializable):
    """What ModelQuantizer takes: one configuration for the whole model."""

    global_quant_config: QuantizationConfig

    def __str__(self) -> str:
        return str(self.global_quant_config)


@dataclass(init=False)
class QConfig(Serializable):
    """Quark's newer configuration: specifications for the model, for layers and for operator types."""

    global_config: QLayerConfig
    specific_layer_config: Mapping[QLayerConfig, list[Any]]
    layer_type_config: Mapping[QLayerConfig | None, list[str]]
    exclude: list[Any]
    algo_config: list[AlgoConfig]
    use_external_data_format: bool
    extra_options: dict[str, Any]

    def __init__(
        self,
        global_config: QLayerConfig,
        specific_layer_config: Mapping[Any, list[Any]] | None = None,
        layer_type_config: Mapping[Any, list[str]] | None = None,
        exclude: list[Any] | None = None,
        algo_config: list[AlgoConfig] | None = None,
        use_external_data_format: bool = False,
        extra_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.global_config = global_config
        self.specific_layer_config = _layers(specific_layer_config)
        self.layer_type_config = _layers(layer_type_config)
        self.exclude = exclude or []
        self.algo_config = algo_config or []
        self.use_external_data_format = use_external_data_format
        self.extra_options = {**(extra_options or {}), **options}

    def __str__(self) -> str:
        return _text_of(self, QConfig(None))  # type: ignore[arg-type]  # only to compare with

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> QConfig:
        """Return what `to_dict` has made plain; layers come as pairs of a specification and a list."""
        if "global_config" not in values:
            raise UsageError("The dictionary of a QConfig has no 'global_config'.")

        def layers(key: str) -> dict[Any, list[str]]:
            pairs = values.get(key) or ()
            return {None if layer is None else QLayerConfig.from_dict(layer): list(each) for layer, each in pairs}

        return QConfig(
            QLayerConfig.from_dict(values["global_config"]),
            layers("specific_layer_config"),
            layers("layer_type_config"),
            exclude=list(values.get("exclude") or []),
            algo_config=[AlgoConfig.from_dict(each) for each in values.get("algo_config") or ()],
            use_external_data_format=values.get("use_external_data_format", False),
            extra_options=dict(values.get("extra_options") or {}),
        )

    @staticmethod
    def get_default_config(name: str) -> Config:
        """Return the preset of that name, as an older configuration, which is what Quark returns too."""
        return Config(get_default_config(name))


def _layers(given: Mapping[Any, list[Any]] | None) -> dict[Any, list[Any]]:
    """Return specifications of layers; in older versions a type stands for its own in all that a layer reads."""
    return {_of_type(layer): names for layer, names in (given or {}).items()}


def _of_type(layer: Any) -> Any:
    kind = layer if isinstance(layer, type) else type(layer)
    if not issubclass(kind, DataType):
        return layer
    spec = SPECS[f"{kind.__name__}Spec"]
    return QLayerConfig(input_tensors=spec(), weight=spec(), bias=spec())


AnyConfig = Config | QuantizationConfig | QConfig


def _text_of(config: QuantizationConfig | QConfig, usual: QuantizationConfig | QConfig) -> str:
    """Return the recipe in words, or what is wrong with the configuration, and the fields that are not defaults."""
    from detent.compat.translate import translate

    try:
        meaning = _described(translate(config).recipe)
    except UsageError as error:
        meaning = f"No recipe: {error}"
    given = [f"{name}={value!r}" for name, value in vars(config).items() if value != getattr(usual, name)]
    return f"{meaning}\n{type(config).__name__}({', '.join(given)})"


_SHOWN = ("activations", "weights", "biases", "method", "target", "equalize", "refinement")


def _described(recipe: Recipe) -> str:
    """Show the main fields, and every other one that is not at its default."""
    usual = Recipe(recipe.name, recipe.description)
    lines = [f"Recipe {recipe.name}: {recipe.description}"]
    for name, value in vars(recipe).items():
        if name in _SHOWN or value != getattr(usual, name):
            text = "float" if value is None else str(value)
            if getattr(value, "kind", "") == "integer":
                words = (value.dtype, "symmetric" if value.symmetric else "asymmetric", f"{value.scale} scale")
                text = ", ".join((*words, value.granularity)).replace("_", " ")
            lines.append(f"  {name:12} {text}")
    return "\n".join(lines)


# -- presets -----------------------------------------------------------------------------------------------------------

DEFAULT_ADAROUND_PARAMS: dict[str, Any] = {
    **{"DataSize": 1000, "FixedSeed": 1705472343, "BatchSize": 2, "NumIterations": 1000, "LearningRate": 0.1},
    **{"OptimAlgorithm": "adaround", "OptimDevice": "cpu", "InferDevice": "cpu", "EarlyStop": True},
}
DEFAULT_ADAQUANT_PARAMS = {**DEFAULT_ADAROUND_PARAMS, "LearningRate": 1e-5, "OptimAlgorithm": "adaquant"}
_FINE_TUNING = {"_ADAROUND": DEFAULT_ADAROUND_PARAMS, "_ADAQUANT": DEFAULT_ADAQUANT_PARAMS}

_FORCED = {"ForceQuantizeNoInputCheck": True}
_SYMMETRIC = {"ActivationSymmetric": True}
_ALIGNED = {**_FORCED, "AlignSlice": False, "FoldRelu": True, "AlignConcat": True}
_VINT8 = {
    **dict.fromkeys(("UseRandomData", "ConvertBNToConv", "ConvertClipToRelu", "ConvertSplitToSlice"), True),
    **dict.fromkeys(("ReplaceClip6Relu", "DedicatedQDQPair", "QuantizeAllOpTypes"), True),
    **dict.fromkeys(("ConvertSigmoidToHardSigmoid", "SplitLargeKernelPool", "Int32Bias"), False),
    **dict.fromkeys(("ConvertReduceMeanToGlobalAvgPool", "RemoveQDQConvClip", "RemoveQDQConvPRelu"), False),
    **dict.fromkeys(("RemoveQDQConvRelu", "RemoveQDQConvLeakyRelu"), False),
}


def _mixed(spec: str, **more: Any) -> dict[str, Any]:
    return {"AutoMixprecision": {"TargetLayerConfig": QLayerConfig(SPECS[spec](), SPECS[spec]()), **more}}


_BESIDE_BFLOAT16 = {**_SYMMETRIC, "QuantizeBias": False, "DedicateDQNode": True, "CalibDataSize": 1}
# By preset; the others force quantization, unless their numbers are in blocks or only layers of MatMul are chosen.
_OPTIONS: dict[str, dict[str, Any]] = {
    "XINT8": {**_SYMMETRIC, **_FORCED},
    "VINT8": {**_SYMMETRIC, **_VINT8},
    "S16S8_ASWS": {**_SYMMETRIC, **_FORCED},
    "U8U8_AAWA": {**_FORCED, "ActivationSymmetric": False, "WeightSymmetric": False},
    "A8W8": {**_SYMMETRIC, **_ALIGNED},
    "A16W8": {**_SYMMETRIC, **_ALIGNED, "AlignEltwiseQuantType": True},
    "BF16": {**_FORCED, "QuantizeAllOpTypes": True},
    "BF16_MIXED_BFP16": {**_BESIDE_BFLOAT16, **_mixed("BFP16Spec", DualQuantNodes=True)},
    "BF16_MIXED_MXINT8": {**_BESIDE_BFLOAT16, **_mixed("MXInt8Spec", DualQuantNodes=True)},
    "S16S16_MIXED_S8S8": {
        **_FORCED,
        **{"Int32Bias": False, "Int16Bias": False, "WeightSymmetric": True, "ActivationSymmetric": False},
        **_mixed("Int8Spec"),
    },
}

_SPECIAL: dict[str, dict[str, Any]] = {
    "UINT8_DYNAMIC_QUANT": {"weight_type": enums.QuantType.QUInt8, "use_dynamic_quant": True},
    "MATMUL_NBITS": {
        "extra_options": {
            "UseMatMulNBits": True,
            "MatMulNBitsParams": {"GroupSize": 128, "Symmetric": True, "Bits": 4, "AccuracyLevel": 1},
        }
    },
}


def _type(fmt: NumberFormat) -> tuple[Any, dict[str, Any]]:
    """Return the type that stands for a format, and the options that it needs."""
    if fmt.in_blocks:
        name = next(name for name, known in BLOCK_FORMATS.items() if known == fmt)
        family, attributes = next(row for key, row in BLOCKS.items() if key.upper() == name)
        return enums.ExtendedQuantType[f"Q{family}"], {f"{family}Attributes": attributes}
    name = next(name for name in TYPES if name.lower() == fmt.dtype)
    return (enums.QuantType if fmt.bits == 8 else enums.ExtendedQuantType)[f"Q{name}"], {}


def _fields(name: str, recipe: Recipe) -> dict[str, Any]:
    """Return the fields of a preset's configuration that differ from their defaults."""
    base = name.removesuffix("_ADAROUND").removesuffix("_ADAQUANT")
    if recipe.activations is None or recipe.dynamic:
        return _SPECIAL[base]
    assert recipe.weights is not None
    (activations, first), (weights, second) = _type(recipe.activations), _type(recipe.weights)
    transformer = bool(recipe.operators)
    options = {**_OPTIONS.get(base, {} if first or second or transformer else _FORCED), **first, **second}
    fields: dict[str, Any] = {"activation_type": activations, "weight_type": weights, "extra_options": options}
    method = type(recipe.method).__name__
    # Quark's presets for float scales take the range that was seen, whatever method Detent's recipe prefers.
    observed = recipe.target == "npu-float-scale"
    kinds = enums.PowerOfTwoMethod if has_power_of_two_scale(recipe.activations) else enums.CalibrationMethod
    fields["calibrate_method"] = enums.CalibrationMethod.MinMax if observed else kinds[method]
    if getattr(recipe.method, "percentile", None) == 99.9999:
        options["Percentile"] = 99.9999
    if getattr(recipe.method, "moving_average", False):
        options["CalibMovingAverage"] = True
    eight_bits = all(is_integer(fmt) and fmt.bits == 8 for fmt in (recipe.activations, recipe.weights))
    if observed or not eight_bits:
        fields["quant_format"] = enums.ExtendedQuantFormat.QDQ
    if recipe.refinement is not None and recipe.refinement.learns_weights:
        ending = name.removeprefix(base)
        options["FastFinetune"] = _FINE_TUNING.get(ending, DEFAULT_ADAROUND_PARAMS)
    switches = {
        "enable_npu_cnn": recipe.target == "npu-cnn",
        "enable_npu_transformer": transformer,
        "include_fast_ft": "FastFinetune" in options,
        "include_auto_mp": "AutoMixprecision" in options,
    }
    fields |= {switch: True for switch, on in switches.items() if on}
    return {**fields, "optimize_model": False} if base == "VINT8" else fields


# By preset: the fields of QuantizationConfig that differ from their defaults.
PRESET_FIELDS: dict[str, dict[str, Any]] = {name: _fields(name, recipe) for name, recipe in PRESETS.items()}


def get_default_config_mapping() -> dict[str, QuantizationConfig]:
    """Return all presets by name."""
    return {name: get_default_config(name) for name in PRESET_FIELDS}


def __getattr__(name: str) -> Any:
    if name == "DefaultConfigMapping":  # made anew for each script, which may change what is in it
        return get_default_config_mapping()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def get_default_config(config_name: str) -> QuantizationConfig:
    """Return the preset of that name, with or without `_CONFIG` behind it or `DEFAULT_` before, to change freely."""
    name = config_name.upper().removesuffix("_CONFIG").removeprefix("DEFAULT_")
    check_known("preset", name, PRESET_FIELDS)
    return QuantizationConfig(**copy.deepcopy(PRESET_FIELDS[name]))


_BASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "XINT8": ("XInt8Spec", "XInt8Spec", _FORCED),
    "VINT8": ("XInt8Spec", "XInt8Spec", {"OptimizeModel": False, "EnableNPUCnn": False, **_VINT8}),
    "A8W8": ("Int8Spec", "Int8Spec", _ALIGNED),
    "A16W8": ("Int16Spec", "Int8Spec", {**_ALIGNED, "AlignEltwiseQuantType": True}),
    "BF16": ("BFloat16Spec", "BFloat16Spec", _FORCED),
    "BFP16": ("BFP16Spec", "BFP16Spec", {}),
}
_ALGORITHMS = {"ADAROUND": AdaRoundConfig, "ADAQUANT": AdaQuantConfig}
QCONFIG_NAMES = (
    *(f"{base}_QCONFIG" for base in _BASES),
    *(f"{base}_{algorithm}_QCONFIG" for base in ("XINT8", "A8W8", "A16W8") for algorithm in _ALGORITHMS),
)


_WEIGHTS_ONLY = "XINT8_WEIGHTSONLY_ADAROUND_CONFIG"  # a constant that is not among the presets
CONSTANT_NAMES = (*QCONFIG_NAMES, *(f"{name}_CONFIG" for name in PRESET_FIELDS), _WEIGHTS_ONLY)


def qconfig_constant(name: str) -> QConfig | None:
    """Make the newer constant of that name, such as A8W8_ADAROUND_QCONFIG, if there is one."""
    if name not in QCONFIG_NAMES:
        return None
    base, _, algorithm = name.removesuffix("_QCONFIG").partition("_")
    activation, weight, options = _BASES[base]
    algorithms = [_ALGORITHMS[algorithm]()] if algorithm else []
    return QConfig(
        QLayerConfig(SPECS[activation](), SPECS[weight]()), algo_config=algorithms, extra_options=dict(options)
    )


def any_constant(name: str) -> QConfig | QuantizationConfig | None:
    """Make the constant of that name, such as XINT8_QCONFIG or XINT8_CONFIG, if there is one."""
    if name.endswith("_CONFIG") and name.removesuffix("_CONFIG") in PRESET_FIELDS:
        return get_default_config(name)
    if name == _WEIGHTS_ONLY:
        config = get_default_config("XINT8_ADAROUND")
        config.extra_options["WeightsOnly"] = True
        return config
    return qconfig_constant(name)
