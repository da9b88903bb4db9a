"""The page of public names says what their docstrings say."""

from __future__ import annotations

import re
from pathlib import Path

from tools.api_reference import page

import detent

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tools.api_reference docs/api.md writes it"


def test_every_public_name_is_on_it():
    text = page()
    for name in detent.__all__:
        assert name == "__version__" or re.search(rf"^(### {name}|- `{name}`:)", text, re.MULTILINE), name


def test_options_of_a_verb_are_in_its_table():
    section = re.search(r"^### quantize\n(.*?)^### ", page(), re.DOTALL | re.MULTILINE)[1]
    for option in ("recipe", "smooth", "exclude", "hold_out"):
        assert f"| `{option}` |" in section
