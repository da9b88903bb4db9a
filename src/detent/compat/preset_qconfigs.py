"""Quark's newer constants, such as XINT8_QCONFIG.

They are not the presets of the same name: channels are not equalized, activations are signed, calibration differs.
"""

from __future__ import annotations

from typing import Any

from detent.compat.algorithms import AdaQuantConfig, AdaRoundConfig, AlgoConfig
from detent.compat.configs import QConfig
from detent.compat.preset_configs import PRESET_FIELDS
from detent.compat.specs import BFloat16Spec, BFP16Spec, Int8Spec, Int16Spec, QLayerConfig, XInt8Spec

_FORCED = {"ForceQuantizeNoInputCheck": True}
_ALIGNED = {**_FORCED, "AlignSlice": False, "FoldRelu": True, "AlignConcat": True}
_VINT8_OPTIONS = {
    "OptimizeModel": False,
    "EnableNPUCnn": False,
    **{name: value for name, value in PRESET_FIELDS["VINT8"]["extra_options"].items() if name != "ActivationSymmetric"},
}

_BASES: dict[str, tuple[QLayerConfig, dict[str, Any]]] = {
    "XINT8": (QLayerConfig(XInt8Spec(), XInt8Spec()), _FORCED),
    "VINT8": (QLayerConfig(XInt8Spec(), XInt8Spec()), _VINT8_OPTIONS),
    "A8W8": (QLayerConfig(Int8Spec(), Int8Spec()), _ALIGNED),
    "A16W8": (QLayerConfig(Int16Spec(), Int8Spec()), {**_ALIGNED, "AlignEltwiseQuantType": True}),
    "BF16": (QLayerConfig(BFloat16Spec(), BFloat16Spec()), _FORCED),
    "BFP16": (QLayerConfig(BFP16Spec(), BFP16Spec()), {}),
}
_ALGORITHMS: dict[str, AlgoConfig] = {"ADAROUND": AdaRoundConfig(), "ADAQUANT": AdaQuantConfig()}


def make_qconfig(constant: str) -> QConfig:
    """A fresh configuration for the constant of that name, such as A8W8_ADAROUND_QCONFIG."""
    base, _, algorithm = constant.removesuffix("_QCONFIG").partition("_")
    layer, options = _BASES[base]
    return QConfig(layer, algo_config=[_ALGORITHMS[algorithm]] if algorithm else [], extra_options=dict(options))


QCONFIG_NAMES = (
    *(f"{base}_QCONFIG" for base in _BASES),
    *(f"{base}_{algorithm}_QCONFIG" for base in ("XINT8", "A8W8", "A16W8") for algorithm in _ALGORITHMS),
)
