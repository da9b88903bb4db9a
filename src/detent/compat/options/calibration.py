"""Options on calibration: which data, and how ranges are chosen from it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from detent.compat.enums import CalibrationMethod, ExtendedCalibrationMethod, PowerOfTwoMethod
from detent.compat.options.base import Option, boolean, honoured, met, number, refused, whole
from detent.compat.options.overrides import tensor_overrides
from detent.compat.request import Request
from detent.errors import UsageError
from detent.methods import Distribution, Entropy, LayerwisePercentile, Method, MinMax, MinMSE, NonOverflow, Percentile
from detent.numerics.formats import IntegerFormat, has_power_of_two_scale

HISTOGRAM_BINS = 1 << 14


def _setting(name: str, says: str, method: type[Any], setting: str) -> Option:
    """A setting of one calibration method, and of no other."""

    def apply(request: Request, value: Any) -> Request:
        chosen = request.recipe.method
        if not isinstance(chosen, method):
            raise UsageError(f"The option {name}={value!r} is for {method.__name__}, and the method is {chosen}.")
        given = tuple(value) if isinstance(value, list) else value
        return request.with_recipe(method=dataclasses.replace(chosen, **{setting: given}))

    return honoured(name, f"{says} (`{method.__name__}.{setting}`)", apply)


def _percentile(request: Request, value: Any) -> Request:
    value = number("Percentile", value)
    chosen = request.recipe.method
    if not isinstance(chosen, Percentile) and not (isinstance(chosen, MinMSE) and chosen.mode == "Percentile"):
        raise UsageError(f"The option Percentile={value!r} is for the method Percentile, and the method is {chosen}.")
    return request.with_recipe(method=dataclasses.replace(chosen, percentile=value))


def _min_mse_mode(request: Request, value: Any) -> Request:
    if not isinstance(request.recipe.method, MinMSE):
        raise UsageError(f"MinMSEModePof2Scale={value!r} is for MinMSE, and the method is {request.recipe.method}.")
    return request.with_recipe(method=dataclasses.replace(request.recipe.method, mode=value))


def _bins(request: Request, value: Any) -> Request:
    chosen = request.recipe.method
    if value is None:
        return request
    value = whole("NumBins", value)
    if isinstance(chosen, Entropy):
        return request.with_recipe(method=dataclasses.replace(chosen, bins=value))
    if value > HISTOGRAM_BINS:
        raise UsageError(f"NumBins={value}: histograms have {HISTOGRAM_BINS} bins. Delete the option.")
    return request


def _limit(request: Request, value: Any) -> Request:
    """Formats without a scale need no calibration; what refines them may see all the data."""
    activations = request.recipe.activations
    calibrated = activations is not None and activations.needs_data
    return request.replace(limit=whole("CalibDataSize", value)) if calibrated and value else request


def _range_symmetric(request: Request, value: Any) -> Request:
    activations = request.recipe.activations
    symmetric = isinstance(activations, IntegerFormat) and activations.symmetric
    if boolean("CalibTensorRangeSymmetric", value) != symmetric:
        raise UsageError(
            f"CalibTensorRangeSymmetric={value}: ranges are symmetric where the format is. "
            f"Give ActivationSymmetric={value} as well, or delete the option."
        )
    return request


def _moving_average(request: Request, value: Any) -> Request:
    if not boolean("CalibMovingAverage", value):
        return request
    if not isinstance(request.recipe.method, MinMax):
        raise UsageError(f"CalibMovingAverage is for MinMax, and the method is {request.recipe.method}.")
    return request.with_recipe(method=MinMax(moving_average=True))


def _weight_method(request: Request, value: Any) -> Request:
    known: dict[Any, Method | None] = {
        None: None,
        CalibrationMethod.MinMax: None,
        CalibrationMethod.Percentile: Percentile(),
        CalibrationMethod.Entropy: Entropy(),
        ExtendedCalibrationMethod.MinMSE: MinMSE(),
        PowerOfTwoMethod.MinMSE: MinMSE(),
        PowerOfTwoMethod.NonOverflow: NonOverflow(),
    }
    contradicts = isinstance(value, PowerOfTwoMethod) and not has_power_of_two_scale(request.recipe.weights)
    if value not in known or contradicts:
        listed = "MinMax, Percentile, Entropy or MinMSE"
        raise UsageError(f"WeightCalibrateMethod={value!r} is not for weights. Choose {listed}.")
    return request.with_recipe(weight_method=known[value])


def _weight_mode(request: Request, value: Any) -> Request:
    modes = {"All": "All", "HistCenter": "All", "Percentile": "Percentile"}
    if value not in modes:
        raise UsageError(f"MinMSEModeFloatScale={value!r}. Choose from {', '.join(modes)}.")
    if not isinstance(request.recipe.weight_method, MinMSE):
        raise UsageError("MinMSEModeFloatScale is for WeightCalibrateMethod=MinMSE, which is not asked for.")
    return request.with_recipe(weight_method=MinMSE(modes[value]))  # type: ignore[arg-type]


def _random(request: Request, **changes: Any) -> Request:
    return request.replace(random=dataclasses.replace(request.random, **changes))


def _statistics(request: Request, value: Any) -> Request:
    return request.replace(statistics=Path(value)) if value else request


OPTIONS: tuple[Option, ...] = (
    honoured("CalibDataSize", "at most so many samples (`limit`), where anything is calibrated", _limit),
    honoured("CalibTensorRangeSymmetric", "must say the same as ActivationSymmetric", _range_symmetric),
    honoured("CalibMovingAverage", "the mean of each sample's range (`MinMax.moving_average`)", _moving_average),
    met("CalibMovingAverageConstant", "all samples count alike: the constant acts only between parts of the data"),
    honoured("MinMSEModePof2Scale", "All, MostCommon or Percentile (`MinMSE.mode`)", _min_mse_mode),
    honoured("MinMSEMode", "the older name of MinMSEModePof2Scale", _min_mse_mode),
    honoured("Percentile", "the percentage (`Percentile.percentile`)", _percentile),
    honoured("CalibPercentile", "onnxruntime's name of Percentile", _percentile),
    met("CalibMaxIntermediateOutputs", "memory never grows with the calibration set"),
    refused("CalibStridedMinMax", "ranges are those of all samples", "Give CalibMovingAverage=True for their mean."),
    refused("MinimumRealRange", "ranges are those that were observed", "Give TensorQuantOverrides with rmin and rmax."),
    _setting("LWPMetric", "mae or mse", LayerwisePercentile, "metric"),
    _setting("PercentileCandidates", "the percentages to choose from", LayerwisePercentile, "candidates"),
    met(
        "LWPUseHistogram",
        "candidates are compared on the histogram",
        (True,),
        "Raw data is not kept: delete the option.",
    ),
    honoured("WeightCalibrateMethod", "the method for weights (`weight_method`)", _weight_method),
    honoured("MinMSEModeFloatScale", "All or Percentile (`weight_method`)", _weight_mode),
    honoured("NumBins", "`Entropy.bins`; other methods have 16384 bins, and MinMSE the exact answer", _bins),
    _setting("NumQuantizedBins", "the groups of bins", Entropy, "quantized_bins"),
    _setting("Scenario", "same or p3", Distribution, "scenario"),
    honoured(
        "CalibWorkerNum",
        "worker threads (`threads`)",
        lambda request, value: (
            request.replace(threads=threads) if (threads := whole("CalibWorkerNum", value)) > 1 else request
        ),
    ),
    met("CalibOptimizeMem", "memory never grows with the calibration set, and nothing is written to disk"),
    refused("CalibPassthroughOpTypes", "what only moves data shares its input's scale already", "Delete the option."),
    honoured(
        "UseRandomData",
        "data is not looked at, random numbers are used",
        lambda request, value: request.replace(always_random=boolean("UseRandomData", value)),
    ),
    honoured(
        "RandomDataReaderInputShape",
        "shapes of random data",
        lambda request, value: _random(request, shapes=value or None),
    ),
    honoured(
        "RandomDataReaderInputDataRange",
        "ranges of random data",
        lambda request, value: _random(request, ranges=value or None),
    ),
    refused(
        "SaveTensorHistFig", "figures are drawn from saved statistics", "`detent stats FILE --plot DIR` draws them."
    ),
    honoured("TensorQuantOverrides", "formats and ranges of single tensors (`overrides`)", tensor_overrides),
    honoured("SaveAndRestore", "statistics are kept in this file, and used again where it exists", _statistics),
    honoured("TensorsRangeFile", "the older name of SaveAndRestore", _statistics),
    refused(
        "QuantizationPreference",
        "it sets memory, workers and early stopping of Quark's calibration",
        "Choose a recipe: XINT8 for speed, A16W8 for accuracy.",
    ),
)
