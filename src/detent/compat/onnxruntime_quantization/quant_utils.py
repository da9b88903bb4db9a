"""Types and formats."""

from detent.compat.enums import QuantFormat, QuantizationMode, QuantType

__all__ = ["QuantFormat", "QuantType", "QuantizationMode"]
