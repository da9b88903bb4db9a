from __future__ import annotations

import numpy as np
import pytest

from detent.measure.emulator import Emulator
from detent.targets.dpu import HARD_SIGMOID_FACTOR
from tests.measure.emulator.qdq import Qdq, assert_same_codes, code_names
from tests.measure.emulator.test_rounding import CODES, half_up

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
    assert "0.1 is no whole number of 256ths" in step.reason


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
    model = Qdq()
    total = model.op("Add", [model.input(64, position=30), model.input(64, position=0)])
    proto = model.build(model.pair(total, 1))
    rng = np.random.default_rng(0)
    small, large = rng.integers(-128, 128, (2, 64))
    large[:] = large // 2
    feeds = {"x0": (small * 2.0**-30).astype(np.float32), "x1": large.astype(np.float32)}
    expected = np.rint(((large.astype(object) * 2**30 + small) * 2 / 2**30).astype(float))
    found = Emulator(proto)(feeds, outputs=code_names(proto)[-1:])[0]
    np.testing.assert_array_equal(found, np.clip(expected, -128, 127))
