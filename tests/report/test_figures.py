from __future__ import annotations

import math

import pytest

from detent.report import figures
from detent.results.paired import interval_text


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
    assert (figures.in_decibels(math.inf), figures.in_decibels(11.94)) == ("exact", "11.9 dB")


def test_ranges_and_intervals_have_both_ends_or_none():
    assert figures.extent(-1.0, 2.5) == "-1 .. 2.5"
    assert figures.extent(None, 1.0) == "-"
    assert interval_text((-0.5, 2.0)) == "-0.50 .. 2.00"
    assert interval_text(None) == "-"


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((2.25, 0.0153, 4.4615), ["2.250", "0.015", "4.462"]),
        ((3.0, -12.0), ["3.00", "-12.00"]),
        ((0.012345, 0.5), ["0.0123", "0.5000"]),
        ((123456.0, 0.5), ["123456", "0"]),
        ((0.0, None), ["0"]),
        ((1e-9,), ["1e-09"]),
    ],
)
def test_numbers_that_stand_together_have_the_same_digits(values, shown):
    form = figures.form_of(*values)
    assert [f"{value:{form}}" for value in values if value is not None] == shown


@pytest.mark.parametrize(("value", "shown"), [(1.0, "1.000"), (0.0636, "0.064"), (2e-5, "<0.001")])
def test_probabilities(value, shown):
    assert figures.probability(value) == shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("conv1/output:0", "conv1/output:0"),
        ("größe 日本", "größe 日本"),
        ("a\nb\t\0", r"a\nb\t\x00"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_does_not_print_is_spelt_out(name, shown):
    assert figures.printable(name) == shown


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("/features/conv.1", "007_features_conv_1"),
        ("../../etc/passwd", "007_etc_passwd"),
        ("日本", "007"),
        ("", "007"),
        ("CON", "007_CON"),
        ("x" * 500, "007_" + "x" * 60),
        ("a\0b\nc", "007_a_b_c"),
    ],
)
def test_file_names_are_harmless(name, stem):
    assert figures.file_stem(7, name) == stem
