from __future__ import annotations

import pytest

from detent.numerics import BLOCK_FORMATS, NAMED_FORMATS
from detent.numerics.blocks import BlockFloat
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat


def test_there_is_every_format():
    assert len(NAMED_FORMATS) == 8 + 4 + 10
    assert NAMED_FORMATS["uint16"] == IntegerFormat("uint16")
    assert NAMED_FORMATS["bfloat16"] == FloatFormat("bfloat16")
    assert NAMED_FORMATS["MX9"] == BlockFloat(16, 16, 2)


@pytest.mark.parametrize("name", NAMED_FORMATS)
def test_a_format_is_called_by_its_name(name):
    assert NAMED_FORMATS[name].label == name


def test_no_two_names_for_one_format():
    assert len(set(NAMED_FORMATS.values())) == len(NAMED_FORMATS)
    assert set(BLOCK_FORMATS) < set(NAMED_FORMATS)
