"""The time that tuning may take."""

from __future__ import annotations

import pytest

from detent.errors import UsageError
from detent.progress import silent
from detent.tuning.tuner import Clock, OutOfTimeError, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("2 m 5 s", 125), (7, 7), (0.5, 0.5)],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "10d", "m10", "-5m", "0", "0s", 0, -1, float("nan"), float("inf")])
def test_what_is_no_duration(text):
    with pytest.raises(UsageError):
        parse_duration(text)


def test_an_observer_is_stopped_when_time_is_over():
    now = [0.0]
    clock = Clock(10.0, lambda: now[0])
    watching = clock.watching(silent)
    now[0] = 9.9
    watching("calibrate", 1, 2)
    assert not clock.is_over
    now[0] = 10.0
    assert clock.is_over
    with pytest.raises(OutOfTimeError):
        watching("calibrate", 2, 2)


def test_without_a_budget_time_is_never_over():
    now = [0.0]
    clock = Clock(None, lambda: now[0])
    now[0] = 1e9
    assert not clock.is_over
    clock.watching(silent)("refine", 0, None)
    assert clock.elapsed == 1e9
