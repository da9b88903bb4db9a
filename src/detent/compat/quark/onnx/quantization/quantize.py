"""Quark's functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from detent.compat.configs import config_of
from detent.compat.enums import CalibrationMethod, QuantFormat, QuantType
from detent.compat.quantizer import one_of, quantize_with
from detent.graph.load import ModelLike


def quantize_static(
    model_input: ModelLike,
    model_output: str | None = None,
    calibration_data_reader: Any = None,
    calibration_data_path: str | None = None,
    quant_format: Any = QuantFormat.QDQ,
    calibrate_method: Any = CalibrationMethod.MinMax,
    input_nodes: Sequence[str] | None = None,
    output_nodes: Sequence[str] | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    extra_op_types_to_quantize: Sequence[str] | None = None,
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
    enable_dpu: bool = False,
    enable_npu_cnn: bool = False,
    enable_npu_transformer: bool = False,
    specific_tensor_precision: bool = False,
    convert_fp16_to_fp32: bool = False,
    convert_nchw_to_nhwc: bool = False,
    debug_mode: bool = False,
    crypto_mode: bool = False,
    include_cle: bool = True,
    include_sq: bool = False,
    include_rotation: bool = False,
    include_fast_ft: bool = False,
    include_auto_mp: bool = False,
    print_summary: bool = True,
    extra_options: dict[str, Any] | None = None,
) -> onnx.ModelProto | None:
    """Quantize with ranges from calibration data; returns the model where there is no `model_output`."""
    config = config_of(locals(), enable_npu_cnn=enable_npu_cnn or enable_dpu)
    data = one_of(calibration_data_reader, calibration_data_path)
    return quantize_with(config, model_input, model_output, data)


def quantize_dynamic(
    model_input: ModelLike,
    model_output: str | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    subgraphs_to_exclude: Sequence[Any] | None = None,
    use_external_data_format: bool = False,
    debug_mode: bool = False,
    crypto_mode: bool = False,
    extra_options: dict[str, Any] | None = None,
) -> onnx.ModelProto | None:
    """Quantize weights; activations find their ranges while the model runs."""
    config = config_of(locals(), use_dynamic_quant=True, include_cle=False)
    return quantize_with(config, model_input, model_output, None)
