"""Where Quark keeps its older configuration."""

from detent.compat.configs import QuantizationConfig

__all__ = ["QuantizationConfig"]
