"""The number types of the other tools, as data, and the formats of Detent that they stand for.

A DataType is what Quark's newer specifications name; the older tools name the member of QuantType that it stands for.
BFP and MX are families: the attributes say which member. Rounding 2 is half to even, 0 half away from zero (which is
what Quark's BFP16 specification has, unlike its preset of that name).

QTensorConfig specifies a tensor, QLayerConfig a layer. Scripts change both after they were made, by assignment or by
`set_...`, and a layer's specification is the key of `specific_layer_config`: so they compare by value and hash by
identity. A named kind is a subclass with other defaults: `Int8Spec(calibration_method=CalibMethod.MinMax)`.

`to_dict` of every configuration turns it into plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from enum import Enum
from typing import Any, ClassVar

import onnx

from detent.compat import enums
from detent.compat.enums import CalibMethod, ExtendedQuantType, QuantGranularity, QuantType, ScaleType, ToolEnum
from detent.compat.option_rows import check_keys, note
from detent.errors import UsageError, check_known, nearest
from detent.numerics.blocks import BlockFloat, Microscaling
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat, Scale
from detent.numerics.interface import NumberFormat


class Serializable:
    """A configuration that `to_dict` turns into plain values: enumerations become "Class.Member", types their name."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field. Note any other attribute: it is probably a typo, and nothing reads it."""
        known = [each.name for each in fields(self)]  # type: ignore[arg-type]  # every subclass is a dataclass
        if name not in known:
            note(f"{type(self).__name__} has no field '{name}': setting it changes nothing.{nearest(name, known)}")
        super().__setattr__(name, value)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without what is not set."""
        return {name: plain(value) for name, value in vars(self).items() if value is not None}


def plain(value: Any) -> Any:
    """Return a value as JSON and YAML can hold it; keys that are layers' specifications become pairs."""
    if isinstance(value, Serializable):
        return value.to_dict()
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, Mapping):
        if any(key is None or isinstance(key, Serializable) for key in value):
            return [[plain(key), plain(each)] for key, each in value.items()]
        return {plain(key): plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple, set)) else value


def member_of(value: Any) -> Any:
    """Return the member that "Class.Member" names; any other value as it is."""
    if not isinstance(value, str) or "." not in value:
        return value
    kind, _, name = value.partition(".")
    found = getattr(enums, kind, None)
    return found[name] if isinstance(found, type) and issubclass(found, Enum) and name in found.__members__ else value


_BLOCK_FLOAT = {"bfp_method": "to_bfp", "axis": 1, "bit_width": 16, "block_size": 8, "rounding_mode": 2}
_TWO_LEVELS = {
    **{"bfp_method": "to_bfp_prime", "axis": 1, "bit_width": 13, "block_size": 16, "sub_block_size": 2},
    **{"sub_block_shift_bits": 1, "rounding_mode": 2},
}
DEFAULT_BFP_PARAMS, DEFAULT_MICROEXPONENTS_PARAMS = _BLOCK_FLOAT, _TWO_LEVELS
DEFAULT_MICROSCALING_PARAMS = {"element_dtype": "int8", "axis": 1, "block_size": 32, "rounding_mode": 2}
_ELEMENTS = {
    **{"MXFP4E2M1": "fp4_e2m1", "MXFP6E3M2": "fp6_e3m2", "MXFP6E2M3": "fp6_e2m3", "MXFP8E5M2": "fp8_e5m2"},
    **{"MXFP8E4M3": "fp8_e4m3", "MXInt8": "int8"},
}

# Formats with an exponent for each block: the family, and what BFPAttributes or MXAttributes say of the member.
BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "BFP16": ("BFP", _BLOCK_FLOAT),
    **{name: ("BFP", {**_TWO_LEVELS, "bit_width": bits}) for name, bits in (("MX4", 11), ("MX6", 13), ("MX9", 16))},
    **{name: ("MX", {**DEFAULT_MICROSCALING_PARAMS, "element_dtype": element}) for name, element in _ELEMENTS.items()},
}


class DataType:
    """A number format. The classes are the values: `QTensorConfig(data_type=Int8)`."""

    quant_type: ClassVar[ToolEnum]
    attributes: ClassVar[dict[str, Any]] = {}


def _type(name: str, family: str, **attributes: Any) -> type[DataType]:
    members = {"quant_type": ExtendedQuantType[f"Q{family}"], "attributes": attributes, "__module__": __name__}
    return type(name, (DataType,), {**members, "__doc__": f"The number format {name}."})


_INTEGERS = ("Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32")
TYPES: dict[str, type[DataType]] = {
    **{name: _type(name, name) for name in (*_INTEGERS, "Float16", "BFloat16")},
    **{name: _type(name, family, **attributes) for name, (family, attributes) in BLOCKS.items()},
    "BFP16": _type("BFP16", "BFP", **{**_BLOCK_FLOAT, "rounding_mode": 0}),  # unlike the preset
}
SCALES: dict[ToolEnum, Scale] = {
    ScaleType.Float32: "float",
    ScaleType.PowerOf2: "power_of_two",
    ScaleType.Int16: "int16",
}


def parse_data_type(dtype_name: str | None) -> Any:
    """Return the type of that name, such as Int8; None for None."""
    if dtype_name is None:
        return None
    check_known("data type", dtype_name, TYPES)
    return TYPES[dtype_name]


@dataclass
class QTensorConfig(Serializable):
    """How a tensor is quantized."""

    symmetric: bool = True
    scale_type: ToolEnum = ScaleType.Float32
    calibration_method: ToolEnum = CalibMethod.MinMax
    quant_granularity: ToolEnum = QuantGranularity.Tensor
    data_type: Any = field(default=TYPES["Int8"])  # the class, or an instance of it

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QTensorConfig) and self.values == other.values

    @property
    def kind(self) -> type[DataType]:
        """The class of the data type."""
        kind: type[DataType] = self.data_type if isinstance(self.data_type, type) else type(self.data_type)
        return kind

    @property
    def values(self) -> dict[str, Any]:
        """What it says, by field; kinds with the same values ask for the same."""
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "data_type": self.kind}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: names of members, and of the data type."""
        return {**super().to_dict(), "data_type": self.kind.__name__}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> QTensorConfig:
        """Return what `to_dict` has made plain."""
        parsed = {name: member_of(value) for name, value in values.items()}
        return QTensorConfig(**{**parsed, "data_type": parse_data_type(values.get("data_type", "Int8"))})


def _setter(name: str) -> Callable[[QTensorConfig, Any], None]:
    def set_value(self: QTensorConfig, value: Any) -> None:
        setattr(self, name, value)

    set_value.__name__, set_value.__doc__ = f"set_{name}", f"Set `{name}`."
    return set_value


for _each in fields(QTensorConfig):
    setattr(QTensorConfig, f"set_{_each.name}", _setter(_each.name))


def _spec(name: str, base: Any = QTensorConfig, **defaults: Any) -> Any:
    """Make a kind of specification: a class with these defaults."""
    changed = [(field, Any, value) for field, value in defaults.items()]
    doc = {"__doc__": f"How a tensor is quantized, by default as {name.removesuffix('Spec')}.", "__module__": __name__}
    return make_dataclass(name, changed, bases=(base,), eq=False, namespace=doc)


def _specs() -> dict[str, Any]:
    found = {f"{name}Spec": _spec(f"{name}Spec", data_type=kind) for name, kind in TYPES.items()}
    for name in _INTEGERS:
        found[f"{name}Spec"] = _spec(
            f"{name}Spec",
            symmetric=not name.startswith("U"),
            calibration_method=CalibMethod.Percentile,
            data_type=TYPES[name],
        )
    device = {"calibration_method": CalibMethod.MinMSE, "scale_type": ScaleType.PowerOf2}
    return {**found, "XInt8Spec": _spec("XInt8Spec", found["Int8Spec"], **device)}


SPECS = _specs()


def __getattr__(name: str) -> Any:
    """Serve the types and specifications under their names: `data_types.Int8`, `data_types.Int8Spec`."""
    for table in (TYPES, SPECS):
        if name in table:
            return table[name]
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


@dataclass
class QLayerConfig(Serializable):
    """How the tensors of a layer are quantized. `activation` is the older name of `input_tensors`, which
    counts where both are given.
    """

    activation: QTensorConfig | None = None
    weight: QTensorConfig | None = None
    input_tensors: QTensorConfig | None = None
    bias: QTensorConfig | None = None
    output_tensors: QTensorConfig | None = None

    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        for name, spec in vars(self).items():
            if isinstance(spec, type):  # `input_tensors=Int8Spec`, as a manual has it
                setattr(self, name, spec())

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> QLayerConfig:
        """Return what `to_dict` has made plain."""
        return QLayerConfig(
            **{name: None if each is None else QTensorConfig.from_dict(each) for name, each in values.items()}
        )

    @property
    def inputs(self) -> QTensorConfig | None:
        """The specification of what goes in, under either name."""
        return self.input_tensors if self.input_tensors is not None else self.activation

    @property
    def roles(self) -> dict[str, QTensorConfig | None]:
        """The specifications by the roles of a recipe."""
        return {"activations": self.inputs, "weights": self.weight, "biases": self.bias}


_FLOATS = {"FLOAT16": "float16", "BFLOAT16": "bfloat16", "FLOAT8E4M3FN": "float8_e4m3", "FLOAT8E5M2": "float8_e5m2"}
_ROUNDINGS = {0: "half_away", 1: "half_up", 2: "half_even"}
_NOT_DONE = ("convert_to_bfloat_before_bfp", "use_compiler_version_cpu_kernel")


def format_of(
    quant_type: Any, *, symmetric: bool = True, scale: Scale = "float", attributes: Mapping[str, Any] | None = None
) -> NumberFormat:
    """Return the format for a member of QuantType or its relatives, or for a DataType, or for an instance of one.

    It may also be the name of a member, or anything that says its `tensor_type` in ONNX. `attributes` replace the
    type's own; block formats have them.
    """
    member = getattr(quant_type, "quant_type", quant_type)
    name = str(member if isinstance(member, str) and member.startswith("Q") else getattr(member, "name", ""))
    if not name and getattr(member, "tensor_type", None):
        name = str(onnx.TensorProto.DataType.Name(member.tensor_type))
    given = attributes or getattr(quant_type, "attributes", None) or {}
    kind = name.removeprefix("Q").upper()
    if kind in ("INT4", "UINT4", *map(str.upper, _INTEGERS)):
        return IntegerFormat(kind.lower(), symmetric, scale)
    if kind in _FLOATS:
        return FloatFormat(_FLOATS[kind])  # type: ignore[arg-type]
    if kind in ("BFP", "MX"):
        return block_float(given) if kind == "BFP" else microscaling(given)
    raise UsageError(f"{quant_type!r} is not a number format. Give a member of QuantType, such as {QuantType.QInt8!r}.")


def block_float(attributes: Mapping[str, Any]) -> BlockFloat:
    """Return the format of BFPAttributes. `bfp_method` to_bfp has one level, to_bfp_prime two."""
    rounding = _rounding(attributes, (*_TWO_LEVELS, *_NOT_DONE))
    method = attributes.get("bfp_method", "to_bfp")
    check_known("bfp_method", method, ("to_bfp", "to_bfp_prime"))
    for key in _NOT_DONE:
        if attributes.get(key):
            raise UsageError(f"{key} is not part of Detent, which rounds float32 once. Delete it.")
    return BlockFloat(
        bit_width=attributes.get("bit_width", 16),
        block_size=attributes.get("block_size", 8),
        sub_block_size=attributes.get("sub_block_size", 2) if method == "to_bfp_prime" else None,
        sub_block_shift_bits=attributes.get("sub_block_shift_bits", 1),
        rounding=rounding,
    )


def microscaling(attributes: Mapping[str, Any]) -> Microscaling:
    """Return the format of MXAttributes."""
    rounding = _rounding(attributes, ("element_dtype", "axis", "block_size", "rounding_mode"))
    return Microscaling(attributes.get("element_dtype", "int8"), attributes.get("block_size", 32), rounding)


def _rounding(attributes: Mapping[str, Any], known: tuple[str, ...]) -> Any:
    """Return the rounding of blocks; UsageError for keys that are not known, and for blocks along another axis."""
    check_keys(attributes, known)
    if attributes.get("axis", 1) != 1:
        raise UsageError(f"axis {attributes['axis']}: blocks lie along the axis that is summed over. Delete it.")
    mode = attributes.get("rounding_mode", 0)
    if mode not in _ROUNDINGS:
        raise UsageError(f"rounding_mode is {mode!r}: 0 is half away from zero, 1 half up, 2 half to even.")
    return _ROUNDINGS[mode]


def spec_format(spec: QTensorConfig | None) -> NumberFormat | None:
    """Return the format that a tensor's specification describes."""
    if spec is None:
        return None
    fmt = format_of(spec.data_type, symmetric=spec.symmetric, scale=SCALES[spec.scale_type])
    per_channel = spec.quant_granularity == QuantGranularity.Channel and fmt.kind == "integer"
    return fmt.replace(granularity="per_channel") if per_channel else fmt


def check_layer(layer: QLayerConfig) -> None:
    """Raise UsageError for what a specification can say and Detent cannot do."""
    for role, spec in {**layer.roles, "outputs": layer.output_tensors}.items():
        if spec is not None and spec.quant_granularity == QuantGranularity.Group:
            raise UsageError("QuantGranularity.Group has no size of groups. Use the recipe MATMUL_NBITS.")
        if spec is not None and role != "weights" and spec.quant_granularity == QuantGranularity.Channel:
            raise UsageError("QuantGranularity.Channel is for weights: activations and biases cannot have it.")
