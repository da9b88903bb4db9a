from __future__ import annotations

import pytest

from detent.report.figures import file_stem, printable


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
    assert printable(name) == shown


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
    assert file_stem(7, name) == stem
