"""The configurations that scripts build: Quark's older QuantizationConfig in a Config, and its newer QConfig.

They are plain, mutable records with Quark's names and defaults; `translate` says what they mean. Printing one shows
the recipe that it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from detent.compat.algorithms import AlgoConfig
from detent.compat.data_types import QLayerConfig
from detent.compat.enums import CalibrationMethod, QuantFormat, QuantType
from detent.errors import UsageError
from detent.recipe import Recipe


@dataclass
class QuantizationConfig:
    """Quark's older configuration."""

    calibrate_method: Any = CalibrationMethod.MinMax
    quant_format: Any = QuantFormat.QDQ
    activation_type: Any = QuantType.QInt8
    weight_type: Any = QuantType.QInt8
    input_nodes: list[str] = field(default_factory=list)
    output_nodes: list[str] = field(default_factory=list)
    op_types_to_quantize: list[str] = field(default_factory=list)
    nodes_to_quantize: list[str] = field(default_factory=list)
    extra_op_types_to_quantize: list[str] = field(default_factory=list)
    nodes_to_exclude: list[str] = field(default_factory=list)
    subgraphs_to_exclude: list[Any] = field(default_factory=list)
    specific_tensor_precision: bool = False
    execution_providers: list[str] = field(default_factory=lambda: ["CPUExecutionProvider"])
    per_channel: bool = False
    reduce_range: bool = False
    optimize_model: bool = True
    use_dynamic_quant: bool = False
    use_external_data_format: bool = False
    convert_fp16_to_fp32: bool = False
    convert_nchw_to_nhwc: bool = False
    include_sq: bool = False
    include_rotation: bool = False
    include_cle: bool = True
    include_auto_mp: bool = False
    include_fast_ft: bool = False
    enable_npu_cnn: bool = False
    enable_npu_transformer: bool = False
    debug_mode: bool = False
    crypto_mode: bool = False
    print_summary: bool = True
    ignore_warnings: bool = True
    log_severity_level: Any = None  # of Quark's own log, which there is none of here
    extra_options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{_meaning(self)}\nQuantizationConfig({_different_from_default(self)})"


@dataclass
class Config:
    """What ModelQuantizer takes: one configuration for the whole model."""

    global_quant_config: QuantizationConfig

    def __str__(self) -> str:
        return str(self.global_quant_config)


@dataclass(init=False)
class QConfig:
    """Quark's newer configuration: specifications for the model, for layers and for operator types."""

    global_config: QLayerConfig
    specific_layer_config: Mapping[QLayerConfig, list[str]]
    layer_type_config: Mapping[QLayerConfig | None, list[str]]
    exclude: list[Any]
    algo_config: list[AlgoConfig]
    use_external_data_format: bool
    extra_options: dict[str, Any]

    def __init__(
        self,
        global_config: QLayerConfig,
        specific_layer_config: Mapping[QLayerConfig, list[str]] | None = None,
        layer_type_config: Mapping[QLayerConfig | None, list[str]] | None = None,
        exclude: list[Any] | None = None,
        algo_config: list[AlgoConfig] | None = None,
        use_external_data_format: bool = False,
        extra_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.global_config = global_config
        self.specific_layer_config = specific_layer_config or {}
        self.layer_type_config = layer_type_config or {}
        self.exclude = exclude or []
        self.algo_config = algo_config or []
        self.use_external_data_format = use_external_data_format
        self.extra_options = {**(extra_options or {}), **options}

    def __str__(self) -> str:
        parts = [f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if getattr(self, each.name)]
        return f"{_meaning(self)}\nQConfig({', '.join(parts)})"

    @staticmethod
    def get_default_config(name: str) -> Config:
        """The preset of that name, as an older configuration, which is what Quark returns too."""
        from detent.compat.preset_configs import get_default_config

        return Config(get_default_config(name))


AnyConfig = Config | QuantizationConfig | QConfig


def _different_from_default(config: QuantizationConfig) -> str:
    plain = QuantizationConfig()
    chosen = (each.name for each in fields(config) if getattr(config, each.name) != getattr(plain, each.name))
    return ", ".join(f"{name}={getattr(config, name)!r}" for name in chosen)


def _meaning(config: QuantizationConfig | QConfig) -> str:
    """The recipe in words; what is wrong with the configuration where there is none."""
    from detent.compat.translate import translate

    try:
        return _describe(translate(config).recipe)
    except UsageError as error:
        return f"No recipe: {error}"


_SHOWN = ("activations", "weights", "biases", "method", "target", "equalize", "refinement")
_HEADING = ("name", "description")


def _describe(recipe: Recipe) -> str:
    """Show what decides most, and every field that is not as usual."""
    usual = Recipe("", "")
    lines = [f"Recipe {recipe.name}: {recipe.description}"]
    for each in fields(recipe):
        value = getattr(recipe, each.name)
        if each.name in _SHOWN or (each.name not in _HEADING and value != getattr(usual, each.name)):
            lines.append(f"  {each.name:12} {_text(value)}")
    return "\n".join(lines)


def _text(value: Any) -> str:
    if getattr(value, "kind", "") == "integer":
        kind = "symmetric" if value.symmetric else "asymmetric"
        return f"{value.dtype}, {kind}, {value.scale.replace('_', ' ')} scale, {value.granularity.replace('_', ' ')}"
    return "float" if value is None else str(value)
