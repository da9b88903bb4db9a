"""Rounding to whole numbers, and what becomes of the numbers halfway between two of them.

    mode          -2.5   -1.5   -0.5    0.5    1.5    2.5     who rounds like this
    half_even       -2     -2      0      0      2      2     ONNX, onnxruntime, numpy: the default everywhere
    half_up         -2     -1      0      1      2      3     the DPU: towards plus infinity
    half_away       -3     -2     -1      1      2      3     the school book, C's round(): away from zero

No mode computes floor(x + 0.5), whose sum is itself rounded: 0.49999999999999994 would become 1, and large odd numbers
would become even ones. Here only x - rint(x) and x - trunc(x) are looked at, and these differences are exact.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError, check_known, nearest

Rounding = Literal["half_even", "half_up", "half_away"]
ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)

DeviceRounding = Literal["half-even", "dpu"]
"""How a device rounds what it computes: as the file says, or ties upwards as the DPU does."""
DEVICE_ROUNDINGS: tuple[DeviceRounding, ...] = get_args(DeviceRounding)

FloatT = TypeVar("FloatT", bound=np.floating[Any])


def check_rounding(mode: str) -> None:
    """Complain about a mode that does not exist."""
    check_known("rounding", mode, ROUNDINGS)


def check_device_rounding(name: str) -> None:
    """Raise UsageError for a device's rounding that there is not."""
    if name not in DEVICE_ROUNDINGS:
        raise UsageError(
            f"There is no rounding '{name}'.{nearest(name, DEVICE_ROUNDINGS)} Choose from "
            f"{', '.join(DEVICE_ROUNDINGS)}."
        )


def round_by(values: npt.NDArray[FloatT], mode: Rounding) -> npt.NDArray[FloatT]:
    """`values` (floats of any width) rounded to whole numbers of the same type; infinities and NaN stay."""
    check_rounding(mode)
    rounded: npt.NDArray[FloatT] = np.trunc(values) if mode == "half_away" else np.rint(values)
    if mode == "half_even":
        return rounded
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is no tie
        rest = values - rounded
    if mode == "half_up":
        rounded += (rest == 0.5).astype(values.dtype)
    else:
        rounded += np.copysign((np.abs(rest) >= 0.5).astype(values.dtype), values)
    return rounded
