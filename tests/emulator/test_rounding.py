"""Shifts with rounding, over every pair of codes, against the same in Python's integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from detent.emulator import Emulator
from detent.errors import UsageError
from tests.emulator.qdq import Qdq, assert_same_codes, code_names

CODES = np.arange(-128, 128)


def half_up(accumulator: np.ndarray, cut: int) -> np.ndarray:
    """As a shifter does it: add half of the last place, then shift."""
    return accumulator << -cut if cut <= 0 else (accumulator + (1 << (cut - 1))) >> cut


def half_even(accumulator: np.ndarray, cut: int) -> np.ndarray:
    return np.array([round(Fraction(int(one)) / Fraction(2) ** cut) for one in accumulator.reshape(-1)]).reshape(
        accumulator.shape
    )


def sums(first: int, second: int, out: int) -> Qdq:
    model = Qdq()
    one, other = model.input(256, 1, position=first), model.input(1, 256, position=second)
    return model.build(model.pair(model.op("Add", [one, other]), out))


@pytest.mark.parametrize(("rounding", "rounded"), [("half-even", half_even), ("dpu", half_up)])
@pytest.mark.parametrize(("first", "second", "out"), [(4, 4, 4), (4, 3, 2), (2, 7, 1), (5, 3, 6), (0, 0, -3)])
def test_every_sum_of_two_codes(rounding, rounded, first, second, out):
    model = sums(first, second, out)
    feeds = {
        "x0": (CODES * 2.0**-first).astype(np.float32).reshape(256, 1),
        "x1": (CODES * 2.0**-second).astype(np.float32).reshape(1, 256),
    }
    finest = max(first, second)
    accumulator = (CODES << (finest - first)).reshape(256, 1) + (CODES << (finest - second)).reshape(1, 256)
    expected = np.clip(rounded(accumulator, finest - out), -128, 127)
    name = code_names(model)[-1]
    np.testing.assert_array_equal(Emulator(model, rounding=rounding)(feeds, outputs=[name])[0], expected)


def test_the_host_rounds_ties_to_even():
    model = Qdq()
    output = model.input(7, position=1)
    proto = model.build(model.op("Relu", [output]))
    ties = np.array([-1.25, -0.75, -0.25, 0.0, 0.25, 0.75, 100.0], np.float32)
    name = code_names(proto)[0]
    for rounding in ("dpu", "half-even"):
        codes = Emulator(proto, rounding=rounding)({"x0": ties}, outputs=[name])[0].tolist()
        assert codes == [-2, -2, 0, 0, 0, 2, 127]


@pytest.mark.parametrize("seed", range(12))
def test_phoenix_arithmetic_on_random_layers(seed):
    """yq = clip(128 + floor((sum qx * qw + qb * 2^shift_bias) / 2^shift_cut + 0.5), 0, 255), to the bit."""
    rng = np.random.default_rng(seed)
    x, w, b, y = int(rng.integers(2, 6)), int(rng.integers(3, 8)), int(rng.integers(2, 12)), int(rng.integers(0, 5))
    weight, bias = rng.integers(-128, 128, (5, 3, 3, 3)), rng.integers(-128, 128, 5)
    model = Qdq("uint8")
    layer = model.op("Conv", [model.input(1, 3, 7, 7, position=x), model.codes(weight, w), model.codes(bias, b)])
    proto = model.build(model.pair(layer, y))
    feeds = {"x0": rng.normal(0, 3, (1, 3, 7, 7)).astype(np.float32)}
    first, last = code_names(proto)[0], code_names(proto)[-1]
    found = dict(zip((first, last), Emulator(proto, rounding="dpu")(feeds, outputs=[first, last]), strict=True))
    qx = found[first].astype(np.int64) - 128
    assert (qx == np.clip(np.rint(feeds["x0"].astype(np.float64) * 2**x), -128, 127)).all()
    windows = np.lib.stride_tricks.sliding_window_view(qx[0], (3, 3), axis=(1, 2))
    total = np.einsum("cijhw,ochw->oij", windows, weight)
    bits = max(0, b - x - w)  # where the bias is the finer of both, all is counted in its unit
    total = (total << bits) + (bias.reshape(5, 1, 1) << (x + w - b + bits))
    cut = x + w + bits - y
    expected = np.clip(128 + ((total + (1 << (cut - 1))) >> cut), 0, 255)
    np.testing.assert_array_equal(found[last][0], expected)


def test_constants_that_the_file_keeps_in_float_are_rounded_like_inputs():
    model = Qdq()
    weight = model.pair(model.constant(np.array([0.25, -0.25, 0.75], np.float32)), 1)
    proto = model.build(model.pair(model.op("Mul", [model.input(3, position=4), weight]), 4))
    assert_same_codes(proto)
    (codes,) = Emulator(proto, rounding="dpu").constants.values()
    assert codes.tolist() == [0, 0, 2]


def test_there_are_two_roundings():
    with pytest.raises(UsageError, match="Did you mean 'half-even'"):
        Emulator(sums(4, 4, 4), rounding="half_even")
