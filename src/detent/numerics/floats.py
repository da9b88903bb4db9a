"""Small floating-point formats: what a tensor becomes when it is stored as bfloat16, float16 or float8.

    code = round_half_even(x / scale)         x = code * scale              both in float32

    dtype           sign exponent mantissa    largest           past the largest
    bfloat16           1        8        7    3.3895e38         infinity
    float16            1        5       10    65504             infinity
    float8_e4m3        1        4        3    448               the largest (there is no infinity: ONNX's E4M3FN)
    float8_e5m2        1        5        2    57344             the largest

This is what ONNX's Cast and QuantizeLinear do, with their default saturate=1. NaN stays NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeGuard, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

from detent.errors import UsageError, check_known
from detent.numerics.formats import LEAST_SCALE
from detent.numerics.interface import NumberFormat, Params

FloatName = Literal["bfloat16", "float16", "float8_e4m3", "float8_e5m2"]
FLOAT_NAMES: tuple[FloatName, ...] = get_args(FloatName)

_STORAGE: dict[str, type[Any]] = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}

_LARGEST = {"bfloat16": (2.0 - 2.0**-7) * 2.0**127, "float16": 65504.0, "float8_e4m3": 448.0, "float8_e5m2": 57344.0}

# The magnitude that the largest value of a scaled 16-bit float is brought to. Relative precision is the same anywhere.
REDUCED_RANGE = 2.0


@dataclass(frozen=True)
class FloatFormat(NumberFormat):
    """Floats of type `dtype`. `scaled` asks for a scale that is chosen from the data, in place of 1.

    With `clip`, finite numbers beyond the largest bfloat16 or float16 become the largest instead of infinite. The
    float8 formats always saturate, infinities included.
    """

    kind: ClassVar[Literal["float"]] = "float"

    dtype: FloatName
    scaled: bool = False
    clip: bool = False

    def __post_init__(self) -> None:
        check_known("float format", self.dtype, FLOAT_NAMES)
        if self.clip and self._saturates:
            raise UsageError(f"clip is for bfloat16 and float16: {self.dtype} saturates in any case. Leave clip out.")

    def __str__(self) -> str:
        return self.label

    @property
    def label(self) -> str:
        """A short name: "bfloat16", "float8_e4m3 scaled"."""
        return self.dtype + " scaled" * self.scaled + " clipped" * self.clip

    @property
    def storage(self) -> np.dtype[Any]:
        """The numpy type of the codes."""
        return np.dtype(_STORAGE[self.dtype])

    @property
    def bits(self) -> int:
        return 8 * self.storage.itemsize

    @property
    def needs_data(self) -> bool:
        """Whether there is a scale to choose."""
        return self.scaled

    @property
    def least_opset(self) -> int:
        """Float8 came with operator set 19."""
        return 19 if self.bits == 8 else 0

    @property
    def largest(self) -> float:
        return _LARGEST[self.dtype]

    def fit(self, low: float, high: float) -> FloatParams:
        """Scale the largest magnitude to the largest float8, or for 16 bits to REDUCED_RANGE; scale 1 for no range."""
        magnitude = max(-low, high)
        if not self.scaled or magnitude == 0.0:
            return FloatParams(self)
        reached = self.largest if self.bits == 8 else REDUCED_RANGE
        return FloatParams(self, float(np.float32(max(magnitude / reached, LEAST_SCALE))))

    def encode(self, values: npt.ArrayLike, scale: npt.ArrayLike = 1.0) -> npt.NDArray[Any]:
        """Return the codes nearest to `values`, of type `storage`; `scale` broadcasts against them."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # becoming infinite is what the format says
            scaled: npt.NDArray[np.float32] = np.divide(values, scale, dtype=np.float32)
            limit = np.float32(self.largest)
            if self._saturates:
                scaled = np.clip(scaled, -limit, limit)
            elif self.clip:
                scaled = np.where(np.isinf(scaled), scaled, np.clip(scaled, -limit, limit))
            return scaled.astype(self.storage)

    def decode(self, codes: npt.ArrayLike, scale: npt.ArrayLike = 1.0) -> npt.NDArray[np.float32]:
        """Return the real numbers that `codes` (of type `storage`) stand for."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            decoded: npt.NDArray[np.float32] = np.asarray(codes).astype(np.float32) * np.asarray(scale, np.float32)
            return decoded

    def snap(self, values: npt.ArrayLike, scale: npt.ArrayLike = 1.0) -> npt.NDArray[np.float32]:
        """Move `values` to the numbers that the format holds."""
        return self.decode(self.encode(values, scale), scale)

    @property
    def _saturates(self) -> bool:
        return self.dtype.startswith("float8")


@dataclass(frozen=True, eq=False)
class FloatParams(Params):
    """A small float format, with the scale by which values are divided before they are rounded."""

    format: FloatFormat
    scale: float = 1.0

    @property
    def span(self) -> tuple[float, float]:
        """The least and the greatest finite number."""
        return -self.format.largest * self.scale, self.format.largest * self.scale

    def snap(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        return self.format.snap(np.asarray(values, np.float32), self.scale)

    def codes(self, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return what a file stores of a constant."""
        return self.format.encode(values, self.scale)

    def clipped(self, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Tell which of `values` are beyond the greatest finite number."""
        outside: npt.NDArray[np.bool_] = np.abs(np.asarray(values, np.float64)) > self.span[1]
        return outside


def is_float(fmt: NumberFormat | None) -> TypeGuard[FloatFormat]:
    """Tell whether numbers are stored as small floats."""
    return fmt is not None and fmt.kind == "float"
