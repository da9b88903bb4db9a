"""AutoMixprecision, Quark's dictionary on mixed precision, as an override or as a search.

With its default threshold of 0 Quark gives the other format to every candidate layer: that is an override. With any
other it searches for those that can take it, before anything is quantized.

Quark's metrics compare the outputs y of the float model with y + e of the quantized one, and its threshold is a bound
on one of them. Detent's search has a bound on the noise power over the signal power, p = sum |e|^2 / sum |y|^2:

    sqnr    the mean of -10 log10(|y|^2 / |e|^2) <= t      p <= 10^(t / 10)
    l2      the mean of |e| <= t                           p <= t^2 / mean |y|^2: a mean is below its root mean square
    cosine  the mean of 1 - cos(y, y + e) <= t             p <= 1 - (1 - t)^2: the angle's sine is at most |e| / |y|

kl and psnr are not about that power: models are tried, and judged by them, as they are by a function of the script.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detent.compat.data_types import QLayerConfig, check_layer, format_of, spec_format
from detent.compat.layer_tensors import LayerFormats
from detent.compat.option_rows import (
    NO_FIELD,
    Option,
    Reader,
    apply_rows,
    as_given,
    honoured,
    met,
    note,
    noted,
    number,
    refused,
    table_of,
)
from detent.errors import UsageError, check_known
from detent.graph.load import ModelLike, read
from detent.graph.session import Feeds, Runner
from detent.numerics.formats import IntegerFormat, is_integer
from detent.pipeline.job import Job
from detent.recipe import Override, Recipe
from detent.recipe.recipe import LAYERS
from detent.results.searched import decibels
from detent.search import SAMPLES
from detent.search.mixed_precision import Layers, OtherFormats, search_layers

Make = Callable[[Recipe], ModelLike]

_CONVERTED = "values between two formats are converted"
_JUDGED = "a function of the script that judges the answers to all samples"
_NAMED = "nodes have names"
_BY_NAME = "Give them in IncludeLayers or ExcludeLayers."
_OLDER = {
    "TargetQuantType": ("activations", "weights"),
    "ActTargetQuantType": ("activations",),
    "WeightTargetQuantType": ("weights",),
    "BiasTargetQuantType": ("biases",),
}


def _kept(name: str, says: str, read: Reader = as_given) -> Option:
    """Make a row for a key whose value is needed below."""
    return honoured(name, says, lambda params, value: {**params, name: value}, read)


def _threshold(value: Any) -> float | None:
    return None if value is None else number(value)


# In the order of the fields of AutoMixprecisionConfig, with their defaults; then what older versions had.
_ROWS: tuple[tuple[Any, Option], ...] = (
    (None, _kept("TargetLayerConfig", "the format of the layers (`activations`, `weights`)")),
    (LAYERS, _kept("TargetOpType", "which operators are layers (`op_types`)", tuple)),
    (None, noted("SubgraphJson", "layers change one by one, whatever parts of the model it names")),
    (None, _kept("IncludeLayers", "only these nodes (`nodes`)")),
    (None, _kept("ExcludeLayers", "not these nodes")),
    (0, _kept("DataSize", "the most samples that a search measures on (0: 32)")),
    (0, _kept("MetricOutputIndex", "which output a function of the script is given; else all count alike")),
    (None, _kept("MetricDistanceFn", f"{_JUDGED}, float and quantized: the threshold bounds what it returns")),
    (None, _kept("MetricEvaluateFn", f"{_JUDGED}: the threshold bounds what is lost of it")),
    (
        "l2",
        _kept("MetricDefault", "what the threshold bounds: l2, sqnr and cosine, as the power of the error; kl, psnr"),
    ),
    (
        0,
        _kept("MetricThreshold", "a search (`detent.search.mixed`) for layers; 0: all, None: none", _threshold),
    ),
    ("speed", met("MetricOptimizeObject", "a search takes as few bits as the threshold allows")),
    (None, noted("SensitivityCacheFile", "no ranking is kept: a search takes a few walks")),
    (1, met("WorkerNum", "all layers are measured at once")),
    (False, _kept("DualQuantNodes", "whether tensors between two formats have a pair for each")),
    (False, met("NoInputQDQShared", _CONVERTED)),
    ("propagate", met("SharedParamMode", "what layers share is separated where they need different codes")),
    *((NO_FIELD, _kept(key, f"the older name: {', '.join(roles)}", format_of)) for key, roles in _OLDER.items()),
    (NO_FIELD, _kept("L2Target", "the older name: MetricThreshold of l2", _threshold)),
    (NO_FIELD, met("AutoMixUseFastFT", "include_fast_ft decides")),
    (NO_FIELD, _kept("OutputIndex", "the older name of MetricOutputIndex")),
    (NO_FIELD, _kept("EvaluateFunction", "the older name of MetricEvaluateFn")),
    (NO_FIELD, _kept("Top1AccTarget", "the older name: MetricThreshold of a function", _threshold)),
    (NO_FIELD, refused("NumTarget", "how many layers change follows from the threshold", "Give MetricThreshold.")),
    (NO_FIELD, refused("TargetIndices", _NAMED, _BY_NAME)),
    (NO_FIELD, refused("ExcludeIndices", _NAMED, _BY_NAME)),
)
AUTO_MIXPRECISION = table_of(option for _, option in _ROWS)
MIXED_DEFAULTS = {option.name: default for default, option in _ROWS}


def mixed_of(given: Mapping[str, Any], recipe: Recipe) -> list[Override | LayerFormats | MixedSearch | JudgedSearch]:
    """Return what gives every candidate the format, but not those it excludes, or the search for them.

    UsageError, by name, for all else.
    """
    params = apply_rows(AUTO_MIXPRECISION, {}, given)
    if params.get("MetricThreshold", 0) is None:
        note("AutoMixprecision: MetricThreshold=None leaves all layers as they are; `detent sensitivity` ranks them.")
        return []
    formats, named = _formats(params)
    search = _search(params, formats)
    if search is not None:
        return [*named, search]
    included, excluded = (tuple(params.get(name) or ()) for name in ("IncludeLayers", "ExcludeLayers"))
    op_types = () if included else params.get("TargetOpType", LAYERS)
    kept: dict[str, Any] = dict(recipe.formats)
    usual = [Override(nodes=excluded, optional=True, **kept)] if excluded else []
    # Of several overrides that fit the last one wins: that of layers by their names.
    direct = [Override(nodes=included, op_types=op_types, optional=bool(included), **formats), *named, *usual]
    if params.get("DualQuantNodes"):
        return [*direct]
    layer = params.get("TargetLayerConfig")
    writes = getattr(_layer(layer), "output_tensors", None) is not None
    return [
        LayerFormats(
            Override(nodes=each.nodes, op_types=each.op_types, leave_float=True, optional=each.optional),
            each.formats,
            each.activations if writes and each is direct[0] else None,
        )
        for each in direct
    ]


def _layer(given: Any) -> Any:
    """Return a specification that may be written as a dictionary, as in a file."""
    as_dictionary = isinstance(given, Mapping) and all(isinstance(key, str) for key in given)
    return QLayerConfig.from_dict(given) if as_dictionary else given


def _formats(params: Mapping[str, Any]) -> tuple[dict[str, Any], list[Override]]:
    """Return the formats for candidates, and overrides of those that have others by their names.

    Of a list of targets each layer takes the one that is closest to float: that with the most bits.
    """
    older = {role: params[name] for name, roles in _OLDER.items() if name in params for role in roles}
    layer = _layer(params.get("TargetLayerConfig"))
    if older and layer is not None:
        raise UsageError("TargetLayerConfig and the older TargetQuantType say the same. Give one.")
    if older:
        return older, []
    named: list[Override] = []
    if isinstance(layer, Mapping):
        named = [Override(nodes=tuple(names), optional=True, **_roles(each)) for each, names in layer.items() if names]
        layer = next((each for each, names in layer.items() if not names), next(iter(layer), None))
    elif isinstance(layer, (list, tuple)) and layer:
        note("TargetLayerConfig: of several, every layer takes the one with the most bits.")
        layer = max(
            map(_layer, layer), key=lambda each: sum(fmt.bits for fmt in _roles(each).values() if fmt is not None)
        )
    return _roles(layer), named


def _roles(layer: Any) -> dict[str, Any]:
    if not isinstance(layer, QLayerConfig):
        raise UsageError(f"TargetLayerConfig is {layer!r}. Give a QLayerConfig, or several.")
    check_layer(layer)
    if layer.output_tensors not in (None, layer.inputs):
        raise UsageError("output_tensors of a target must equal its input_tensors. Delete them.")
    return {role: spec_format(spec) for role, spec in layer.roles.items()}


# The metrics that a search knows, and their thresholds.
_RANGES = {"sqnr": "below 0, such as -30", "l2": "above 0", "cosine": "between 0 and 1"}


def _divergence(expected: list[Any], found: list[Any]) -> float:
    """Return the mean KL divergence of outputs, shifted to be positive, as distributions."""

    def shares(values: Any) -> Any:
        shifted = values.astype(float) - min(values.min(), 0.0) + TINY
        return shifted / shifted.sum()

    pairs = [(shares(y), shares(z)) for y, z in zip(expected, found, strict=True)]
    return float(np.mean([np.sum(p * np.log(p / q)) for p, q in pairs]))


def _negative_psnr(expected: list[Any], found: list[Any]) -> float:
    """Return the mean of -10 log10(largest^2 / mean e^2)."""
    errors = [max(np.mean(np.square(y - z, dtype=float)), TINY) for y, z in zip(expected, found, strict=True)]
    return float(np.mean([-10 * np.log10(np.max(np.abs(y)) ** 2 / e) for y, e in zip(expected, errors, strict=True)]))


TINY = 1e-12
_DISTANCES = {"kl": _divergence, "psnr": _negative_psnr}


@dataclass(frozen=True)
class MixedSearch:
    """What is searched for: layers that take the formats, so that the metric stays below the threshold."""

    formats: OtherFormats
    layers: Layers
    metric: str
    threshold: float
    samples: int = SAMPLES

    def __post_init__(self) -> None:
        check_known("MetricDefault", str(self.metric), (*_RANGES, *_DISTANCES))
        possible = self.threshold < 0 if self.metric == "sqnr" else self.threshold > 0
        if not possible or (self.metric == "cosine" and self.threshold >= 1):
            raise UsageError(
                f"a threshold of {self.threshold:g} for {self.metric} cannot be kept. Give one {_RANGES[self.metric]}."
            )

    def bound(self, power: float) -> float:
        """Return the error to stay below, as noise power over signal power, from the mean of |y|^2."""
        if self.metric == "sqnr":
            return float(10 ** (self.threshold / 10))
        if self.metric == "cosine":
            return 1 - (1 - self.threshold) ** 2
        return self.threshold**2 / power if power else math.inf

    def run(self, job: Job, make: Make, samples: Sequence[Feeds]) -> Recipe:  # noqa: ARG002 - a judge needs them
        """Return the recipe of the layers that are found, and warn where the threshold cannot be kept."""
        found = search_layers(job, self.formats, self.layers, self.bound, count=self.samples)
        if not found.reached:
            warnings.warn(
                f"AutoMixprecision: no choice of layers keeps {self.metric} below {self.threshold:g} (an error of "
                f"{decibels(found.wanted):.1f} dB). The best has {decibels(found.error):.1f} dB.",
                stacklevel=2,
            )
        return found.recipe


# Errors to stay below, as noise power over signal power, from all layers on: what a judge is shown, in order.
_TRIED = (math.inf, 1e-2, 1e-3, 1e-4)


@dataclass(frozen=True)
class JudgedSearch:
    """Layers that take the formats, as many as a function of the script allows: it judges a model for each error."""

    formats: OtherFormats
    layers: Layers
    difference: Callable[[list[Any], list[Any]], float]
    threshold: float
    output: int = 0

    def run(self, job: Job, make: Make, samples: Sequence[Feeds]) -> Recipe:
        """Return the first recipe whose answers are good enough; that of the script, with a warning, if none is."""
        expected = self._answers(job.model, samples)
        for bound in _TRIED:
            found = search_layers(job, self.formats, self.layers, lambda _, bound=bound: bound)  # type: ignore[misc]
            if self.difference(expected, self._answers(make(found.recipe), samples)) <= self.threshold:
                return found.recipe
        warnings.warn(
            f"AutoMixprecision: no choice of layers loses at most {self.threshold:g} by the script's function.",
            stacklevel=2,
        )
        return job.recipe

    def _answers(self, model: ModelLike, samples: Sequence[Feeds]) -> list[Any]:
        runner = Runner(read(model), exact=True)
        return [runner(feeds)[self.output] for feeds in samples]


def _judge(params: Mapping[str, Any]) -> Callable[[list[Any], list[Any]], float] | None:
    """Return how much worse answers are, by the script's own function, or by a metric that is no power of an error."""
    evaluate = params.get("MetricEvaluateFn") or params.get("EvaluateFunction")
    if evaluate is None:
        distance: Callable[[list[Any], list[Any]], float] | None = params.get("MetricDistanceFn")
        return distance or _DISTANCES.get(params.get("MetricDefault", "l2"))
    return lambda expected, found: float(evaluate(expected)) - float(evaluate(found))


def _search(params: Mapping[str, Any], formats: Mapping[str, Any]) -> MixedSearch | JudgedSearch | None:
    """Return the search that is asked for, if any. `formats` are what layers may take."""
    judge = _judge(params)
    if judge is None and params.get("Top1AccTarget") is not None:
        raise UsageError("Top1AccTarget has no EvaluateFunction: give the function that returns the accuracy.")
    threshold, older = params.get("MetricThreshold", 0), params.get("L2Target")
    if threshold and older:
        raise UsageError("MetricThreshold and the older L2Target say the same. Give one.")
    lost = params.get("Top1AccTarget") or (threshold if judge is not None else 0)
    if not threshold and not older and not lost:
        return None
    chosen = (tuple(params.get(name) or ()) for name in ("IncludeLayers", "ExcludeLayers"))
    others = OtherFormats(**{role: _integers(role, fmt) for role, fmt in formats.items()})
    layers = Layers(params.get("TargetOpType", LAYERS), *chosen)
    if judge is not None and lost:
        output = params.get("MetricOutputIndex") or params.get("OutputIndex") or 0
        return JudgedSearch(others, layers, judge, lost, int(output))
    return MixedSearch(
        others,
        layers,
        "l2" if older else params.get("MetricDefault", "l2"),
        older or threshold,
        int(params.get("DataSize") or SAMPLES),
    )


def _integers(role: str, fmt: Any) -> IntegerFormat | None:
    if fmt is None or is_integer(fmt):
        return fmt
    raise UsageError(
        f"a threshold asks for a search, and that is for integers; the {role} of the target are {fmt.label}. Name the "
        "layers in IncludeLayers, and delete the threshold."
    )
