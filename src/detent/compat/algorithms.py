"""Quark's algorithm configurations: what `QConfig(algo_config=[...])` lists.

Each says which extra options it stands for, so that both ways of asking go through one translation.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from detent.errors import UsageError

TUNED_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "InstanceNormalization", "LayerNormalization")
ALL_DATA = 1_000_000_000
SEED = 1705472343


def _camel(name: str) -> str:
    """`num_iterations` as FastFinetune spells it: NumIterations."""
    special = {"lr_adjust": "LRAdjust", "output_qdq": "OutputQDQ", "use_gds": "UseGDS"}
    return special.get(name, "".join(part.capitalize() for part in name.split("_")))


@dataclass(frozen=True)
class AlgoConfig:
    """Base of all."""

    def options(self) -> dict[str, Any]:
        """The extra options that this asks for."""
        raise UsageError(f"{type(self).__name__} asks for nothing: list one of its subclasses in algo_config.")

    def _parameters(self) -> dict[str, Any]:
        return {_camel(field.name): getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class CLEConfig(AlgoConfig):
    """Cross-layer equalization."""

    cle_balance_method: str = "max"
    cle_steps: int = 1
    cle_weight_threshold: float = 0.5
    cle_scale_append_bias: bool = True
    cle_scale_use_threshold: bool = True
    cle_total_layer_diff_threshold: float = 1.9e-7

    def options(self) -> dict[str, Any]:
        """Return the CLE options, which have the names of the fields in another spelling."""
        return {f"CLE{name.removeprefix('Cle')}": value for name, value in self._parameters().items()}


@dataclass(frozen=True)
class SmoothQuantConfig(AlgoConfig):
    """Outliers of activations moved into the weights."""

    alpha: float = 0.5

    def options(self) -> dict[str, Any]:
        """The share."""
        return {"SmoothAlpha": self.alpha}


@dataclass(frozen=True)
class BiasCorrectionConfig(AlgoConfig):
    """Means restored by the biases."""

    def options(self) -> dict[str, Any]:
        """One switch."""
        return {"BiasCorrection": True}


@dataclass(frozen=True)
class GPTQConfig(AlgoConfig):
    """Weights rounded by GPTQ."""

    bits: int = 8
    block_size: int = 128
    group_size: int = -1
    perc_damp: float = 0.01
    act_order: bool = False
    per_channel: bool = False
    mse: bool = False
    weight_symmetric: bool = True

    def options(self) -> dict[str, Any]:
        """The switch and its parameters."""
        return {"UseGPTQ": True, "GPTQParams": self._parameters()}


@dataclass(frozen=True)
class _FineTuning(AlgoConfig):
    """What AdaRound and AdaQuant share; the names are those of FastFinetune in another spelling."""

    optim_device: str = "cpu"
    infer_device: str = "cpu"
    fixed_seed: int = SEED
    data_size: int = ALL_DATA
    batch_size: int = 1
    num_batches: int = 1
    num_iterations: int = 1000
    learning_rate: float = 0.1
    early_stop: bool = False
    output_index: int = 0
    lr_adjust: tuple[float, float] | None = None
    target_op_type: tuple[str, ...] | list[str] = TUNED_OPERATORS
    selective_update: bool = False
    update_bias: bool = False
    output_qdq: bool = False
    drop_ratio: float = 1.0
    mem_opt_level: int = 1
    cache_dir: str | None = None
    log_period: int = 100
    ref_model_path: str | None = None
    dynamic_batch: bool = False
    parallel: bool = False
    reg_param: float = 0.01
    beta_range: tuple[float, float] = (20, 2)
    warm_start: float = 0.2
    select_max_mem_layer: bool = False
    num_workers: int = 1
    pin_memory: bool = False
    use_gds: bool = False

    def options(self) -> dict[str, Any]:
        """The FastFinetune dictionary."""
        values = self._parameters()
        if self.reg_param == _FineTuning.reg_param:
            del values["RegParam"]  # nobody asked for it, and Detent weighs it for each layer
        algorithm = "adaround" if isinstance(self, AdaRoundConfig) else "adaquant"
        return {"FastFinetune": {"OptimAlgorithm": algorithm, **values}}


@dataclass(frozen=True)
class AdaRoundConfig(_FineTuning):
    """Weights learn whether to round up or down."""


@dataclass(frozen=True)
class AdaQuantConfig(_FineTuning):
    """Weights learn their codes."""

    num_iterations: int = 3000
    learning_rate: float = 1e-5


@dataclass(frozen=True)
class QuarotConfig(AlgoConfig):
    """Rotations of a language model."""

    r_matrix_dim: int = 4096
    use_random_had: bool = False
    r_config_path: str | None = None

    def options(self) -> dict[str, Any]:
        """Its options; Detent has no counterpart, and the translation says so."""
        return self._parameters()


@dataclass(frozen=True)
class AutoMixprecisionConfig(AlgoConfig):
    """Formats chosen layer by layer."""

    target_layer_config: Any = None
    target_op_type: tuple[str, ...] | list[str] = ("Conv", "ConvTranspose", "Gemm", "MatMul")
    subgraph_json: Any = None
    include_layers: list[str] | None = None
    exclude_layers: list[str] | None = None
    data_size: int = 0
    metric_output_index: int = 0
    metric_distance_fn: Any = None
    metric_evaluate_fn: Any = None
    metric_default: str = "l2"
    metric_threshold: float | None = 0
    metric_optimize_object: str = "speed"
    sensitivity_cache_file: Any = None
    worker_num: int = 1
    dual_quant_nodes: bool = False
    no_input_qdq_shared: bool = False
    shared_param_mode: str = "propagate"

    def options(self) -> dict[str, Any]:
        """The AutoMixprecision dictionary."""
        return {"AutoMixprecision": self._parameters()}
