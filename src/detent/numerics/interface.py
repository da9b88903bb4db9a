"""What every number format, and every choice of its parameters, can be asked.

A `NumberFormat` says which numbers a tensor may hold. `Params` tie a format to one tensor: the scale and zero point of
integers, the scale of small floats, the axis of blocks. A caller asks attributes and methods. What a kind of format
does not have is neutral here: only integers have powers of two as scales, only weights in groups a `group_size`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from detent.numerics.codec import Rounding

Kind = Literal["integer", "float", "block_float", "microscaling"]


FormatT = TypeVar("FormatT", bound="NumberFormat")


class NumberFormat(ABC):
    """A set of numbers. Formats are frozen and comparable."""

    kind: ClassVar[Kind]
    in_blocks: ClassVar[bool] = False
    """Whether neighbours along an axis share an exponent."""

    dtype: str
    """The type of the codes in a file."""
    symmetric: bool = True
    granularity: str = "per_tensor"
    scaled: bool = False
    clip: bool = False

    @property
    @abstractmethod
    def label(self) -> str:
        """A short name."""

    @property
    def description(self) -> str:
        """The name, and what is unusual about the scales: `int8 2^n`."""
        return self.label

    @property
    @abstractmethod
    def bits(self) -> int:
        """The bits of one number."""

    @property
    def needs_data(self) -> bool:
        """Whether its parameters are chosen from data."""
        return False

    @property
    def power_of_two(self) -> bool:
        """Whether scales are powers of two."""
        return False

    @property
    def per_channel(self) -> bool:
        """Whether each output channel of a weight has a scale."""
        return False

    @property
    def group_size(self) -> int:
        """The number of weights that share a scale; 0 unless the granularity is per group."""
        return 0

    @property
    def counts_products(self) -> bool:
        """Whether a bias of this format counts in the unit of its layer's products: input scale times weight scale."""
        return False

    @property
    def least_opset(self) -> int:
        """The first operator set whose standard operators hold the format; 0 for any."""
        return 0

    @property
    def has_twin(self) -> bool:
        """Whether onnxruntime's operators in com.microsoft hold the format before `least_opset`."""
        return False

    @property
    def storage(self) -> np.dtype[Any]:
        """The numpy type of the codes in a file."""
        return np.dtype(np.float32)

    def replace(self: FormatT, **changes: Any) -> FormatT:
        """Return the same format with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]  # every format is a dataclass

    @abstractmethod
    def fit(self, low: float, high: float) -> Params:
        """Return parameters for a whole tensor whose values are in low..high."""

    def along(self, axis: int) -> Params:  # noqa: ARG002  (only blocks lie along an axis)
        """Return the parameters of a tensor whose values meet in sums along `axis`, for a format that needs no data."""
        return self.fit(0.0, 0.0)


class Params(ABC):
    """A format with all that it takes to round one tensor."""

    format: NumberFormat
    scale: npt.NDArray[np.float64] | float | None = None
    zero_point: npt.NDArray[np.int64] | int = 0
    axis: int | None = None
    block: int = 0

    @property
    @abstractmethod
    def span(self) -> tuple[float, float]:
        """The least and the greatest number, over all channels."""

    @abstractmethod
    def snap(self, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Move `values` to the numbers that the format holds."""

    @abstractmethod
    def clipped(self, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Tell which of `values` saturate."""

    @abstractmethod
    def codes(self, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return what a file stores of a constant, in the type `format.storage`."""

    def stored(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return what the nodes of the written model read of a constant."""
        return np.asarray(self.snap(values), np.float32)

    def rounded(self, values: npt.NDArray[Any], ties: Rounding = "half_even") -> npt.NDArray[np.float32]:  # noqa: ARG002
        """Return what the nodes of the written model read of an activation. Devices differ in `ties` of integers."""
        return self.stored(values)
