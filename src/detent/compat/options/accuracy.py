"""Options on the steps that win accuracy back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from detent.compat.finetune import refinement_of
from detent.compat.mixed import mixed_of
from detent.compat.mixed_search import MixedSearch
from detent.compat.options.base import Option, boolean, honoured, met, number, refused, whole
from detent.compat.request import Request
from detent.equalizations import CrossLayer
from detent.errors import UsageError
from detent.refinements import BiasCorrection, Gptq

_CROSS_LAYER = "`{}` of `CrossLayer` (`equalize`), with include_cle=True"
_ROTATION = "rotations are for language models"


def _bias_correction(request: Request, value: Any) -> Request:
    recipe = request.recipe
    if boolean("BiasCorrection", value):
        return request if recipe.refinement is not None else request.with_recipe(refinement=BiasCorrection())
    weights = recipe.refinement is not None and recipe.refinement.learns_weights
    return request if weights else request.with_recipe(refinement=None)


def _finetune(request: Request, value: Any) -> Request:
    if value and isinstance(request.recipe.refinement, Gptq):
        raise UsageError("UseGPTQ and FastFinetune both choose the weights. Give one of them.")
    return request.with_recipe(refinement=refinement_of(value)) if value else request


def _cross_layer(request: Request, **settings: Any) -> Request:
    """Equalize layer by layer, since the script says how; nothing where it does not want channels equalized."""
    present = request.recipe.equalize
    if present is None:
        return request
    pairs = present if isinstance(present, CrossLayer) else CrossLayer()
    return request.with_recipe(equalize=replace(pairs, **settings))


def _cle_steps(request: Request, value: Any) -> Request:
    return _cross_layer(request, steps=whole("CLESteps", value))


def _cle_threshold(request: Request, value: Any) -> Request:
    return _cross_layer(request, threshold=float(number("CLEWeightThreshold", value)))


def _cle_use_threshold(request: Request, value: Any) -> Request:
    used = boolean("CLEScaleUseThreshold", value)
    return _cross_layer(request) if used else _cross_layer(request, threshold=0.0)


def _cle_bias(request: Request, value: Any) -> Request:
    return _cross_layer(request, append_bias=boolean("CLEScaleAppendBias", value))


def _cle_converged(request: Request, value: Any) -> Request:
    return _cross_layer(request, converged=float(number("CLETotalLayerDiffThreshold", value)))


def _smooth(request: Request, value: Any) -> Request:
    return request.with_recipe(smooth=float(number("SmoothAlpha", value)))


def _smooth_switch(request: Request, value: Any) -> Request:
    return request.with_recipe(smooth=0.5) if boolean("SmoothQuant", value) else request


def _smooth_alpha(request: Request, value: Any) -> Request:
    if request.recipe.smooth is None:
        raise UsageError(f"The option SmoothQuantAlpha={value!r} has no effect without SmoothQuant=True. Give both.")
    return _smooth(request, value)


def _mixed(request: Request, value: Any) -> Request:
    if not value:
        return request
    mixed = mixed_of(value)
    return request.replace(search=mixed) if isinstance(mixed, MixedSearch) else request.with_override(mixed)


OPTIONS: tuple[Option, ...] = (
    honoured("CLESteps", _CROSS_LAYER.format("steps"), _cle_steps),
    met("CLEBalanceMethod", "the largest weights are balanced: no tool has another method"),
    honoured("CLEWeightThreshold", _CROSS_LAYER.format("threshold"), _cle_threshold),
    honoured("CLEScaleAppendBias", _CROSS_LAYER.format("append_bias"), _cle_bias),
    honoured("CLEScaleUseThreshold", "False: `threshold=0` of `CrossLayer` (`equalize`)", _cle_use_threshold),
    honoured("CLETotalLayerDiffThreshold", _CROSS_LAYER.format("converged"), _cle_converged),
    honoured("SmoothAlpha", "the alpha of SmoothQuant (`smooth`), with include_sq=True", _smooth),
    honoured("SmoothQuant", "onnxruntime's switch for SmoothQuant (`smooth`)", _smooth_switch),
    honoured("SmoothQuantAlpha", "onnxruntime's name of SmoothAlpha, with SmoothQuant=True", _smooth_alpha),
    met("SmoothQuantFolding", "factors are folded into the layer before where there is one"),
    honoured("BiasCorrection", "on unless said otherwise (`refinement`)", _bias_correction),
    honoured("FastFinetune", "AdaRound or AdaQuant (`refinement`), with include_fast_ft=True", _finetune),
    honoured(
        "AutoMixprecision",
        "another format in every layer, or in those that a search finds (`overrides`), with include_auto_mp=True",
        _mixed,
    ),
    refused("RMatrixDim", _ROTATION, "Give include_sq=True: SmoothQuant.", (4096, None)),
    refused("UseRandomHad", _ROTATION, "Give include_sq=True: SmoothQuant."),
    refused("RConfigPath", _ROTATION, "Give include_sq=True: SmoothQuant."),
)
