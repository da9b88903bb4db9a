"""Which of two rungs is better."""

from __future__ import annotations

from dataclasses import replace

from detent.results.searched import StepOutcome
from detent.tuning.tuner import is_better

BELOW = StepOutcome("below", "", 2.0, "points", (1.0, 3.0), 0.10, 1.0, 100)


def test_a_clear_difference_of_loss_decides():
    # The interval is two points wide: half a point is one standard error.
    assert is_better(replace(BELOW, loss=1.4, output_error=0.2), BELOW)
    assert not is_better(replace(BELOW, loss=2.6, output_error=0.01), BELOW)


def test_where_losses_are_too_close_outputs_decide():
    assert is_better(replace(BELOW, loss=2.1, output_error=0.05), BELOW)
    assert not is_better(replace(BELOW, loss=1.9, output_error=0.15), BELOW)


def test_without_outputs_to_compare_the_loss_decides():
    assert is_better(replace(BELOW, loss=1.9, output_error=None), BELOW)
    assert not is_better(replace(BELOW, output_error=None), BELOW)


def test_without_an_interval_the_loss_decides():
    bare = replace(BELOW, interval=None)
    assert is_better(replace(bare, loss=1.999, output_error=0.5), bare)


def test_an_outcome_survives_being_written_down():
    again = StepOutcome.from_plain(BELOW.to_plain())
    assert again == replace(BELOW, resumed=True)
