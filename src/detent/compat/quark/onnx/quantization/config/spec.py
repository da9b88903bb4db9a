"""Quark's specifications of tensors and layers."""

from detent.compat.enums import CalibMethod, QuantGranularity, ScaleType
from detent.compat.specs import *  # noqa: F403 - all of them

__all__ = ["CalibMethod", "QuantGranularity", "ScaleType"]
