"""AutoMixprecision with a threshold: a search for the layers that take the other format, before anything is quantized.

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

from detent.errors import UsageError, nearest
from detent.numerics.formats import IntegerFormat
from detent.pipeline.job import Job
from detent.recipe.presets import LAYERS
from detent.results.searched import decibels
from detent.search.mixed import Layers, LayerSearch, OtherFormats, search_layers
from detent.search.probing import SAMPLES

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
    if fmt is None or isinstance(fmt, IntegerFormat):
        return fmt
    raise UsageError(
        f"AutoMixprecision: a threshold asks for a search, and that is for integers; the {role} of the target are "
        f"{fmt.label}. Name the layers in IncludeLayers, and delete the threshold."
    )
