"""Methods and the reader, where most scripts import them from."""

from detent.compat.enums import CalibrationMethod
from detent.compat.readers import CalibrationDataReader

__all__ = ["CalibrationDataReader", "CalibrationMethod"]
