"""Which of two rungs is better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from detent.results.searched import StepOutcome
from detent.tuning.tuner import is_better

DRAWS = tuple(np.linspace(1.0, 3.0, 101))
BELOW = StepOutcome("below", "", 2.0, "points", (1.0, 3.0), 0.10, 1.0, 100, drawn=DRAWS)


def moved(by, spread=0.0, **changes):
    """A step that loses so much more on every draw, or by so much more or less."""
    noise = spread * np.cos(np.arange(101.0))
    return replace(BELOW, loss=BELOW.loss + by, drawn=tuple(np.array(DRAWS) + by + noise), **changes)


def test_a_difference_on_every_draw_decides_however_wide_the_intervals_are():
    assert is_better(moved(-0.1, output_error=0.2), BELOW)
    assert not is_better(moved(0.1, output_error=0.01), BELOW)


def test_where_losses_are_too_close_outputs_decide():
    assert is_better(moved(0.1, spread=1.0, output_error=0.05), BELOW)
    assert not is_better(moved(-0.1, spread=1.0, output_error=0.15), BELOW)


def test_without_outputs_to_compare_the_loss_decides():
    assert is_better(moved(-0.1, spread=1.0, output_error=None), BELOW)
    assert not is_better(replace(BELOW, output_error=None), BELOW)


def test_without_draws_the_loss_decides():
    bare = replace(BELOW, drawn=None)
    assert is_better(replace(bare, loss=1.999, output_error=0.5), bare)


def test_an_outcome_survives_being_written_down():
    again = StepOutcome.from_plain(BELOW.to_plain())
    assert again == replace(BELOW, resumed=True)
