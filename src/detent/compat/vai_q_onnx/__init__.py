"""What `vai_q_onnx` exports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from detent.compat.configs import config_of
from detent.compat.dump import dump_model
from detent.compat.enums import (
    CalibrationMethod,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
    QuantFormat,
    QuantType,
    VitisQuantFormat,
    VitisQuantType,
)
from detent.compat.quantizer import quantize_with
from detent.compat.quark.onnx.quantization.quantize import quantize_dynamic
from detent.compat.readers import CachedDataReader, CalibrationDataReader, PathDataReader, RandomDataReader
from detent.graph.load import ModelLike
from detent.version import __version__

__all__ = [
    "CachedDataReader",
    "CalibrationDataReader",
    "CalibrationMethod",
    "Int16Method",
    "LayerWiseMethod",
    "PathDataReader",
    "PowerOfTwoMethod",
    "QuantFormat",
    "QuantType",
    "RandomDataReader",
    "VitisQuantFormat",
    "VitisQuantType",
    "__version__",
    "dump_model",
    "quantize_dynamic",
    "quantize_static",
]


def quantize_static(
    model_input: ModelLike,
    model_output: str,
    calibration_data_reader: Any = None,
    quant_format: Any = VitisQuantFormat.FixNeuron,
    calibrate_method: Any = PowerOfTwoMethod.MinMSE,
    input_nodes: Sequence[str] | None = None,
    output_nodes: Sequence[str] | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    random_data_reader_input_shape: Any = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: Any = QuantType.QInt8,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    subgraphs_to_exclude: Sequence[Any] | None = None,
    optimize_model: bool = True,
    use_external_data_format: bool = False,
    execution_providers: Sequence[str] | None = None,
    use_dpu: bool = False,
    enable_dpu: bool = False,
    enable_ipu_cnn: bool = False,
    enable_npu_cnn: bool = False,
    enable_ipu_transformer: bool = False,
    enable_npu_transformer: bool = False,
    convert_fp16_to_fp32: bool = False,
    convert_nchw_to_nhwc: bool = False,
    debug_mode: bool = False,
    include_cle: bool = False,
    include_sq: bool = False,
    include_fast_ft: bool = False,
    include_auto_mp: bool = False,
    print_summary: bool = True,
    extra_options: dict[str, Any] | None = None,
) -> onnx.ModelProto | None:
    """Quantize `model_input` and write it to `model_output`. One flag for the NPU has had four names."""
    options = dict(extra_options or {})
    if random_data_reader_input_shape:
        options.setdefault("RandomDataReaderInputShape", random_data_reader_input_shape)
    config = config_of(
        locals(),
        extra_options=options,
        enable_npu_cnn=use_dpu or enable_dpu or enable_ipu_cnn or enable_npu_cnn,
        enable_npu_transformer=enable_ipu_transformer or enable_npu_transformer,
    )
    return quantize_with(config, model_input, model_output, calibration_data_reader)
