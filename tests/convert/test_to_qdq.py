from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from detent.errors import ModelError
from tests.convert.forms import constants, converted, foreign, ops, pair, quantized, same, shape_of_graph, tensor
from tests.models import SMALL_MODELS, build, conv_relu_conv, info, node, normal

VALUES = [{"x": normal(4, 6, seed=seed) * size} for seed, size in ((1, 1), (2, 9), (3, 1e4))]
QUARK, VITIS, CONTRIB = "com.amd.quark", "com.vai.quantize", "ai.onnx.contrib"


@pytest.mark.parametrize("way", ["extended-qdq", "vitis-qdq"])
@pytest.mark.parametrize("recipe", ["XINT8", "A8W8", "A16W8"])
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_there_and_back_is_the_same_but_for_names(name, recipe, way):
    proto = quantized(SMALL_MODELS[name](), recipe)
    there, _ = converted(proto, way)
    prefix = {"extended-qdq": QUARK, "vitis-qdq": VITIS}[way]
    assert not {"QuantizeLinear", "DequantizeLinear", "com.microsoft::QuantizeLinear"} & set(ops(there))
    assert any(op.startswith(prefix) for op in ops(there))
    same(proto, there)
    back, _ = converted(there, "qdq")
    assert shape_of_graph(back) == shape_of_graph(proto)
    assert not back.functions
    same(proto, back)


def test_from_one_generation_to_the_other():
    proto = quantized(conv_relu_conv())
    extended, _ = converted(proto, "extended-qdq")
    vitis, _ = converted(extended, "vitis-qdq")
    assert not any(op.startswith(QUARK) for op in ops(vitis))
    assert {entry.domain for entry in vitis.opset_import} == {"", VITIS}
    assert {function.domain for function in vitis.functions} == {VITIS}
    same(proto, vitis)


def test_weights_with_a_scale_for_each_channel_keep_their_axis():
    proto = build(
        [node("DequantizeLinear", "c s z", "w", axis=1), node("Mul", "x w", "y")],
        "y",
        {
            "c": np.arange(-12, 12, dtype=np.int8).reshape(1, 3, 8, 1),
            "s": np.array([0.5, 1, 2], np.float32),
            "z": np.zeros(3, np.int8),
        },
    )
    there, _ = converted(proto, "extended-qdq")
    same(proto, there)
    back, _ = converted(there, "qdq")
    assert shape_of_graph(back) == shape_of_graph(proto)


@pytest.mark.parametrize("domain_names", [(QUARK, "Extended", "QuantizeLinear"), (VITIS, "Vitis", "QuantizeLinear")])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_types(dtype, domain_names):
    domain, prefix, _ = domain_names
    nodes = [
        node(f"{prefix}QuantizeLinear", "x s z", "q", domain=domain),
        node(f"{prefix}DequantizeLinear", "q s z", "y", domain=domain),
    ]
    proto = foreign(nodes, {"s": np.float32(0.05), "z": np.array(3, dtype)})
    result, _ = converted(proto, "qdq")
    assert set(ops(result)) == set(ops(pair(dtype, 3)))
    same(proto, result, VALUES)


def test_an_axis_without_meaning_goes():
    """With one scale the standard operators are written without it."""
    nodes = [
        node("ExtendedQuantizeLinear", "x s z", "q", domain=QUARK, axis=1),
        node("ExtendedDequantizeLinear", "q s z", "y", domain=QUARK, axis=1),
    ]
    tensors = {"s": np.float32(0.05), "z": np.int8(0)}
    result, _ = converted(foreign(nodes, tensors, opset=13), "qdq")
    assert not any(item.attribute for item in result.graph.node)
    same(pair("int8", 0), result, VALUES)


def test_sixteen_bits_are_standard_from_opset_21_on():
    nodes = [
        node("ExtendedQuantizeLinear", "x s z", "q", domain=QUARK),
        node("ExtendedDequantizeLinear", "q s z", "y", domain=QUARK),
    ]
    proto = foreign(nodes, {"s": np.float32(0.05), "z": np.int16(0)}, opset=21)
    result, _ = converted(proto, "qdq")
    assert ops(result) == ["QuantizeLinear", "DequantizeLinear"]
    same(proto, result, VALUES)


def test_microsoft_becomes_standard_where_that_is_possible():
    proto = pair("int16", 0, opset=17)
    with pytest.raises(ModelError, match="leaves .* as it is"):
        converted(proto, "qdq")
    raised, _ = converted(proto, "opset:version=21", "qdq")
    assert ops(raised) == ["QuantizeLinear", "DequantizeLinear"]
    same(proto, raised, VALUES)


def test_vai_quantize_which_no_runtime_knows():
    nodes = [
        node("VaiQuantize", "x s z", "q", domain=CONTRIB),
        node("VaiDeQuantize", "q s z", "y", domain=CONTRIB),
    ]
    tensors = [tensor("s", np.float32(0.05)), tensor("z", np.int8(0))]
    graph = helper.make_graph(nodes, "vai", [info("x", (4, 6))], [info("y", (4, 6))], tensors)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB, 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    result, _ = converted(proto, "qdq")
    same(pair("int8", 0), result, VALUES)


def test_bfloat16_pairs_become_casts():
    nodes = [
        node("ExtendedQuantizeLinear", "x s z", "q", domain=QUARK),
        node("ExtendedDequantizeLinear", "q s z", "y", domain=QUARK),
    ]
    proto = foreign(nodes, {"s": np.float32(1), "z": np.array(0, ml_dtypes.bfloat16)})
    result, _ = converted(proto, "qdq")
    assert ops(result) == ["Cast", "Cast"]
    assert not constants(result)
    same(proto, result, VALUES)
    scaled = foreign(nodes, {"s": np.float32(2), "z": np.array(0, ml_dtypes.bfloat16)})
    with pytest.raises(ModelError, match="Cast"):
        converted(scaled, "qdq")


def test_codes_that_the_standard_does_not_hold_are_declined():
    nodes = [
        node("ExtendedQuantizeLinear", "x s z", "q", domain=QUARK),
        node("ExtendedDequantizeLinear", "q s z", "y", domain=QUARK),
    ]
    proto = foreign(nodes, {"s": np.float32(0.05), "z": np.int32(0)})
    result, done = converted(proto, "qdq")  # DequantizeLinear takes int32, QuantizeLinear does not make it
    assert ops(result) == ["com.amd.quark::ExtendedQuantizeLinear", "DequantizeLinear"]
    assert "do not hold int32" in done.declined[0].what
    same(proto, result, VALUES)


@pytest.mark.parametrize("width", ["8", "16"])
def test_fix_neuron_is_a_pair(width):
    w = normal(4, 6, seed=9)
    nodes = [
        node("FixNeuron", "x s z", "a", domain=CONTRIB, bit_width=width),
        node("FixNeuron", "w s z", "d", domain=CONTRIB, bit_width=width),
        node("Mul", "a d", "y"),
    ]
    proto = foreign(nodes, {"w": w, "s": np.float32(0.03125), "z": np.int8(0)})
    result, _ = converted(proto, "qdq")
    prefix = "" if width == "8" else "com.microsoft::"
    assert sorted(ops(result)) == sorted(
        [f"{prefix}QuantizeLinear", f"{prefix}DequantizeLinear", f"{prefix}DequantizeLinear", "Mul"]
    )
    same(proto, result, VALUES)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_pairs_are_fix_neurons(name):
    proto = quantized(SMALL_MODELS[name]())
    fused, _ = converted(proto, "fix-neuron")
    assert not any("Linear" in op for op in ops(fused))
    assert "ai.onnx.contrib::FixNeuron" in ops(fused)
    same(proto, fused)
    back, _ = converted(fused, "qdq")
    same(proto, back)


def test_what_fix_neuron_cannot_hold_is_declined():
    result, done = converted(quantized(conv_relu_conv(), "A8W8"), "fix-neuron")
    reasons = {"FixNeuron has no codes of type int32", "FixNeuron has one scale, not one for each channel"}
    assert {note.what for note in done.declined} == reasons
    assert "DequantizeLinear" in ops(result)
    same(quantized(conv_relu_conv(), "A8W8"), result)


def test_another_tools_operators_to_operators_on_codes():
    proto = quantized(conv_relu_conv(), "A8W8")
    there, _ = converted(proto, "vitis-qdq")
    result, _ = converted(there, "qdq", "qoperator")
    assert "QLinearConv" in ops(result)
    direct, _ = converted(proto, "qoperator")
    same(direct, result)
