"""Looking at the first samples: none is lost, none is read twice, and what is held out stays so."""

from __future__ import annotations

import numpy as np
import pytest

from detent.errors import DataError
from detent.observe.preprocess import InputSpec
from detent.observe.sources import open_source

INPUTS = [InputSpec("x", np.dtype(np.float32), (1, 2))]


def items(count):
    return [np.full((1, 2), number, np.float32) for number in range(count)]


def contents(samples):
    """Index, whether it is held out, and the number in it."""
    return [(each.index, each.held_out, float(each.load().feeds["x"][0, 0])) for each in samples]


def once(count, taken=None):
    for item in items(count):
        if taken is not None:
            taken.append(item)
        yield item


@pytest.mark.parametrize("make", [items, once, lambda count: np.concatenate(items(count))])
@pytest.mark.parametrize("options", [{}, {"hold_out": 3}, {"limit": 10, "hold_out": 4}, {"limit": 2}])
@pytest.mark.parametrize("count", [0, 1, 5, 9, 50])
def test_nothing_is_lost(make, options, count):
    whole = contents(open_source(make(20), INPUTS, **options))
    source = open_source(make(20), INPUTS, **options)
    chosen = source.peek(count)
    assert contents(chosen) == [each for each in whole if not each[1]][:count]
    assert contents(source) == whole


@pytest.mark.parametrize("make", [items, once])
def test_a_source_shorter_than_asked(make):
    source = open_source(make(3), INPUTS)
    chosen = source.peek(8)
    assert contents(chosen) == contents(source) == [(0, False, 0.0), (1, False, 1.0), (2, False, 2.0)]


def test_no_more_is_read_than_needed():
    taken = []
    source = open_source(once(20, taken), INPUTS)
    chosen = source.peek(3)
    assert (len(chosen), len(taken)) == (3, 3)
    next(iter(source))
    assert len(taken) == 3
    taken.clear()
    assert open_source(once(20, taken), INPUTS).peek(0) == []
    assert taken == []


@pytest.mark.parametrize("make", [items, once])
def test_a_second_look_sees_the_same(make):
    source = open_source(make(9), INPUTS)
    whole = contents(open_source(items(9), INPUTS))
    assert contents(source.peek(2)) == whole[:2]
    assert contents(source.peek(5)) == whole[:5]
    assert contents(source) == whole


def test_a_second_pass_is_refused_as_before():
    source = open_source(once(4), INPUTS)
    source.peek(2)
    assert len(contents(source)) == 4
    with pytest.raises(DataError, match="can be read only once"):
        list(source)


def test_errors_of_the_data_come_through():
    def broken():
        yield items(1)[0]
        raise ValueError("the disk is gone")

    with pytest.raises(DataError, match="the disk is gone"):
        open_source(broken(), INPUTS).peek(2)
    source = open_source(broken(), INPUTS)
    assert len(source.peek(1)) == 1
    with pytest.raises(DataError, match="the disk is gone"):
        list(source)
