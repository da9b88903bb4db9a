"""Number formats by the names of the other tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detent.compat.enums import QuantType
from detent.errors import UsageError, nearest
from detent.numerics.blocks import BlockFloat, Microscaling
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat, Scale
from detent.numerics.interface import NumberFormat

_INTEGERS = {"QInt8": "int8", "QUInt8": "uint8", "QInt16": "int16", "QUInt16": "uint16", "QInt4": "int4"}
_INTEGERS |= {"QUInt4": "uint4", "QInt32": "int32", "QUInt32": "uint32"}
_FLOATS = {"QFloat16": "float16", "QBFloat16": "bfloat16", "QFLOAT8E4M3FN": "float8_e4m3"}

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
    if name in _INTEGERS:
        return IntegerFormat(_INTEGERS[name], symmetric, scale)
    if name in _FLOATS:
        return FloatFormat(_FLOATS[name])  # type: ignore[arg-type]
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
