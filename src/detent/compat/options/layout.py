"""Options on where Q/DQ pairs are put."""

from __future__ import annotations

from typing import Any

from detent.compat.options.base import Option, boolean, field, honoured, met, names, refused
from detent.compat.request import Request
from detent.errors import UsageError
from detent.recipe.recipe import FUSABLE_ACTIVATIONS

_PAIRS = "Leave single nodes float with nodes_to_exclude, or give Recipe(overrides=...)."


def _fused(name: str, op_type: str) -> Option:
    def apply(request: Request, value: Any) -> Request:
        wanted = set(request.recipe.fuse) - {op_type} | ({op_type} if boolean(name, value) else set())
        return request.with_recipe(fuse=tuple(each for each in FUSABLE_ACTIVATIONS if each in wanted))

    return honoured(name, f"whether a layer computes a {op_type} behind it before it rounds (`fuse`)", apply)


def _between(request: Request, value: Any) -> Request:
    """[("Conv", "Relu"), ("Mul", "Add")]."""
    if not value:
        return request
    pairs = [names("RemoveQDQBetweenOps", pair) for pair in value]
    if any(len(pair) != 2 for pair in pairs):
        raise UsageError(f"The option RemoveQDQBetweenOps is {value!r}: expected pairs, such as [('Mul', 'Add')].")
    step = "without-qdq-between:pairs=" + "+".join("/".join(pair) for pair in pairs)
    return request.replace(conversions=(step, *request.conversions))


def _mul_add(request: Request, value: Any) -> Request:
    return _between(request, [("Mul", "Add")]) if boolean("RemoveQDQMulAdd", value) else request


OPTIONS: tuple[Option, ...] = (
    field("AddQDQPairToWeight", "weights stay float behind a pair of nodes", "weight_pairs"),
    met(
        "ForceQuantizeNoInputCheck",
        "every node of the chosen types is quantized, whether its input already is or not",
        (True,),
        "Leave nodes float with nodes_to_exclude.",
    ),
    field("DedicatedQDQPair", "every reader of an activation has a pair of its own", "dedicated_pairs"),
    field("DedicateDQNode", "every reader of an activation has a pair of its own", "dedicated_pairs"),
    refused("EnableDualQuantNodePairs", "a value between two formats has one pair per format already", "Delete it."),
    refused("OpTypesToExcludeOutputQuantization", "a node is quantized or left float, with its outputs", _PAIRS),
    refused("NodesToExcludeOutputQuantization", "a node is quantized or left float, with its outputs", _PAIRS),
    refused("QDQOpTypePerChannelSupportToAxis", "the axis is that of the operator's output channels", "Delete it."),
    _fused("RemoveQDQConvClip", "Clip"),
    _fused("RemoveQDQConvRelu", "Relu"),
    _fused("RemoveQDQConvLeakyRelu", "LeakyRelu"),
    _fused("RemoveQDQConvPRelu", "PRelu"),
    _fused("RemoveQDQConvGelu", "Gelu"),
    honoured("RemoveQDQMulAdd", "no pairs between Mul and Add (`without-qdq-between` of `detent convert`)", _mul_add),
    honoured(
        "RemoveQDQBetweenOps",
        "no pairs between these operators (`without-qdq-between` of `detent convert`)",
        _between,
    ),
    refused("RemoveQDQInstanceNorm", "only layers compute the activation function behind them", _PAIRS),
    refused("RemoveFusedQDQ", "block formats round what a layer hands to its activation function", "Delete it."),
    met("QDQKeepRemovableActivations", "activation functions always stay in the file"),
    met("UseQDQContribOps", "16-bit types are written in com.microsoft's operators where ONNX's are too old for them"),
    met("UseQDQVitisCustomOps", "the operators follow from quant_format"),
)
