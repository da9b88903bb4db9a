"""What refines a model in Quark: the configurations in `QConfig(algo_config=[...])`, and the dictionaries behind them.

A configuration stands for extra options, so that both ways of asking go through one translation: its fields are the
keys of the dictionary in another spelling. FastFinetune becomes AdaRound or AdaQuant, GPTQParams becomes Gptq.

Other tools count a batch in images, Detent in output positions, of which it takes `rows` from each image. By GPTQ Quark
rounds only products with a constant, to 8 bits whatever the parameters say; here every layer is rounded, to the weights
of the configuration, and a size of groups or a scale for each channel changes these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, make_dataclass, replace
from typing import Any, ClassVar

from detent.compat.auto_mixprecision import MIXED_DEFAULTS
from detent.compat.data_types import Serializable, plain
from detent.compat.option_rows import (
    NO_FIELD,
    NoEffect,
    Option,
    Reader,
    apply_rows,
    boolean,
    check_keys,
    defaults_of,
    honoured,
    met,
    note,
    noted,
    table_of,
    unchanged,
)
from detent.errors import UsageError, check_known
from detent.numerics.formats import is_integer
from detent.numerics.interface import NumberFormat
from detent.refinements import AdaQuant, AdaRound, Gptq

ALL_DATA = 1_000_000_000  # Quark's way to say all samples
MOST_SAMPLES = 1000  # what "all data" means: Quark's own presets take as many
ROWS = AdaRound().rows
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")

# -- FastFinetune ------------------------------------------------------------------------------------------------------


def _learned(name: str, default: Any, field: str, read: Reader) -> tuple[Any, Option]:
    """Make a row for a field of the refinement; for one of the other algorithm alone, only the default passes."""
    owners = [kind.__name__ for kind in (AdaRound, AdaQuant) if hasattr(kind, field)]

    def rule(refinement: Any, value: Any) -> Any:
        if hasattr(refinement, field):
            return replace(refinement, **{field: read(value)})
        # Scripts pass the parameters of both algorithms along without meaning those of the other one.
        if value in (default, None):
            return refinement
        raise NoEffect(f"it is not for {type(refinement).__name__.lower()}.")

    return default, honoured(name, f"`{field}`" if len(owners) == 2 else f"`{owners[0]}.{field}`", rule)


def _pair(value: Any) -> tuple[float, float] | None:
    return (float(value[0]), float(value[1])) if value else None


_CPU = "layers are refined on the CPU"
_ON_CPU = ("cpu", "CPU", None)
_SOME_LAYERS = "every layer is refined, not only these types"


def _all_layers(refinement: Any, op_types: Any) -> Any:
    if set(_LAYERS) - set(op_types):
        raise NoEffect(f"{_SOME_LAYERS}.")
    return refinement


# In the order of the fields of AdaRoundConfig and AdaQuantConfig, with their defaults.
_ROWS: tuple[tuple[Any, Option], ...] = (
    (NO_FIELD, honoured("OptimAlgorithm", "adaround or adaquant: `AdaRound` or `AdaQuant`", unchanged)),
    ("cpu", noted("OptimDevice", _CPU, _ON_CPU)),
    ("cpu", noted("InferDevice", _CPU, _ON_CPU)),
    _learned("FixedSeed", 1705472343, "seed", int),
    _learned("DataSize", ALL_DATA, "samples", lambda size: MOST_SAMPLES if size >= ALL_DATA else size),
    _learned("BatchSize", 1, "batch", lambda images: images * ROWS),
    (1, met("NumBatches", "batches are drawn anew in every iteration")),
    _learned("NumIterations", 1000, "iterations", int),
    _learned("LearningRate", 0.1, "learning_rate", float),
    _learned("EarlyStop", False, "early_stop", bool),
    (0, noted("OutputIndex", "all outputs count alike")),
    _learned("LRAdjust", None, "learning_rate_above", _pair),
    (
        (*_LAYERS, "InstanceNormalization", "LayerNormalization"),
        Option("TargetOpType", "noted", _SOME_LAYERS, _all_layers),
    ),
    _learned("SelectiveUpdate", False, "selective_update", bool),
    _learned("UpdateBias", False, "update_bias", bool),
    _learned("OutputQDQ", False, "output_rounded", bool),
    _learned("DropRatio", 1.0, "quantized_share", float),
    (1, met("MemOptLevel", "only the current layer's rows are kept")),
    (None, met("CacheDir", "nothing is written to disk")),
    (100, met("LogPeriod", "progress is shown by the bar")),
    (None, noted("RefModelPath", "the float model is the reference")),
    (False, met("DynamicBatch", "samples of any batch size can be read")),
    (False, met("Parallel", "layers depend on each other and are taken in order")),
    _learned("RegParam", 0.01, "penalty", float),
    _learned("BetaRange", (20, 2), "beta", _pair),
    _learned("WarmStart", 0.2, "warm_start", float),
    (False, met("SelectMaxMemLayer", "memory does not grow with the layers")),
    (1, met("NumWorkers", "data is read by Detent's own threads")),
    (False, met("PinMemory", "layers are refined on the CPU")),
    (False, met("UseGDS", "layers are refined on the CPU")),
)
FAST_FINETUNE = table_of(option for _, option in _ROWS)


def refinement_of(params: Mapping[str, Any]) -> AdaRound | AdaQuant:
    """Return the refinement that FastFinetune describes; raise UsageError, by name, for what Detent cannot do."""
    algorithm = str(params.get("OptimAlgorithm", "adaround")).lower()
    kinds: dict[str, type[AdaRound | AdaQuant]] = {"adaround": AdaRound, "adaquant": AdaQuant}
    check_known("OptimAlgorithm", algorithm, kinds)
    refinement: AdaRound | AdaQuant = apply_rows(FAST_FINETUNE, kinds[algorithm](), params)
    return refinement


# -- GPTQParams --------------------------------------------------------------------------------------------------------


_GPTQ: dict[str, Any] = {
    **{"Bits": 8, "BlockSize": 128, "GroupSize": -1, "PercDamp": 0.01, "ActOrder": False, "PerChannel": False},
    **{"MSE": False, "WeightSymmetric": True},
}


def gptq_of(given: Mapping[str, Any], weights: NumberFormat | None) -> dict[str, Any]:
    """Return the fields of a recipe that GPTQParams describe: the refinement, and the weights with their scales."""
    check_keys(given, _GPTQ)
    if not is_integer(weights):
        raise UsageError("GPTQ is for weights that are integers, and this configuration has others. Delete it.")
    chosen = {key: value for key, value in given.items() if value is not None}
    params = {**_GPTQ, "Bits": weights.bits, "WeightSymmetric": weights.symmetric, **chosen}
    # Quark rounds to 8 bits, in the symmetry of the weights, whatever these say.
    for key, present in (("Bits", weights.bits), ("WeightSymmetric", weights.symmetric), ("MSE", False)):
        if params[key] != present:
            note(f"GPTQParams, {key}={params[key]!r}: the weights of the configuration decide, which has {present}.")
    if params["GroupSize"] > 0:
        weights = weights.replace(granularity=f"per_group:{params['GroupSize']}")
    elif params["PerChannel"]:
        weights = weights.replace(granularity="per_channel")
    order = "activation" if boolean(params["ActOrder"]) else "natural"
    refinement = Gptq(damping=float(params["PercDamp"]), block=int(params["BlockSize"]), order=order)
    return {"refinement": refinement, "weights": weights}


# -- configurations ----------------------------------------------------------------------------------------------------


class AlgoConfig(Serializable):
    """Base of all. `name` is how a configuration is called where it is written down."""

    name: ClassVar[str] = ""

    def options(self) -> dict[str, Any]:
        """Return the extra options that this asks for."""
        raise UsageError(f"{type(self).__name__} asks for nothing: list one of its subclasses in algo_config.")

    def get_options(self) -> dict[str, Any]:
        """Return the extra options that this asks for, by its other name."""
        return self.options()

    def to_dict(self) -> dict[str, Any]:
        """Return the name, and the fields that differ from their defaults."""
        usual = type(self)()
        given = {name: value for name, value in vars(self).items() if value != getattr(usual, name)}
        return {"name": self.name, **{name: plain(value) for name, value in given.items()}}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> AlgoConfig:
        """Return the configuration that a dictionary with its `name` describes."""
        given = dict(values)
        name = str(given.pop("name", ""))
        check_known("algorithm", name, ALGO_NAME_TO_CLASS)
        made: AlgoConfig = ALGO_NAME_TO_CLASS[name](**given)
        return made


def _config(
    name: str, called: str, doc: str, defaults: Mapping[str, Any], options: Callable[[dict[str, Any]], dict[str, Any]]
) -> Any:
    """Make a configuration whose fields are the keys of a dictionary: `num_iterations` is NumIterations.

    A key without a field in the newest version has one that is not set: older versions had it.
    """
    keys = {re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", key).lower(): key for key in defaults}

    def of(self: AlgoConfig) -> dict[str, Any]:
        given = {key: getattr(self, name) for name, key in keys.items()}
        return options({key: value for key, value in given.items() if value is not NO_FIELD})

    own = [(name, Any, field(default=defaults[key], repr=defaults[key] is not NO_FIELD)) for name, key in keys.items()]
    namespace = {"__doc__": doc, "__module__": __name__, "options": of, "name": called}
    return make_dataclass(name, own, bases=(AlgoConfig,), namespace=namespace)


def _tuning(algorithm: str, given: dict[str, Any]) -> dict[str, Any]:
    if given["RegParam"] == _TUNING["RegParam"]:
        del given["RegParam"]  # nobody asked for it, and Detent weighs it for each layer
    return {"FastFinetune": {"OptimAlgorithm": algorithm, **given}}


_CLE = {
    **{"CLEBalanceMethod": "max", "CLESteps": 1, "CLEWeightThreshold": 0.5, "CLEScaleAppendBias": True},
    **{"CLEScaleUseThreshold": True, "CLETotalLayerDiffThreshold": 1.9e-7},
}
_TUNING = defaults_of(_ROWS)
CLEConfig = _config("CLEConfig", "cle", "Cross-layer equalization.", _CLE, dict)
SmoothQuantConfig = _config(
    "SmoothQuantConfig",
    "smooth_quant",
    "SmoothQuant: outliers move into the weights.",
    {"Alpha": 0.5},
    lambda given: {"SmoothAlpha": given["Alpha"]},
)
BiasCorrectionConfig = _config(
    "BiasCorrectionConfig", "bias_correction", "Bias correction.", {}, lambda _: {"BiasCorrection": True}
)
GPTQConfig = _config(
    "GPTQConfig", "gptq", "Weights rounded by GPTQ.", _GPTQ, lambda given: {"UseGPTQ": True, "GPTQParams": given}
)
AdaRoundConfig = _config(
    "AdaRoundConfig",
    "adaround",
    "Each weight learns to round up or down.",
    _TUNING,
    lambda given: _tuning("adaround", given),
)
AdaQuantConfig = _config(
    "AdaQuantConfig",
    "adaquant",
    "Weights learn their codes.",
    {**_TUNING, "NumIterations": 3000, "LearningRate": 1e-5},
    lambda given: _tuning("adaquant", given),
)
AutoMixprecisionConfig = _config(
    "AutoMixprecisionConfig",
    "auto_mixprecision",
    "Formats chosen layer by layer.",
    MIXED_DEFAULTS,
    lambda given: {"AutoMixprecision": given},
)
QuarotConfig = _config(
    "QuarotConfig",
    "quarot",
    "Rotations of the residual stream.",
    {"RMatrixDim": 4096, "UseRandomHad": False, "RConfigPath": None},
    dict,
)

# The configurations by the names that `to_dict` gives them.
ALGO_NAME_TO_CLASS: dict[str, Any] = {
    kind.name: kind
    for kind in (
        *(SmoothQuantConfig, CLEConfig, BiasCorrectionConfig, GPTQConfig, AutoMixprecisionConfig, AdaRoundConfig),
        *(AdaQuantConfig, QuarotConfig),
    )
}
from_dict = AlgoConfig.from_dict
