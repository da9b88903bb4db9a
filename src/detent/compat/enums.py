"""The enumerations of Quark, vai_q_onnx and onnxruntime's quantizer.

Scripts mix the families, so members are equal, and hash equal, where they mean the same: `QuantType.QInt8` of any of
them, onnxruntime's own included. They differ where the name is the same and the meaning is not: MinMSE of
PowerOfTwoMethod is another method than that of ExtendedCalibrationMethod, and QDQ is another file for each format.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

_FAMILIES = {"ExtendedQuantType": "QuantType", "VitisQuantType": "QuantType"}
"""Classes whose members mean the same as those of another."""


def _meaning(member: Enum) -> tuple[str, str]:
    kind = type(member).__name__
    return _FAMILIES.get(kind, kind), member.name


class ToolEnum(Enum):
    """A member that equals every other one, of whatever class, with the same meaning."""

    def __eq__(self, other: object) -> bool:
        return _meaning(self) == _meaning(other) if isinstance(other, Enum) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._name_)  # as Enum does it, so that members of onnxruntime's classes hash alike

    def __str__(self) -> str:
        return self._name_

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self._name_}"

    @classmethod
    def from_string(cls, name: str) -> Any:
        """Return the member of that name; ValueError if there is none, as in onnxruntime."""
        try:
            return cls[name]
        except KeyError:
            raise ValueError(f"{cls.__name__} has no member '{name}'; it has {', '.join(cls.__members__)}.") from None


class CalibrationMethod(ToolEnum):
    """Methods for float scales."""

    MinMax, Entropy, Percentile, Distribution = range(4)


class PowerOfTwoMethod(ToolEnum):
    """Methods for power-of-two scales."""

    NonOverflow, MinMSE = range(2)


class Int16Method(ToolEnum):
    """Methods for scales that are a 16-bit integer over a power of two."""

    MinMax = 0


class LayerWiseMethod(ToolEnum):
    """Methods that choose for each tensor."""

    LayerWisePercentile = 0


class ExtendedCalibrationMethod(ToolEnum):
    """Methods for weights with float scales."""

    MinMSE = 0


class CalibMethod(ToolEnum):
    """The methods that a tensor's specification names; which one it is depends on the kind of scale too."""

    MinMax, MinMSE, Percentile, Entropy, LayerwisePercentile, Distribution = range(6)


class ScaleType(ToolEnum):
    """What scales may be."""

    Float32, PowerOf2, Int16 = range(3)


class QuantGranularity(ToolEnum):
    """What has a scale of its own."""

    Tensor, Channel, Group = range(3)


class QuantType(ToolEnum):
    """Number formats, as onnxruntime names them."""

    QInt8, QUInt8, QFLOAT8E4M3FN, QInt16, QUInt16, QInt4, QUInt4 = range(7)


class ExtendedQuantType(ToolEnum):
    """Number formats, as Quark names them."""

    QInt8, QUInt8, QInt16, QUInt16, QInt32, QUInt32, QFloat16, QBFloat16, QBFP, QMX = range(1, 11)


class VitisQuantType(ToolEnum):
    """Number formats, as vai_q_onnx names them."""

    QInt8, QUInt8, QInt16, QUInt16, QInt32, QUInt32, QFloat16, QBFloat16, QBFP, QMX = range(1, 11)


class QuantFormat(ToolEnum):
    """How the file says it: operators on integers, or Q/DQ pairs around float ones."""

    QOperator, QDQ = range(2)


class ExtendedQuantFormat(ToolEnum):
    """The same with types that ONNX's own Q/DQ do not have."""

    QOperator, QDQ = range(2)


class VitisQuantFormat(ToolEnum):
    """The same in vai_q_onnx's operators."""

    QDQ, FixNeuron, BFPFixNeuron, MXFixNeuron = range(2, 6)


class QuantizationMode(ToolEnum):
    """What onnxruntime computes in."""

    IntegerOps, QLinearOps = range(2)
