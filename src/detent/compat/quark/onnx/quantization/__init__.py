"""Quark's `quantization` package."""

from detent.compat.configs import Config, QConfig, QuantizationConfig
from detent.compat.quantizer import ModelQuantizer

__all__ = ["Config", "ModelQuantizer", "QConfig", "QuantizationConfig"]
