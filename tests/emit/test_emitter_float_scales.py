"""What is emitted with float scales, 16 bits, zero points and scales per channel computes what the plan says."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import detent
from detent.devices.catalog import find_device
from detent.emit import emit
from detent.errors import UsageError
from detent.methods import METHODS, MinMax, MinMSE
from detent.numerics.formats import IntegerFormat
from detent.plan.layout import Role
from detent.recipe.file import find_recipe
from tests.conftest import tiny_model
from tests.models import IMAGE, RUNTIME, SMALL_MODELS, build, info, node, normal, planned, run, values_of

FEEDS = {"x": normal(*IMAGE, seed=9)}
A8W8, A16W8 = find_recipe("A8W8"), find_recipe("A16W8")
PER_CHANNEL = IntegerFormat("int8", granularity="per_channel")
RECIPES = {
    "A8W8": A8W8,
    "A16W8": A16W8,
    "per channel": A8W8.replace(weights=PER_CHANNEL),
    "asymmetric": A8W8.replace(activations=IntegerFormat("uint8", symmetric=False)),
    "asymmetric int8": A8W8.replace(activations=IntegerFormat("int8", symmetric=False)),
    "16 bits, asymmetric and per channel": A8W8.replace(
        activations=IntegerFormat("uint16", symmetric=False), weights=IntegerFormat("int16", granularity="per_channel")
    ),
    "asymmetric weights": A8W8.replace(weights=IntegerFormat("uint8", symmetric=False, granularity="per_channel")),
    "narrow biases": A8W8.replace(biases=IntegerFormat("int16")),
}

every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def constants_of(proto):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def producer_of(proto, name):
    return next(one for one in proto.graph.node if name in one.output)


def emitted(proto, recipe, feeds):
    """The plan, the emitted model and where each activation went; checked for what holds for all of them."""
    model, plan = planned(proto, feeds, recipe)
    plan = find_device(recipe.target).constraints.constrain(model, plan)
    assert find_device(recipe.target).constraints.violations(model, plan) == []
    dequantized = emit(model, plan)
    result = ir.to_proto(model)
    onnx.checker.check_model(result, full_check=True)
    return plan, result, dequantized


def check_against_numpy(proto, recipe, feeds):
    """Every node by itself: from what its inputs are in the emitted model to the nearest code of its exact result."""
    plan, result, dequantized = emitted(proto, recipe, feeds)
    inner = [name for one in proto.graph.node for name in one.output if name not in dequantized]
    values = values_of(result, [*dequantized.values(), *inner], feeds)
    values.update({site: values[name] for site, name in dequantized.items()})
    for name, array in constants_of(proto).items():
        values[name] = plan.of(name).snap(array) if name in plan.layout.sites else array
    for name in feeds:
        check_on_grid(plan, name, feeds[name].astype(np.float64), values[name], tolerance=0.5)
    for one in proto.graph.node:
        exact = compute(one, [values[name].astype(np.float64) for name in one.input])
        (name,) = one.output
        if name in plan.layout.sites:
            check_on_grid(plan, name, exact, values[name], tolerance=0.52 if plan.of(name).format.bits == 8 else 0.7)
        else:
            np.testing.assert_allclose(values[name], exact, rtol=1e-4, atol=1e-4)
    return plan, result


def compute(one, arrays):
    """The exact result of a node; of a transposed convolution group by group, for the reference has no groups."""
    groups = next((attribute.i for attribute in one.attribute if attribute.name == "group"), 1)
    if one.op_type != "ConvTranspose" or groups == 1:
        return ReferenceEvaluator(one).run(None, dict(zip(one.input, arrays, strict=True)))[0]
    alone = node("ConvTranspose", "x w b", "y")
    x, w, b = (np.split(array, groups, axis) for array, axis in zip(arrays, (1, 0, 0), strict=True))
    return np.concatenate([compute(alone, list(part)) for part in zip(x, w, b, strict=True)], axis=1)


def check_on_grid(plan, name, exact, got, tolerance):
    params = plan.of(name)
    steps = got.astype(np.float64) / params.scale
    np.testing.assert_allclose(steps, np.rint(steps), atol=0.01)
    # QuantizeLinear saturates at the ends of its type: for symmetric int8 one code below what the plan counts with.
    low, high = (np.iinfo(params.format.dtype).min - int(params.zero_point)) * float(params.scale), params.span[1]
    difference = np.abs(np.clip(exact, low, high) - got) / params.scale
    # Half a step, and what summing in float32 adds to it.
    assert difference.max() <= tolerance + 0.01, name


@every_recipe
@pytest.mark.parametrize("maker", SMALL_MODELS.values(), ids=SMALL_MODELS)
def test_the_emitted_model_is_the_float_model_on_the_grids(maker, recipe):
    proto = maker()
    _, result = check_against_numpy(proto, recipe, FEEDS)
    # Not only each node: the whole is near the float model.
    original, got = run(proto, FEEDS)["y"], run(result, FEEDS)["y"]
    assert np.abs(got - original).max() <= 0.1 * np.abs(original).max()


LAYERS = {
    "depthwise": (node("Conv", "x w b", "y", group=3), IMAGE, {"w": (3, 1, 3, 3), "b": (3,)}, 0),
    "transposed": (node("ConvTranspose", "x w b", "y"), IMAGE, {"w": (3, 5, 2, 2), "b": (5,)}, 1),
    "transposed in groups": (
        node("ConvTranspose", "x w b", "y", group=3), IMAGE, {"w": (3, 2, 2, 2), "b": (6,)}, None
    ),
    "gemm": (node("Gemm", "x w b", "y"), (4, 8), {"w": (8, 5), "b": (5,)}, 1),
    "gemm transB": (node("Gemm", "x w b", "y", transB=1), (4, 8), {"w": (5, 8), "b": (5,)}, 0),
    "gemm with a row": (node("Gemm", "x w b", "y", transB=1), (4, 8), {"w": (5, 8), "b": (1, 5)}, 0),
    "gemm with a matrix": (node("Gemm", "x w b", "y"), (4, 8), {"w": (8, 5), "b": (4, 5)}, 1),
    "gemm with a column": (node("Gemm", "x w b", "y"), (4, 8), {"w": (8, 5), "b": (4, 1)}, None),
    "gemm with a number": (node("Gemm", "x w b", "y"), (4, 8), {"w": (8, 5), "b": ()}, None),
    "matmul": (node("MatMul", "x w", "y"), IMAGE, {"w": (8, 5)}, 1),
    "batched matmul": (node("MatMul", "x w", "y"), IMAGE, {"w": (3, 8, 5)}, 2),
}  # fmt: skip


@pytest.mark.parametrize("activations", ["int8", "int16"])
@pytest.mark.parametrize("kind", LAYERS)
def test_scales_per_channel(kind, activations):
    one, size, shapes, axis = LAYERS[kind]
    constants = {name: np.asarray(normal(*shape, seed=len(name))) for name, shape in shapes.items()}
    if axis is not None:
        ladder = np.geomspace(1, 300, shapes["w"][axis], dtype=np.float32)
        constants["w"] = np.moveaxis(np.moveaxis(constants["w"], axis, -1) * ladder, -1, axis)
    proto = build([one], "y", constants, inputs=[info("x", size)])
    recipe = A8W8.replace(weights=PER_CHANNEL, activations=IntegerFormat(activations))
    plan, result = check_against_numpy(proto, recipe, {"x": normal(*size, seed=9)})
    held = constants_of(result)
    for name in shapes:
        written = producer_of(result, f"{name}_DequantizeLinear_Output")
        codes, scale, zero_point = (held[part] for part in written.input)
        attributes = {attribute.name: attribute.i for attribute in written.attribute}
        if axis is None:
            assert scale.shape == zero_point.shape == () and "axis" not in attributes
        else:
            expected = axis if name == "w" else codes.ndim - 1
            assert attributes["axis"] == expected
            assert scale.shape == zero_point.shape == (codes.shape[expected],)
        np.testing.assert_array_equal(codes, plan.of(name).encode(constants[name]))
        np.testing.assert_array_equal(scale, plan.of(name).scale)


@every_recipe
def test_types_domains_and_opsets(recipe):
    plan, result, dequantized = emitted(SMALL_MODELS["concat"](), recipe, FEEDS)
    held, wide = constants_of(result), set()
    for site in plan.layout.sites.values():
        name = dequantized.get(site.value, f"{site.value}_DequantizeLinear_Output")
        back = producer_of(result, name)
        params = plan.of(site.value)
        wide.add(params.format.bits == 16)
        assert back.domain == ("com.microsoft" if params.format.bits == 16 else "")
        assert held[back.input[1]].dtype == np.float32
        np.testing.assert_array_equal(held[back.input[1]], params.scale)
        assert held[back.input[2]].dtype == params.format.dtype
        np.testing.assert_array_equal(held[back.input[2]], params.zero_point)
        if site.role is Role.ACTIVATION:
            there = producer_of(result, back.input[0])
            assert (there.op_type, there.domain) == ("QuantizeLinear", back.domain)
            assert list(there.input[1:]) == list(back.input[1:])
    domains = {entry.domain: entry.version for entry in result.opset_import}
    assert domains == ({"": 17, "com.microsoft": 1} if True in wide else {"": 17})


@every_recipe
@pytest.mark.parametrize("maker", SMALL_MODELS.values(), ids=SMALL_MODELS)
def test_it_runs_with_all_optimizations_too(maker, recipe):
    if RUNTIME < (1, 26) and not recipe.weights.symmetric and recipe.weights.granularity == "per_channel":
        pytest.skip("onnxruntime's QLinearConv took one zero point for the whole weight before 1.26")
    model, plan = planned(maker(), FEEDS, recipe)
    plan = find_device(recipe.target).constraints.constrain(model, plan)
    for site in plan.layout.of_role(Role.WEIGHT):
        # Codes up to 64: without VNNI the integer kernels add two products of 8 bits in 16 bits, which overflow.
        params = plan.of(site.value)
        if site.axis is not None:
            plan = plan.with_params(
                site.value, dataclasses.replace(params, scale=params.scale * 2), "half the codes", site.node
            )
    emit(model, plan)
    result = ir.to_proto(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    fast = onnxruntime.InferenceSession(result.SerializeToString(), options, providers=["CPUExecutionProvider"])
    difference = np.abs(fast.run(None, FEEDS)[0] - run(result, FEEDS)["y"]) / float(plan.of("y").scale)
    # Integer kernels sum exactly, so a value at a tie may fall to the other side, and so may what depends on it.
    assert np.quantile(difference, 0.9) <= 1.01
    assert difference.max() <= 2.01


def test_sixteen_bits_are_far_nearer_than_eight():
    proto = SMALL_MODELS["residual"]()
    original = run(proto, FEEDS)["y"]
    errors = {
        name: np.abs(run(emitted(proto, RECIPES[name], FEEDS)[1], FEEDS)["y"] - original).mean()
        for name in ("A8W8", "A16W8", "16 bits, asymmetric and per channel")
    }
    assert errors["A16W8"] < 0.8 * errors["A8W8"]
    assert errors["16 bits, asymmetric and per channel"] < 0.01 * errors["A8W8"]


def test_a_constant_in_a_concat_of_sixteen_bits_has_sixteen_bits():
    _, result, _ = emitted(SMALL_MODELS["concat"](), A16W8, FEEDS)
    assert constants_of(result)["extra_quantized"].dtype == np.int16
    assert constants_of(result)["w1_quantized"].dtype == np.int8


FLOAT_METHODS = [name for name in METHODS if name not in ("MinMax", "NonOverflow", "Distribution")]


@pytest.mark.parametrize(
    ("kind", "method"),
    [*((kind, "MinMax") for kind in RECIPES), *((kind, name) for kind in ("A8W8", "A16W8") for name in FLOAT_METHODS)],
)
def test_every_recipe_and_method_end_to_end(kind, method, samples):
    recipe = RECIPES[kind]
    report = detent.quantize(tiny_model(), calibration=samples, recipe=recipe.replace(method=METHODS[method]))
    onnx.checker.check_model(report.model, full_check=True)
    assert report.fidelity.outputs["y"].sqnr_db > 20
    per_channel = {"w1", "w2"} if recipe.weights.per_channel else set()
    per_channel |= {"b1"} if recipe.weights.per_channel and recipe.biases.bits == 32 else set()
    for tensor in report.tensors:
        assert tensor.position is None
        assert tensor.scale == float(np.float32(tensor.scale)) and 0 <= tensor.clipped < 0.05
        assert (tensor.channels is not None) == (tensor.name in per_channel)
    plain = json.loads(report.to_json())
    assert plain == report.to_dict()
    assert plain["recipe"]["method"]["name"] == method
    assert plain["recipe"]["activations"]["type"] == recipe.activations.dtype
    assert str(report)


@pytest.mark.parametrize("method", ["NonOverflow", "Distribution", MinMSE("MostCommon")], ids=str)
def test_methods_that_do_not_fit_are_refused(method, samples):
    recipe = A8W8.replace(method=METHODS[method] if isinstance(method, str) else method)
    with pytest.raises(UsageError, match=type(recipe.method).__name__):
        detent.quantize(tiny_model(), calibration=samples, recipe=recipe)


def test_a_moving_average_end_to_end(samples):
    whole = detent.quantize(tiny_model(), calibration=samples, recipe=A8W8)
    mean = detent.quantize(tiny_model(), calibration=samples, recipe=A8W8.replace(method=MinMax(moving_average=True)))
    scales = [{tensor.name: tensor.scale for tensor in report.tensors} for report in (whole, mean)]
    assert scales[1]["x"] < scales[0]["x"] and scales[1]["w1"] == scales[0]["w1"]


def test_room_for_a_bias_reaches_the_report(samples):
    loud = tiny_model(b1=np.array([1e4, 0, 0, 0], np.float32))
    report = detent.quantize(loud, calibration=samples, recipe=A16W8.replace(equalize=False))
    assert [(move.value, move.rule, move.node) for move in report.moves] == [("w1", "room for the bias", "first")]
    assert next(tensor for tensor in report.tensors if tensor.name == "b1").clipped == 0
    assert "room for the bias" in report.to_text(verbose=True)
