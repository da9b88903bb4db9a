from __future__ import annotations

import pytest

from detent.report import terminal


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (400, 100, "4.0 times smaller"),
        (100, 330, "3.3 times larger"),
        (5, 5, "1.0 times smaller"),
        (0, 7, "7.0 times larger"),
    ],
)
def test_sizes_are_compared_the_right_way_round(before, after, text):
    assert terminal._ratio(before, after) == text
