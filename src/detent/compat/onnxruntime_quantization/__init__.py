"""What `onnxruntime.quantization` exports, as far as it quantizes."""

from detent.compat.enums import CalibrationMethod, QuantFormat, QuantizationMode, QuantType
from detent.compat.onnxruntime_quantization.quantize import (
    DynamicQuantConfig,
    StaticQuantConfig,
    quantize,
    quantize_dynamic,
    quantize_static,
)
from detent.compat.onnxruntime_quantization.shape_inference import quant_pre_process
from detent.compat.readers import CalibrationDataReader
from detent.compat.unsupported import unsupported

create_calibrator = unsupported("create_calibrator", "Calibration is part of detent.quantize.")
write_calibration_table = unsupported(
    "write_calibration_table", "`detent quantize --save-stats FILE` keeps statistics."
)

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "DynamicQuantConfig",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "StaticQuantConfig",
    "create_calibrator",
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
    "write_calibration_table",
]
