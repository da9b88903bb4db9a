"""The functions that scripts call: those of Quark, of vai_q_onnx and of onnxruntime's quantizer.

Each has the arguments and defaults of the original, which become one QuantizationConfig. onnxruntime's functions do
not equalize channels, and print nothing; biases are corrected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import onnx

from detent.comparison.value_files import dump_codes
from detent.compat.configs import config_of
from detent.compat.enums import CalibrationMethod, PowerOfTwoMethod, QuantFormat, QuantType, VitisQuantFormat
from detent.compat.quantizer import one_of, quantize_with
from detent.compat.readers import RandomDataReader
from detent.errors import DataError, UsageError
from detent.graph.load import ModelLike


def quark_quantize_static(
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


def quark_quantize_dynamic(
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


def vai_quantize_static(
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


def quantize_static(
    model_input: ModelLike,
    model_output: str | Path,
    calibration_data_reader: Any = None,
    quant_format: Any = QuantFormat.QDQ,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: Any = QuantType.QInt8,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: Any = CalibrationMethod.MinMax,
    calibration_providers: Sequence[str] | None = None,
    extra_options: dict[str, Any] | None = None,
    calibration_cache_path: str | Path | None = None,
) -> None:
    """Quantize with ranges from calibration data."""
    options = dict(extra_options or {})
    if calibration_cache_path is not None:
        options["SaveAndRestore"] = calibration_cache_path
    config = config_of(
        locals(),
        extra_options=options,
        execution_providers=list(calibration_providers or ["CPUExecutionProvider"]),
        include_cle=False,
        print_summary=False,
    )
    quantize_with(config, model_input, model_output, calibration_data_reader)


def quantize_dynamic(
    model_input: ModelLike,
    model_output: str | Path,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: dict[str, Any] | None = None,
) -> None:
    """Quantize weights; activations find their ranges while the model runs."""
    config = config_of(locals(), use_dynamic_quant=True, include_cle=False, print_summary=False)
    quantize_with(config, model_input, model_output, None)


@dataclass
class StaticQuantConfig:
    """The arguments of quantize_static, kept."""

    calibration_data_reader: Any
    calibrate_method: Any = CalibrationMethod.MinMax
    quant_format: Any = QuantFormat.QDQ
    activation_type: Any = QuantType.QInt8
    weight_type: Any = QuantType.QInt8
    op_types_to_quantize: Sequence[str] | None = None
    nodes_to_quantize: Sequence[str] | None = None
    nodes_to_exclude: Sequence[str] | None = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    calibration_providers: Sequence[str] | None = None
    extra_options: dict[str, Any] | None = field(default=None)


@dataclass
class DynamicQuantConfig:
    """The arguments of quantize_dynamic, kept."""

    weight_type: Any = QuantType.QInt8
    op_types_to_quantize: Sequence[str] | None = None
    nodes_to_quantize: Sequence[str] | None = None
    nodes_to_exclude: Sequence[str] | None = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    extra_options: dict[str, Any] | None = None


def quantize(
    model_input: ModelLike, model_output: str | Path, quant_config: StaticQuantConfig | DynamicQuantConfig
) -> None:
    """Quantize with the arguments in a configuration."""
    if isinstance(quant_config, StaticQuantConfig):
        quantize_static(model_input, model_output, **vars(quant_config))
    elif isinstance(quant_config, DynamicQuantConfig):
        quantize_dynamic(model_input, model_output, **vars(quant_config))
    else:
        raise UsageError(
            f"quantize takes a StaticQuantConfig or a DynamicQuantConfig, not {type(quant_config).__name__}."
        )


def dump_model(
    model_input: ModelLike,
    dump_data_reader: Any = None,
    random_data_reader_input_shape: Any = None,
    dump_float: bool = False,
    output_dir: str | Path = "./dump_results",
) -> None:
    """Run the quantized model on the reader's first sample (random numbers without one) and write its values."""
    reader = dump_data_reader or RandomDataReader(model_input, random_data_reader_input_shape)
    feeds = reader.get_next()
    if feeds is None:
        raise DataError("dump_model: the data reader has no sample to run the model on.")
    dump_codes(model_input, dict(feeds), Path(output_dir), floats=dump_float, overwrite=True)


def get_library_path(device: str = "CPU") -> NoReturn:
    """Raise UsageError: there is no such library."""
    raise UsageError(
        f"get_library_path('{device}'): what Detent writes runs on plain onnxruntime, without a library of custom "
        "operators. Delete the line register_custom_ops_library(...)."
    )
