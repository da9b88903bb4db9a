"""A recipe: everything that decides how a model is quantized, as one comparable, printable value.

PRESETS are the recipes that have a name: those of the reference tools, each with its fine-tuned twins. In a name such
as U8S8_AAWS, activations are uint8 and weights int8, Activations Asymmetric and Weights Symmetric.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from detent.equalizations import Awq, GlobalEqualization, equalization_of
from detent.equalizations.channel_problem import Equalizer
from detent.errors import UsageError, nearest
from detent.methods import Method, MinMax, MinMSE, NonOverflow, Percentile
from detent.numerics import BLOCK_FORMATS
from detent.numerics.codec import DeviceRounding, check_device_rounding
from detent.numerics.floats import FloatFormat, is_float
from detent.numerics.formats import IntegerFormat, has_power_of_two_scale, is_integer
from detent.numerics.interface import NumberFormat
from detent.refinements import AdaQuant, AdaRound, BiasCorrection, QuickRounding, Refinement

POWER_OF_TWO_INT8 = IntegerFormat("int8", scale="power_of_two")
POWER_OF_TWO_UINT8 = IntegerFormat("uint8", scale="power_of_two")

EQUALIZING_SAMPLES = 48  # enough to see what each channel holds

WIDENING_SAMPLES = 4  # errors of single tensors are much the same on any sample; these tell which are large

MOST_DECIBELS = 100.0  # 16 bits reach no more

# How codes are written into the file: see docs/formats.md.
OutputFormat = Literal["qdq", "qoperator", "extended-qdq", "vitis-qdq", "fix-neuron", "cast", "bfloat16"]

BFLOAT16_OPSET = 22  # from here on the standard operators have bfloat16 throughout

FUSED_ACTIVATIONS = ("Relu", "LeakyRelu", "PRelu", "Clip")
FUSABLE_ACTIVATIONS = (*FUSED_ACTIVATIONS, "Gelu")


@dataclass(frozen=True)
class Override:
    """Other numbers for a part of the model: mixed precision by hand.

    The part is every node that matches one of the `nodes` patterns, is of one of the `op_types`, or lies between the
    first and the second group of nodes in `between`. They take the formats that are given here, or stay float with
    `leave_float`. Where two parts meet, the value between them is converted. `tensors` are single values by name (or
    pattern), which may have a format, and a `range` that replaces the observed one. Of several overrides that fit,
    the last one that says something wins; what one leaves float stays so. What matches nothing is an error, unless
    the override is `optional`.
    """

    nodes: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    between: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    tensors: tuple[str, ...] = ()
    leave_float: bool = False
    activations: NumberFormat | None = None
    weights: NumberFormat | None = None
    biases: NumberFormat | None = None
    range: tuple[float, float] | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        if not (self.nodes or self.op_types or any(self.between) or self.tensors):
            raise UsageError("An override names no part of the model. Give nodes, op_types, between or tensors.")
        if self.leave_float == (bool(self.formats) or self.range is not None):
            raise UsageError(f"The override of {self.part} must give formats, or say leave_float, and not both.")
        if self.range is not None and not (self.tensors and -math.inf < self.range[0] < self.range[1] < math.inf):
            raise UsageError(f"The override of {self.part}: a range is two rising numbers, for `tensors`.")
        if self.leave_float and self.tensors:
            raise UsageError(f"The override of {self.part}: nodes are left float, tensors are not. Name the nodes.")

    @property
    def part(self) -> str:
        """What it is about, for messages."""
        starts, ends = self.between
        inside = (
            [f"{', '.join(starts) or 'the inputs'} to {', '.join(ends) or 'the outputs'}"] if starts or ends else []
        )
        return "; ".join((*self.nodes, *self.op_types, *inside, *self.tensors))

    @property
    def formats(self) -> dict[str, NumberFormat]:
        """The formats that it gives, by role."""
        given = {"activations": self.activations, "weights": self.weights, "biases": self.biases}
        return {role: fmt for role, fmt in given.items() if fmt is not None}


_TEXTS = ("name", "description", "target", "rounding", "format")  # fields of a recipe


@dataclass(frozen=True)
class Recipe:
    """How a model is quantized: the format of each role, the calibration method and the device it is for.

    A role without a format stays float. `method` is that of the activations. Weights take it too where scales are
    powers of two, else the whole range (their elements are all known), unless there is a `weight_method`. The model's
    outputs take the whole range too, unless `clip_outputs`: the largest scores are those that decide, and must stay
    apart. Biases of 32 bits take the product of their layer's input and weight scales; narrower ones have a scale of
    their own. With `dynamic`, activations get their scales while the model runs, and nothing is calibrated.

    `equalize` rescales channels before anything is quantized, unless it is None; `smooth` moves outliers of activations
    into the weights behind them (SmoothQuant, the number is its alpha), or finds factors by the error of rounded
    weights (Awq); the `refinement` chooses weights and biases afterwards. With `search_ranges` the scales of
    activations are those that the network's output asks for.

    `widen` is the SQNR in dB at the outputs that 8-bit activations together must keep: those that cost most get 16 bits
    until the others do. That is for networks with normalization layers, in which a few channels are many times as large
    as the others, and for what attention multiplies in any network; with `widen_everywhere` it is for all activations.
    Those that have more than 8 bits already have nothing to gain.

    `rounding` is how the device rounds activations: "half-even", as the file says, or "dpu", ties upwards. All that is
    chosen by what it does is then judged with that rounding; the file itself has no field for it.

    `format` is how codes are written, `opset` the least operator set of the result. `weight_pairs` keeps weights in
    float behind a pair of nodes, `dedicated_pairs` gives every reader of an activation a pair of its own.

    `operators` are the types to quantize (none: all that Detent knows how to), `more_operators` are added to these, and
    `all_operators` adds every other one with float data. Products of two activations can be left out, and constants
    that are added to activations or multiplied with them can have the format of these, which is finer in some recipes.
    `fuse` are the activation functions that a layer computes before it rounds. `without` names preparations, rewrites
    and rules of the target that are left out, and `also` those that are done only on request.
    """

    name: str
    description: str
    activations: NumberFormat | None = POWER_OF_TWO_UINT8
    weights: NumberFormat | None = POWER_OF_TWO_INT8
    biases: NumberFormat | None = POWER_OF_TWO_INT8
    method: Method = MinMSE()  # noqa: RUF009  (frozen: one instance serves all)
    weight_method: Method | None = None
    clip_outputs: bool = False
    dynamic: bool = False
    target: str = "npu-cnn"
    equalize: Equalizer | None = GlobalEqualization()  # noqa: RUF009
    smooth: float | Awq | None = None
    widen: float | None = None
    widen_everywhere: bool = False
    search_ranges: bool = False
    refinement: Refinement | None = QuickRounding()  # noqa: RUF009
    rounding: DeviceRounding = "half-even"
    format: OutputFormat = "qdq"
    opset: int | None = None
    weight_pairs: bool = False
    dedicated_pairs: bool = False
    operators: tuple[str, ...] = ()
    more_operators: tuple[str, ...] = ()
    all_operators: bool = False
    products_of_activations: bool = True
    constants_as_activations: bool = False
    fuse: tuple[str, ...] = FUSED_ACTIVATIONS
    without: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    overrides: tuple[Override, ...] = ()

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if isinstance(text := getattr(self, field.name), str) and field.name not in _TEXTS:
                objects = "an object, such as IntegerFormat('int8') or Percentile(99.9), or a tuple of texts"
                reads_text = f"detent.quantize(..., set=['{field.name}={text}'])"
                raise UsageError(
                    f"{field.name} of a recipe is {text!r}. In Python it is {objects}; {reads_text} reads text."
                )
        if self.format not in get_args(OutputFormat):
            known = get_args(OutputFormat)
            raise UsageError(f"format is '{self.format}'.{nearest(self.format, known)} Choose from {', '.join(known)}.")
        check_device_rounding(self.rounding)
        for op_type in self.fuse:
            if op_type not in FUSABLE_ACTIVATIONS:
                raise UsageError(f"fuse has '{op_type}'. Choose from {', '.join(FUSABLE_ACTIVATIONS)}.")
        if isinstance(self.smooth, int):  # which Python takes for a float, and isinstance does not
            object.__setattr__(self, "smooth", float(self.smooth))
        if isinstance(self.smooth, float) and not 0.0 <= self.smooth <= 1.0:
            raise UsageError(f"smooth is {self.smooth}: the alpha of SmoothQuant is between 0 and 1, such as 0.5.")
        if self.widen is not None and not 0.0 < self.widen <= MOST_DECIBELS:
            raise UsageError(f"widen is {self.widen}: an SQNR in dB above 0 and up to {MOST_DECIBELS:g}, such as 20.")

    @property
    def formats(self) -> dict[str, NumberFormat | None]:
        """The format of each role."""
        return {"activations": self.activations, "weights": self.weights, "biases": self.biases}

    def every_format(self) -> Iterator[tuple[str, Override | None, NumberFormat | None]]:
        """Yield each role, the override that gives it a format (None: that of the whole model), and the format."""
        yield from ((role, None, fmt) for role, fmt in self.formats.items())
        for override in self.overrides:
            yield from ((role, override, fmt) for role, fmt in override.formats.items())

    @property
    def learns(self) -> bool:
        """Whether anything is chosen by what it does to the answers of the model."""
        return self.refinement is not None or self.search_ranges or isinstance(self.smooth, Awq)

    @property
    def emulated(self) -> DeviceRounding | None:
        """The rounding to emulate when a result is judged; None if onnxruntime computes what the device does."""
        return None if self.rounding == "half-even" else self.rounding

    @property
    def least_opset(self) -> int:
        """The operator set that the model is raised to: what was asked for, or what the output format needs."""
        return max(self.opset or 0, BFLOAT16_OPSET if self.format == "bfloat16" else 0)

    @property
    def method_of_weights(self) -> Method:
        """The method that weights, and biases with a scale of their own, are quantized with."""
        if self.weight_method is not None:
            return self.weight_method
        return self.method if has_power_of_two_scale(self.weights) else MinMax()

    @property
    def method_of_outputs(self) -> Method:
        """The method that the model's outputs are quantized with."""
        if self.clip_outputs:
            return self.method
        return NonOverflow() if has_power_of_two_scale(self.activations) else MinMax()

    def replace(self, **changes: Any) -> Recipe:
        """Return the recipe with some fields changed. Raise UsageError for an unknown field.

        `equalize` may be True or False, too.
        """
        known = [field.name for field in dataclasses.fields(self)]
        for key in changes:
            if key not in known:
                raise UsageError(f"A recipe has no field '{key}'.{nearest(key, known)} Fields: {', '.join(known)}.")
        if isinstance(switch := changes.get("equalize"), bool):
            changes["equalize"] = equalization_of(switch)
        return dataclasses.replace(self, **changes)


ADAROUND = AdaRound(samples=1000, batch=128, early_stop=True)
ADAQUANT = AdaQuant(samples=1000, batch=128, early_stop=True)

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# What has an operator for scales that are found at run time, and the tables of Gather, which need none.
DYNAMIC_OPERATORS = ("Conv", "Gemm", "MatMul", "Gather")
BFLOAT16 = FloatFormat("bfloat16")

# Weights of devices with float scales: a scale for each channel costs nothing there, since a product is rescaled in any
# case, and the loss of weights is the least that 8 bits can have.
PER_CHANNEL_INT8 = IntegerFormat("int8", granularity="per_channel")

# What 8-bit activations of a transformer may cost at its outputs, in dB: about what its 8-bit weights cost.
WIDENING_SQNR = 20.0


def _twins(recipe: Recipe, adaround: bool = True) -> Iterator[Recipe]:
    """Yield a recipe, and the same with its weights fine-tuned layer by layer."""
    yield recipe
    if adaround:
        yield _with_refinement(recipe, "_ADAROUND", ADAROUND, "each weight learns to round up or down")
    yield _with_refinement(recipe, "_ADAQUANT", ADAQUANT, "weights and biases are learned through the rounding")


def _with_refinement(recipe: Recipe, ending: str, refinement: AdaRound | AdaQuant, what: str) -> Recipe:
    return recipe.replace(
        name=recipe.name + ending, description=f"{recipe.name}, and {what}: minutes", refinement=refinement
    )


def _integers(
    name: str, description: str, activations: IntegerFormat, weights: IntegerFormat, method: Method
) -> Recipe:
    """Make a recipe of integers with float scales and 32-bit biases, for any runtime."""
    biases = IntegerFormat("int32")
    return Recipe(name, description, activations, weights, biases, method, target="cpu")


def _floats(name: str, description: str, activations: NumberFormat, weights: NumberFormat) -> Recipe:
    """Make a recipe of formats that need no calibration."""
    # Channels are not equalized: every number, or its block, has its own exponent.
    plain = is_float(activations) and is_float(weights)
    biases = IntegerFormat(weights.dtype) if is_integer(weights) else weights
    return Recipe(
        name,
        description,
        activations,
        weights,
        biases,
        MinMax(),
        target="npu-bf16",
        equalize=None,
        refinement=QuickRounding() if is_integer(weights) else BiasCorrection(),
        format="cast" if plain else "extended-qdq",
    )


def _npu() -> Iterator[Recipe]:
    yield from _twins(
        Recipe("XINT8", "8-bit activations, weights and biases, symmetric, power-of-two scales, MinMSE; for NPU CNNs")
    )
    yield Recipe(
        "VINT8",
        "XINT8's numbers for the VAIML compiler: every operator quantized, no shift rules, activations not fused",
        activations=POWER_OF_TWO_INT8,
        target="npu-vaiml",
        all_operators=True,
        dedicated_pairs=True,
        fuse=(),
        also=("clip_to_relu",),
    )
    a8w8 = _integers(
        "A8W8",
        "8-bit activations and weights, float scales, MinMSE; 16 bits where a transformer needs them; for NPUs",
        IntegerFormat("int8"),
        PER_CHANNEL_INT8,
        MinMSE(),
    ).replace(target="npu-float-scale", smooth=0.5, widen=WIDENING_SQNR)
    yield from _twins(a8w8)
    yield from _twins(
        a8w8.replace(
            name="A16W8",
            description="A8W8 with 16-bit activations, MinMax",
            activations=IntegerFormat("int16"),
            smooth=None,
            widen=None,
            method=MinMax(),  # with 16 bits, steps are so fine that nothing is worth clipping
            constants_as_activations=True,
        )
    )


def _cpu() -> Iterator[Recipe]:
    int8, int16 = (IntegerFormat(dtype, granularity="per_channel") for dtype in ("int8", "int16"))
    wide, uint8 = IntegerFormat("int16"), IntegerFormat("uint8")
    loose = {dtype: IntegerFormat(dtype, symmetric=False) for dtype in ("int8", "uint8", "uint16")}
    fine, finest = Percentile(), Percentile(99.9999)
    for name, activations, weights, method in (
        ("S8S8_AAWS", loose["int8"], int8, finest),
        ("U8S8_AAWS", loose["uint8"], int8, fine),
        ("S16S8_ASWS", wide, int8, fine),
        ("U16S8_AAWS", loose["uint16"], int8, fine),
    ):
        text = f"{activations.dtype} activations, {weights.dtype} weights, float scales, Percentile; for CPUs"
        yield from _twins(_integers(name, text, activations, weights, method))
    text = "uint8 activations and weights, both asymmetric, float scales, Percentile; for CPUs"
    yield _integers("U8U8_AAWA", text, loose["uint8"], loose["uint8"], fine)
    for bits, activations, weights in ((8, loose["uint8"], int8), (16, loose["uint16"], int16)):
        text = f"{activations.dtype} activations, {weights.dtype} weights, float scales"
        cnn = _integers(f"INT{bits}_CNN_DEFAULT", f"{text}, MinMax; for CPUs", activations, weights, MinMax())
        transformer = cnn.replace(
            name=f"INT{bits}_TRANSFORMER_DEFAULT",
            description=f"{text}, mean MinMax; MatMul and Gemm with a weight only",
            method=MinMax(moving_average=True),
            operators=("MatMul", "Gemm"),
            products_of_activations=False,
        )
        for recipe in (cnn, transformer):
            yield recipe
            yield recipe.replace(
                name=recipe.name.replace("DEFAULT", "ACCURATE"),
                description=f"{text}, Percentile; weights learn to round up or down: minutes",
                method=finest,
                refinement=ADAROUND,
            )
    yield _integers(
        "UINT8_DYNAMIC_QUANT",
        "uint8 weights; activations get their scales while the model runs, nothing is calibrated; for CPUs",
        loose["uint8"],
        uint8,
        MinMax(),
    ).replace(dynamic=True, equalize=None, refinement=None, products_of_activations=False, operators=DYNAMIC_OPERATORS)
    yield _integers(
        "MATMUL_NBITS",
        "4-bit weights of MatMul, a scale for each 128; activations stay float; for language models",
        int8,
        IntegerFormat("int4", granularity="per_group:128"),
        MinMax(),
    ).replace(
        activations=None, biases=None, operators=("MatMul", "Gemm"), equalize=None, refinement=None, opset=21,
        products_of_activations=False,
    )  # fmt: skip


def _float_types() -> Iterator[Recipe]:
    float16 = FloatFormat("float16")
    yield from _twins(_floats("FP16", "float16 throughout; files of half the size", float16, float16), adaround=False)
    bf16 = _floats("BF16", "bfloat16 throughout, float inputs and outputs; half the size", BFLOAT16, BFLOAT16)
    yield from _twins(bf16.replace(all_operators=True), adaround=False)
    for name, fmt in BLOCK_FORMATS.items():
        text = f"{name}: neighbours share an exponent; activations and weights"
        yield from _twins(_floats(name, text, fmt, fmt), adaround=False)
    for activations, weights, formats in (
        ("BF16", "BFP16", (BFLOAT16, BLOCK_FORMATS["BFP16"])),
        ("BF16", "MXINT8", (BFLOAT16, BLOCK_FORMATS["MXINT8"])),
        ("MX9", "INT8", (BLOCK_FORMATS["MX9"], IntegerFormat("int8"))),
    ):
        text = f"{activations} activations, {weights} weights"
        yield _floats(f"{activations}_{weights}", text, *formats)


def _mixed() -> Iterator[Recipe]:
    for name in ("BFP16", "MXINT8"):
        layers = Override(op_types=LAYERS, activations=BLOCK_FORMATS[name], weights=BLOCK_FORMATS[name])
        text = f"bfloat16, and {name} in every layer; biases stay float"
        recipe = _floats(f"BF16_MIXED_{name}", text, BFLOAT16, BFLOAT16)
        yield from _twins(recipe.replace(biases=None, overrides=(layers,), format="extended-qdq"), adaround=False)
    wide, narrow = IntegerFormat("int16", symmetric=False), IntegerFormat("int8")
    yield _integers(
        "S16S16_MIXED_S8S8",
        "16 bits, and 8 in every layer (what it reads, its weights and its result); Percentile",
        wide,
        IntegerFormat("int16"),
        Percentile(99.9999),
    ).replace(overrides=(Override(op_types=LAYERS, activations=narrow, weights=narrow),))


DEFAULT = "XINT8"  # where nothing is named, and the model asks for no other

PRESETS: dict[str, Recipe] = {recipe.name: recipe for part in (_npu, _cpu, _float_types, _mixed) for recipe in part()}


def find_preset(name: str) -> Recipe:
    """Return the named recipe. Upper and lower case are the same, and a `_CONFIG` ending is ignored."""
    key = name.upper().removesuffix("_CONFIG")
    if key not in PRESETS:
        raise UsageError(f"There is no recipe '{name}'.{nearest(key, PRESETS)} `detent recipes` lists them all.")
    return PRESETS[key]
