"""What a script asks for, and the rules by which the value of an option changes it.

A rule takes the request and the value, which the row of `table` has read: most take a boolean.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from detent.compat import enums
from detent.compat.algorithms import gptq_of, refinement_of
from detent.compat.auto_mixprecision import JudgedSearch, MixedSearch, mixed_of
from detent.compat.data_types import block_float, format_of, microscaling
from detent.compat.layer_tensors import LayerFormats
from detent.compat.option_rows import NoEffect, check_keys, names, note
from detent.convert.float_types import ToBfloat16
from detent.convert.quantizing_nodes import WithoutOutputQdq
from detent.convert.step import ConversionStep
from detent.devices.catalog import OPTIONAL, find_device
from detent.equalizations import CrossLayer
from detent.errors import UsageError, check_known
from detent.methods import Distribution, Entropy, LayerwisePercentile, Method, MinMax, MinMSE, NonOverflow, Percentile
from detent.numerics.floats import is_float
from detent.numerics.formats import IntegerFormat, Scale, has_power_of_two_scale, is_integer, is_product_bias
from detent.numerics.interface import NumberFormat
from detent.prepare import default_passes
from detent.prepare.rotation import RotateResiduals
from detent.recipe import Override, Recipe
from detent.recipe.recipe import FUSABLE_ACTIVATIONS
from detent.refinements import BiasCorrection, Gptq

NHWC = "nhwc"  # the conversion that ConvertNCHWToNHWC asks for
SEVEN_BITS = "weights keep 8 bits. Sessions on CPUs without VNNI compute them exactly with session.x64quantprecision=1"
HISTOGRAM_BINS = 1 << 14  # as in observe.counting, which every method reads
ROLES = ("activations", "weights", "biases")
# By what a script names: the method, and what scales may be with it.
METHODS: dict[Any, tuple[Method, Scale]] = {
    enums.PowerOfTwoMethod.MinMSE: (MinMSE(), "power_of_two"),
    enums.PowerOfTwoMethod.NonOverflow: (NonOverflow(), "power_of_two"),
    enums.Int16Method.MinMax: (MinMax(), "int16"),
    enums.CalibrationMethod.MinMax: (MinMax(), "float"),
    enums.CalibrationMethod.Percentile: (Percentile(), "float"),
    enums.CalibrationMethod.Entropy: (Entropy(), "float"),
    enums.CalibrationMethod.Distribution: (Distribution(), "float"),
    enums.LayerWiseMethod.LayerWisePercentile: (LayerwisePercentile(), "float"),
    enums.ExtendedCalibrationMethod.MinMSE: (MinMSE(), "float"),
}
# Methods of specifications that the older enumerations have for other scales alone.
SHIFTED_METHODS: dict[Any, tuple[Method, Scale]] = {
    (enums.ScaleType.PowerOf2, enums.CalibMethod[method.__name__]): (method(), "power_of_two")
    for method in (Percentile, LayerwisePercentile)
}


@dataclass(frozen=True)
class Request:
    """One quantization in Detent's terms: a recipe, and further arguments of `detent.quantize`.

    `patterns` are regular expressions of nodes to leave float. `random_shapes` and `random_ranges` are
    what RandomDataReader takes, where there is no data. `search` chooses layers before anything is
    quantized. `conversions` are steps of `detent convert` that the result goes through. `subgraphs` says that graphs
    inside nodes are to be quantized. `counted` are the bins and the percentage to count as Quark does. `layers` have
    formats of their own, and with `dual` a tensor between two formats has a pair for each.
    """

    recipe: Recipe
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    limit: int | None = None
    threads: int = 0
    providers: tuple[str, ...] = ()
    fix_shapes: Mapping[str, Sequence[int]] | None = None
    statistics: Path | None = None
    random_shapes: Any = None
    random_ranges: Any = None
    search: MixedSearch | JudgedSearch | None = None
    conversions: tuple[str | ConversionStep, ...] = ()
    external_data: bool = False
    summary: bool = True
    postprocessing: Literal["auto", "keep"] = "auto"
    subgraphs: bool = False
    counted: tuple[int, float] | None = None
    layers: tuple[LayerFormats, ...] = ()
    dual: bool = False

    @property
    def is_calibrated(self) -> bool:
        """Whether activations get scales from data."""
        activations = self.recipe.activations
        return activations is not None and activations.needs_data and not self.recipe.dynamic

    def replace(self, **changes: Any) -> Request:
        """Return the same with some fields changed."""
        return dataclasses.replace(self, **changes)

    def with_recipe(self, **changes: Any) -> Request:
        """Return the same with some fields of the recipe changed."""
        return self.replace(recipe=self.recipe.replace(**changes))

    def with_override(self, override: Override) -> Request:
        """Return the same with one more override."""
        return self.with_recipe(overrides=(*self.recipe.overrides, override))

    def with_method(self, method: str, **changes: Any) -> Request:
        """Return the same with settings of its calibration method changed; NoEffect if that is another method."""
        chosen = self.recipe.method
        if type(chosen).__name__ != method:
            raise NoEffect(f"it is for {method}, and the method is {chosen}.")
        return self.with_recipe(method=dataclasses.replace(chosen, **changes))  # type: ignore[type-var]  # every method is a dataclass


# -- steps of preparation and rules of devices -------------------------------------------------------------------------


def switch(request: Request, wanted: bool, steps: Sequence[str]) -> Request:
    """Do steps of preparation, or rules of the target, for True; leave them out for False."""
    recipe, device = request.recipe, find_device(request.recipe.target)
    passes = default_passes(None, [make() for make in device.preparations])
    usual = {*(each.step() for each in passes), *device.steps, *device.constraints.names}
    without = [step for step in recipe.without if step not in steps]
    also = [step for step in recipe.also if step not in steps]
    if wanted:
        also += [step for step in steps if step not in usual]
    else:
        without += [step for step in steps if step in usual]
    if not set(also) - set(recipe.also) <= set(OPTIONAL):
        if recipe.target == "npu-float-scale":
            raise NoEffect("it is for the device with power-of-two scales, which PowerOfTwoMethod chooses.")
        raise NoEffect(
            f"the target {recipe.target} does not do that. enable_npu_cnn=True, or AlignConcat=True for float scales, "
            "choose a target that does."
        )
    return request.with_recipe(without=tuple(without), also=tuple(also))


# -- numbers -----------------------------------------------------------------------------------------------------------


def symmetric(request: Request, wanted: bool, role: str) -> Request:
    """Fix the zero point of a role, or let it follow the data."""
    fmt = request.recipe.formats[role]
    if not is_integer(fmt):
        return request  # floats and blocks are always symmetric around zero
    if fmt.power_of_two and not wanted:
        raise NoEffect("power-of-two scales have a fixed zero point.")
    if request.recipe.dynamic and role == "activations" and wanted:
        raise NoEffect("dynamic operators find the zero points of activations while the model runs.")
    return request.with_recipe(**{role: fmt.replace(symmetric=wanted)})


def bias_type(request: Request, wanted: bool, dtype: str) -> Request:
    """Give biases a type; for False the type of the weights, if they have this one."""
    current, weights = request.recipe.biases, request.recipe.weights
    if current is None or not (wanted or is_integer(weights)):
        return request
    if not is_integer(weights):
        raise NoEffect("the weights are not integers, and biases have their format.")
    if wanted:
        return request.with_recipe(biases=IntegerFormat(dtype, scale=weights.scale))
    narrow = weights.replace(symmetric=True, granularity="per_tensor")
    same = is_integer(current) and current.dtype == dtype
    return request.with_recipe(biases=narrow) if same else request


def int16_scale(request: Request) -> Request:
    """Make the scales of all integers a 16-bit integer over a power of two."""
    if has_power_of_two_scale(request.recipe.activations):
        raise NoEffect("the method asks for power-of-two scales; MinMax and Percentile do not.")
    formats = request.recipe.formats.items()
    return request.with_recipe(**{role: fmt.replace(scale="int16") for role, fmt in formats if is_integer(fmt)})


def power_of_two(request: Request, wanted: bool) -> Request:
    """Say what follows from the calibration method."""
    if wanted != has_power_of_two_scale(request.recipe.activations):
        raise NoEffect(
            "calibrate_method chooses: PowerOfTwoMethod.MinMSE powers of two, CalibrationMethod.MinMax other scales."
        )
    return request


def float_setting(request: Request, wanted: bool, key: str, roles: Sequence[str] = ROLES) -> Request:
    """Change a setting of the small floats in these roles."""
    formats = request.recipe.formats
    changed = {role: fmt.replace(**{key: wanted}) for role in roles if is_float(fmt := formats[role])}
    if wanted and not changed:
        raise NoEffect(f"it is for float16 and bfloat16, and the {roles[0]} are neither.")
    return request.with_recipe(**changed)


# -- the float model, which nodes, and where pairs go ------------------------------------------------------------------


def parse_shapes(text: Any) -> dict[str, list[int]] | None:
    """Read `input:[1,3,224,224];other:[1,4]`."""
    shapes: dict[str, list[int]] = {}
    for part in filter(None, re.split(r";\s*", str(text or "").strip())):
        found = re.fullmatch(r"\s*(.+?)\s*:\s*\[([\d\s,]+)\]\s*", part)
        if found is None:
            raise UsageError("expected 'input:[1,3,224,224];other:[1,4]'.")
        shapes[found[1]] = [int(dim) for dim in found[2].split(",") if dim.strip()]
    return shapes or None


def shapes_setting(shapes: Mapping[str, Sequence[int]]) -> str:
    """Return shapes as the setting of `fixed-shapes`: input=1/3/224/224+other=1/4."""
    return "+".join(f"{name}={'/'.join(map(str, dims))}" for name, dims in shapes.items())


def pairs_setting(pairs: Iterable[Sequence[str]]) -> str:
    """Return pairs of operators as the setting of `without-qdq-between`: Conv/Relu+Mul/Add."""
    return "+".join(map("/".join, pairs))


def weights_only(request: Request) -> Request:
    """Leave activations float, and 32-bit biases too: their unit is that of products of codes."""
    biases = None if is_product_bias(request.recipe.biases) else request.recipe.biases
    return request.with_recipe(activations=None, biases=biases)


def subgraphs(request: Request, wanted: bool) -> Request:
    """Ask for layers inside If and Loop, where the other tools change them: they never put pairs there."""
    return request.replace(subgraphs=wanted and (request.recipe.dynamic or request.recipe.format == "qoperator"))


def fused(request: Request, wanted: bool, op_type: str) -> Request:
    """Let layers compute this activation function before they round, or not."""
    chosen = set(request.recipe.fuse) - {op_type} | ({op_type} if wanted else set())
    return request.with_recipe(fuse=tuple(each for each in FUSABLE_ACTIVATIONS if each in chosen))


def between(request: Request, value: Any) -> Request:
    """Take out the pairs between operators: [("Conv", "Relu"), ("Mul", "Add")]."""
    pairs = [names(pair) for pair in value or ()]
    if any(len(pair) != 2 for pair in pairs):
        raise UsageError(f"{value!r}: expected pairs, such as [('Mul', 'Add')].")
    step = f"without-qdq-between:pairs={pairs_setting(pairs)}"
    return request.replace(conversions=(step, *request.conversions)) if pairs else request


def bare_outputs(request: Request, value: tuple[str, ...], key: str) -> Request:
    """Take out the pairs behind operators, by type or by name, where no quantized operator reads them."""
    step = WithoutOutputQdq(**{key: "+".join(value) if key == "op_types" else value})  # type: ignore[arg-type]
    return request.replace(conversions=(*request.conversions, step)) if value else request


def simulated(request: Request) -> Request:
    """Write a float32 model whose weights are rounded to bfloat16."""
    if not any(is_float(fmt) for fmt in request.recipe.formats.values()):
        raise NoEffect("it is for bfloat16, and this configuration has other types.")
    return request.replace(conversions=("float", ToBfloat16(form="simulated")))


def tensor_overrides(request: Request, value: Any) -> Request:
    """Add onnxruntime's overrides, {tensor: [{"quant_type": ..., "symmetric": ..., ...}]}."""
    for tensor, entries in (value or {}).items():
        try:
            entry = _read_entry(entries)
        except UsageError as error:
            raise UsageError(f"'{tensor}': {error}") from None
        if entry.pop("reduce_range", False):
            note(f"TensorQuantOverrides, '{tensor}': reduce_range=True: {SEVEN_BITS}.")
        if entry:
            request = request.with_override(_override(request.recipe, (tensor,), entry))
    return request


_PAIRS = (("rmin", "rmax"), ("scale", "zero_point"))


def _read_entry(entries: Any) -> dict[str, Any]:
    """Return what the entries of a tensor say, which must be the same in all of them."""
    if not isinstance(entries, Sequence) or not all(isinstance(entry, Mapping) for entry in entries):
        raise UsageError("it must be a list of dictionaries.")
    if any(entry != entries[0] for entry in entries) or not entries:
        raise UsageError(f"one entry for each tensor, not {len(entries)}.")
    entry = dict(entries[0])
    if "convert" in entry:
        raise UsageError("'convert' gives some of its readers another type. Give the tensor one type for all of them.")
    check_keys(entry, ("quant_type", "symmetric", "axis", "reduce_range", *(key for pair in _PAIRS for key in pair)))
    for pair in _PAIRS:
        if len(entry.keys() & pair) == 1:
            raise UsageError(f"it has one of {pair[0]} and {pair[1]}. Give both.")
        for key in entry.keys() & pair:
            try:
                entry[key] = float(np.asarray(entry[key]).item())  # an array of one element, too
            except (TypeError, ValueError):
                raise UsageError(f"{key} is {entry[key]!r}: it must be one number.") from None
    return entry


def tensors_by_type(request: Request, value: Any) -> Request:
    """Add overrides in the older form, {type: [tensor, ...]}."""
    for quant_type, tensors in (value or {}).items():
        request = request.with_override(_override(request.recipe, names(tensors), {"quant_type": quant_type}))
    return request


def _override(recipe: Recipe, tensors: tuple[str, ...], entry: dict[str, Any]) -> Override:
    if "scale" in entry and not has_power_of_two_scale(recipe.activations):
        entry = {**entry, "symmetric": False}  # the zero point may be any
    activations, weights = (_changed(usual, entry) for usual in (recipe.activations, recipe.weights))
    if "axis" in entry or (is_integer(weights) and weights.bits < 8):  # which only weights can have
        activations = None
    if "axis" in entry and is_integer(fmt := weights or recipe.weights):
        weights = fmt.replace(granularity="per_channel")
    return Override(
        tensors=tensors,
        activations=activations,
        weights=weights,
        optional=True,
        range=_range(entry, activations or recipe.activations),
    )


def _range(entry: Mapping[str, Any], fmt: NumberFormat | None) -> tuple[float, float] | None:
    """Return the range that an entry gives, or the one whose scale and zero point it gives."""
    if "rmin" in entry:
        return entry["rmin"], entry["rmax"]
    if "scale" not in entry or not is_integer(fmt):
        return None
    scale, zero_point = entry["scale"], entry["zero_point"]
    if zero_point != fmt.middle if fmt.symmetric else not fmt.low <= zero_point <= fmt.high:
        allowed = f"{fmt.middle}" if fmt.symmetric else f"{fmt.low} to {fmt.high}"
        raise UsageError(f"zero_point of an entry is {zero_point:g}: here it must be {allowed}.")
    if fmt.symmetric:
        half = scale * (fmt.high - fmt.low) / 2
        return -half, half
    return (fmt.low - zero_point) * scale, (fmt.high - zero_point) * scale


def _changed(usual: NumberFormat | None, entry: dict[str, Any]) -> NumberFormat | None:
    """Return the format that an entry asks for; what it does not mention is as in the rest of the model."""
    if not entry.keys() & {"quant_type", "symmetric"}:
        return None
    symmetric = entry.get("symmetric", is_integer(usual) and usual.symmetric)
    chosen = format_of(entry["quant_type"], symmetric=symmetric) if "quant_type" in entry else usual
    if is_integer(usual) and is_integer(chosen):
        return usual.replace(dtype=chosen.dtype, symmetric=symmetric)
    return chosen


# -- calibration -------------------------------------------------------------------------------------------------------


def percentile(request: Request, value: float) -> Request:
    """Set the percentage of Percentile, or of MinMSE among those values."""
    mode = getattr(request.recipe.method, "mode", "")
    return request.with_method("MinMSE" if mode == "Percentile" else "Percentile", percentile=value)


def bins(request: Request, value: int | None) -> Request:
    """Set the bins of Entropy; for other methods, check that histograms have as many."""
    if value is None:
        return request
    if hasattr(request.recipe.method, "bins"):
        return request.with_method("Entropy", bins=value)
    if value > HISTOGRAM_BINS:
        raise NoEffect(f"histograms have {HISTOGRAM_BINS} bins.")
    return request


def limit(request: Request, value: int | None) -> Request:
    """Limit the samples. Formats without a scale need no calibration; what refines them may see all the data."""
    return request.replace(limit=value) if request.is_calibrated and value else request


def range_symmetric(request: Request, wanted: bool) -> Request:
    """Make ranges symmetric, which makes the zero point that of a symmetric format; for False they are as they are."""
    return symmetric(request, True, "activations") if wanted else request


_FOR_WEIGHTS = (
    *(enums.CalibrationMethod.MinMax, enums.CalibrationMethod.Percentile, enums.CalibrationMethod.Entropy),
    *(enums.ExtendedCalibrationMethod.MinMSE, enums.PowerOfTwoMethod.MinMSE, enums.PowerOfTwoMethod.NonOverflow),
)
_WEIGHT_MODES = {"All": "All", "HistCenter": "All", "Percentile": "Percentile"}


def weight_method(request: Request, value: Any) -> Request:
    """Choose the method for weights."""
    contradicts = isinstance(value, enums.PowerOfTwoMethod) and not has_power_of_two_scale(request.recipe.weights)
    if value not in (None, *_FOR_WEIGHTS) or contradicts:
        raise UsageError("it is not for weights. Choose MinMax, Percentile, Entropy or MinMSE.")
    usual = value in (None, enums.CalibrationMethod.MinMax)
    return request.with_recipe(weight_method=None if usual else METHODS[value][0])


def weight_mode(request: Request, value: Any) -> Request:
    """Set the mode of the weights' MinMSE."""
    check_known("mode", value, _WEIGHT_MODES)
    if not hasattr(request.recipe.weight_method, "mode"):
        raise NoEffect("it is for WeightCalibrateMethod=MinMSE, which is not asked for.")
    return request.with_recipe(weight_method=MinMSE(_WEIGHT_MODES[value]))  # type: ignore[arg-type]


# -- bfloat16, blocks, language models ---------------------------------------------------------------------------------


def with_casts(request: Request, wanted: bool) -> Request:
    """Write pairs of Cast; for False pairs of custom operators."""
    if wanted and not any(is_float(fmt) for fmt in request.recipe.formats.values()):
        raise NoEffect("it is for float16 and bfloat16, and this configuration has neither.")
    written = "cast" if wanted else "extended-qdq"
    return request.with_recipe(format=written) if wanted or request.recipe.format == "cast" else request


def blocks(request: Request, value: Any, kind: str) -> Request:
    """Set sizes and rounding of the blocks of one kind."""
    parse = block_float if kind == "block_float" else microscaling
    roles = [role for role, fmt in request.recipe.formats.items() if fmt is not None and fmt.kind == kind]
    if not roles:
        raise NoEffect("no tensor of this configuration has that format.")
    return request.with_recipe(**dict.fromkeys(roles, parse(value or {})))


_NBITS = {"Algorithm": "DEFAULT", "GroupSize": 128, "Symmetric": True, "Bits": 4, "AccuracyLevel": 0}
_NBITS_ALGORITHMS: dict[str, dict[str, Any]] = {
    "DEFAULT": {},
    "GPTQ": {"refinement": Gptq()},
    "HQQ": {"weight_method": MinMSE()},  # it, too, chooses scales and zero points by the error of the weights
}


def few_bits(request: Request, value: Any = None) -> Request:
    """Give weights 4 bits in groups, whose size and symmetry `value` may change, and the way they are chosen."""
    check_keys(value or {}, _NBITS)
    params = {**_NBITS, **(value or {})}
    algorithm = str(params["Algorithm"]).upper()
    check_known("Algorithm", algorithm, _NBITS_ALGORITHMS)
    if params["Bits"] != 4:
        raise UsageError(f"Bits {params['Bits']}: there are weights of 4 bits. Give 4, or A8W8.")
    symmetric = bool(params["Symmetric"]) and algorithm != "HQQ"
    dtype = "int4" if symmetric else "uint4"
    return request.with_recipe(
        activations=None,
        weights=IntegerFormat(dtype, symmetric, granularity=f"per_group:{params['GroupSize']}"),
        biases=None,  # their unit would be that of products of codes
        operators=("MatMul", "Gemm"),
        equalize=None,
        opset=21,  # the first with 4-bit types, and with scales for blocks
        products_of_activations=False,
        **{"refinement": None, **_NBITS_ALGORITHMS[algorithm]},
    )


def few_bits_params(request: Request, value: Any) -> Request:
    """Set size and symmetry of these groups."""
    weights = request.recipe.weights
    if weights is None or not weights.group_size:
        raise NoEffect("it has no effect without UseMatMulNBits=True.")
    return few_bits(request, value)


def gptq(request: Request, value: Any = None) -> Request:
    """Round weights by GPTQ."""
    fields = gptq_of(value or {}, request.recipe.weights)
    if fields["weights"].granularity.startswith("per_group") and is_product_bias(request.recipe.biases):
        fields["biases"] = None  # their products have no common unit
    return request.with_recipe(**fields)


def gptq_params(request: Request, value: Any) -> Request:
    """Set the parameters of GPTQ."""
    if type(request.recipe.refinement) is not Gptq:
        raise NoEffect("it has no effect without UseGPTQ=True.")
    return gptq(request, value)


# -- accuracy ----------------------------------------------------------------------------------------------------------


def equalized(request: Request, **settings: Any) -> Request:
    """Equalize layer by layer, since the script says how; nothing if it does not want channels equalized."""
    present = request.recipe.equalize
    if present is None:
        return request
    pairs = present if type(present) is CrossLayer else CrossLayer()
    return request.with_recipe(equalize=dataclasses.replace(pairs, **settings))


def rotated(request: Request, wanted: bool) -> Request:
    """Rotate the residual streams of transformers whose norms come first."""
    return request.with_recipe(also=(*request.recipe.also, RotateResiduals.step())) if wanted else request


def smooth_alpha(request: Request, value: float) -> Request:
    """Set the alpha of a SmoothQuant that another option has switched on."""
    if request.recipe.smooth is None:
        raise NoEffect("it has no effect without SmoothQuant=True.")
    return request.with_recipe(smooth=value)


def bias_correction(request: Request, wanted: bool) -> Request:
    """Correct biases unless something else refines the model; for False do not correct them."""
    refinement = request.recipe.refinement
    if wanted:
        return request if refinement is not None else request.with_recipe(refinement=BiasCorrection())
    learns = refinement is not None and refinement.learns_weights
    return request if learns else request.with_recipe(refinement=None)


def finetune(request: Request, value: Any) -> Request:
    """Learn weights by AdaRound or AdaQuant."""
    if not value:
        return request
    if type(request.recipe.refinement) is Gptq:
        raise UsageError("UseGPTQ chooses the weights, too. Give one of them.")
    return request.with_recipe(refinement=refinement_of(value))


def mixed_precision(request: Request, value: Any) -> Request:
    """Give layers another format: all of them, or those that a search finds."""
    if not value:
        return request
    for mixed in mixed_of(value, request.recipe):
        if isinstance(mixed, Override):
            request = request.with_override(mixed)
        elif isinstance(mixed, LayerFormats):
            request = request.replace(layers=(*request.layers, mixed))
        else:
            request = request.replace(search=mixed)
    return request
