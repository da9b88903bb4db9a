from __future__ import annotations

import numpy as np
import pytest

from detent.devices.rewrites import reciprocal_factor, window_factor
from detent.emulator import Emulator
from tests.emulator.qdq import Qdq, assert_same_codes, code_names, feeds_of
from tests.emulator.test_rounding import half_up
from tests.models import values_of


def ints(*numbers):
    return np.array(numbers, np.int64)


MOVES = {
    "Reshape": ([ints(2, -1)], {}),
    "Transpose": ([], {"perm": [0, 2, 3, 1]}),
    "Flatten": ([], {}),
    "Unsqueeze": ([ints(0)], {}),
    "Slice": ([ints(1), ints(3), ints(1)], {}),
    "Gather": ([ints(2, 0)], {"axis": 1}),
    "Expand": ([ints(3, 2, 4, 6, 6)], {}),
    "Tile": ([ints(1, 1, 2, 1)], {}),
    "DepthToSpace": ([], {"blocksize": 2}),
    "SpaceToDepth": ([], {"blocksize": 2}),
    "MaxPool": ([], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "GlobalMaxPool": ([], {}),
    "ReduceMax": ([], {"axes": [2]}),
    "Identity": ([], {}),
}


@pytest.mark.parametrize("op_type", list(MOVES))
@pytest.mark.parametrize("after", [4, 3, 6])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_moves(op_type, after, dtype):
    more, attributes = MOVES[op_type]
    model = Qdq(dtype)
    source = model.input(2, 4, 6, 6, position=4)
    moved = model.op(op_type, [source, *map(model.constant, more)], **attributes)
    emulator = assert_same_codes(model.build(model.pair(moved, after)))
    assert not emulator.report().float_steps


def test_a_move_at_one_position_needs_no_arithmetic():
    model = Qdq()
    moved = model.pair(model.op("Transpose", [model.input(2, 3, 4, 4, position=4)], perm=[0, 2, 3, 1]), 4)
    program = Emulator(model.build(moved))._program
    operators = [node.op_type for node in program.model.graph]
    assert sorted(operators) == ["Clip", "Identity", "Mul", "Mul", "Round", "Transpose"]  # input, move, output


def test_several_outputs():
    model = Qdq()
    source = model.input(2, 6, 4, position=4)
    model.nodes.append(
        __import__("onnx").helper.make_node("Split", [source, model.constant(ints(2, 4))], ["a", "b"], axis=1)
    )
    emulator = assert_same_codes(model.build(model.pair("a", 4), model.pair("b", 3)))
    assert not emulator.report().float_steps


@pytest.mark.parametrize("positions", [(4, 4), (5, 2)])
def test_concat(positions):
    model = Qdq()
    parts = [model.input(2, 3, 5, position=position) for position in positions]
    emulator = assert_same_codes(model.build(model.pair(model.op("Concat", parts, axis=1), 3)))
    assert not emulator.report().float_steps


@pytest.mark.parametrize(
    ("mode", "filling"), [("constant", None), ("constant", 1.5), ("constant", 0.3), ("edge", None)]
)
def test_pad(mode, filling):
    model = Qdq()
    more = [] if filling is None else [model.constant(np.array(filling, np.float32))]
    padded = model.op("Pad", [model.input(1, 2, 5, 5, position=4), model.constant(ints(0, 0, 1, 1, 0, 0, 2, 1)), *more],
                      mode=mode)  # fmt: skip
    emulator = assert_same_codes(model.build(model.pair(padded, 3)))
    assert not emulator.report().float_steps


@pytest.mark.parametrize(("mode", "steps"), [("nearest", 0), ("linear", 1)])
def test_resize(mode, steps):
    model = Qdq()
    scales = model.constant(np.array([1, 1, 2, 2], np.float32))
    resized = model.op("Resize", [model.input(1, 2, 5, 5, position=4), "", scales], mode=mode)
    emulator = assert_same_codes(model.build(model.pair(resized, 4)))
    assert len(emulator.report().float_steps) == steps


def pool(side: int, kind: str, position: int = 4, factor: bool = True):
    model = Qdq(opset=17)
    source = model.input(2, 3, side, side, position=position)
    attributes = {"AveragePool": {"kernel_shape": [side, side]}, "ReduceMean": {"axes": [2, 3]}}.get(kind, {})
    result = model.op(kind, [source], **attributes)
    number = reciprocal_factor(side * side) if kind == "ReduceMean" else window_factor(side)
    if factor:
        result = model.op("Mul", [result, model.constant(np.array(number, np.float32))])
    return model.build(model.pair(result, position)), number


@pytest.mark.parametrize("kind", ["AveragePool", "GlobalAveragePool", "ReduceMean"])
@pytest.mark.parametrize("side", [2, 3, 4, 5, 7, 12, 14])
@pytest.mark.parametrize("rounding", ["half-even", "dpu"])
def test_averages_are_the_sum_times_a_whole_number_and_a_shift(kind, side, rounding):
    model, number = pool(side, kind)
    codes = np.random.default_rng(side).integers(-128, 128, (2, 3, side, side))
    codes[0, 0] = 127
    bits = 20
    times = number / side**2 * 2**bits
    assert times == int(times)
    product = codes.sum((2, 3)) * int(times)
    expected = half_up(product, bits) if rounding == "dpu" else np.rint(product / 2.0**bits)
    emulator = Emulator(model, rounding=rounding)
    found = emulator({"x0": (codes / 16).astype(np.float32)}, outputs=code_names(model)[-1:])[0]
    np.testing.assert_array_equal(found.reshape(2, 3), np.clip(expected, -128, 127))
    assert not emulator.report().float_steps


@pytest.mark.parametrize("kind", ["AveragePool", "GlobalAveragePool", "ReduceMean"])
@pytest.mark.parametrize("side", [3, 7])
def test_averages_in_float_differ_on_ties_only(kind, side):
    model, _ = pool(side, kind)
    feeds = feeds_of(model)
    name = code_names(model)[-1]
    expected = values_of(model, [name], feeds)[name].astype(int)
    assert np.abs(Emulator(model)(feeds, outputs=[name])[0] - expected).max() <= 1


def test_an_average_over_a_power_of_two_needs_no_factor():
    for kind in ("AveragePool", "GlobalAveragePool"):
        model, _ = pool(4, kind, factor=False)
        assert not assert_same_codes(model).report().float_steps


def test_an_average_that_the_device_has_no_factor_for():
    model, _ = pool(3, "GlobalAveragePool", factor=False)
    report = Emulator(model).report()
    (step,) = report.float_steps
    assert (step.op_type, "divided by 9" in step.reason) == ("GlobalAveragePool", True)
    assert report.integer_steps == 0


def test_windows_that_are_cut_off_are_left_float():
    model = Qdq()
    result = model.op("AveragePool", [model.input(1, 2, 6, 6, position=4)], kernel_shape=[2, 2], pads=[1, 1, 1, 1])
    (step,) = assert_same_codes(model.build(model.pair(result, 4))).report().float_steps
    assert "fewer elements" in step.reason


def test_an_average_of_finer_steps():
    model = Qdq()
    leaky = model.op("LeakyRelu", [model.input(1, 2, 6, 6, position=4)], alpha=26 / 256)
    result = model.op("AveragePool", [leaky], kernel_shape=[2, 2])
    assert not assert_same_codes(model.build(model.pair(result, 4))).report().float_steps


def test_padding_that_counts():
    model = Qdq()
    result = model.op(
        "AveragePool",
        [model.input(1, 2, 6, 6, position=4)],
        kernel_shape=[2, 2],
        pads=[1, 1, 1, 1],
        count_include_pad=1,
    )
    assert not assert_same_codes(model.build(model.pair(result, 4))).report().float_steps


def test_a_map_of_unknown_size():
    model = Qdq()
    result = model.op("GlobalAveragePool", [model.input(1, 2, "h", "w", position=4)])
    (step,) = Emulator(model.build(model.pair(result, 4))).report().float_steps
    assert "not known" in step.reason


def test_axes_as_an_input():
    model = Qdq(opset=18)
    result = model.op("ReduceMean", [model.input(2, 3, 4, 4, position=4), model.constant(ints(-1, 2))], keepdims=0)
    assert not assert_same_codes(model.build(model.pair(result, 4))).report().float_steps
