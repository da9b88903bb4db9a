from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat
from detent.results.searched import FormatOption
from detent.search.mixed_precision import assign, bits_of, error_of, hull

INT8 = IntegerFormat("int8")


def option(bits, error):
    return FormatOption(INT8, bits, error)


def test_hull_by_hand():
    # (8, 4) lies above the line from (4, 10) to (16, 0), which passes (8, 6.7)? No: 4 < 6.7, it stays; (12, 3.9) goes.
    points = [option(4, 10.0), option(8, 4.0), option(12, 3.9), option(16, 0.0)]
    assert hull(points) == [points[0], points[1], points[3]]
    assert hull([option(4, 1.0), option(8, 1.0)]) == [option(4, 1.0)]  # more bits for nothing
    assert hull([option(4, 2.0), option(4, 1.0)]) == [option(4, 1.0)]


TWO = {
    "a": [option(4, 100.0), option(8, 10.0), option(16, 0.1)],
    "b": [option(40, 50.0), option(80, 5.0), option(160, 0.05)],
}


@pytest.mark.parametrize(
    ("bound", "bits"),
    [
        ({"max_error": 1000.0}, (4, 40)),
        ({"max_error": 100.0}, (8, 40)),  # 90 for 4 bits, before 45 for 40
        ({"max_error": 51.0}, (16, 40)),  # 9.9 for 8 bits: 1.24 a bit, before 1.125
        ({"max_error": 50.0}, (16, 80)),
        ({"max_error": 0.0}, (16, 160)),  # out of reach: the best there is
        ({"max_bits": 56}, (16, 40)),
        ({"max_bits": 55}, (8, 40)),
        ({"max_bits": 1}, (4, 40)),
    ],
)
def test_by_hand(bound, bits):
    chosen = assign(TWO, **bound)
    assert (chosen["a"].bits, chosen["b"].bits) == bits


numbers = st.lists(st.tuples(st.integers(1, 20), st.floats(0.01, 100)), min_size=1, max_size=3)


@given(st.lists(numbers, min_size=1, max_size=4), st.floats(0.01, 200))
def test_against_all_choices(tensors, wanted):
    """No choice that is as good has fewer bits than what was chosen without its last step."""
    options = {str(index): [option(*pair) for pair in each] for index, each in enumerate(tensors)}
    chosen = assign(options, max_error=wanted)
    everyone = [dict(zip(options, each, strict=True)) for each in product(*options.values())]
    reachable = [choice for choice in everyone if error_of(choice) <= wanted]
    if not reachable:
        assert error_of(chosen) == pytest.approx(min(map(error_of, everyone)))
        return
    assert error_of(chosen) <= wanted
    largest = max(after.bits - before.bits for each in options.values() for before in each for after in each)
    assert bits_of(chosen) <= min(map(bits_of, reachable)) + largest


def test_one_bound():
    for bounds in ({}, {"max_error": 1.0, "max_bits": 1}):
        with pytest.raises(UsageError, match="Give one of"):
            assign(TWO, **bounds)
