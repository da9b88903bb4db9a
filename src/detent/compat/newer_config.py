"""Quark's newer QConfig as the older configuration that it stands for, and its layers as overrides.

activations MinMax, Percentile, ...     the method; with power-of-two scales MinMax is NonOverflow
both PowerOf2, of 8 bits                enable_npu_cnn, unless EnableNPUCnn says otherwise; other types: no device rules
weight per channel                      per_channel
weights Percentile                      MinMax: the specifications have it by default, and Quark does not do it
no CLEConfig in algo_config             no equalization: the newer API does none unless it is asked for
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from detent.compat.algorithms import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    AutoMixprecisionConfig,
    CLEConfig,
    QuarotConfig,
    SmoothQuantConfig,
)
from detent.compat.configs import QConfig, QuantizationConfig
from detent.compat.data_types import Int8, QLayerConfig, QTensorConfig, UInt8, check_layer, spec_format
from detent.compat.enums import (
    CalibMethod,
    CalibrationMethod,
    ExtendedCalibrationMethod,
    ExtendedQuantFormat,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
    QuantFormat,
    QuantGranularity,
    ScaleType,
)
from detent.errors import UsageError
from detent.numerics.formats import is_integer
from detent.recipe import Override

_FLOAT_SCALE = {
    CalibMethod.MinMax: CalibrationMethod.MinMax,
    CalibMethod.Percentile: CalibrationMethod.Percentile,
    CalibMethod.Entropy: CalibrationMethod.Entropy,
    CalibMethod.Distribution: CalibrationMethod.Distribution,
    CalibMethod.LayerwisePercentile: LayerWiseMethod.LayerWisePercentile,
    CalibMethod.MinMSE: ExtendedCalibrationMethod.MinMSE,
}
_METHODS: dict[ScaleType, dict[CalibMethod, Any]] = {
    ScaleType.Float32: _FLOAT_SCALE,
    ScaleType.PowerOf2: {
        CalibMethod.MinMax: PowerOfTwoMethod.NonOverflow,
        CalibMethod.MinMSE: PowerOfTwoMethod.MinMSE,
    },
    ScaleType.Int16: {CalibMethod.MinMax: Int16Method.MinMax},
}


def legacy_of(config: QConfig) -> tuple[QuantizationConfig, tuple[Override, ...]]:
    """The older configuration, and the overrides for layers and operator types."""
    inputs, weight = config.global_config.inputs, config.global_config.weight
    if inputs is None or weight is None:
        raise UsageError("global_config needs both input_tensors (or activation) and weight.")
    check_layer(config.global_config)
    shifted = inputs.scale_type == weight.scale_type == ScaleType.PowerOf2
    device = shifted and inputs.data_type in (Int8, UInt8) and weight.data_type == Int8
    plain = inputs.data_type in (Int8, UInt8) and weight.data_type in (Int8, UInt8)
    algorithms = _options_of(config.algo_config)
    kinds = {type(each) for each in config.algo_config}
    if inputs.scale_type != weight.scale_type:
        raise UsageError(
            f"scale_type is {inputs.scale_type} for activations and {weight.scale_type} for weights: one only."
        )
    excluded = [each for each in config.exclude if isinstance(each, str)]
    parts = [each for each in config.exclude if not isinstance(each, str)]
    legacy = QuantizationConfig(
        calibrate_method=_method(_calibrated(config, "inputs")),
        quant_format=QuantFormat.QDQ if plain else ExtendedQuantFormat.QDQ,
        activation_type=inputs.data_type,
        weight_type=weight.data_type,
        nodes_to_exclude=excluded,
        subgraphs_to_exclude=[pair for part in parts for pair in (part if isinstance(part, list) else [part])],
        per_channel=weight.quant_granularity == QuantGranularity.Channel,
        use_external_data_format=config.use_external_data_format,
        include_cle=CLEConfig in kinds,
        include_sq=SmoothQuantConfig in kinds,
        include_rotation=QuarotConfig in kinds,
        include_fast_ft=bool(kinds & {AdaRoundConfig, AdaQuantConfig}),
        include_auto_mp=AutoMixprecisionConfig in kinds,
        enable_npu_cnn=config.extra_options.get("EnableNPUCnn", device),
        extra_options={**_spec_options(config, inputs, weight), **algorithms, **config.extra_options},
    )
    return legacy, _overrides(config)


def _method(spec: QTensorConfig) -> Any:
    methods = _METHODS[spec.scale_type]
    if spec.calibration_method not in methods:
        raise UsageError(
            f"calibration_method {spec.calibration_method} is not for {spec.scale_type} scales. "
            f"Choose from {', '.join(map(str, methods))}."
        )
    return methods[spec.calibration_method]


def _spec_options(config: QConfig, inputs: QTensorConfig, weight: QTensorConfig) -> dict[str, Any]:
    """What the specifications say that the older configuration has as options."""
    options: dict[str, Any] = {"ActivationSymmetric": inputs.symmetric, "WeightSymmetric": weight.symmetric}
    shifted = weight.scale_type == ScaleType.PowerOf2
    usual = (inputs.calibration_method,) if shifted else (CalibMethod.MinMax, CalibMethod.Percentile)
    calibrated = _calibrated(config, "weight")
    if calibrated.calibration_method not in usual:
        options["WeightCalibrateMethod"] = _method(calibrated)
    return options


def _options_of(algorithms: Sequence[AlgoConfig]) -> dict[str, Any]:
    for each in algorithms:
        if not isinstance(each, AlgoConfig):
            raise UsageError(f"algo_config lists {each!r}: give configurations, such as AdaRoundConfig().")
    tuning = [each for each in algorithms if isinstance(each, (AdaRoundConfig, AdaQuantConfig))]
    if len(tuning) > 1:
        raise UsageError("algo_config lists both AdaRoundConfig and AdaQuantConfig: a layer learns by one. Choose one.")
    options: dict[str, Any] = {}
    for each in algorithms:
        options.update(each.options())
    return options


def _overrides(config: QConfig) -> tuple[Override, ...]:
    by_name = [(layer, {"nodes": tuple(names)}) for layer, names in config.specific_layer_config.items()]
    by_type = [(layer, {"op_types": tuple(types)}) for layer, types in config.layer_type_config.items()]
    return tuple(_override(layer, **part) for layer, part in (*by_type, *by_name))


def _override(layer: QLayerConfig | None, **part: tuple[str, ...]) -> Override:
    if layer is None:
        return Override(leave_float=True, **part)  # type: ignore[arg-type]
    check_layer(layer)
    return Override(**part, **{role: spec_format(spec) for role, spec in layer.roles.items()})  # type: ignore[arg-type]


def _calibrated(config: QConfig, role: Literal["inputs", "weight"]) -> QTensorConfig:
    """The specification whose method calibrates the model: that of all integers, which may be those of layers only."""
    layers = [config.global_config, *config.specific_layer_config, *config.layer_type_config]
    specs = [layer.inputs if role == "inputs" else layer.weight for layer in layers if layer is not None]
    given = [spec for spec in specs if spec is not None]
    integers = [spec for spec in given if is_integer(spec_format(spec))]
    for spec in integers:
        if spec.calibration_method != integers[0].calibration_method:
            raise UsageError(
                f"calibration_method is {integers[0].calibration_method} in one specification and "
                f"{spec.calibration_method} in another: one calibrates the whole model. Choose one."
            )
    return (integers or given)[0]
