"""The presets: by name, and as constants such as XINT8_CONFIG and XINT8_QCONFIG."""

from __future__ import annotations

from typing import Any

from detent.compat.preset_configs import (
    DEFAULT_ADAQUANT_PARAMS,
    DEFAULT_ADAROUND_PARAMS,
    PRESET_FIELDS,
    get_default_config,
)
from detent.compat.preset_qconfigs import QCONFIG_NAMES, make_qconfig

__all__ = ["DEFAULT_ADAQUANT_PARAMS", "DEFAULT_ADAROUND_PARAMS", "get_default_config"]


def __getattr__(name: str) -> Any:
    """A fresh configuration each time: scripts change them."""
    if name in QCONFIG_NAMES:
        return make_qconfig(name)
    if name.endswith("_CONFIG") and name.removesuffix("_CONFIG") in PRESET_FIELDS:
        return get_default_config(name)
    raise AttributeError(f"module 'quark.onnx.quantization.config.custom_config' has no attribute '{name}'")
