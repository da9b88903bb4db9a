"""Quark's configurations."""

from detent.compat.configs import Config, QConfig, QuantizationConfig
from detent.compat.preset_configs import get_default_config

__all__ = ["Config", "QConfig", "QuantizationConfig", "get_default_config"]
