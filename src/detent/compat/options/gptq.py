"""UseGPTQ and GPTQParams, Quark's names for GPTQ, as a refinement.

Quark rounds only products with a constant, to 8 bits whatever the parameters say. Here every layer is rounded, to the
weights of the configuration; a size of groups or a scale for each channel changes these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from detent.compat.options.base import Option, boolean, honoured
from detent.compat.request import Request
from detent.errors import UsageError, nearest
from detent.numerics.formats import IntegerFormat
from detent.refinements import Gptq

_DEFAULTS: Mapping[str, Any] = {
    "Bits": None,
    "BlockSize": 128,
    "GroupSize": -1,
    "PercDamp": 0.01,
    "ActOrder": False,
    "PerChannel": False,
    "MSE": False,
    "WeightSymmetric": None,
}


def _use(request: Request, value: Any) -> Request:
    """GPTQ with its parameters unsaid."""
    return _with(request, {}) if boolean("UseGPTQ", value) else request


def _params(request: Request, value: Any) -> Request:
    if not isinstance(request.recipe.refinement, Gptq):
        raise UsageError("The option GPTQParams has no effect without UseGPTQ=True. Give both.")
    return _with(request, value or {})


def _with(request: Request, given: Mapping[str, Any]) -> Request:
    params = {**_DEFAULTS, **{"MSE" if name == "Mse" else name: value for name, value in given.items()}}
    for name in params:
        if name not in _DEFAULTS:
            raise UsageError(f"GPTQParams has no '{name}'.{nearest(name, _DEFAULTS)} It has {', '.join(_DEFAULTS)}.")
    weights = request.recipe.weights
    if not isinstance(weights, IntegerFormat):
        raise UsageError("UseGPTQ=True is for weights that are integers, and this configuration has others. Delete it.")
    if params["Bits"] not in (None, weights.bits):
        raise UsageError(f"GPTQParams: Bits {params['Bits']}, and the weights are {weights.dtype}. Change either.")
    if params["WeightSymmetric"] not in (None, weights.symmetric):
        raise UsageError("GPTQParams: WeightSymmetric is not what the weights of the configuration are. Delete it.")
    if params["MSE"]:
        raise UsageError("GPTQParams: MSE is not part of Detent. Delete it; the recipe's weight_method chooses scales.")
    order = "activation" if boolean("ActOrder", params["ActOrder"]) else "natural"
    refinement = Gptq(damping=float(params["PercDamp"]), block=int(params["BlockSize"]), order=order)
    return request.with_recipe(refinement=refinement, weights=_granular(weights, params))


def _granular(weights: IntegerFormat, params: Mapping[str, Any]) -> IntegerFormat:
    if params["GroupSize"] > 0:
        return dataclasses.replace(weights, granularity=f"per_group:{params['GroupSize']}")
    return dataclasses.replace(weights, granularity="per_channel") if params["PerChannel"] else weights


OPTIONS: tuple[Option, ...] = (
    honoured("UseGPTQ", "weights rounded in turn, in every layer (`refinement=Gptq()`)", _use),
    honoured(
        "GPTQParams",
        "PercDamp, BlockSize and ActOrder of these; GroupSize and PerChannel are the weights' scales",
        _params,
    ),
)
