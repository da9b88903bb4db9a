from __future__ import annotations

import math

import pytest

from detent.report import figures


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (400, 100, "4.0 times smaller"),
        (100, 330, "3.3 times larger"),
        (5, 5, "about the same"),
        (100, 104, "about the same"),
        (106, 100, "1.1 times smaller"),
        (0, 7, "7.0 times larger"),
    ],
)
def test_sizes_are_compared_the_right_way_round(before, after, text):
    assert figures.ratio(before, after) == text


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999 bytes"), (1000, "1 kB"), (13_960_000, "14 MB"), (2_150_000_000, "2.15 GB")]
)
def test_sizes_have_the_unit_that_leaves_three_digits(count, text):
    assert figures.size(count) == text


def test_equal_tensors_are_exact():
    assert figures.decibels(math.inf) == "exact"
    assert figures.decibels(11.94) == "11.9"


def test_ranges_and_intervals_have_both_ends_or_none():
    assert figures.extent(-1.0, 2.5) == "-1 .. 2.5"
    assert figures.extent(None, 1.0) == "-"
    assert figures.interval((-0.5, 2.0)) == "-0.50 .. 2.00"
    assert figures.interval(None) == "-"
