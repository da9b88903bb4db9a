"""Where scripts find ModelQuantizer."""

from detent.compat.quantizer import ModelQuantizer

__all__ = ["ModelQuantizer"]
