"""The data types that Quark's tensor specifications name, each with the QuantType and attributes that it stands for.

BFP and MX are families: the attributes say which member. Rounding 2 is half to even, 0 half away from zero (which is
what Quark's BFP16 specification has, unlike its preset of that name).
"""

from __future__ import annotations

from typing import Any, ClassVar

from detent.compat.enums import Choice, ExtendedQuantType

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

    quant_type: ClassVar[Choice]
    attributes: ClassVar[dict[str, Any]] = {}


class Int8(DataType):
    """8-bit integers."""

    quant_type = ExtendedQuantType.QInt8


class UInt8(DataType):
    """8-bit unsigned integers."""

    quant_type = ExtendedQuantType.QUInt8


class Int16(DataType):
    """16-bit integers."""

    quant_type = ExtendedQuantType.QInt16


class UInt16(DataType):
    """16-bit unsigned integers."""

    quant_type = ExtendedQuantType.QUInt16


class Int32(DataType):
    """32-bit integers."""

    quant_type = ExtendedQuantType.QInt32


class UInt32(DataType):
    """32-bit unsigned integers."""

    quant_type = ExtendedQuantType.QUInt32


class Float16(DataType):
    """Half precision."""

    quant_type = ExtendedQuantType.QFloat16


class BFloat16(DataType):
    """bfloat16."""

    quant_type = ExtendedQuantType.QBFloat16


class BFP16(DataType):
    """Block floating point: 8 numbers share an exponent."""

    quant_type = ExtendedQuantType.QBFP
    attributes: ClassVar = {**BFP16_PARAMS, "rounding_mode": 0}


class MX4(DataType):
    """Microexponents of 4 bits a number."""

    quant_type = ExtendedQuantType.QBFP
    attributes: ClassVar = {**MICROEXPONENTS, "bit_width": 11}


class MX6(DataType):
    """Microexponents of 6 bits a number."""

    quant_type = ExtendedQuantType.QBFP
    attributes: ClassVar = {**MICROEXPONENTS, "bit_width": 13}


class MX9(DataType):
    """Microexponents of 9 bits a number."""

    quant_type = ExtendedQuantType.QBFP
    attributes: ClassVar = {**MICROEXPONENTS, "bit_width": 16}


class MXFP4E2M1(DataType):
    """Microscaling, 4-bit floats."""

    quant_type = ExtendedQuantType.QMX
    attributes: ClassVar = {**MICROSCALING, "element_dtype": "fp4_e2m1"}


class MXFP6E3M2(DataType):
    """Microscaling, 6-bit floats with 3 bits of exponent."""

    quant_type = ExtendedQuantType.QMX
    attributes: ClassVar = {**MICROSCALING, "element_dtype": "fp6_e3m2"}


class MXFP6E2M3(DataType):
    """Microscaling, 6-bit floats with 2 bits of exponent."""

    quant_type = ExtendedQuantType.QMX
    attributes: ClassVar = {**MICROSCALING, "element_dtype": "fp6_e2m3"}


class MXFP8E5M2(DataType):
    """Microscaling, 8-bit floats with 5 bits of exponent."""

    quant_type = ExtendedQuantType.QMX
    attributes: ClassVar = {**MICROSCALING, "element_dtype": "fp8_e5m2"}


class MXFP8E4M3(DataType):
    """Microscaling, 8-bit floats with 4 bits of exponent."""

    quant_type = ExtendedQuantType.QMX
    attributes: ClassVar = {**MICROSCALING, "element_dtype": "fp8_e4m3"}


class MXInt8(DataType):
    """Microscaling, 8-bit integers."""

    quant_type = ExtendedQuantType.QMX
    attributes: ClassVar = {**MICROSCALING, "element_dtype": "int8"}
