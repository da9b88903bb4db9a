"""Quark's presets, as the configurations that it returns; `translate` turns each into Detent's of that name.

Its newer constants, such as XINT8_QCONFIG, are not the presets of the same name: channels are not equalized,
activations are signed, calibration differs.
"""

from __future__ import annotations

import copy
from typing import Any

from detent.compat.algorithms import AdaQuantConfig, AdaRoundConfig, AlgoConfig
from detent.compat.configs import QConfig, QuantizationConfig
from detent.compat.data_types import (
    BFP16_PARAMS,
    MICROEXPONENTS,
    MICROSCALING,
    BFloat16Spec,
    BFP16Spec,
    Int8Spec,
    Int16Spec,
    MXInt8Spec,
    QLayerConfig,
    XInt8Spec,
)
from detent.compat.enums import CalibrationMethod, ExtendedQuantFormat, ExtendedQuantType, PowerOfTwoMethod, QuantType
from detent.errors import UsageError, nearest

_TUNING: dict[str, Any] = {
    "DataSize": 1000,
    "FixedSeed": 1705472343,
    "BatchSize": 2,
    "NumIterations": 1000,
    "LearningRate": 0.1,
    "OptimAlgorithm": "adaround",
    "OptimDevice": "cpu",
    "InferDevice": "cpu",
    "EarlyStop": True,
}
DEFAULT_ADAROUND_PARAMS: dict[str, Any] = dict(_TUNING)
DEFAULT_ADAQUANT_PARAMS: dict[str, Any] = {**_TUNING, "LearningRate": 1e-5, "OptimAlgorithm": "adaquant"}

_FORCED = {"ForceQuantizeNoInputCheck": True}
_SYMMETRIC = {"ActivationSymmetric": True}
_ALIGNED = {**_SYMMETRIC, **_FORCED, "AlignSlice": False, "FoldRelu": True, "AlignConcat": True}
_SHARP_PERCENTILE = {"Percentile": 99.9999}

_Fields = dict[str, Any]


def _percentile(activations: Any, weights: Any, options: dict[str, Any], extended: bool = False) -> _Fields:
    method = CalibrationMethod.Percentile
    return _fields(method, activations, weights, options, extended)


def _fields(method: Any, activations: Any, weights: Any, options: dict[str, Any], extended: bool = True) -> _Fields:
    chosen: _Fields = {
        "calibrate_method": method,
        "activation_type": activations,
        "weight_type": weights,
        "extra_options": options,
    }
    return {**chosen, "quant_format": ExtendedQuantFormat.QDQ} if extended else chosen


def _block(attributes: str, params: dict[str, Any], activations: Any = None, weights: Any = None) -> _Fields:
    family = ExtendedQuantType.QBFP if attributes == "BFPAttributes" else ExtendedQuantType.QMX
    return _fields(CalibrationMethod.MinMax, activations or family, weights or family, {attributes: params})


def _mixed(target: QLayerConfig) -> _Fields:
    options = {
        **_SYMMETRIC,
        "QuantizeBias": False,
        "DedicateDQNode": True,
        "CalibDataSize": 1,
        "AutoMixprecision": {"TargetLayerConfig": target, "DualQuantNodes": True},
    }
    floating = ExtendedQuantType.QBFloat16
    return {**_fields(CalibrationMethod.MinMax, floating, floating, options), "include_auto_mp": True}


_MINMAX, _PERCENTILE = CalibrationMethod.MinMax, CalibrationMethod.Percentile
_S8, _U8 = QuantType.QInt8, QuantType.QUInt8
_S16, _U16 = ExtendedQuantType.QInt16, ExtendedQuantType.QUInt16
_BF16, _FP16 = ExtendedQuantType.QBFloat16, ExtendedQuantType.QFloat16

_XINT8 = {
    **_fields(PowerOfTwoMethod.MinMSE, _U8, _S8, {**_SYMMETRIC, **_FORCED}, extended=False),
    "enable_npu_cnn": True,
}
_VINT8 = {
    **_fields(
        PowerOfTwoMethod.MinMSE,
        _S8,
        _S8,
        {
            **_SYMMETRIC,
            "UseRandomData": True,
            "ConvertBNToConv": True,
            "ConvertSigmoidToHardSigmoid": False,
            "ConvertClipToRelu": True,
            "ConvertSplitToSlice": True,
            "SplitLargeKernelPool": False,
            "ReplaceClip6Relu": True,
            "ConvertReduceMeanToGlobalAvgPool": False,
            "RemoveQDQConvClip": False,
            "RemoveQDQConvPRelu": False,
            "RemoveQDQConvRelu": False,
            "RemoveQDQConvLeakyRelu": False,
            "Int32Bias": False,
            "DedicatedQDQPair": True,
            "QuantizeAllOpTypes": True,
        },
        extended=False,
    ),
    "optimize_model": False,
}

_PLAIN: dict[str, _Fields] = {
    "UINT8_DYNAMIC_QUANT": {"weight_type": _U8, "use_dynamic_quant": True},
    "XINT8": _XINT8,
    "VINT8": _VINT8,
    "S8S8_AAWS": _percentile(_S8, _S8, {**_SHARP_PERCENTILE, **_FORCED}),
    "U8S8_AAWS": _percentile(_U8, _S8, _FORCED),
    "U8U8_AAWA": _percentile(_U8, _U8, {"ActivationSymmetric": False, **_FORCED, "WeightSymmetric": False}),
    "S16S8_ASWS": _percentile(_S16, _S8, {**_SYMMETRIC, **_FORCED}, extended=True),
    "A8W8": _fields(_MINMAX, _S8, _S8, _ALIGNED),
    "A16W8": _fields(_MINMAX, _S16, _S8, {**_ALIGNED, "AlignEltwiseQuantType": True}),
    "U16S8_AAWS": _percentile(_U16, _S8, _FORCED, extended=True),
    "FP16": _fields(_MINMAX, _FP16, _FP16, _FORCED),
    "BF16": _fields(_MINMAX, _BF16, _BF16, {"QuantizeAllOpTypes": True, **_FORCED}),
    "BFP16": _block("BFPAttributes", BFP16_PARAMS),
    "MX4": _block("BFPAttributes", {**MICROEXPONENTS, "bit_width": 11}),
    "MX6": _block("BFPAttributes", {**MICROEXPONENTS, "bit_width": 13}),
    "MX9": _block("BFPAttributes", {**MICROEXPONENTS, "bit_width": 16}),
    **{
        f"MX{element.upper().replace('_', '')}": _block("MXAttributes", {**MICROSCALING, "element_dtype": element})
        for element in ("fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1", "int8")
    },
    "S16S16_MIXED_S8S8": {
        **_percentile(
            _S16,
            _S16,
            {
                **_SHARP_PERCENTILE,
                "Int32Bias": False,
                "Int16Bias": False,
                "WeightSymmetric": True,
                "ActivationSymmetric": False,
                **_FORCED,
                "AutoMixprecision": {"TargetLayerConfig": QLayerConfig(Int8Spec(), Int8Spec())},
            },
            extended=True,
        ),
        "include_auto_mp": True,
    },
    "BF16_MIXED_BFP16": _mixed(QLayerConfig(BFP16Spec(), BFP16Spec())),
    "BF16_MIXED_MXINT8": _mixed(QLayerConfig(MXInt8Spec(), MXInt8Spec())),
    "BF16_BFP16": _block("BFPAttributes", BFP16_PARAMS, activations=_BF16),
    "BF16_MXINT8": _block("MXAttributes", MICROSCALING, activations=_BF16),
    "MX9_INT8": _block("BFPAttributes", {**MICROEXPONENTS, "bit_width": 16}, weights=_S8),
    "INT8_CNN_DEFAULT": _fields(_MINMAX, _U8, _S8, _FORCED, extended=False),
    "INT16_CNN_DEFAULT": _fields(_MINMAX, _U16, _S16, _FORCED),
    "INT8_TRANSFORMER_DEFAULT": {
        **_fields(_MINMAX, _U8, _S8, {"CalibMovingAverage": True}, extended=False),
        "enable_npu_transformer": True,
    },
    "INT16_TRANSFORMER_DEFAULT": {
        **_fields(_MINMAX, _U16, _S16, {"CalibMovingAverage": True}),
        "enable_npu_transformer": True,
    },
    "MATMUL_NBITS": {
        "extra_options": {
            "UseMatMulNBits": True,
            "MatMulNBitsParams": {"GroupSize": 128, "Symmetric": True, "Bits": 4, "AccuracyLevel": 1},
        }
    },
}


def _tuned(plain: _Fields, params: dict[str, Any]) -> _Fields:
    options = {**plain["extra_options"], "FastFinetune": params}
    return {**plain, "include_fast_ft": True, "extra_options": options}


def _accurate(activations: Any, weights: Any, options: dict[str, Any], extended: bool) -> _Fields:
    chosen = _percentile(activations, weights, {**_SHARP_PERCENTILE, **options}, extended)
    return _tuned(chosen, DEFAULT_ADAROUND_PARAMS)


_ROUNDED = ("XINT8", "S8S8_AAWS", "U8S8_AAWS", "S16S8_ASWS", "A8W8", "A16W8", "U16S8_AAWS")
_LEARNED = (
    *_ROUNDED,
    *("FP16", "BF16", "BFP16", "MX4", "MX6", "MX9", "MXFP8E5M2", "MXFP8E4M3", "MXFP6E3M2", "MXFP6E2M3", "MXFP4E2M1"),
    *("MXINT8", "BF16_MIXED_BFP16", "BF16_MIXED_MXINT8"),
)

PRESET_FIELDS: dict[str, _Fields] = {
    **_PLAIN,
    **{f"{name}_ADAROUND": _tuned(_PLAIN[name], DEFAULT_ADAROUND_PARAMS) for name in _ROUNDED},
    **{f"{name}_ADAQUANT": _tuned(_PLAIN[name], DEFAULT_ADAQUANT_PARAMS) for name in _LEARNED},
    "INT8_CNN_ACCURATE": _accurate(_U8, _S8, _FORCED, extended=False),
    "INT16_CNN_ACCURATE": _accurate(_U16, _S16, _FORCED, extended=True),
    "INT8_TRANSFORMER_ACCURATE": {**_accurate(_U8, _S8, {}, extended=False), "enable_npu_transformer": True},
    "INT16_TRANSFORMER_ACCURATE": {**_accurate(_U16, _S16, {}, extended=True), "enable_npu_transformer": True},
}
"""By preset: the fields of QuantizationConfig that differ from their defaults."""


def get_default_config(config_name: str) -> QuantizationConfig:
    """The preset of that name, with or without `_CONFIG` behind it, to change freely."""
    name = config_name.upper().removesuffix("_CONFIG")
    if name not in PRESET_FIELDS:
        known = ", ".join(sorted(PRESET_FIELDS))
        raise UsageError(f"There is no preset '{config_name}'.{nearest(name, PRESET_FIELDS)} Known: {known}.")
    return QuantizationConfig(**copy.deepcopy(PRESET_FIELDS[name]))


_QALIGNED = {name: value for name, value in _ALIGNED.items() if name != "ActivationSymmetric"}
_VINT8_OPTIONS = {
    "OptimizeModel": False,
    "EnableNPUCnn": False,
    **{name: value for name, value in PRESET_FIELDS["VINT8"]["extra_options"].items() if name != "ActivationSymmetric"},
}

_BASES: dict[str, tuple[QLayerConfig, dict[str, Any]]] = {
    "XINT8": (QLayerConfig(XInt8Spec(), XInt8Spec()), _FORCED),
    "VINT8": (QLayerConfig(XInt8Spec(), XInt8Spec()), _VINT8_OPTIONS),
    "A8W8": (QLayerConfig(Int8Spec(), Int8Spec()), _QALIGNED),
    "A16W8": (QLayerConfig(Int16Spec(), Int8Spec()), {**_QALIGNED, "AlignEltwiseQuantType": True}),
    "BF16": (QLayerConfig(BFloat16Spec(), BFloat16Spec()), _FORCED),
    "BFP16": (QLayerConfig(BFP16Spec(), BFP16Spec()), {}),
}
_ALGORITHMS: dict[str, AlgoConfig] = {"ADAROUND": AdaRoundConfig(), "ADAQUANT": AdaQuantConfig()}


def make_qconfig(constant: str) -> QConfig:
    """A fresh configuration for the constant of that name, such as A8W8_ADAROUND_QCONFIG."""
    base, _, algorithm = constant.removesuffix("_QCONFIG").partition("_")
    layer, options = _BASES[base]
    return QConfig(layer, algo_config=[_ALGORITHMS[algorithm]] if algorithm else [], extra_options=dict(options))


QCONFIG_NAMES = (
    *(f"{base}_QCONFIG" for base in _BASES),
    *(f"{base}_{algorithm}_QCONFIG" for base in ("XINT8", "A8W8", "A16W8") for algorithm in _ALGORITHMS),
)


def qconfig_constant(name: str) -> QConfig | None:
    """Make the newer constant of that name, if there is one."""
    return make_qconfig(name) if name in QCONFIG_NAMES else None


def any_constant(name: str) -> QConfig | QuantizationConfig | None:
    """Make the constant of that name, such as XINT8_QCONFIG or XINT8_CONFIG, if there is one."""
    if name.endswith("_CONFIG") and name.removesuffix("_CONFIG") in PRESET_FIELDS:
        return get_default_config(name)
    return qconfig_constant(name)
