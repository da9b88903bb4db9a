"""Where most scripts find the configurations."""

from detent.compat.configs import Config, QConfig, QuantizationConfig

__all__ = ["Config", "QConfig", "QuantizationConfig"]
