"""The pictures are those of the formats as they are, and their ticks are the numbers that a format holds."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tools.draw_formats import main, pictures
from tools.number_line import Line, draw

from detent.numerics import BLOCK_FORMATS
from detent.numerics.floats import FLOAT_NAMES
from tools import draw_flow

DOCS = Path(__file__).parents[2] / "docs"


@cache
def drawn():
    """All pictures by name. They take a second, which not every run of other tests should wait for."""
    return {picture.name: picture for picture in pictures()}


def held(name, low, high, kind="numbers"):
    """The numbers that are drawn of a format from `low` to `high`, both included."""
    every = getattr(drawn()[name].lines[0], kind)
    return list(every[(every >= low) & (every <= high)])


def test_the_pictures_of_the_manual_are_up_to_date(tmp_path):
    main([str(tmp_path)])
    for picture in sorted(tmp_path.iterdir()):
        kept = DOCS / "pictures" / picture.name
        assert kept.read_text(encoding="utf-8") == picture.read_text(encoding="utf-8"), (
            f"{picture.name} changed: python -m tools.draw_formats docs/pictures"
        )


def test_the_picture_of_the_flow_is_up_to_date():
    assert (DOCS / "pictures" / "flow.svg").read_text(encoding="utf-8") == draw_flow.draw()


def test_every_small_float_and_block_format_has_a_picture_on_the_page():
    page = (DOCS / "formats.md").read_text(encoding="utf-8")
    assert {*FLOAT_NAMES, *BLOCK_FORMATS} <= set(drawn())
    assert [name for name in drawn() if f"pictures/{name}.svg" not in page] == []


@pytest.mark.parametrize(
    ("name", "low", "high", "expected"),
    [
        ("int8_power_of_two", 0.9, 1.1, [29 / 32, 30 / 32, 31 / 32, 1.0, 33 / 32, 34 / 32, 35 / 32]),
        ("float8_e4m3", 1.0, 2.0, [1 + k / 8 for k in range(8)] + [2.0]),
        ("float8_e5m2", 1.0, 2.0, [1.0, 1.25, 1.5, 1.75, 2.0]),
        ("MXFP4E2M1", 0.0, 4.0, [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0]),
        ("MX4", 0.0, 4.0, [0.0, 1.0, 2.0, 3.0]),
        ("BFP16", 1.0, 1.0625, [1.0, 1.03125, 1.0625]),
    ],
)
def test_numbers_worked_out_by_hand(name, low, high, expected):
    assert held(name, low, high) == expected


def test_pairs_of_small_numbers_have_half_the_step():
    assert held("MX4", 0.0, 4.0, "fine")[:4] == [0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize(("name", "count"), [("int8", 255), ("int8_power_of_two", 255), ("uint8_asymmetric", 256)])
def test_there_is_a_number_for_every_code(name, count):
    assert len(held(name, -10, 10)) == count


def test_a_picture_is_svg_that_loads_nothing():
    for name, picture in drawn().items():
        text = draw(picture)
        assert ElementTree.fromstring(text).tag.endswith("svg"), name
        assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), name
        assert "prefers-color-scheme: dark" in text, name


def test_ends_of_a_stretch_are_the_ends_of_its_axis():
    line = Line(-2.0, 2.0, np.array([-3.0, -2.0, 0.0, 2.0, 2.5]))
    assert list(line.within(line.numbers)) == [-2.0, 0.0, 2.0]
    assert line.place(0.0) == (line.place(-2.0) + line.place(2.0)) / 2
