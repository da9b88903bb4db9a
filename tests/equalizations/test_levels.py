"""Common factors beside power-of-two scales: sizes, limits and known optima."""

from __future__ import annotations

import numpy as np
import pytest

from detent.equalizations.global_equalization import KEPT, ClipLimit, NoiseShare, choose_levels, find_levels, size_of
from detent.equalize.channels import map_channels
from tests.equalize.networks import between_convs
from tests.models import as_ir, build, node, normal


def levels_of(model):
    channels = map_channels(model)
    return find_levels(list(channels.of_value.values()), channels.count)


def test_sizes():
    assert size_of(np.array([1.0, -127.0]), 127) == 0.0
    assert size_of(np.array([254.0]), 127) == 1.0
    assert np.isfinite(size_of(np.zeros(3), 127))


def test_one_value_moves_to_the_edge():
    """A size of 0.3 is rounded up to 1: 0.7 of room, which the level takes up."""
    assert choose_levels(1, [NoiseShare(1.0, 0.3, 0)], []) == pytest.approx([0.7], abs=1 / 32)


def test_what_lies_at_the_edge_stays():
    assert choose_levels(1, [NoiseShare(1.0, -3.0, 0)], []) == [0.0]


def test_the_larger_noise_decides():
    activations, weights = NoiseShare(5.0, 0.25, 0), NoiseShare(1.0, 0.5, 0)
    assert choose_levels(1, [activations, weights], []) == [0.75]
    assert choose_levels(1, [NoiseShare(1.0, 0.25, 0), NoiseShare(5.0, 0.5, 0)], []) == [0.5]


def test_a_weight_between_two_levels():
    """Three sizes and two levels. Alone, each value goes to its edge: the weight is where it then is."""
    parts = [NoiseShare(9.0, -0.5, 0), NoiseShare(9.0, -0.75, 1), NoiseShare(1.0, 0.0, 1, 0)]
    assert choose_levels(2, parts, []).tolist() == [0.5, 0.75]
    assert choose_levels(2, [NoiseShare(9.0, 0.75, 1, 0)], []).tolist() in ([0.75, 0.0], [0.0, 0.25])


@pytest.mark.parametrize("noise", [0.01, 0.1, 1.0])
def test_a_clip_that_cuts_moves_to_the_edge_or_stays(noise):
    size = float(np.log2(6 / 127))
    parts = [NoiseShare(1.0, size, 0), NoiseShare(noise, 0.4, 0)]
    (level,) = choose_levels(1, parts, [ClipLimit(0, size, size)])
    assert level == 0.0 or 6 * 2**level == pytest.approx(127 / 16)


def test_an_edge_lies_between_what_was_seen_and_the_clip():
    seen, bound = 0.2, 0.5
    for wanted in np.linspace(0, 1, 9):
        (level,) = choose_levels(1, [NoiseShare(1.0, -wanted, 0)], [ClipLimit(0, seen, bound)])
        assert level == 0.0 or 0.5 <= level <= 0.8
    assert choose_levels(1, [NoiseShare(1.0, -0.7, 0)], [ClipLimit(0, seen, bound)]) == pytest.approx([0.7], abs=1 / 32)


def test_clips_that_contradict_each_other_stay():
    limits = [ClipLimit(0, 0.25, 0.25), ClipLimit(0, 0.5, 0.5)]
    assert choose_levels(1, [NoiseShare(1.0, 0.25, 0)], limits) == [0.0]


def test_no_levels():
    assert choose_levels(0, [NoiseShare(1.0, 0.3, KEPT)], []).size == 0


def test_channels_of_one_value_share_a_level():
    count, levels = levels_of(as_ir(between_convs([node("Relu", "c", "m")])))
    assert count == 1 and levels.tolist() == [0, 0, 0, 0, KEPT]


def test_a_concat_joins_levels():
    nodes = [
        node("Conv", "x w0", "a"),
        node("Conv", "x w1", "b"),
        node("Concat", "a b", "c", axis=1),
        node("Conv", "c w2", "d"),
        node("Conv", "d w3", "y"),
    ]
    weights = {"w0": normal(2, 3, 1, 1), "w1": normal(2, 3, 1, 1), "w2": normal(3, 4, 1, 1), "w3": normal(2, 3, 1, 1)}
    count, levels = levels_of(as_ir(build(nodes, "y", weights)))
    assert count == 2 and levels.tolist() == [0, 0, 0, 0, 1, 1, 1, KEPT]


def test_who_is_beside_channels_that_stay_stays():
    nodes = [node("Conv", "x w0", "a"), node("Concat", "a x", "c", axis=1), node("Conv", "c w1", "y")]
    proto = build(nodes, "y", {"w0": normal(2, 3, 1, 1), "w1": normal(3, 5, 1, 1)})
    count, levels = levels_of(as_ir(proto))
    assert count == 0 and (levels == KEPT).all()
