"""Calibration methods and data readers."""

from detent.compat.enums import ExtendedCalibrationMethod, Int16Method, LayerWiseMethod, PowerOfTwoMethod
from detent.compat.readers import CachedDataReader, PathDataReader, RandomDataReader

__all__ = [
    "CachedDataReader",
    "ExtendedCalibrationMethod",
    "Int16Method",
    "LayerWiseMethod",
    "PathDataReader",
    "PowerOfTwoMethod",
    "RandomDataReader",
]
