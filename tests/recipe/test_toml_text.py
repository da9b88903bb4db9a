from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.recipe.file import toml_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | WORDS
KEYS = st.from_regex(r"[a-z_]{1,6}", fullmatch=True)
LISTS = st.lists(SCALARS, max_size=3) | st.lists(st.lists(WORDS, max_size=2), max_size=2)
INNER = st.dictionaries(KEYS, SCALARS | LISTS, max_size=3)
TABLES = st.dictionaries(KEYS, SCALARS | LISTS | INNER, max_size=3)
DOCUMENTS = st.dictionaries(KEYS, SCALARS | LISTS | TABLES | st.lists(TABLES, max_size=3), max_size=6)


@given(DOCUMENTS)
def test_what_is_written_is_read_back(document):
    assert tomllib.loads(toml_text(document)) == document


def test_the_layout_of_a_document():
    document = {"entries": [{"a": 1}, {"b": {"c": [True]}}], "table": {"x": 0.5}, "name": "A", "none": []}
    assert toml_text(document) == (
        'name = "A"\nnone = []\n\n[table]\nx = 0.5\n\n[[entries]]\na = 1\n\n[[entries]]\nb = { c = [true] }\n'
    )


@pytest.mark.parametrize("text", ['"', "\\", "\n", "\t", "\x00", "\x7f", "\u0085", "\u2028", "é", "#", "'''"])
def test_every_character(text):
    assert tomllib.loads(toml_text({"key": text})) == {"key": text}


def test_numbers_that_json_does_not_have():
    assert toml_text({"a": math.inf, "b": -math.inf, "c": math.nan}) == "a = inf\nb = -inf\nc = nan\n"
