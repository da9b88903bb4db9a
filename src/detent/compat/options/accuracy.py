"""Options on the steps that win accuracy back."""

from __future__ import annotations

from typing import Any

from detent.compat.data_types import DataType
from detent.compat.finetune import refinement_of
from detent.compat.formats import format_of
from detent.compat.options.base import Option, boolean, honoured, met, refused
from detent.compat.request import Request
from detent.compat.specs import QLayerConfig, QTensorConfig
from detent.errors import UsageError, nearest
from detent.numerics.params import NumberFormat
from detent.recipe import Override
from detent.refinements import BiasCorrection

_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_MIXED_MET = ("DualQuantNodes", "NoInputQdqShared", "SharedParamMode", "WorkerNum", "DataSize", "MetricOutputIndex")
_MIXED_KNOWN = ("TargetLayerConfig", "TargetOpType", "IncludeLayers", "ExcludeLayers", "MetricThreshold", *_MIXED_MET)
_EQUALIZES = "equalization minimizes the error of all layers at once and stops by itself"
_ROTATION = "rotations are for language models"


def _bias_correction(request: Request, value: Any) -> Request:
    recipe = request.recipe
    if boolean("BiasCorrection", value):
        return request if recipe.refinement is not None else request.with_recipe(refinement=BiasCorrection())
    return request.with_recipe(refinement=None) if isinstance(recipe.refinement, BiasCorrection) else request


def _finetune(request: Request, value: Any) -> Request:
    return request.with_recipe(refinement=refinement_of(value)) if value else request


def _smooth(request: Request, value: Any) -> Request:
    return request.with_recipe(smooth=float(value))


def _spec_format(spec: QTensorConfig | None) -> NumberFormat | None:
    if spec is None:
        return None
    kind = spec.data_type
    if not (isinstance(kind, type) and issubclass(kind, DataType)):
        raise UsageError(f"AutoMixprecision: the data type {kind!r} is none of quark.onnx's.")
    return format_of(kind, symmetric=spec.symmetric)


def _mixed(request: Request, value: Any) -> Request:
    """Promotion of all candidates, which is Quark's default. Searching for some of them is another command."""
    if not value:
        return request
    for key in value:
        if key not in _MIXED_KNOWN:
            raise UsageError(
                f"AutoMixprecision has '{key}'.{nearest(key, _MIXED_KNOWN)} Detent takes {', '.join(_MIXED_KNOWN)}; it "
                "does not search: give the layers with IncludeLayers, or Recipe(overrides=...)."
            )
    if value.get("MetricThreshold", 0) != 0:
        raise UsageError(
            "AutoMixprecision: MetricThreshold asks for a search. Detent changes every layer (threshold 0), or those "
            "in IncludeLayers: choose them from what `detent quantize` reports as worst."
        )
    layer = value.get("TargetLayerConfig")
    if not isinstance(layer, QLayerConfig):
        raise UsageError(f"AutoMixprecision: TargetLayerConfig is {layer!r}. Give one QLayerConfig.")
    if value.get("ExcludeLayers"):
        raise UsageError("AutoMixprecision: ExcludeLayers. Name those that change, with IncludeLayers.")
    included = tuple(value.get("IncludeLayers") or ())
    return request.with_override(
        Override(
            nodes=included,
            op_types=() if included else tuple(value.get("TargetOpType", _LAYERS)),
            activations=_spec_format(layer.inputs),
            weights=_spec_format(layer.weight),
        )
    )


OPTIONS: tuple[Option, ...] = (
    met("CLESteps", _EQUALIZES),
    met("CLEBalanceMethod", _EQUALIZES),
    met("CLEWeightThreshold", _EQUALIZES),
    met("CLEScaleAppendBias", _EQUALIZES),
    met("CLEScaleUseThreshold", _EQUALIZES),
    met("CLETotalLayerDiffThreshold", _EQUALIZES),
    honoured("SmoothAlpha", "the alpha of SmoothQuant (`smooth`), with include_sq=True", _smooth),
    honoured("BiasCorrection", "on unless said otherwise (`refinement`)", _bias_correction),
    honoured("FastFinetune", "AdaRound or AdaQuant (`refinement`), with include_fast_ft=True", _finetune),
    honoured("AutoMixprecision", "another format in every layer (`overrides`), with include_auto_mp=True", _mixed),
    refused("RMatrixDim", _ROTATION, "Give include_sq=True: SmoothQuant.", (4096, None)),
    refused("UseRandomHad", _ROTATION, "Give include_sq=True: SmoothQuant."),
    refused("RConfigPath", _ROTATION, "Give include_sq=True: SmoothQuant."),
)
