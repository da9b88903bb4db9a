"""Every number format in every output format that can hold it: the file computes what the plan says, to the bit."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import detent
from detent.emit.output_formats import check_formats
from detent.errors import ModelError, UsageError
from detent.methods import Distribution, MinMax
from detent.numerics import BLOCK_FORMATS
from detent.numerics.blocks import BlockFloat, Microscaling
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat
from detent.recipe.file import with_settings
from detent.recipe.recipe import PRESETS
from tests.emit.forms import LAYERS, emitted, layer, snapped
from tests.models import build, info, normal, values_of

NEWEST = onnx.defs.onnx_opset_version()

CONTRADICTIONS = {
    "powers of two and Entropy": ("XINT8", ["method=Entropy"], ("Entropy", "power-of-two")),
    "float scales and NonOverflow": ("A8W8", ["method=NonOverflow"], ("NonOverflow", "float scales")),
    "Distribution of integers": ("A8W8", ["method=Distribution"], ("Distribution", "int8")),
    "Distribution without a scale": (
        "A8W8",
        ["activations=float8_e4m3", "biases=float", "method=Distribution", "opset=19"],
        ("Distribution", "float8_e4m3", "scaled"),
    ),
    "Percentile of a float": (
        "A8W8",
        ["activations.type=bfloat16", "activations.scaled=true", "biases=float", "method=Percentile"],
        ("Percentile", "bfloat16 scaled", "MinMax"),
    ),
    "NPU and per channel": ("XINT8", ["weights.granularity=per_channel"], ("npu-cnn", "weights", "each channel")),
    "NPU and float scales": ("XINT8", ["weights.scale=float"], ("npu-cnn", "weights", "float scales")),
    "NPU and blocks": ("XINT8", ["activations=BFP16"], ("npu-cnn", "activations", "BFP16")),
    "NPU and an override": (
        "XINT8",
        ['overrides=[{nodes=["a"],activations="int16"}]'],
        ("npu-cnn", "activations for a", "float scales"),
    ),
    "QOperator and 16 bits": ("A16W8", ["format=qoperator"], ("activations", "int16", "qoperator")),
    "QOperator and groups": (
        "A8W8",
        ["weights.granularity=per_group:8", "biases=float", "opset=21", "format=qoperator"],
        ("weights", "qoperator"),
    ),
    "FixNeuron and uint8": ("XINT8", ["format=fix-neuron"], ("activations", "uint8", "fix-neuron")),
    "FixNeuron and float scales": (
        "A8W8",
        ["format=fix-neuron"],
        ("activations", "int8", "fix-neuron", "power-of-two"),
    ),
    "Cast and integers": ("BF16", ["weights=int8"], ("weights", "int8", "cast")),
    "bfloat16 and float16": ("FP16", ["format=bfloat16"], ("float16", "bfloat16")),
    "float8 at opset 18": (
        "BF16",
        ["format=qdq", "weights=float8_e5m2", "opset=18"],
        ("weights", "float8_e5m2", "opset 19", "opset is 18"),
    ),
    "float8 at no opset": ("BF16", ["format=qdq", "weights=float8_e5m2"], ("float8_e5m2", "opset 19")),
    "groups at opset 17": (
        "MATMUL_NBITS",
        ["opset=17"],
        ("weights", "per_group:128", "opset 21", "opset is 17"),
    ),
    "int32 biases and bfloat16 activations": (
        "A8W8",
        ["activations=bfloat16"],
        ("biases", "int32", "activations are bfloat16"),
    ),
    "int32 biases and float weights": ("A8W8", ["weights=float"], ("biases", "int32", "weights stay float")),
    "int32 biases and groups": (
        "A8W8",
        ["weights.granularity=per_group:8", "opset=21"],
        ("biases", "int32", "per_group:8"),
    ),
    "uint32 biases": ("A8W8", ["format=extended-qdq", "biases=uint32"], ("biases", "uint32", "symmetric int32")),
    "int32 biases off zero": ("A8W8", ["biases.symmetric=false"], ("biases", "int32", "symmetric")),
    "dynamic and overrides": (
        "UINT8_DYNAMIC_QUANT",
        ['overrides=[{nodes=["a"],weights="int8"}]'],
        ("dynamic", "overrides"),
    ),
    "dynamic and another format": ("UINT8_DYNAMIC_QUANT", ["format=qoperator"], ("dynamic", "format")),
    "dynamic and pairs": ("UINT8_DYNAMIC_QUANT", ["weight_pairs=true"], ("dynamic", "weight_pairs")),
    "bfloat16 and a part": ("BF16", ["format=bfloat16", "operators=Conv"], ("bfloat16", "operators", "format cast")),
    "bfloat16 and pairs": ("BF16", ["format=bfloat16", "weight_pairs=true"], ("bfloat16", "weight_pairs")),
    "bfloat16 and floats": ("BF16", ["format=bfloat16", "biases=float"], ("bfloat16", "biases stay float")),
    "a method for nothing": ("BF16", ["method=Entropy"], ("Entropy", "no activation has a scale")),
    "dynamic and a method": ("UINT8_DYNAMIC_QUANT", ["method=Percentile"], ("Percentile", "no activation has a scale")),
    "dynamic and int8": ("UINT8_DYNAMIC_QUANT", ["activations=int8"], ("dynamic", "uint8")),
    "dynamic and 16 bits": ("UINT8_DYNAMIC_QUANT", ["weights=int16"], ("dynamic", "8-bit")),
    "dynamic and a zero point for each channel": (
        "UINT8_DYNAMIC_QUANT",
        ["weights.granularity=per_channel", "weights.symmetric=false"],
        ("dynamic", "per_channel", "symmetric=False"),
    ),
    "dynamic and refinement": ("UINT8_DYNAMIC_QUANT", ["refinement=BiasCorrection"], ("dynamic", "refine")),
    "AdaRound and blocks": ("BFP16", ["refinement=AdaRound"], ("AdaRound", "BFP16")),
    "AdaRound and blocks in a part": (
        "A8W8_ADAROUND",
        ['overrides=[{op_types=["Conv"],weights="BFP16"}]', "biases=float"],
        ("AdaRound", "BFP16"),
    ),
    "asymmetric powers of two": ("XINT8", ["weights.symmetric=false"], ("power_of_two", "symmetric=False")),
    "activations per channel": ("A8W8", ["activations.granularity=per_channel"], ("activations", "per_channel")),
    "biases per group": ("A8W8", ["biases.granularity=per_group:4"], ("biases", "per_group:4")),
    "extended-qdq and int4": ("A8W8", ["format=extended-qdq", "weights=int4"], ("weights", "int4", "extended-qdq")),
    "extended-qdq and clip": (
        "BF16",
        ["format=extended-qdq", "activations.clip=true"],
        ("activations", "clipped", "extended-qdq"),
    ),
    "int4 activations": ("A8W8", ["activations=int4"], ("activations", "int4", "qdq")),
    "int32 weights": ("A8W8", ["weights=int32"], ("weights", "int32", "qdq")),
    "a step that there is not": ("XINT8", ["without=fold_batchnrm"], ("fold_batchnrm", "'fold_batch_norm'")),
    "a wish that there is not": ("XINT8", ["also=clip_to_rel"], ("clip_to_rel", "'clip_to_relu'")),
    "an operator that there is not": ("XINT8", ["more_operators=Logg"], ("more_operators", "'Logg'", "'Log'")),
    "an operator of an override": (
        "A8W8",
        ['overrides=[{op_types=["Conv", "Gem"],leave_float=true}]'],
        ("override of Conv; Gem", "'Gem'", "'Gemm'"),
    ),
    "an opset to come": ("XINT8", [f"opset={NEWEST + 1}"], (f"opset of recipe XINT8 is {NEWEST + 1}", str(NEWEST))),
    "no opset": ("XINT8", ["opset=0"], ("opset of recipe XINT8 is 0",)),
    "a target that there is not": ("XINT8", ["target=npu"], ("'npu'", "'npu-cnn'")),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_contradictions_are_refused_before_the_model_is_read(kind):
    name, settings, words = CONTRADICTIONS[kind]
    with pytest.raises(UsageError) as caught:
        detent.quantize("there is no such file.onnx", None, None, with_settings(PRESETS[name], settings))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("XINT8", ["opset=11"]),
        ("XINT8", ["activations=int8", "format=fix-neuron"]),
        ("A8W8", ["weights.granularity=per_group:8", "biases=float", "opset=21"]),
        ("A8W8", ["biases=float", "activations=float8_e4m3", "method=MinMax", "opset=19"]),
        ("A8W8", ['overrides=[{op_types=["Softmax"],activations="bfloat16"}]']),
        ("BF16", ["activations.clip=true"]),
        ("UINT8_DYNAMIC_QUANT", ["weights=int8", "weights.granularity=per_channel"]),
    ],
)
def test_what_is_no_contradiction(name, settings):
    recipe = with_settings(PRESETS[name], settings)
    check_formats(recipe)
    with pytest.raises(ModelError, match="no such file"):
        detent.quantize("there is no such file.onnx", None, None, recipe)


def test_the_whole_model_is_bfloat16_or_none_of_it():
    recipe = with_settings(PRESETS["BF16"], ["format=bfloat16"])
    for selection in ({"include": "a"}, {"exclude": "a"}, {"start": "a"}):
        with pytest.raises(UsageError, match="Format bfloat16"):
            detent.quantize("there is no such file.onnx", None, None, recipe, **selection)


FORMS = ("qdq", "extended-qdq", "vitis-qdq", "fix-neuron", "cast")
INTEGERS = [
    IntegerFormat(dtype, symmetric, scale, granularity)
    for dtype, symmetric, scale, granularity in itertools.product(
        ("int4", "uint4", "int8", "uint8", "int16", "uint16", "int32"),
        (True, False),
        ("float", "power_of_two", "int16"),
        ("per_tensor", "per_channel", "per_group:5"),
    )
    if (scale != "int16" or dtype == "int8") and (granularity != "per_group:5" or dtype in ("int4", "uint8"))
]
FLOATS = [
    FloatFormat("bfloat16"),
    FloatFormat("float16"),
    FloatFormat("bfloat16", scaled=True),
    FloatFormat("float16", scaled=True, clip=True),
    FloatFormat("float8_e4m3"),
    FloatFormat("float8_e5m2", scaled=True),
]
BLOCKS = [*BLOCK_FORMATS.values(), BlockFloat(13, 4, rounding="half_up"), Microscaling("fp4_e2m1", 4)]
BASE = PRESETS["A8W8"].replace(method=MinMax(), biases=None, refinement=None, target="cpu")


def role_needs_both(*formats):
    """Whether operators differ between opsets: only those of integers do. float8 is not in opset 17."""
    return any(isinstance(fmt, IntegerFormat) for fmt in formats)


def recipes(form, activations, weights):
    """Recipes at several opsets that the check allows."""
    for opset in (17, 21) if role_needs_both(activations, weights) else (21,):
        recipe = BASE.replace(format=form, activations=activations, weights=weights, opset=opset)
        try:
            check_formats(recipe)
        except UsageError:
            continue
        yield recipe


def allowed(role, formats):
    found = {}
    for form, fmt in itertools.product(FORMS, formats):
        roles = (fmt, None) if role == "activations" else (None, fmt)
        for recipe in recipes(form, *roles):
            extra = " ".join(str(getattr(fmt, name, "")) for name in ("symmetric", "scale", "granularity"))
            found[f"{form} {fmt.label} {extra} {recipe.opset}"] = recipe
    return found


ACTIVATIONS = allowed("activations", [*INTEGERS, *FLOATS, *BLOCKS])
WEIGHTS = allowed("weights", [*INTEGERS, *FLOATS, *BLOCKS])


@pytest.mark.parametrize("kind", LAYERS)
def test_activations_are_what_the_plan_says(kind):
    proto, feeds, _ = layer(kind)
    for index, (name, recipe) in enumerate(ACTIVATIONS.items()):
        if index % 3 != list(LAYERS).index(kind):
            continue
        result, plan, rounded, before = emitted(proto, recipe, feeds)
        got = values_of(result, [rounded["x"]], feeds)
        np.testing.assert_array_equal(got[rounded["x"]], snapped(plan.of("x"), feeds["x"]), err_msg=name)
        plain = values_of(before, ["y"], {"x": got[rounded["x"]]})["y"]
        np.testing.assert_array_equal(values_of(result, ["y"], feeds)["y"], snapped(plan.of("y"), plain), err_msg=name)


@pytest.mark.parametrize("kind", LAYERS)
def test_weights_are_what_the_plan_says(kind):
    proto, feeds, constants = layer(kind)
    for index, (name, recipe) in enumerate(WEIGHTS.items()):
        if index % 3 != list(LAYERS).index(kind):
            continue
        result, plan, rounded, _ = emitted(proto, recipe, feeds)
        assert rounded == {}
        read = next(one for one in result.graph.node if one.op_type == kind).input[1]
        got = values_of(result, [read], feeds)[read]
        wanted = plan.of("w").snap(constants["w"]).astype(np.float32)
        # A code of 32 bits becomes a float32 before it is multiplied: one rounding more.
        np.testing.assert_allclose(got, wanted, rtol=2**-23 if " int32 " in name else 0, atol=0, err_msg=name)


def test_all_that_should_be_allowed_is():
    assert len(ACTIVATIONS) > 80 and len(WEIGHTS) > 120
    assert {name.split()[0] for name in ACTIVATIONS} == {name.split()[0] for name in WEIGHTS} == set(FORMS)


@pytest.mark.parametrize("form", ["qdq", "extended-qdq", "vitis-qdq"])
@pytest.mark.parametrize("kind", ["Conv", "Gemm"])
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_biases_in_the_unit_of_their_products(kind, form, granularity):
    proto, feeds, constants = layer(kind)
    weights = IntegerFormat("int8", granularity=granularity)
    recipe = BASE.replace(weights=weights, biases=IntegerFormat("int32"), format=form)
    result, plan, _, _ = emitted(proto, recipe, feeds)
    read = next(one for one in result.graph.node if one.op_type == kind).input[2]
    got = values_of(result, [read], feeds)[read]
    np.testing.assert_array_equal(got, plan.of("b").snap(constants["b"]).astype(np.float32))
    assert np.abs(got - constants["b"]).max() < 1e-3


@pytest.mark.parametrize("form", ["fix-neuron", "vitis-qdq"])
def test_biases_with_a_scale_of_their_own(form):
    proto, feeds, constants = layer("Conv")
    fixed = IntegerFormat("int8", scale="power_of_two")
    recipe = BASE.replace(activations=fixed, weights=fixed, biases=fixed, format=form)
    result, plan, _, _ = emitted(proto, recipe, feeds)
    read = next(one for one in result.graph.node if one.op_type == "Conv").input[2]
    got = values_of(result, [read], feeds)[read]
    np.testing.assert_array_equal(got, plan.of("b").snap(constants["b"]).astype(np.float32))


def test_wide_biases_stay_codes_where_weights_are_pairs():
    proto, feeds, _ = layer("Conv")
    recipe = BASE.replace(biases=IntegerFormat("int32"), weight_pairs=True)
    nodes = {one.output[0]: one for one in emitted(proto, recipe, feeds).proto.graph.node}
    conv = next(one for one in nodes.values() if one.op_type == "Conv")
    weight, bias = (nodes[name] for name in conv.input[1:])
    assert nodes[weight.input[0]].op_type == "QuantizeLinear"
    assert bias.op_type == "DequantizeLinear"
    assert bias.input[0] not in nodes


@pytest.mark.parametrize("scenario", ["same", "p3"])
def test_float8_with_the_spread_of_its_numbers(scenario):
    proto, feeds, constants = layer("Conv")
    float8 = FloatFormat("float8_e4m3", scaled=True)
    recipe = BASE.replace(activations=float8, weights=float8, method=Distribution(scenario), opset=19)
    plan = emitted(proto, recipe.replace(weight_method=Distribution(scenario)), feeds).plan
    plain = emitted(proto, recipe.replace(method=MinMax()), feeds).plan
    for name, array in {**feeds, "w": constants["w"]}.items():
        assert plan.of(name).scale != plain.of(name).scale
        if scenario == "same":
            numbers = np.arange(256, dtype=np.uint8).view(float8.storage).astype(np.float64)
            spread = numbers[np.isfinite(numbers)].std()
            assert plan.of(name).scale == pytest.approx(array.astype(np.float64).std() / spread, rel=1e-2)


@pytest.mark.parametrize(
    "fmt", [*FLOATS, IntegerFormat("int16"), IntegerFormat("uint8", symmetric=False)], ids=lambda fmt: fmt.label
)
def test_files_load_with_all_optimizations_too(fmt):
    # Of float8 between QuantizeLinear nodes, onnxruntime would make a QLinearConv that it has not.
    proto, feeds, _ = layer("Conv")
    for opset in (19, 21):
        result = emitted(proto, BASE.replace(activations=fmt, weights=fmt, opset=opset), feeds).proto
        fast = onnxruntime.InferenceSession(result.SerializeToString(), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(fast.run(None, feeds)[0], values_of(result, ["y"], feeds)["y"], rtol=0.05, atol=0.2)


def test_sizes():
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], name="gemm")]
    proto = build(nodes, "y", {"w": normal(256, 256)}, inputs=[info("x", (1, 256))])
    feeds, whole = {"x": normal(1, 256, seed=2)}, 256 * 256 * 4

    def size(weights, **fields):
        recipe = BASE.replace(activations=None, weights=weights, **fields)
        return len(emitted(proto, recipe, feeds).proto.SerializeToString())

    for weights, form, opset, share in (
        (FloatFormat("bfloat16"), "cast", None, 1 / 2),
        (FloatFormat("float16"), "extended-qdq", None, 1 / 2),
        (FloatFormat("float8_e4m3"), "qdq", 19, 1 / 4),
        (IntegerFormat("int8", granularity="per_channel"), "qdq", None, 1 / 4 + 1 / 256),
        (IntegerFormat("int4"), "qdq", None, 1 / 8),
        (IntegerFormat("int4", granularity="per_group:128"), "qdq", 21, 1 / 8 + 1 / 128 + 1 / 1024),
        (BlockFloat(), "extended-qdq", None, 1),
    ):
        assert size(weights, format=form, opset=opset) == pytest.approx(share * whole, abs=5000)
    assert size(IntegerFormat("int8"), weight_pairs=True) > whole
