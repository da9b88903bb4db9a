from __future__ import annotations

import pytest

from detent.errors import UsageError
from detent.settings import parse_memory, show_memory


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GB", 2 << 30), ("2 gb", 2 << 30), ("1.5G", 3 << 29), ("800MB", 800 << 20), ("64KiB", 65536), ("1TB", 1 << 40)],
)
def test_amounts_of_memory(text, count):
    assert parse_memory(text) == count


@pytest.mark.parametrize("text", ["2", "GB", "two GB", "-1GB", "2GBs", "", "1e9GB", "2 G B"])
def test_what_is_no_amount(text):
    with pytest.raises(UsageError, match="such as 2GB"):
        parse_memory(text)


@pytest.mark.parametrize("count", [0, 1, 2**20, 2**20 + 1, 12345678901])
def test_what_is_shown_is_enough(count):
    assert count <= parse_memory(show_memory(count)) < count + 2**20
