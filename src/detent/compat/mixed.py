"""AutoMixprecision, Quark's dictionary on mixed precision, as an override or as a search.

With its default threshold of 0 Quark gives the other format to every candidate layer: that is an override. With any
other it searches for those that can take it: see `mixed_search`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from detent.compat.enums import QuantGranularity
from detent.compat.formats import format_of
from detent.compat.mixed_search import MixedSearch, search_of
from detent.compat.specs import QLayerConfig, QTensorConfig
from detent.errors import UsageError, nearest
from detent.numerics.formats import IntegerFormat
from detent.numerics.interface import NumberFormat
from detent.recipe import Override
from detent.recipe.presets import LAYERS

_MET = {
    "MetricOptimizeObject": "a search takes as few bits as the threshold allows, whichever format is the finer one",
    "WorkerNum": "all layers are measured at once",
    "DualQuantNodes": "values between two formats are converted",
    "NoInputQdqShared": "values between two formats are converted",
    "NoInputQDQShared": "values between two formats are converted",
    "SharedParamMode": "what layers share is separated where they need different codes",
    "AutoMixUseFastFT": "include_fast_ft decides",
}
_SEARCHED = {
    "MetricThreshold": "a search (`detent.search.layers`): the layers that can take the format; 0: all of them",
    "L2Target": "the older name: MetricThreshold of l2",
    "MetricDefault": "what the threshold is about: sqnr, l2 or cosine, as a bound on the power of the error",
    "ExcludeLayers": "not these nodes; with a threshold",
    "DataSize": "a search measures on up to so many samples (0: 32)",
}
_CALLED = "functions of the script are not called: `detent tune` has --metric and --max-drop"
_NAMED = "nodes have names: give them in IncludeLayers, or ExcludeLayers with a threshold"
_REFUSED = {
    "MetricDistanceFn": _CALLED,
    "MetricEvaluateFn": _CALLED,
    "EvaluateFunction": _CALLED,
    "Top1AccTarget": _CALLED,
    "MetricOutputIndex": "all outputs count alike: delete it",
    "SubgraphJson": "layers are searched one by one: name those of a part in IncludeLayers",
    "SensitivityCacheFile": "no ranking is kept in a file: a search takes a few walks through the model. Delete it",
    "NumTarget": "how many layers change follows from the threshold: give MetricThreshold",
    "TargetIndices": _NAMED,
    "ExcludeIndices": _NAMED,
}
_OLDER_TYPES = {
    "TargetQuantType": ("activations", "weights"),
    "ActTargetQuantType": ("activations",),
    "WeightTargetQuantType": ("weights",),
    "BiasTargetQuantType": ("biases",),
}
_KNOWN = ("TargetLayerConfig", "TargetOpType", "IncludeLayers", *_OLDER_TYPES, *_SEARCHED, *_MET, *_REFUSED)


def rows() -> list[tuple[str, str, str]]:
    """Each parameter, whether it is honoured, met or refused, and what becomes of it: for the manual."""
    found = [
        ("TargetLayerConfig", "honoured", "the format of the layers (`activations`, `weights`)"),
        ("TargetOpType", "honoured", "which operators are layers (`op_types`)"),
        ("IncludeLayers", "honoured", "only these nodes (`nodes`)"),
    ]
    found += [(name, "honoured", f"the older name: {', '.join(roles)}") for name, roles in _OLDER_TYPES.items()]
    found += [(name, "honoured", what) for name, what in _SEARCHED.items()]
    found += [(name, "met", why) for name, why in _MET.items()]
    return found + [(name, "refused", why) for name, why in _REFUSED.items()]


def mixed_of(params: Mapping[str, Any]) -> Override | MixedSearch:
    """The override that stands for promoting every candidate, or the search; UsageError, by name, for all else."""
    for name, value in params.items():
        if name not in _KNOWN:
            raise UsageError(f"AutoMixprecision has no '{name}'.{nearest(name, _KNOWN)} It has {', '.join(_KNOWN)}.")
        if name in _REFUSED and value not in (None, 0, [], ()):
            raise UsageError(f"AutoMixprecision: {name}={value!r} is not part of Detent: {_REFUSED[name]}.")
    formats = _formats(params)
    search = search_of(params, formats)
    if search is not None:
        return search
    if params.get("ExcludeLayers"):
        raise UsageError(
            "AutoMixprecision: ExcludeLayers is for a search, and without MetricThreshold there is none. Name the "
            "layers that change in IncludeLayers."
        )
    included = tuple(params.get("IncludeLayers") or ())
    return Override(nodes=included, op_types=() if included else tuple(params.get("TargetOpType", LAYERS)), **formats)


def _formats(params: Mapping[str, Any]) -> dict[str, Any]:
    older = {role: format_of(params[name]) for name, roles in _OLDER_TYPES.items() if name in params for role in roles}
    layer = params.get("TargetLayerConfig")
    if older and layer is not None:
        raise UsageError("AutoMixprecision: TargetLayerConfig and the older TargetQuantType say the same. Give one.")
    if older:
        return older
    if not isinstance(layer, QLayerConfig):
        raise UsageError(f"AutoMixprecision: TargetLayerConfig is {layer!r}. Give one QLayerConfig.")
    check_layer(layer)
    return {role: spec_format(spec) for role, spec in layer.roles.items()}


def spec_format(spec: QTensorConfig | None) -> NumberFormat | None:
    """The format that a tensor's specification describes."""
    if spec is None:
        return None
    fmt = format_of(spec.data_type, symmetric=spec.symmetric, scale=spec.scale)
    if isinstance(fmt, IntegerFormat) and spec.quant_granularity == QuantGranularity.Channel:
        return dataclasses.replace(fmt, granularity="per_channel")
    return fmt


def check_layer(layer: QLayerConfig) -> None:
    """Raise UsageError for what a specification can say and Detent cannot do."""
    if layer.output_tensors is not None and layer.output_tensors != layer.inputs:
        raise UsageError("output_tensors of a layer's specification: the next layer's input_tensors decide. Delete it.")
    granularities = {spec.quant_granularity for spec in (layer.inputs, layer.weight, layer.bias) if spec is not None}
    if QuantGranularity.Group in granularities:
        raise UsageError("QuantGranularity.Group has no size of groups. Use the recipe MATMUL_NBITS.")
    for spec in (layer.inputs, layer.bias):
        if spec is not None and spec.quant_granularity == QuantGranularity.Channel:
            raise UsageError("QuantGranularity.Channel is for weights: activations and biases cannot have it.")
