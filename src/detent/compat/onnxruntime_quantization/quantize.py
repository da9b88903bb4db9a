"""onnxruntime's functions. There is no equalization unless Detent's own recipe is asked for; biases are corrected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detent.compat.configs import config_of
from detent.compat.enums import CalibrationMethod, QuantFormat, QuantType
from detent.compat.quantizer import quantize_with
from detent.errors import UsageError
from detent.graph.load import ModelLike


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
