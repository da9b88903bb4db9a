from __future__ import annotations

import numpy as np
import pytest

from detent.devices.rewrites import HARD_SIGMOID_FACTOR
from detent.emulator import Emulator
from tests.emulator.qdq import Qdq, assert_same_codes, code_names
from tests.emulator.test_rounding import CODES, half_up

POSITIONS = [(4, 4, 4), (5, 2, 3), (0, 7, 3), (-3, 4, -2), (3, 3, 9)]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Min", "Max"])
@pytest.mark.parametrize(("first", "second", "out"), POSITIONS)
def test_two_tensors(dtype, op_type, first, second, out):
    model = Qdq(dtype)
    result = model.op(op_type, [model.input(2, 5, 40, position=first), model.input(2, 1, 40, position=second)])
    report = assert_same_codes(model.build(model.pair(result, out))).report()
    assert (report.integer_steps, report.float_steps) == (1, [])


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("first", [True, False])
def test_a_tensor_and_constant_codes(op_type, first):
    model = Qdq()
    operands = [model.input(2, 5, 40, position=4), model.codes(np.arange(-20, 20), 3)]
    result = model.op(op_type, operands if first else operands[::-1])
    assert not assert_same_codes(model.build(model.pair(result, 2))).report().float_steps


@pytest.mark.parametrize("then", ["Relu", "LeakyRelu"])
def test_a_sum_and_the_activation_fused_behind_it(then):
    model = Qdq()
    total = model.op("Add", [model.input(2, 5, 40, position=4), model.input(2, 5, 40, position=3)])
    attributes = {"alpha": 26 / 256} if then == "LeakyRelu" else {}
    assert not assert_same_codes(model.build(model.pair(model.op(then, [total], **attributes), 3))).report().float_steps


@pytest.mark.parametrize(
    "bounds", [(0, 6), (-1, 1), (0.3, 2.7), (None, 1), (2, None), (-1e38, 3e38), (50, 60), (-9, -8)]
)
@pytest.mark.parametrize("position", [4, -2])
def test_clip(bounds, position):
    model = Qdq()
    limits = [model.constant(np.array(each, np.float32)) if each is not None else "" for each in bounds]
    clipped = model.op("Clip", [model.input(300, position=position), *limits])
    emulator = assert_same_codes(model.build(model.pair(clipped, position - 1)))
    assert not emulator.report().float_steps


@pytest.mark.parametrize("alpha", [26 / 256, 0.5, 0.0, 1.0])
def test_leaky_relu(alpha):
    model = Qdq()
    result = model.op("LeakyRelu", [model.input(300, position=4)], alpha=alpha)
    assert not assert_same_codes(model.build(model.pair(result, 4))).report().float_steps


def test_leaky_relu_in_256ths_for_the_device():
    model = Qdq()
    proto = model.build(model.pair(model.op("LeakyRelu", [model.input(256, position=4)], alpha=26 / 256), 5))
    expected = np.where(CODES < 0, half_up(CODES * 26, 8 - 1), np.minimum(CODES << 1, 127))
    found = Emulator(proto, rounding="dpu")({"x0": (CODES / 16).astype(np.float32)}, outputs=code_names(proto)[-1:])[0]
    np.testing.assert_array_equal(found, expected)


def test_a_slope_that_the_device_does_not_have():
    model = Qdq()
    proto = model.build(model.pair(model.op("LeakyRelu", [model.input(300, position=4)], alpha=0.1), 4))
    (step,) = assert_same_codes(proto).report().float_steps
    assert "0.1 is not a whole number of 256ths" in step.reason


@pytest.mark.parametrize("position", [6, 0, -1])
def test_p_relu(position):
    model = Qdq()
    slopes = model.codes(np.array([[-30], [0], [64]]), position)
    result = model.op("PRelu", [model.input(2, 3, 40, position=4), slopes])
    assert not assert_same_codes(model.build(model.pair(result, 3))).report().float_steps


def hard_sigmoid(before: int, after: int) -> Qdq:
    model = Qdq()
    result = model.op("HardSigmoid", [model.input(256, position=before)], alpha=1 / 6, beta=0.5)
    factor = model.constant(np.array(HARD_SIGMOID_FACTOR, np.float32))
    return model.build(model.pair(model.op("Mul", [result, factor]), after))


@pytest.mark.parametrize(("before", "after"), [(0, 7), (4, 7), (5, 8), (7, 7), (15, 7)])
@pytest.mark.parametrize("rounding", ["half-even", "dpu"])
def test_hard_sigmoid_as_the_device_computes_it(before, after, rounding):
    """min(max(x + 3, 0), 6) times 2731, shifted right by 14 + in - out."""
    model = hard_sigmoid(before, after)
    inner = np.clip(CODES + (3 << before), 0, 6 << before) * 2731
    cut = 14 + before - after
    expected = half_up(inner, cut) if rounding == "dpu" else np.rint(inner / 2.0**cut)
    emulator = Emulator(model, rounding=rounding)
    feeds = {"x0": (CODES * 2.0**-before).astype(np.float32)}
    found = emulator(feeds, outputs=code_names(model)[-1:])[0]
    np.testing.assert_array_equal(found, np.clip(expected, -128, 127))
    assert not emulator.report().float_steps


@pytest.mark.parametrize(("before", "after"), [(0, 7), (4, 7), (5, 8), (7, 7)])
def test_hard_sigmoid_is_within_one_code_of_float(before, after):
    model = hard_sigmoid(before, after)
    feeds = {"x0": (CODES * 2.0**-before).astype(np.float32)}
    name = code_names(model)[-1]
    from tests.models import values_of

    expected = values_of(model, [name], feeds)[name].astype(int)
    assert np.abs(Emulator(model)(feeds, outputs=[name])[0] - expected).max() <= 1


def test_hard_sigmoid_without_its_device_factor_has_no_shift():
    model = Qdq()
    result = model.op("HardSigmoid", [model.input(256, position=4)], alpha=1 / 6, beta=0.5)
    (step,) = Emulator(model.build(model.pair(result, 7))).report().float_steps
    assert (step.op_type, "divided by 3" in step.reason) == ("HardSigmoid", True)


def test_where():
    model = Qdq()
    one, other = model.input(2, 30, position=4), model.input(2, 30, position=2)
    mask = model.constant(np.arange(30) % 3 == 0)
    assert not assert_same_codes(model.build(model.pair(model.op("Where", [mask, one, other]), 3))).report().float_steps


def test_positions_that_no_shift_spans():
    model = Qdq()
    total = model.op("Add", [model.input(8, position=50), model.input(8, position=0)])
    (step,) = assert_same_codes(model.build(model.pair(total, 0))).report().float_steps
    assert "50 apart" in step.reason


def test_distant_positions_are_added_in_float64():
    """A sum beside a tie: which side of it, only a number 2^30 times as small says, and float32 would forget it."""
    model = Qdq()
    total = model.op("Add", [model.input(4, position=30), model.input(4, position=0)])
    proto = model.build(model.pair(total, -1))
    feeds = {
        "x0": np.array([-1, 1, -1, 1], np.float32) * np.float32(2.0**-30),
        "x1": np.array([3, 5, 7, -3], np.float32),
    }
    found = Emulator(proto)(feeds, outputs=code_names(proto)[-1:])[0]
    assert found.tolist() == [1, 3, 3, -1]


def test_a_slope_behind_a_long_sum_is_exact():
    """Sums times 255 need 32 bits. Those are taken for which float32 would round to another code."""
    reachable, cut = np.arange(-16_500_000, -16_000_000), 17
    exact = np.rint(reachable * 255 / 2.0 ** (cut + 8))
    rounded = (reachable.astype(np.float32) * np.float32(255 / 256)).astype(np.float64)
    sums = reachable[np.rint(rounded / 2.0**cut) != exact]
    assert len(sums)
    length = 1031  # as many as float32 adds up exactly
    codes = np.zeros((len(sums), length + 1), np.int64)
    for row, wanted in zip(codes, sums, strict=True):
        quotient, row[-1] = divmod(wanted, 127)
        row[:-1] = -(quotient // -length)  # rounded up, then some are one less
        row[: int(row[:-1].sum() - quotient)] -= 1
    weight = np.array([127] * length + [1]).reshape(-1, 1)
    np.testing.assert_array_equal((codes @ weight).reshape(-1), sums)
    assert np.abs(codes).max() <= 128
    model = Qdq()
    total = model.op("Gemm", [model.input(len(sums), length + 1, position=0), model.codes(weight, 0)])
    proto = model.build(model.pair(model.op("LeakyRelu", [total], alpha=255 / 256), -cut))
    found = Emulator(proto)({"x0": codes.astype(np.float32)}, outputs=code_names(proto)[-1:])[0]
    np.testing.assert_array_equal(found.reshape(-1), np.clip(np.rint(sums * 255 / 2.0 ** (cut + 8)), -128, 127))
