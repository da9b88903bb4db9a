"""The enumerations of Quark, vai_q_onnx and onnxruntime's quantizer, one row each.

Scripts mix the families, so members are equal, and hash equal, where they mean the same: `QuantType.QInt8` of any of
them, onnxruntime's own included. They differ where the name is the same and the meaning is not: MinMSE of
PowerOfTwoMethod is another method than that of ExtendedCalibrationMethod, and QDQ is another file for each format.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import onnx

# Classes whose members mean the same as those of another.
_FAMILIES = {"ExtendedQuantType": "QuantType", "VitisQuantType": "QuantType"}


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

    @property
    def tensor_type(self) -> int:
        """The number of a type in ONNX; 0 for what ONNX has no type for."""
        return int(dict(onnx.TensorProto.DataType.items()).get(self._name_.removeprefix("Q").upper(), 0))

    @classmethod
    def from_string(cls, name: str) -> Any:
        """Return the member of that name; ValueError if there is none, as in onnxruntime."""
        try:
            return cls[name]
        except KeyError:
            raise ValueError(f"{cls.__name__} has no member '{name}'; it has {', '.join(cls.__members__)}.") from None


def _enum(name: str, members: str, start: int = 0) -> Any:
    return ToolEnum(name, members, module=__name__, start=start)  # type: ignore[call-arg]  # mypy knows it of Enum only


# Calibration methods: for float scales, for powers of two, for a 16-bit integer over a power of two, those that choose
# for each tensor, those for weights with float scales, and those that the specification of a tensor names.
CalibrationMethod = _enum("CalibrationMethod", "MinMax Entropy Percentile Distribution")
PowerOfTwoMethod = _enum("PowerOfTwoMethod", "NonOverflow MinMSE")
Int16Method = _enum("Int16Method", "MinMax")
LayerWiseMethod = _enum("LayerWiseMethod", "LayerWisePercentile")
ExtendedCalibrationMethod = _enum("ExtendedCalibrationMethod", "MinMSE")
CalibMethod = _enum("CalibMethod", "MinMax MinMSE Percentile Entropy LayerwisePercentile Distribution")

ScaleType = _enum("ScaleType", "Float32 PowerOf2 Int16")
QuantGranularity = _enum("QuantGranularity", "Tensor Channel Group")

_MORE_TYPES = "QInt8 QUInt8 QInt16 QUInt16 QInt32 QUInt32 QFloat16 QBFloat16 QBFP QMX"
QuantType = _enum("QuantType", "QInt8 QUInt8 QFLOAT8E4M3FN QInt16 QUInt16 QInt4 QUInt4")
ExtendedQuantType = _enum("ExtendedQuantType", _MORE_TYPES, start=1)
VitisQuantType = _enum("VitisQuantType", _MORE_TYPES, start=1)

# Operators on integers, or Q/DQ pairs around float ones; the same with more types, and in vai_q_onnx's operators.
QuantFormat = _enum("QuantFormat", "QOperator QDQ")
ExtendedQuantFormat = _enum("ExtendedQuantFormat", "QOperator QDQ")
VitisQuantFormat = _enum("VitisQuantFormat", "QDQ FixNeuron BFPFixNeuron MXFixNeuron", start=2)
