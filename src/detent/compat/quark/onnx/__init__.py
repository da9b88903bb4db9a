"""What `quark.onnx` exports."""

from __future__ import annotations

from typing import Any

from detent.compat.algorithms import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    AutoMixprecisionConfig,
    BiasCorrectionConfig,
    CLEConfig,
    GPTQConfig,
    QuarotConfig,
    SmoothQuantConfig,
)
from detent.compat.configs import Config, QConfig, QuantizationConfig
from detent.compat.data_types import (
    BFP16,
    MX4,
    MX6,
    MX9,
    MXFP4E2M1,
    MXFP6E2M3,
    MXFP6E3M2,
    MXFP8E4M3,
    MXFP8E5M2,
    BFloat16,
    DataType,
    Float16,
    Int8,
    Int16,
    Int32,
    MXInt8,
    UInt8,
    UInt16,
    UInt32,
)
from detent.compat.dump import dump_model
from detent.compat.enums import (
    CalibMethod,
    CalibrationMethod,
    ExtendedCalibrationMethod,
    ExtendedQuantFormat,
    ExtendedQuantType,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
    QuantFormat,
    QuantGranularity,
    QuantizationMode,
    QuantType,
    ScaleType,
    VitisQuantFormat,
    VitisQuantType,
)
from detent.compat.preset_qconfigs import QCONFIG_NAMES, make_qconfig
from detent.compat.quantizer import ModelQuantizer
from detent.compat.quark.onnx.operators.custom_ops import get_library_path
from detent.compat.quark.onnx.quantization.quantize import quantize_dynamic, quantize_static
from detent.compat.readers import CachedDataReader, CalibrationDataReader, PathDataReader, RandomDataReader
from detent.compat.specs import (
    BFloat16Spec,
    BFP16Spec,
    Float16Spec,
    Int8Spec,
    Int16Spec,
    Int32Spec,
    MX4Spec,
    MX6Spec,
    MX9Spec,
    MXFP4E2M1Spec,
    MXFP6E2M3Spec,
    MXFP6E3M2Spec,
    MXFP8E4M3Spec,
    MXFP8E5M2Spec,
    MXInt8Spec,
    QLayerConfig,
    QTensorConfig,
    UInt8Spec,
    UInt16Spec,
    UInt32Spec,
    XInt8Spec,
)
from detent.compat.unsupported import unsupported

_SEARCH = "`detent quantize` says what to try next, and each recipe runs in minutes: loop over detent.quantize."
_CALIBRATORS = "Calibration is part of detent.quantize; `detent stats` shows what each method would choose."

AutoSearch = unsupported("AutoSearch", _SEARCH)
AutoSearchPro = unsupported("AutoSearchPro", _SEARCH)
SearchSpace = unsupported("SearchSpace", _SEARCH)
generate_all_configs = unsupported("generate_all_configs", _SEARCH)
get_auto_search_config = unsupported("get_auto_search_config", _SEARCH)
create_calibrator_power_of_two = unsupported("create_calibrator_power_of_two", _CALIBRATORS)
create_calibrator_float_scale = unsupported("create_calibrator_float_scale", _CALIBRATORS)
CalibraterBase = unsupported("CalibraterBase", _CALIBRATORS)
MinMaxCalibrater = unsupported("MinMaxCalibrater", _CALIBRATORS)
write_calibration_table = unsupported(
    "write_calibration_table", "`detent quantize --save-stats FILE` keeps statistics."
)

__all__ = [
    "BFP16",
    "MX4",
    "MX6",
    "MX9",
    "MXFP4E2M1",
    "MXFP6E2M3",
    "MXFP6E3M2",
    "MXFP8E4M3",
    "MXFP8E5M2",
    "AdaQuantConfig",
    "AdaRoundConfig",
    "AlgoConfig",
    "AutoMixprecisionConfig",
    "AutoSearch",
    "AutoSearchPro",
    "BFP16Spec",
    "BFloat16",
    "BFloat16Spec",
    "BiasCorrectionConfig",
    "CLEConfig",
    "CachedDataReader",
    "CalibMethod",
    "CalibraterBase",
    "CalibrationDataReader",
    "CalibrationMethod",
    "Config",
    "DataType",
    "ExtendedCalibrationMethod",
    "ExtendedQuantFormat",
    "ExtendedQuantType",
    "Float16",
    "Float16Spec",
    "GPTQConfig",
    "Int8",
    "Int8Spec",
    "Int16",
    "Int16Method",
    "Int16Spec",
    "Int32",
    "Int32Spec",
    "LayerWiseMethod",
    "MX4Spec",
    "MX6Spec",
    "MX9Spec",
    "MXFP4E2M1Spec",
    "MXFP6E2M3Spec",
    "MXFP6E3M2Spec",
    "MXFP8E4M3Spec",
    "MXFP8E5M2Spec",
    "MXInt8",
    "MXInt8Spec",
    "MinMaxCalibrater",
    "ModelQuantizer",
    "PathDataReader",
    "PowerOfTwoMethod",
    "QConfig",
    "QLayerConfig",
    "QTensorConfig",
    "QuantFormat",
    "QuantGranularity",
    "QuantType",
    "QuantizationConfig",
    "QuantizationMode",
    "QuarotConfig",
    "RandomDataReader",
    "ScaleType",
    "SearchSpace",
    "SmoothQuantConfig",
    "UInt8",
    "UInt8Spec",
    "UInt16",
    "UInt16Spec",
    "UInt32",
    "UInt32Spec",
    "VitisQuantFormat",
    "VitisQuantType",
    "XInt8Spec",
    "create_calibrator_float_scale",
    "create_calibrator_power_of_two",
    "dump_model",
    "generate_all_configs",
    "get_auto_search_config",
    "get_library_path",
    "quantize_dynamic",
    "quantize_static",
    "write_calibration_table",
]


def __getattr__(name: str) -> Any:
    """The constants such as XINT8_QCONFIG, a fresh one each time: scripts change them."""
    if name in QCONFIG_NAMES:
        return make_qconfig(name)
    raise AttributeError(f"module 'quark.onnx' has no attribute '{name}'")
