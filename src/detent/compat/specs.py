"""Quark's newer specifications: of a tensor (QTensorConfig and its named kinds), and of a layer (QLayerConfig).

A kind is a constructor with defaults: `Int8Spec()`, `Int8Spec(calibration_method=CalibMethod.MinMax)`. They are
hashable, because a layer's specification is the key of `specific_layer_config`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from detent.compat import data_types
from detent.compat.data_types import DataType
from detent.compat.enums import CalibMethod, QuantGranularity, ScaleType
from detent.errors import UsageError
from detent.numerics.formats import Scale


@dataclass(frozen=True)
class QTensorConfig:
    """How a tensor is quantized."""

    symmetric: bool = True
    scale_type: ScaleType = ScaleType.Float32
    calibration_method: CalibMethod = CalibMethod.MinMax
    quant_granularity: QuantGranularity = QuantGranularity.Tensor
    data_type: type[DataType] = data_types.Int8

    @property
    def scale(self) -> Scale:
        """What scales may be, as Detent names it."""
        names: dict[ScaleType, Scale] = {
            ScaleType.Float32: "float",
            ScaleType.PowerOf2: "power_of_two",
            ScaleType.Int16: "int16",
        }
        return names[self.scale_type]


def _kind(data_type: type[DataType], symmetric: bool, method: CalibMethod) -> Callable[..., QTensorConfig]:
    return partial(QTensorConfig, symmetric=symmetric, calibration_method=method, data_type=data_type)


def _floating(data_type: type[DataType]) -> Callable[..., QTensorConfig]:
    return _kind(data_type, True, CalibMethod.MinMax)


Int8Spec = _kind(data_types.Int8, True, CalibMethod.Percentile)
UInt8Spec = _kind(data_types.UInt8, False, CalibMethod.Percentile)
Int16Spec = _kind(data_types.Int16, True, CalibMethod.Percentile)
UInt16Spec = _kind(data_types.UInt16, False, CalibMethod.Percentile)
Int32Spec = _kind(data_types.Int32, True, CalibMethod.Percentile)
UInt32Spec = _kind(data_types.UInt32, False, CalibMethod.Percentile)
XInt8Spec = partial(_kind(data_types.Int8, True, CalibMethod.MinMSE), scale_type=ScaleType.PowerOf2)
Float16Spec = _floating(data_types.Float16)
BFloat16Spec = _floating(data_types.BFloat16)
BFP16Spec = _floating(data_types.BFP16)
MX4Spec = _floating(data_types.MX4)
MX6Spec = _floating(data_types.MX6)
MX9Spec = _floating(data_types.MX9)
MXFP4E2M1Spec = _floating(data_types.MXFP4E2M1)
MXFP6E3M2Spec = _floating(data_types.MXFP6E3M2)
MXFP6E2M3Spec = _floating(data_types.MXFP6E2M3)
MXFP8E5M2Spec = _floating(data_types.MXFP8E5M2)
MXFP8E4M3Spec = _floating(data_types.MXFP8E4M3)
MXInt8Spec = _floating(data_types.MXInt8)


@dataclass(frozen=True)
class QLayerConfig:
    """How the tensors of a layer are quantized. `activation` is the older name of `input_tensors`."""

    activation: QTensorConfig | None = None
    weight: QTensorConfig | None = None
    input_tensors: QTensorConfig | None = None
    bias: QTensorConfig | None = None
    output_tensors: QTensorConfig | None = None

    def __post_init__(self) -> None:
        if self.activation is not None and self.input_tensors is not None:
            raise UsageError("QLayerConfig has both activation and input_tensors, its newer name. Give one of them.")

    @property
    def inputs(self) -> QTensorConfig | None:
        """The specification of what goes in, under either name."""
        return self.input_tensors if self.input_tensors is not None else self.activation

    @property
    def roles(self) -> dict[str, QTensorConfig | None]:
        """The specifications by the roles of a recipe."""
        return {"activations": self.inputs, "weights": self.weight, "biases": self.bias}
