"""Quark's functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from detent.compat.configs import QuantizationConfig
from detent.compat.enums import CalibrationMethod, QuantFormat, QuantType
from detent.compat.quantizer import quantize_with
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
    config = QuantizationConfig(
        calibrate_method=calibrate_method,
        quant_format=quant_format,
        activation_type=activation_type,
        weight_type=weight_type,
        input_nodes=list(input_nodes or ()),
        output_nodes=list(output_nodes or ()),
        op_types_to_quantize=list(op_types_to_quantize or ()),
        nodes_to_quantize=list(nodes_to_quantize or ()),
        extra_op_types_to_quantize=list(extra_op_types_to_quantize or ()),
        nodes_to_exclude=list(nodes_to_exclude or ()),
        subgraphs_to_exclude=list(subgraphs_to_exclude or ()),
        specific_tensor_precision=specific_tensor_precision,
        execution_providers=list(execution_providers or ["CPUExecutionProvider"]),
        per_channel=per_channel,
        reduce_range=reduce_range,
        optimize_model=optimize_model,
        use_external_data_format=use_external_data_format,
        convert_fp16_to_fp32=convert_fp16_to_fp32,
        convert_nchw_to_nhwc=convert_nchw_to_nhwc,
        include_sq=include_sq,
        include_rotation=include_rotation,
        include_cle=include_cle,
        include_auto_mp=include_auto_mp,
        include_fast_ft=include_fast_ft,
        enable_npu_cnn=enable_npu_cnn or enable_dpu,
        enable_npu_transformer=enable_npu_transformer,
        debug_mode=debug_mode,
        crypto_mode=crypto_mode,
        print_summary=print_summary,
        extra_options=dict(extra_options or {}),
    )
    return quantize_with(config, model_input, model_output, calibration_data_reader or calibration_data_path)


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
    config = QuantizationConfig(
        weight_type=weight_type,
        op_types_to_quantize=list(op_types_to_quantize or ()),
        nodes_to_quantize=list(nodes_to_quantize or ()),
        nodes_to_exclude=list(nodes_to_exclude or ()),
        subgraphs_to_exclude=list(subgraphs_to_exclude or ()),
        per_channel=per_channel,
        reduce_range=reduce_range,
        use_dynamic_quant=True,
        use_external_data_format=use_external_data_format,
        include_cle=False,
        debug_mode=debug_mode,
        crypto_mode=crypto_mode,
        extra_options=dict(extra_options or {}),
    )
    return quantize_with(config, model_input, model_output, None)
