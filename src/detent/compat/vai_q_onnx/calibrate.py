"""Methods and readers, where scripts also look for them."""

from detent.compat.enums import CalibrationMethod, PowerOfTwoMethod
from detent.compat.readers import CalibrationDataReader, RandomDataReader

__all__ = ["CalibrationDataReader", "CalibrationMethod", "PowerOfTwoMethod", "RandomDataReader"]
