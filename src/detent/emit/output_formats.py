"""The output formats: the families of operators that each is written with, and the number formats that it can hold.

| format       | integers                                  | small floats      | blocks                     |
| ------------ | ----------------------------------------- | ----------------- | -------------------------- |
| qdq          | QuantizeLinear and DequantizeLinear       | Cast and back     | BFP-, MXQuantizeDequantize |
| extended-qdq | ExtendedQuantizeLinear and -Dequantize... | the same          | BFP-, MXQuantizeDequantize |
| vitis-qdq    | VitisQuantizeLinear and -DequantizeLinear | the same          | BFPFixNeuron, MXFixNeuron  |
| fix-neuron   | FixNeuron                                 |                   |                            |
| qoperator    | as qdq, then operators on codes           |                   |                            |
| cast         |                                           | Cast and back     |                            |
| bfloat16     |                                           | the whole model   |                            |

To add a format: a row in `OUTPUT_FORMATS`, its name in `detent.recipe.OutputFormat`, and if its operators are new a row
in `detent.qdq.families`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from onnx.defs import onnx_opset_version

from detent.errors import UsageError
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat
from detent.numerics.interface import NumberFormat, Params
from detent.qdq.builder import BlockWriter, CastWriter, FixNeuronWriter, GraphWriter, PairWriter, RoundingWriter
from detent.qdq.families import EXTENDED, FIX_NEURON, VITIS, Family
from detent.recipe import Recipe
from detent.recipe.recipe import OutputFormat

_EIGHT_BITS = ("int8", "uint8")
_NARROW = ("int8", "uint8", "int16", "uint16")
_WIDE = (*_NARROW, "int32", "uint32")


@dataclass(frozen=True)
class FormatSpec:
    """One output format: the families that write scaled numbers and blocks, and the number formats that it can hold.

    Without a `linear` family, integers are written with the native Q/DQ and small floats with Casts. `why_not` checks
    the other fields in their order; `only_these` and `other_integers` are the advice if a check fails. `integers` lists
    the types of codes by role, `groups` allows a scale for each group of weights, `clips` floats that saturate.
    `whole_model`: no part of the model can stay float or be written differently.
    """

    linear: Family | None = None
    blocks: Family = EXTENDED
    only: Callable[[NumberFormat], bool] = lambda _: True
    only_these: str = ""
    integers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    other_integers: str = ""
    groups: bool = True
    float8: bool = True
    clips: bool = True
    whole_model: bool = False

    def writer(self, writer: GraphWriter, params: Params) -> RoundingWriter:
        """Return the writer for values with these parameters."""
        if params.format.in_blocks:
            return BlockWriter(writer, self.blocks)
        if self.linear is FIX_NEURON:
            return FixNeuronWriter(writer)
        if self.linear is None and params.format.kind == "float":
            return CastWriter(writer)
        return PairWriter(writer, self.linear)

    def why_not(self, role: str, fmt: NumberFormat) -> str | None:
        """Return why values of a role cannot be written in a number format, with advice; None if they can."""
        if not self.only(fmt):
            return self.only_these
        types = self.integers.get(role, ())
        if fmt.kind == "integer" and types and fmt.dtype not in types:
            return self.other_integers.format(types=", ".join(types), either=" or ".join(types))
        if fmt.group_size and not self.groups:
            return "has no scales per group. Choose per_channel, or format qdq."
        if fmt.kind == "float" and fmt.bits == 8 and not self.float8:
            return "has no operator for them. Choose bfloat16 or float16, or format qdq."
        if fmt.clip and not self.clips:
            return "has no operator that clips them. Say clip = false, or format qdq."
        return None


def _own_operators(family: Family) -> FormatSpec:
    """Return the format that is written with the Q/DQ operators of `family` alone."""
    return FormatSpec(
        family,
        family,
        integers=dict.fromkeys(("activations", "weights", "biases"), _WIDE),
        other_integers="has no operator for them. Choose from {types}, or format qdq.",
        groups=False,
        float8=False,
        clips=False,
    )


OUTPUT_FORMATS: Mapping[OutputFormat, FormatSpec] = MappingProxyType(
    {
        "qdq": FormatSpec(
            integers={"activations": _NARROW, "weights": (*_NARROW, "int4", "uint4"), "biases": (*_NARROW, "int32")},
            other_integers="cannot write them as codes. Choose from {types}.",
        ),
        "qoperator": FormatSpec(
            only=lambda fmt: fmt.kind == "integer" and not fmt.group_size,
            only_these="has operators for 8-bit integers only, without groups. Choose int8 or uint8, or format qdq.",
            integers={"activations": _EIGHT_BITS, "weights": _EIGHT_BITS, "biases": ("int32", *_EIGHT_BITS)},
            other_integers="has operators for 8 bits only. Choose {either}, or format qdq.",
        ),
        "extended-qdq": _own_operators(EXTENDED),
        "vitis-qdq": _own_operators(VITIS),
        "fix-neuron": FormatSpec(
            FIX_NEURON,
            only=lambda fmt: FIX_NEURON.holds(fmt.dtype, 1) and fmt.power_of_two and fmt.granularity == "per_tensor",
            only_these="has int8 or int16 with one power-of-two scale for each tensor. Choose these, or format qdq.",
        ),
        "cast": FormatSpec(
            only=lambda fmt: fmt.kind == "float",
            only_these="is for bfloat16, float16 and float8. Choose these, or format qdq.",
        ),
        "bfloat16": FormatSpec(
            only=lambda fmt: fmt == FloatFormat("bfloat16"),
            only_these="computes everything in plain bfloat16. Choose recipe BF16, or another format.",
            whole_model=True,
        ),
    }
)


def check_formats(recipe: Recipe) -> None:
    """Raise UsageError if a recipe asks for numbers that cannot be written in its output format."""
    spec = OUTPUT_FORMATS[recipe.format]
    for role, override, fmt in recipe.every_format():
        if fmt is None:
            continue
        where = f"The {role} of {f'recipe {recipe.name}' if override is None else f'the override of {override.part}'}"
        _check_scales(where, role, fmt)
        reason = spec.why_not(role, fmt)
        if reason is not None:
            raise UsageError(f"{where} are {fmt.label}, and format {recipe.format} {reason}")
        # 16 bits have a twin in com.microsoft at any opset; 4 bits and groups exist only in newer standard operators.
        if not fmt.has_twin and (recipe.opset or 0) < fmt.least_opset:
            has, least = fmt.granularity if fmt.group_size else fmt.label, fmt.least_opset
            given = "" if recipe.opset is None else f", and opset is {recipe.opset}"
            raise UsageError(f"{where} are {has}, which needs opset {least}{given}. Give --opset {least} or newer.")
    newest = onnx_opset_version()
    if recipe.opset is not None and not 1 <= recipe.opset <= newest:
        raise UsageError(
            f"opset of recipe {recipe.name} is {recipe.opset}, and the installed onnx knows 1 to {newest}. Choose one "
            "of these; without, the model keeps its own (17 at least)."
        )
    _check_products(recipe)
    if recipe.format == "qoperator":
        _check_narrow_biases(recipe)
    if spec.whole_model:
        _check_whole_model(recipe)
    if recipe.dynamic:
        _check_dynamic(recipe)


def _check_scales(where: str, role: str, fmt: NumberFormat) -> None:
    """Check the rules on scales that every output format has."""
    if fmt.granularity != "per_tensor" and role != "weights":
        what = "channel" if fmt.per_channel else "group"
        raise UsageError(f"{where} are {fmt.granularity}: only weights have a scale for each output {what}.")
    if fmt.power_of_two and not fmt.symmetric:
        raise UsageError(
            f"{where} have power_of_two scales and symmetric=False: with those the zero point is always the middle "
            "code. Choose one of the two."
        )


def _check_products(recipe: Recipe) -> None:
    """Check that a bias in the unit of its layer's products is int32, and that both factors are integers."""
    biases, weights = recipe.biases, recipe.weights
    if biases is None or not biases.counts_products:
        return
    counted = (
        f"The biases of recipe {recipe.name} are {biases.dtype}, counted in the unit of the layer's products (input "
        "scale times weight scale)"
    )
    # Accumulators add the bias as it is: a zero point would be added to every sum.
    if biases.dtype != "int32" or not biases.symmetric:
        raise UsageError(f"{counted}, around zero: they are symmetric int32. Choose that, or 8 or 16 bits.")
    for role, fmt in (("activations", recipe.activations), ("weights", weights)):
        if fmt is None or fmt.kind != "integer":
            has = "stay float" if fmt is None else f"are {fmt.label}"
            raise UsageError(f'{counted}, and the {role} {has}: there is no such unit. Say biases = "float", or int8.')
    if weights is not None and weights.group_size:
        raise UsageError(
            f"{counted}, and the weights have a scale for each group, {weights.granularity}: there is no one unit. Say "
            'biases = "float", or int8.'
        )


def _check_narrow_biases(recipe: Recipe) -> None:
    """Check that an 8-bit bias can be converted to the unit of its layer's products: all scales are powers of two."""
    biases = recipe.biases
    shifted = all(fmt is not None and fmt.power_of_two for fmt in recipe.formats.values())
    if biases is not None and not biases.counts_products and not shifted:
        raise UsageError(
            f"The biases of recipe {recipe.name} are {biases.dtype} with a scale of their own, and QLinearConv adds "
            "32-bit counts of input scale times weight scale: only power-of-two scales can be turned into these "
            "exactly. Choose int32 biases, or format qdq."
        )


def _check_whole_model(recipe: Recipe) -> None:
    """Check that the recipe leaves no part of a pure bfloat16 model in float, nor asks to write it differently."""
    usual = {"overrides": (), "operators": (), "all_operators": True, "products_of_activations": True}
    for option, plain in {**usual, "weight_pairs": False, "dedicated_pairs": False}.items():
        if getattr(recipe, option) != plain:
            raise UsageError(
                f"Format bfloat16 computes the whole model in bfloat16, and {option} of recipe {recipe.name} is "
                f"{getattr(recipe, option)}. Choose recipe BF16, or format cast."
            )
    for role, fmt in recipe.formats.items():
        if fmt is None:
            raise UsageError(f"Format bfloat16 computes the whole model in bfloat16, and the {role} stay float.")


def _check_dynamic(recipe: Recipe) -> None:
    """Check that a dynamic recipe asks only for what DynamicQuantizeLinear and the integer operators can do."""
    for option, plain in (("format", "qdq"), ("overrides", ()), ("weight_pairs", False), ("dedicated_pairs", False)):
        if getattr(recipe, option) != plain:
            raise UsageError(
                f"Recipe {recipe.name} is dynamic: its operators are integer ones (ConvInteger, MatMulInteger), so it "
                f"takes no {option}. Leave that out, or choose a recipe that is calibrated."
            )
    weights = recipe.weights
    narrow = weights is not None and weights.dtype in _EIGHT_BITS and not weights.group_size
    if weights is None or not narrow or recipe.activations != IntegerFormat("uint8", symmetric=False):
        raise UsageError(
            f"Recipe {recipe.name} is dynamic: activations are asymmetric uint8 and weights 8-bit integers, per tensor "
            "or per channel; nothing else has operators."
        )
    # ONNX allows a zero point for each channel here, onnxruntime's kernel does not.
    if weights.per_channel and not weights.symmetric:
        raise UsageError(
            f"Recipe {recipe.name} is dynamic with weights per_channel and symmetric=False: onnxruntime's ConvInteger "
            "takes one zero point for the whole weight. Choose symmetric weights, or per_tensor."
        )
    if recipe.refinement is not None:
        raise UsageError(
            f'Recipe {recipe.name} is dynamic, so there is no calibrated model to refine: say refinement = "none".'
        )
