"""Which method goes with which format: a contradiction is refused before any work is done."""

from __future__ import annotations

from detent.errors import UsageError
from detent.methods import Distribution, Entropy, Method, MinMax, MinMSE, NonOverflow
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat


def check_method(fmt: IntegerFormat, method: Method) -> None:
    """Raise UsageError where `method` cannot choose parameters for `fmt`."""
    name = type(method).__name__
    if isinstance(method, Distribution):
        raise UsageError(
            f"Distribution chooses scales for float8 types, and {fmt.dtype} is an integer type. "
            f"Choose {_alternatives(fmt)}."
        )
    if fmt.power_of_two and isinstance(method, Entropy):
        raise UsageError(
            f"{name} chooses a float scale, and this {fmt.dtype} has power-of-two scales: rounding its answer to one "
            f"would undo it. Choose {_alternatives(fmt)}."
        )
    if not fmt.power_of_two and isinstance(method, NonOverflow):
        raise UsageError(
            f"{name} chooses a power-of-two scale, and this {fmt.dtype} has float scales. With those MinMax is the "
            f"method that saturates nothing. Choose {_alternatives(fmt)}."
        )
    if not fmt.power_of_two and isinstance(method, MinMSE) and method.mode == "MostCommon":
        raise UsageError(
            f"{name} with mode MostCommon takes the most common power-of-two scale, and this {fmt.dtype} has float "
            f"scales. Choose mode All or Percentile, or one of {_alternatives(fmt)}."
        )


def check_float_method(fmt: FloatFormat, method: Method) -> None:
    """Raise UsageError where `method` cannot choose the scale of a small float. Without a scale, nothing is chosen."""
    name = type(method).__name__
    if isinstance(method, Distribution) and not (fmt.bits == 8 and fmt.scaled):
        raise UsageError(
            f"Distribution chooses the scale of a float8 type, and {fmt.label} has none to choose. Say scaled = true, "
            "or choose MinMax."
        )
    if fmt.scaled and not isinstance(method, MinMax | Distribution):
        others = "MinMax or Distribution" if fmt.bits == 8 else "MinMax"
        raise UsageError(f"{name} chooses between integers, and this is {fmt.label}. Choose {others}.")


def _alternatives(fmt: IntegerFormat) -> str:
    other = "NonOverflow" if fmt.power_of_two else "Entropy"
    return f"MinMSE, MinMax, Percentile, LayerwisePercentile or {other}"
