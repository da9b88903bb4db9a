"""Quark's presets, as the configurations that it returns; `translate` turns each into Detent's of that name.

Number types, calibration methods and fine-tuning are those of Detent's recipe; what Quark says beside these is in the
tables. Its newer constants, such as XINT8_QCONFIG, are not the presets of the same name: channels are not equalized,
activations are signed, calibration differs.
"""

from __future__ import annotations

import copy
from typing import Any

from detent.compat.algorithms import AdaQuantConfig, AdaRoundConfig
from detent.compat.configs import QConfig, QuantizationConfig
from detent.compat.data_types import BLOCKS, SPECS, TYPES, QLayerConfig
from detent.compat.enums import CalibrationMethod, ExtendedQuantFormat, ExtendedQuantType, PowerOfTwoMethod, QuantType
from detent.errors import UsageError, nearest
from detent.numerics.formats import has_power_of_two_scale, is_integer
from detent.numerics.interface import NumberFormat
from detent.numerics.named import BLOCK_FORMATS
from detent.recipe import Recipe
from detent.recipe.presets import PRESETS

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
"""By preset; the others force quantization, unless their numbers are in blocks or only layers of MatMul are chosen."""

_SPECIAL: dict[str, dict[str, Any]] = {
    "UINT8_DYNAMIC_QUANT": {"weight_type": QuantType.QUInt8, "use_dynamic_quant": True},
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
        return ExtendedQuantType[f"Q{family}"], {f"{family}Attributes": attributes}
    name = next(name for name in TYPES if name.lower() == fmt.dtype)
    return (QuantType if fmt.bits == 8 else ExtendedQuantType)[f"Q{name}"], {}


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
    kinds = PowerOfTwoMethod if has_power_of_two_scale(recipe.activations) else CalibrationMethod
    fields["calibrate_method"] = CalibrationMethod.MinMax if observed else kinds[method]
    if getattr(recipe.method, "percentile", None) == 99.9999:
        options["Percentile"] = 99.9999
    if getattr(recipe.method, "moving_average", False):
        options["CalibMovingAverage"] = True
    eight_bits = all(is_integer(fmt) and fmt.bits == 8 for fmt in (recipe.activations, recipe.weights))
    if observed or not eight_bits:
        fields["quant_format"] = ExtendedQuantFormat.QDQ
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


PRESET_FIELDS: dict[str, dict[str, Any]] = {name: _fields(name, recipe) for name, recipe in PRESETS.items()}
"""By preset: the fields of QuantizationConfig that differ from their defaults."""


def get_default_config(config_name: str) -> QuantizationConfig:
    """Return the preset of that name, with or without `_CONFIG` behind it, to change freely."""
    name = config_name.upper().removesuffix("_CONFIG")
    if name not in PRESET_FIELDS:
        known = ", ".join(sorted(PRESET_FIELDS))
        raise UsageError(f"There is no preset '{config_name}'.{nearest(name, PRESET_FIELDS)} Known: {known}.")
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
    return qconfig_constant(name)
