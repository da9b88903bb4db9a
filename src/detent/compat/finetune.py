"""The dictionaries that Quark has for what refines weights: FastFinetune (AdaRound, AdaQuant) and GPTQParams.

Other tools count a batch in images, Detent in output positions, of which it takes `rows` from each image. By GPTQ Quark
rounds only products with a constant, to 8 bits whatever the parameters say; here every layer is rounded, to the weights
of the configuration, and a size of groups or a scale for each channel changes these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from detent.compat.algorithms import ALL_DATA
from detent.errors import UsageError, nearest
from detent.numerics.formats import is_integer
from detent.numerics.interface import NumberFormat
from detent.refinements import AdaQuant, AdaRound, Gptq

ROWS = AdaRound().rows
MOST_SAMPLES = 1000
"""What "all data" means: Quark's own presets take as many."""

_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "DataSize": ("samples", lambda size: MOST_SAMPLES if size >= ALL_DATA else size),
    "FixedSeed": ("seed", int),
    "BatchSize": ("batch", lambda images: images * ROWS),
    "NumIterations": ("iterations", int),
    "LearningRate": ("learning_rate", float),
    "EarlyStop": ("early_stop", bool),
    "SelectiveUpdate": ("selective_update", bool),
    "OutputQDQ": ("output_rounded", bool),
    "DropRatio": ("quantized_share", float),
    "LRAdjust": ("learning_rate_above", lambda pair: None if not pair else (float(pair[0]), float(pair[1]))),
}
_ADAROUND_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "RegParam": ("penalty", float),
    "BetaRange": ("beta", lambda pair: (float(pair[0]), float(pair[1]))),
    "WarmStart": ("warm_start", float),
}
_ADAQUANT_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {"UpdateBias": ("update_bias", bool)}
_OTHER_ALGORITHM = {"RegParam": 0.01, "BetaRange": (20, 2), "WarmStart": 0.2, "UpdateBias": False}
"""What belongs to the other algorithm, with the value that scripts pass along without meaning it."""

_DEVICES = ("OptimDevice", "InferDevice")
_MET: dict[str, str] = {
    "NumBatches": "batches are drawn anew in every iteration",
    "MemOptLevel": "only the current layer's rows are kept",
    "CacheDir": "nothing is written to disk",
    "LogPeriod": "progress is shown by the bar",
    "SelectMaxMemLayer": "memory does not grow with the layers",
    "NumWorkers": "data is read by Detent's own threads",
    "PinMemory": "there is no GPU",
    "UseGDS": "there is no GPU",
    "Parallel": "layers depend on each other and are taken in order",
    "DynamicBatch": "samples of any batch size can be read",
}
_ASKS_FOR_NOTHING: dict[str, tuple[Any, ...]] = {
    "OutputIndex": (0,),
    "RefModelPath": (None, ""),
}
_REFINED = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
_KNOWN = ("OptimAlgorithm", "TargetOpType", *_FIELDS, *_OTHER_ALGORITHM, *_DEVICES, *_MET, *_ASKS_FOR_NOTHING)


def rows() -> list[tuple[str, str, str]]:
    """Each parameter, whether it is honoured, met or refused, and what becomes of it: for the manual."""
    found = [("OptimAlgorithm", "honoured", "adaround or adaquant: `AdaRound` or `AdaQuant`")]
    found += [(name, "honoured", f"`{field}`") for name, (field, _) in _FIELDS.items()]
    found += [(name, "honoured", f"`AdaRound.{field}`") for name, (field, _) in _ADAROUND_FIELDS.items()]
    found += [(name, "honoured", f"`AdaQuant.{field}`") for name, (field, _) in _ADAQUANT_FIELDS.items()]
    found += [(name, "met", why) for name, why in _MET.items()]
    found += [(name, "refused", "layers are refined on the CPU: give 'cpu'") for name in _DEVICES]
    found += [("TargetOpType", "refused", "every layer is refined: name at least all four types, or delete it")]
    return found + [(name, "refused", "delete it") for name in _ASKS_FOR_NOTHING]


def refinement_of(params: Mapping[str, Any]) -> AdaRound | AdaQuant:
    """The refinement that FastFinetune describes. UsageError, by name, for what cannot be had."""
    for name in params:
        if name not in _KNOWN:
            raise UsageError(f"FastFinetune has no '{name}'.{nearest(name, _KNOWN)} It has {', '.join(_KNOWN)}.")
    algorithm = str(params.get("OptimAlgorithm", "adaround")).lower()
    if algorithm not in ("adaround", "adaquant"):
        raise UsageError(f"FastFinetune: OptimAlgorithm is '{algorithm}'. Choose adaround or adaquant.")
    _check(params, algorithm)
    own = _ADAROUND_FIELDS if algorithm == "adaround" else _ADAQUANT_FIELDS
    given = {name: value for name, value in params.items() if name in _FIELDS or name in own}
    changes = {field: convert(given[name]) for name, (field, convert) in (_FIELDS | own).items() if name in given}
    return AdaRound(**changes) if algorithm == "adaround" else AdaQuant(**changes)


def _check(params: Mapping[str, Any], algorithm: str) -> None:
    own = _ADAROUND_FIELDS if algorithm == "adaround" else _ADAQUANT_FIELDS
    for name, value in params.items():
        if name in _DEVICES and not str(value).lower().startswith("cpu"):
            raise UsageError(f"FastFinetune: {name} is '{value}'. Detent refines on the CPU: give 'cpu'.")
        if name in _ASKS_FOR_NOTHING and value not in _ASKS_FOR_NOTHING[name]:
            raise UsageError(f"FastFinetune: {name}={value!r} is not part of Detent. Delete it.")
        if name == "TargetOpType" and not set(value) >= _REFINED:
            left = ", ".join(sorted(_REFINED - set(value)))
            raise UsageError(f"FastFinetune: TargetOpType leaves out {left}. Detent refines every layer: delete it.")
        if name in _OTHER_ALGORITHM and name not in own and value not in (_OTHER_ALGORITHM[name], None):
            raise UsageError(f"FastFinetune: {name}={value!r} is not for {algorithm}. Delete it.")


_GPTQ_DEFAULTS: Mapping[str, Any] = {
    "Bits": None,
    "BlockSize": 128,
    "GroupSize": -1,
    "PercDamp": 0.01,
    "ActOrder": False,
    "PerChannel": False,
    "MSE": False,
    "WeightSymmetric": None,
}


def gptq_of(given: Mapping[str, Any], weights: NumberFormat | None) -> dict[str, Any]:
    """Return the fields of a recipe that GPTQParams describe: the refinement, and the weights with their scales."""
    params = {**_GPTQ_DEFAULTS, **{"MSE" if name == "Mse" else name: value for name, value in given.items()}}
    for name in params:
        if name not in _GPTQ_DEFAULTS:
            listed = ", ".join(_GPTQ_DEFAULTS)
            raise UsageError(f"GPTQParams has no '{name}'.{nearest(name, _GPTQ_DEFAULTS)} It has {listed}.")
    if not is_integer(weights):
        raise UsageError("UseGPTQ=True is for weights that are integers, and this configuration has others. Delete it.")
    if params["Bits"] not in (None, weights.bits):
        raise UsageError(f"GPTQParams: Bits {params['Bits']}, and the weights are {weights.dtype}. Change either.")
    if params["WeightSymmetric"] not in (None, weights.symmetric):
        raise UsageError("GPTQParams: WeightSymmetric is not what the weights of the configuration are. Delete it.")
    if params["MSE"]:
        raise UsageError("GPTQParams: MSE is not part of Detent. Delete it; the recipe's weight_method chooses scales.")
    if not isinstance(params["ActOrder"], bool):
        raise UsageError(f"The option ActOrder is {params['ActOrder']!r}: it must be True or False.")
    order = "activation" if params["ActOrder"] else "natural"
    if params["GroupSize"] > 0:
        weights = weights.replace(granularity=f"per_group:{params['GroupSize']}")
    elif params["PerChannel"]:
        weights = weights.replace(granularity="per_channel")
    refinement = Gptq(damping=float(params["PercDamp"]), block=int(params["BlockSize"]), order=order)
    return {"refinement": refinement, "weights": weights}
