"""AutoMixprecision, Quark's dictionary on mixed precision, as an override or as a search.

With its default threshold of 0 Quark gives the other format to every candidate layer: that is an override. With any
other it searches for those that can take it, before anything is quantized.

Quark's metrics compare the outputs y of the float model with y + e of the quantized one, and its threshold is a bound
on one of them. Detent's search has a bound on the noise power over the signal power, p = sum |e|^2 / sum |y|^2:

    sqnr    the mean of -10 log10(|y|^2 / |e|^2) <= t      p <= 10^(t / 10)
    l2      the mean of |e| <= t                           p <= t^2 / mean |y|^2: a mean is below its root mean square
    cosine  the mean of 1 - cos(y, y + e) <= t             p <= 1 - (1 - t)^2: the angle's sine is at most |e| / |y|
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from detent.compat.data_types import QLayerConfig, check_layer, format_of, spec_format
from detent.errors import UsageError, nearest
from detent.numerics.formats import IntegerFormat, is_integer
from detent.pipeline.job import Job
from detent.recipe import Override
from detent.recipe.presets import LAYERS
from detent.results.searched import decibels
from detent.search.mixed_precision import Layers, LayerSearch, OtherFormats, search_layers
from detent.search.probing import SAMPLES

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
    "MetricThreshold": "a search (`detent.search.mixed`): the layers that can take the format; 0: all of them",
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


Metric = Literal["l2", "sqnr", "cosine"]

UNSEARCHED = {
    "kl": "a divergence of distributions says nothing about the power of an error",
    "psnr": "it is about the largest output, not about the power of all",
}


@dataclass(frozen=True)
class MixedSearch:
    """What is searched for: layers that take the formats, so that the metric stays below the threshold."""

    formats: OtherFormats
    layers: Layers
    metric: Metric
    threshold: float
    samples: int = SAMPLES

    def __post_init__(self) -> None:
        possible = self.threshold < 0 if self.metric == "sqnr" else self.threshold > 0
        if not possible or (self.metric == "cosine" and self.threshold >= 1):
            ranges = {"sqnr": "below 0, such as -30", "l2": "above 0", "cosine": "between 0 and 1"}
            raise UsageError(
                f"AutoMixprecision: a threshold of {self.threshold:g} for {self.metric} cannot be kept. Give one "
                f"{ranges[self.metric]}."
            )

    def bound(self, power: float) -> float:
        """The error to stay below, as noise power over signal power, from the mean of |y|^2."""
        if self.metric == "sqnr":
            return float(10 ** (self.threshold / 10))
        if self.metric == "cosine":
            return 1 - (1 - self.threshold) ** 2
        return self.threshold**2 / power if power else math.inf

    def run(self, job: Job) -> LayerSearch:
        """Search, and warn where the threshold cannot be kept."""
        found = search_layers(job, self.formats, self.layers, self.bound, count=self.samples)
        if not found.reached:
            warnings.warn(
                f"AutoMixprecision: no choice of layers keeps {self.metric} below {self.threshold:g} (an error of "
                f"{decibels(found.wanted):.1f} dB). The best has {decibels(found.error):.1f} dB.",
                stacklevel=2,
            )
        return found


def search_of(params: Mapping[str, Any], formats: Mapping[str, Any]) -> MixedSearch | None:
    """The search that a dictionary asks for; None where it asks for none. `formats` are what layers may take."""
    threshold = params.get("MetricThreshold", 0)
    if threshold is None:
        raise UsageError(
            "AutoMixprecision: MetricThreshold=None asks for an analysis only, and the model stays as it is. Delete "
            "AutoMixprecision; `detent sensitivity MODEL --calib DATA` is the analysis."
        )
    older = params.get("L2Target")
    if threshold and older:
        raise UsageError("AutoMixprecision: MetricThreshold and the older L2Target say the same. Give one.")
    if not threshold and not older:
        return None
    return MixedSearch(
        OtherFormats(**{role: _integers(role, fmt) for role, fmt in formats.items()}),
        Layers(
            tuple(params.get("TargetOpType", LAYERS)),
            tuple(params.get("IncludeLayers") or ()),
            tuple(params.get("ExcludeLayers") or ()),
        ),
        "l2" if older else _metric(params.get("MetricDefault", "l2")),
        _number("L2Target" if older else "MetricThreshold", older or threshold),
        int(params.get("DataSize") or SAMPLES),
    )


def _metric(name: Any) -> Metric:
    if name in UNSEARCHED:
        raise UsageError(f"AutoMixprecision: MetricDefault={name!r}: {UNSEARCHED[name]}. Choose sqnr, l2 or cosine.")
    for known in get_args(Metric):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise UsageError(
        f"AutoMixprecision: MetricDefault is {name!r}.{nearest(str(name), get_args(Metric))} Choose sqnr, l2 or cosine."
    )


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"AutoMixprecision: {name} is {value!r}: it must be a number.")
    return float(value)


def _integers(role: str, fmt: Any) -> IntegerFormat | None:
    if fmt is None or is_integer(fmt):
        return fmt
    raise UsageError(
        f"AutoMixprecision: a threshold asks for a search, and that is for integers; the {role} of the target are "
        f"{fmt.label}. Name the layers in IncludeLayers, and delete the threshold."
    )
