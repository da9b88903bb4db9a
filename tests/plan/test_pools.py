"""The input and the mean of a global pool get the position that costs least at the outputs."""

from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.graph.load import load
from detent.numerics.formats import QuantParams
from detent.plan.mixed import arrange
from detent.plan.plan import Plan
from detent.plan.pools import pool_choices
from detent.plan.select import Selection
from detent.prepare import default_passes, prepare
from detent.recipe.recipe import PRESETS
from tests.models import build, info, node, normal

IMAGE = (1, 4, 32, 32)


def pooled(*pool, weights=None):
    """Return a network that averages each channel of an image, and multiplies what it got."""
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r"), *pool]
    nodes += [node("Flatten", "m", "f"), node("Gemm", "f g", "y")]
    constants = {"w": np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1), "g": normal(4, 5, seed=2)}
    return build(nodes, [info("y", (1, 5))], constants | (weights or {}), [info("x", IMAGE)])


GLOBAL = node("GlobalAveragePool", "r", "m")  # of so many pixels that it is split
WHOLE = node("AveragePool", "r", "m", kernel_shape=[32, 32])


def photos(peak, count=24):
    """Return images in which one pixel of each channel is large: it is the range, and a small part of the mean."""
    found = []
    for seed in range(count):
        generator = np.random.default_rng(seed)
        image = generator.random(IMAGE, np.float32) * generator.random((1, 4, 1, 1), np.float32)
        for channel, (row, column) in enumerate(generator.integers(0, 32, (4, 2))):
            image[0, channel, row, column] = peak * (0.5 + generator.random() / 2)
        found.append({"x": image})
    return found


def position_of(report, name):
    return next(-int(np.log2(each.scale)) for each in report.tensors if each.name == name)


def test_a_finer_position_is_taken_where_the_mean_gains_by_it():
    """One pixel of up to 30 gives a step of 1/4, and means of about 1/4 a code or two."""
    data = photos(30.0)
    found, coarse = (
        detent.quantize(pooled(GLOBAL), None, data, PRESETS["XINT8"].replace(equalize=None, without=without))
        for without in ((), ("pool_positions",))
    )
    assert {move.rule for move in coarse.moves} == {"align"}
    assert {move.rule for move in found.moves} == {"pool"}
    assert position_of(found, "r") == position_of(found, "m") > position_of(coarse, "m") == position_of(coarse, "r")
    assert found.fidelity.outputs["y"].sqnr_db > coarse.fidelity.outputs["y"].sqnr_db + 3


def test_the_coarse_one_stays_where_the_largest_pixels_are_the_answer():
    """Nothing but one pixel of each channel differs between images."""
    data = photos(30.0)
    for sample in data:
        sample["x"][sample["x"] < 1.0] = 0.0
    report = detent.quantize(pooled(GLOBAL), None, data, PRESETS["XINT8"].replace(equalize=None))
    coarse = PRESETS["XINT8"].replace(equalize=None, without=("pool_positions",))
    assert position_of(report, "m") == position_of(detent.quantize(pooled(GLOBAL), None, data, coarse), "m")


def choices(proto, positions):
    model = load(proto)
    prepare(model, default_passes(None, []))
    layout = arrange(model, Selection(), PRESETS["XINT8"])
    fmt = PRESETS["XINT8"].activations
    params = {name: QuantParams.at(fmt, positions.get(name, 3)) for name in layout.sites}
    return list(pool_choices(model, Plan(layout, params)))


def test_every_position_between_the_two_is_a_candidate():
    (choice,) = choices(pooled(WHOLE), {"r": 1, "m": 4})
    assert (choice.values, list(choice.positions)) == (("r", "m"), [1, 2, 3, 4])


def test_pools_in_a_row_have_one_position():
    tiles = node("AveragePool", "r", "t", kernel_shape=[8, 8], strides=[8, 8])
    (choice,) = choices(pooled(tiles, node("GlobalAveragePool", "t", "m")), {"r": 1, "t": 2, "m": 4})
    assert (choice.values, list(choice.positions)) == (("r", "t", "m"), [1, 2, 3, 4])


def test_what_a_pool_of_the_largest_values_joins_is_left_alone():
    assert choices(pooled(node("GlobalMaxPool", "r", "m")), {"r": 1, "m": 4}) == []


def test_one_position_needs_no_choice():
    assert choices(pooled(WHOLE), {"r": 2, "m": 2}) == []


@pytest.mark.parametrize("name", ["A8W8", "A16W8", "BF16"])
def test_other_numbers_have_no_such_rule(name):
    report = detent.quantize(pooled(GLOBAL), None, photos(30.0), PRESETS[name])
    assert not any(move.rule == "pool" for move in report.moves)


def test_pools_of_a_value_and_of_what_is_moved_from_it_have_one_position():
    """A MaxPool moves codes, so behind it is the position before it, of which there is one."""
    moved = [node("MaxPool", "r", "q", kernel_shape=[2, 2]), node("AveragePool", "q", "b", kernel_shape=[31, 31])]
    pools = [node("AveragePool", "r", "a", kernel_shape=[32, 32]), *moved, node("Add", "a b", "m")]
    (choice,) = choices(pooled(*pools), {"r": 1, "a": 4, "b": 2})
    assert (choice.values, list(choice.positions)) == (("r", "a", "b"), [1, 2, 3, 4])
