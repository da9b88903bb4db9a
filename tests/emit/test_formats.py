"""Every number format in every output format that can hold it: the file computes what the plan says, to the bit."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from detent.emit.output_formats import check_formats
from detent.errors import UsageError
from detent.methods import Distribution, MinMax
from detent.numerics.blocks import BlockFloat, Microscaling
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat
from detent.numerics.named import BLOCK_FORMATS
from detent.recipe.presets import PRESETS
from tests.emit.forms import LAYERS, emitted, layer, snapped
from tests.models import build, info, normal, values_of

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
