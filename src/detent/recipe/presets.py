"""The recipes that have a name: those of the reference tools, each with its fine-tuned twins.

In a name such as U8S8_AAWS, activations are uint8 and weights int8, Activations Asymmetric and Weights Symmetric.
"""

from __future__ import annotations

from collections.abc import Iterator

from detent.errors import UsageError, nearest
from detent.methods import Method, MinMax, MinMSE, Percentile
from detent.numerics import BLOCK_FORMATS
from detent.numerics.floats import FloatFormat, is_float
from detent.numerics.formats import IntegerFormat, is_integer
from detent.numerics.interface import NumberFormat
from detent.recipe import Override, Recipe
from detent.recipe.recipe import POWER_OF_TWO_INT8
from detent.refinements import AdaQuant, AdaRound

ADAROUND = AdaRound(samples=1000, batch=128, early_stop=True)
ADAQUANT = AdaQuant(samples=1000, batch=128, early_stop=True)

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
BFLOAT16 = FloatFormat("bfloat16")

# Weights of devices with float scales: a scale for each channel costs nothing there, since a product is rescaled in any
# case, and the loss of weights is the least that 8 bits can have.
PER_CHANNEL_INT8 = IntegerFormat("int8", granularity="per_channel")

# What 8-bit activations of a transformer may cost at its outputs, in dB: about what its 8-bit weights cost.
TRANSFORMER_SQNR = 20.0


def _twins(recipe: Recipe, adaround: bool = True) -> Iterator[Recipe]:
    """A recipe, and the same with its weights fine-tuned layer by layer."""
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
    """Integers with float scales and 32-bit biases, for any runtime."""
    biases = IntegerFormat("int32")
    return Recipe(name, description, activations, weights, biases, method, target="cpu")


def _floats(name: str, description: str, activations: NumberFormat, weights: NumberFormat) -> Recipe:
    """Formats that need no calibration. Channels are not equalized: every number has its own exponent, or its block."""
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
    ).replace(target="npu-float-scale", smooth=0.5, widen=TRANSFORMER_SQNR)
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
    ).replace(
        dynamic=True, equalize=None, refinement=None, products_of_activations=False, operators=LAYERS[:1] + LAYERS[2:]
    )
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


PRESETS: dict[str, Recipe] = {recipe.name: recipe for part in (_npu, _cpu, _float_types, _mixed) for recipe in part()}


def find_preset(name: str) -> Recipe:
    """The named recipe. Upper and lower case are the same, and a `_CONFIG` ending is ignored."""
    key = name.upper().removesuffix("_CONFIG")
    if key not in PRESETS:
        raise UsageError(f"There is no recipe '{name}'.{nearest(key, PRESETS)} `detent recipes` lists them all.")
    return PRESETS[key]
