"""The number types of the other tools, as data, and the formats of Detent that they stand for.

A DataType is what Quark's newer specifications name; the older tools name the member of QuantType that it stands for.
BFP and MX are families: the attributes say which member. Rounding 2 is half to even, 0 half away from zero (which is
what Quark's BFP16 specification has, unlike its preset of that name).

QTensorConfig specifies a tensor, QLayerConfig a layer. Both are hashable: a layer's specification is the key of
`specific_layer_config`. A named kind is a constructor with defaults: `Int8Spec(calibration_method=CalibMethod.MinMax)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from detent.compat.enums import CalibMethod, ExtendedQuantType, QuantGranularity, QuantType, ScaleType, ToolEnum
from detent.errors import UsageError, nearest
from detent.numerics.blocks import BlockFloat, Microscaling
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat, Scale
from detent.numerics.interface import NumberFormat

MICROEXPONENTS: dict[str, Any] = {
    "bfp_method": "to_bfp_prime",
    "axis": 1,
    "bit_width": 13,
    "block_size": 16,
    "sub_block_size": 2,
    "sub_block_shift_bits": 1,
    "rounding_mode": 2,
}
MICROSCALING: dict[str, Any] = {"element_dtype": "int8", "axis": 1, "block_size": 32, "rounding_mode": 2}
BFP16_PARAMS: dict[str, Any] = {"bfp_method": "to_bfp", "axis": 1, "bit_width": 16, "block_size": 8, "rounding_mode": 2}


class DataType:
    """A number format. The classes are the values: `QTensorConfig(data_type=Int8)`."""

    quant_type: ClassVar[ToolEnum]
    attributes: ClassVar[dict[str, Any]] = {}


def _type(name: str, quant_type: ExtendedQuantType, doc: str, **attributes: Any) -> type[DataType]:
    return type(name, (DataType,), {"quant_type": quant_type, "attributes": attributes, "__doc__": doc})


def _exponents(name: str, bits: int, bit_width: int) -> type[DataType]:
    doc = f"Microexponents of {bits} bits a number."
    return _type(name, ExtendedQuantType.QBFP, doc, **{**MICROEXPONENTS, "bit_width": bit_width})


def _scaled(name: str, element: str, doc: str) -> type[DataType]:
    return _type(name, ExtendedQuantType.QMX, f"Microscaling, {doc}.", **{**MICROSCALING, "element_dtype": element})


Int8 = _type("Int8", ExtendedQuantType.QInt8, "8-bit integers.")
UInt8 = _type("UInt8", ExtendedQuantType.QUInt8, "8-bit unsigned integers.")
Int16 = _type("Int16", ExtendedQuantType.QInt16, "16-bit integers.")
UInt16 = _type("UInt16", ExtendedQuantType.QUInt16, "16-bit unsigned integers.")
Int32 = _type("Int32", ExtendedQuantType.QInt32, "32-bit integers.")
UInt32 = _type("UInt32", ExtendedQuantType.QUInt32, "32-bit unsigned integers.")
Float16 = _type("Float16", ExtendedQuantType.QFloat16, "Half precision.")
BFloat16 = _type("BFloat16", ExtendedQuantType.QBFloat16, "bfloat16.")
BFP16 = _type(
    "BFP16",
    ExtendedQuantType.QBFP,
    "Block floats: 8 numbers share an exponent.",
    **{**BFP16_PARAMS, "rounding_mode": 0},
)
MX4 = _exponents("MX4", 4, 11)
MX6 = _exponents("MX6", 6, 13)
MX9 = _exponents("MX9", 9, 16)
MXFP4E2M1 = _scaled("MXFP4E2M1", "fp4_e2m1", "4-bit floats")
MXFP6E3M2 = _scaled("MXFP6E3M2", "fp6_e3m2", "6-bit floats with 3 bits of exponent")
MXFP6E2M3 = _scaled("MXFP6E2M3", "fp6_e2m3", "6-bit floats with 2 bits of exponent")
MXFP8E5M2 = _scaled("MXFP8E5M2", "fp8_e5m2", "8-bit floats with 5 bits of exponent")
MXFP8E4M3 = _scaled("MXFP8E4M3", "fp8_e4m3", "8-bit floats with 4 bits of exponent")
MXInt8 = _scaled("MXInt8", "int8", "8-bit integers")


@dataclass(frozen=True)
class QTensorConfig:
    """How a tensor is quantized."""

    symmetric: bool = True
    scale_type: ScaleType = ScaleType.Float32
    calibration_method: CalibMethod = CalibMethod.MinMax
    quant_granularity: QuantGranularity = QuantGranularity.Tensor
    data_type: type[DataType] = Int8

    @property
    def scale(self) -> Scale:
        """What scales may be, as Detent names it."""
        names: dict[ScaleType, Scale] = {
            ScaleType.Float32: "float",
            ScaleType.PowerOf2: "power_of_two",
            ScaleType.Int16: "int16",
        }
        return names[self.scale_type]


def _integers(data_type: type[DataType], symmetric: bool = True) -> Callable[..., QTensorConfig]:
    percentile = CalibMethod.Percentile
    return partial(QTensorConfig, symmetric=symmetric, calibration_method=percentile, data_type=data_type)


def _floats(data_type: type[DataType]) -> Callable[..., QTensorConfig]:
    return partial(QTensorConfig, symmetric=True, calibration_method=CalibMethod.MinMax, data_type=data_type)


Int8Spec, UInt8Spec = _integers(Int8), _integers(UInt8, symmetric=False)
Int16Spec, UInt16Spec = _integers(Int16), _integers(UInt16, symmetric=False)
Int32Spec, UInt32Spec = _integers(Int32), _integers(UInt32, symmetric=False)
XInt8Spec = partial(_integers(Int8), calibration_method=CalibMethod.MinMSE, scale_type=ScaleType.PowerOf2)
Float16Spec, BFloat16Spec, BFP16Spec = _floats(Float16), _floats(BFloat16), _floats(BFP16)
MX4Spec, MX6Spec, MX9Spec, MXInt8Spec = _floats(MX4), _floats(MX6), _floats(MX9), _floats(MXInt8)
MXFP4E2M1Spec, MXFP6E3M2Spec, MXFP6E2M3Spec = _floats(MXFP4E2M1), _floats(MXFP6E3M2), _floats(MXFP6E2M3)
MXFP8E5M2Spec, MXFP8E4M3Spec = _floats(MXFP8E5M2), _floats(MXFP8E4M3)


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


_INTEGER_TYPES = {"QInt8": "int8", "QUInt8": "uint8", "QInt16": "int16", "QUInt16": "uint16", "QInt4": "int4"}
_INTEGER_TYPES |= {"QUInt4": "uint4", "QInt32": "int32", "QUInt32": "uint32"}
_FLOAT_TYPES = {"QFloat16": "float16", "QBFloat16": "bfloat16", "QFLOAT8E4M3FN": "float8_e4m3"}

_ROUNDINGS = {0: "half_away", 1: "half_up", 2: "half_even"}

_BLOCK_KEYS = (
    *("bfp_method", "axis", "bit_width", "block_size", "sub_block_size", "sub_block_shift_bits"),
    *("rounding_mode", "convert_to_bfloat_before_bfp", "use_compiler_version_cpu_kernel"),
)
_SCALE_KEYS = ("element_dtype", "axis", "block_size", "rounding_mode")


def format_of(
    quant_type: Any, *, symmetric: bool = True, scale: Scale = "float", attributes: Mapping[str, Any] | None = None
) -> NumberFormat:
    """The format for a member of QuantType or its relatives, or for a data type; `attributes` are those of blocks."""
    member = getattr(quant_type, "quant_type", quant_type)
    name = getattr(member, "name", None)
    given = attributes or getattr(quant_type, "attributes", None)
    if name in _INTEGER_TYPES:
        return IntegerFormat(_INTEGER_TYPES[name], symmetric, scale)
    if name in _FLOAT_TYPES:
        return FloatFormat(_FLOAT_TYPES[name])  # type: ignore[arg-type]
    if name == "QBFP":
        return block_float(given or {})
    if name == "QMX":
        return microscaling(given or {})
    raise UsageError(f"{quant_type!r} is no number format. Give a member of QuantType, such as {QuantType.QInt8!r}.")


def block_float(attributes: Mapping[str, Any]) -> BlockFloat:
    """BFPAttributes. `bfp_method` to_bfp has one level, to_bfp_prime two."""
    _check(attributes, _BLOCK_KEYS, "BFPAttributes")
    method = attributes.get("bfp_method", "to_bfp")
    if method not in ("to_bfp", "to_bfp_prime"):
        raise UsageError(f"BFPAttributes: bfp_method is {method!r}. Choose to_bfp or to_bfp_prime.")
    for key in ("convert_to_bfloat_before_bfp", "use_compiler_version_cpu_kernel"):
        if attributes.get(key):
            raise UsageError(f"BFPAttributes: {key} is not part of Detent, which rounds float32 once. Delete it.")
    return BlockFloat(
        bit_width=attributes.get("bit_width", 16),
        block_size=attributes.get("block_size", 8),
        sub_block_size=attributes.get("sub_block_size", 2) if method == "to_bfp_prime" else None,
        sub_block_shift_bits=attributes.get("sub_block_shift_bits", 1),
        rounding=_rounding(attributes, "BFPAttributes"),
    )


def microscaling(attributes: Mapping[str, Any]) -> Microscaling:
    """MXAttributes."""
    _check(attributes, _SCALE_KEYS, "MXAttributes")
    return Microscaling(
        element=attributes.get("element_dtype", "int8"),
        block_size=attributes.get("block_size", 32),
        rounding=_rounding(attributes, "MXAttributes"),
    )


def _check(attributes: Mapping[str, Any], known: tuple[str, ...], option: str) -> None:
    for key in attributes:
        if key not in known:
            raise UsageError(f"{option} has no '{key}'.{nearest(key, known)} It has {', '.join(known)}.")
    if attributes.get("axis", 1) != 1:
        raise UsageError(
            f"{option}: axis {attributes['axis']}: blocks lie along the axis that is summed over. Delete it."
        )


def _rounding(attributes: Mapping[str, Any], option: str) -> Any:
    mode = attributes.get("rounding_mode", 0)
    if mode not in _ROUNDINGS:
        raise UsageError(f"{option}: rounding_mode is {mode!r}: 0 is half away from zero, 1 half up, 2 half to even.")
    return _ROUNDINGS[mode]


def spec_format(spec: QTensorConfig | None) -> NumberFormat | None:
    """The format that a tensor's specification describes."""
    if spec is None:
        return None
    fmt = format_of(spec.data_type, symmetric=spec.symmetric, scale=spec.scale)
    per_channel = spec.quant_granularity == QuantGranularity.Channel and fmt.kind == "integer"
    return fmt.replace(granularity="per_channel") if per_channel else fmt


def check_layer(layer: QLayerConfig) -> None:
    """Raise UsageError for what a specification can say and Detent cannot do."""
    if layer.output_tensors is not None and layer.output_tensors != layer.inputs:
        raise UsageError("output_tensors of a layer's specification: the next layer's input_tensors decide. Delete it.")
    granularities = {spec.quant_granularity for spec in (layer.inputs, layer.weight, layer.bias) if spec is not None}
    if QuantGranularity.Group in granularities:
        raise UsageError("QuantGranularity.Group has no size of groups. Use the recipe MATMUL_NBITS.")
    for spec in (layer.inputs, layer.bias):
        if spec is not None and spec.quant_granularity == QuantGranularity.Channel:
            raise UsageError("QuantGranularity.Channel is for weights: activations and biases cannot have it.")
