from __future__ import annotations

import numpy as np
import pytest

from detent.errors import ModelError
from tests.convert.forms import constants, converted, pair, quantized, same, shape_of_graph
from tests.models import SMALL_MODELS, build, conv_relu_conv, node


def ramp(bits: int, scale: float = 0.05) -> list[dict[str, np.ndarray]]:
    """Every code and half code, and numbers beyond both ends."""
    reach = 1 << bits
    values = np.arange(-2 * reach, 2 * reach, dtype=np.float32) * np.float32(scale / 2)
    return [{"x": values.reshape(1, -1)}]


@pytest.mark.parametrize("zero_point", [0, 1, 100, 127, 128, 200, 255])
def test_all_codes_of_8_bits(zero_point):
    feeds = ramp(8)
    proto = pair("uint8", zero_point, shape=feeds[0]["x"].shape)
    signed, _ = converted(proto, "int8")
    same(proto, signed, feeds)
    assert {str(array.dtype) for array in constants(signed).values()} == {"float32", "int8"}
    back, _ = converted(signed, "uint8")
    same(proto, back, feeds)
    assert shape_of_graph(back) == shape_of_graph(proto)


@pytest.mark.parametrize("zero_point", [0, 32768, 65535, 41])
def test_all_codes_of_16_bits(zero_point):
    feeds = ramp(16, 0.001)
    proto = pair("uint16", zero_point, scale=0.001, shape=feeds[0]["x"].shape)
    signed, _ = converted(proto, "int16")
    same(proto, signed, feeds)
    back, _ = converted(signed, "uint16")
    assert shape_of_graph(back) == shape_of_graph(proto)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_models_there_and_back(name):
    proto = quantized(SMALL_MODELS[name]())
    signed, done = converted(proto, "int8")
    assert not any(array.dtype == np.uint8 for array in constants(signed).values())
    assert not done.declined
    same(proto, signed)
    back, _ = converted(signed, "uint8")
    assert shape_of_graph(back) == shape_of_graph(proto)


def test_activations_to_unsigned_leave_weights_unless_asked():
    proto = quantized(conv_relu_conv(), "A8W8")
    activations, done = converted(proto, "uint8")
    same(proto, activations)
    assert any(array.dtype == np.int8 and array.ndim == 4 for array in constants(activations).values())
    assert "weights=true" in done.declined[0].what
    everything, _ = converted(proto, "uint8:weights=true")
    same(proto, everything)
    assert not any(array.dtype == np.int8 for array in constants(everything).values())


def test_a_weight_that_is_not_symmetric_stays():
    proto = build(
        [
            node("QuantizeLinear", "x s z", "q"),
            node("DequantizeLinear", "q s z", "d"),
            node("DequantizeLinear", "c s k", "w"),
            node("Mul", "d w", "y"),
        ],
        "y",
        {"s": np.float32(0.1), "z": np.uint8(128), "k": np.uint8(7), "c": np.arange(8, dtype=np.uint8)},
    )
    result, done = converted(proto, "int8")
    assert "it is not symmetric" in done.declined[0].what
    same(proto, result)


def test_a_zero_point_that_is_left_out_is_0():
    proto = build(
        [node("QuantizeLinear", "x s", "q"), node("DequantizeLinear", "q s", "y")], "y", {"s": np.float32(0.02)}
    )
    result, _ = converted(proto, "int8")
    same(proto, result)
    assert int(next(array for array in constants(result).values() if array.dtype == np.int8)) == -128


def test_shared_zero_points_are_shifted_once():
    proto = build(
        [
            node("QuantizeLinear", "x s z", "q"),
            node("DequantizeLinear", "q s z", "a"),
            node("DequantizeLinear", "q s z", "b"),
            node("Add", "a b", "y"),
        ],
        "y",
        {"s": np.float32(0.1), "z": np.uint8(100)},
    )
    result, _ = converted(proto, "int8")
    assert sum(array.dtype == np.int8 for array in constants(result).values()) == 1
    same(proto, result)


def test_codes_that_are_moved_stay():
    proto = build(
        [
            node("QuantizeLinear", "x s z", "q"),
            node("Flatten", "q", "f"),
            node("DequantizeLinear", "f s z", "y"),
        ],
        "y",
        {"s": np.float32(0.1), "z": np.uint8(128)},
    )
    with pytest.raises(ModelError, match="read by Flatten"):
        converted(proto, "int8")


@pytest.mark.parametrize("step", ["int8", "uint8", "int16", "uint16"])
def test_a_float_model_is_an_error(step):
    with pytest.raises(ModelError, match="no codes of the other signedness"):
        converted(conv_relu_conv(), step)
