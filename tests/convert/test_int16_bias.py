from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.convert.code_types import shifts_needed
from detent.errors import ModelError
from tests.convert.forms import constants, converted, ops, quantized, same
from tests.models import build, conv_relu_conv, info, node, normal, run


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5))
def test_the_least_shift_at_which_nothing_clips(codes):
    (shift,) = shifts_needed(np.array(codes, np.int32), 1)
    largest = max(abs(code) for code in codes)
    assert round(largest / 2.0**shift) <= 32767  # Python rounds half to even as well
    assert shift == 0 or round(largest / 2.0 ** (shift - 1)) > 32767


def gemm(codes: np.ndarray, scale) -> object:
    return build(
        [node("DequantizeLinear", "c s z", "b", axis=0), node("Gemm", "x w b", "y")],
        "y",
        {
            "c": codes.astype(np.int32),
            "s": np.asarray(scale, np.float32),
            "z": np.zeros(np.shape(scale), np.int32),
            "w": normal(5, 3),
        },
        inputs=(info("x", (2, 5)),),
    )


X = [{"x": normal(2, 5, seed=3)}]


@pytest.mark.parametrize("codes", [[1, -2, 3], [32767, -32767, 0]])
def test_a_bias_that_fits_is_exact(codes):
    proto = gemm(np.array(codes), 2.0**-9)
    result, done = converted(proto, "int16-bias")
    assert ops(result)[0] == "com.microsoft::DequantizeLinear"
    assert constants(result)["c_int16"].tolist() == codes
    assert done.changes[0].what.endswith("exactly")
    same(proto, result, X)


def test_known_answer():
    result, _ = converted(gemm(np.array([100001, -70000, 6]), 0.5), "int16-bias")
    held = constants(result)
    assert held["s_int16"] == 2.0  # 100001 / 4 is the first that fits
    assert held["c_int16"].tolist() == [25000, -17500, 2]  # 6 / 4 = 1.5, to the even 2
    assert held["c_int16"].dtype == np.int16


def test_each_channel_has_its_shift():
    result, _ = converted(gemm(np.array([100001, -70000, 6]), [0.5, 0.25, 1.0]), "int16-bias")
    held = constants(result)
    assert held["s_int16"].tolist() == [2.0, 1.0, 1.0]
    assert held["c_int16"].tolist() == [25000, -17500, 6]


def test_a_standard_operator_from_opset_21_on():
    proto, _ = converted(gemm(np.array([1, 2, 3]), 0.5), "opset:version=21")
    result, _ = converted(proto, "int16-bias")
    assert ops(result)[0] == "DequantizeLinear"
    same(proto, result, X)


def test_extended_stays_extended():
    proto, _ = converted(gemm(np.array([1, 2, 3]), 0.5), "extended-qdq")
    result, _ = converted(proto, "int16-bias")
    assert ops(result)[0] == "com.amd.quark::ExtendedDequantizeLinear"
    same(proto, result, X)


@pytest.mark.parametrize("recipe", ["A8W8", "A16W8"])
def test_a_whole_model_moves_by_no_more_than_the_new_step(recipe):
    proto = quantized(conv_relu_conv(), recipe)
    result, _ = converted(proto, "int16-bias")
    assert not any(array.dtype == np.int32 for array in constants(result).values())
    x = {"x": normal(1, 3, 8, 8, seed=4)}
    want, got = run(proto, x)["y"], run(result, x)["y"]
    assert np.abs(want - got).max() <= 0.02 * np.abs(want).max()


def test_without_a_bias_of_32_bits():
    with pytest.raises(ModelError, match="no int32 bias"):
        converted(quantized(conv_relu_conv()), "int16-bias")
