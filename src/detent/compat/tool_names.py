"""The modules and names of AMD Quark, vai_q_onnx and onnxruntime's quantizer: where each one is in Detent.

    module of theirs -> module of ours (below detent.compat) -> names, with spaces between them

`finder` serves these modules. `new=old` is a name of theirs for another one of ours. To add a name that exists, put
it into its row; to refuse one, put it into `_REFUSED` with what to do instead.
Older versions of the tools keep the same names in other modules: these are rows, too.
"""

from __future__ import annotations

from typing import Any, NoReturn

from detent.errors import UsageError

_METHODS = "ExtendedCalibrationMethod Int16Method LayerWiseMethod PowerOfTwoMethod"
_FAMILIES = (
    f"CalibrationMethod ExtendedQuantFormat ExtendedQuantType {_METHODS} QuantFormat QuantType VitisQuantFormat "
    "VitisQuantType"
)
_READERS = "CachedDataReader PathDataReader RandomDataReader"
_CONFIGS = "Config QConfig QuantizationConfig"
_ALGORITHMS = (
    "AdaQuantConfig AdaRoundConfig AlgoConfig AutoMixprecisionConfig BiasCorrectionConfig CLEConfig GPTQConfig "
    "QuarotConfig SmoothQuantConfig"
)
_TYPES = (
    "BFP16 MX4 MX6 MX9 MXFP4E2M1 MXFP6E2M3 MXFP6E3M2 MXFP8E4M3 MXFP8E5M2 BFloat16 Float16 Int8 Int16 Int32 MXInt8 "
    "UInt8 UInt16 UInt32"
)
_SPECS = " ".join(["QLayerConfig", "QTensorConfig", "XInt8Spec", *(f"{name}Spec" for name in _TYPES.split())])
_SPEC_ENUMS = "CalibMethod QuantGranularity ScaleType"
_QUARK_FUNCTIONS = "quantize_dynamic=quark_quantize_dynamic quantize_static=quark_quantize_static"
_ONNXRUNTIME_FUNCTIONS = "DynamicQuantConfig StaticQuantConfig quantize quantize_dynamic quantize_static"

MODULES: dict[str, dict[str, str]] = {
    "quark": {".version": "__version__"},
    "quark.onnx": {
        "enums": f"{_FAMILIES} {_SPEC_ENUMS} QuantizationMode",
        "data_types": f"DataType {_TYPES} {_SPECS}",
        "algorithms": _ALGORITHMS,
        "configs": _CONFIGS,
        "readers": f"CalibrationDataReader {_READERS}",
        "entry_points": f"ModelQuantizer dump_model get_library_path {_QUARK_FUNCTIONS}",
    },
    "quark.onnx.calibration": {"enums": _METHODS, "readers": _READERS},
    "quark.onnx.calibration.data_readers": {"readers": _READERS},
    "quark.onnx.calibration.methods": {"enums": _METHODS},
    "quark.onnx.operators": {},
    "quark.onnx.operators.custom_ops": {"entry_points": "get_library_path"},
    "quark.onnx.quant_utils": {"enums": _FAMILIES},
    "quark.onnx.quantization": {"configs": _CONFIGS, "entry_points": "ModelQuantizer"},
    "quark.onnx.quantization.api": {"entry_points": "ModelQuantizer"},
    "quark.onnx.quantization.config": {"configs": f"{_CONFIGS} get_default_config"},
    "quark.onnx.quantization.config.algorithm": {"algorithms": _ALGORITHMS},
    "quark.onnx.quantization.config.config": {"configs": _CONFIGS},
    "quark.onnx.quantization.config.custom_config": {
        "configs": "DEFAULT_ADAQUANT_PARAMS DEFAULT_ADAROUND_PARAMS get_default_config"
    },
    "quark.onnx.quantization.config.data_type": {"data_types": f"DataType {_TYPES}"},
    "quark.onnx.quantization.config.legacy": {"configs": "QuantizationConfig"},
    "quark.onnx.quantization.config.spec": {"enums": _SPEC_ENUMS, "data_types": _SPECS},
    "quark.onnx.quantization.quant_utils": {"enums": _FAMILIES},
    "quark.onnx.quantization.quantize": {"entry_points": _QUARK_FUNCTIONS},
    "quark.onnx.tools": {},
    "quark.onnx.tools.evaluate": {"tools": "main=evaluate"},
    "vai_q_onnx": {
        "enums": "CalibrationMethod Int16Method LayerWiseMethod PowerOfTwoMethod QuantFormat QuantType "
        "VitisQuantFormat VitisQuantType",
        "readers": f"CalibrationDataReader {_READERS}",
        "entry_points": "dump_model quantize_dynamic=quark_quantize_dynamic quantize_static=vai_quantize_static",
        ".version": "__version__",
    },
    "vai_q_onnx.calibrate": {
        "enums": "CalibrationMethod PowerOfTwoMethod",
        "readers": "CalibrationDataReader RandomDataReader",
    },
    "vai_q_onnx.quant_utils": {"enums": _FAMILIES},
    "onnxruntime.quantization": {
        "enums": "CalibrationMethod QuantFormat QuantType QuantizationMode",
        "entry_points": _ONNXRUNTIME_FUNCTIONS,
        "tools": "quant_pre_process",
        "readers": "CalibrationDataReader",
    },
    "onnxruntime.quantization.calibrate": {"enums": "CalibrationMethod", "readers": "CalibrationDataReader"},
    "onnxruntime.quantization.preprocess": {"tools": "main=preprocess quant_pre_process"},
    "onnxruntime.quantization.quant_utils": {"enums": "QuantFormat QuantType QuantizationMode"},
    "onnxruntime.quantization.quantize": {"entry_points": _ONNXRUNTIME_FUNCTIONS},
    "onnxruntime.quantization.shape_inference": {"tools": "quant_pre_process"},
}

FAMILIES = {"quark.onnx": "qconfig_constant", "quark.onnx.quantization.config.custom_config": "any_constant"}
"""Modules with many constants, such as XINT8_QCONFIG: the function of `configs` that makes one by its name."""

_SEARCH = "`detent quantize` says what to try next, and each recipe runs in minutes: loop over detent.quantize."
_CALIBRATORS = "Calibration is part of detent.quantize; `detent stats` shows what each method would choose."
_STATISTICS = "`detent quantize --save-stats FILE` keeps statistics."

_REFUSED: dict[str, dict[str, str]] = {
    "quark.onnx": {
        _SEARCH: "AutoSearch AutoSearchPro SearchSpace generate_all_configs get_auto_search_config",
        _CALIBRATORS: "create_calibrator_power_of_two create_calibrator_float_scale CalibraterBase MinMaxCalibrater",
        _STATISTICS: "write_calibration_table",
    },
    "onnxruntime.quantization": {_CALIBRATORS: "create_calibrator", _STATISTICS: "write_calibration_table"},
}
UNSUPPORTED = {
    module: {name: instead for instead, names in rows.items() for name in names.split()}
    for module, rows in _REFUSED.items()
}
"""By module: names that can be imported and not used, with what to do instead."""


def homes(module: str) -> dict[str, tuple[str, str]]:
    """Return for each name of a module of theirs our module and the name there."""
    found: dict[str, tuple[str, str]] = {}
    for home, names in MODULES[module].items():
        for name in names.split():
            theirs, _, ours = name.partition("=")
            found[theirs] = (home, ours or theirs)
    return found


class Unsupported:
    """A stand-in for a name that Detent has no counterpart of: using it is an error that says what to do instead."""

    def __init__(self, name: str, instead: str) -> None:
        self._name, self._instead = name, instead

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{self._name} is not part of Detent. {self._instead}")

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):  # asked by Python itself, of any object
            raise AttributeError(attribute)
        self()
        raise AssertionError("not reached")

    def __repr__(self) -> str:
        return f"<{self._name}: not part of Detent>"
