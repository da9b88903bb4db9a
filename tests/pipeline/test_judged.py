"""How plans are compared: on a few samples what is clearly worse, on all what is not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from detent.pipeline import judged
from detent.tasks import Task


def judge(errors):
    """A judge of plans that are the numbers of rows in `errors`: the error of each plan on each of 16 samples."""
    prepared = SimpleNamespace(
        purpose=SimpleNamespace(task=Task.CLASSIFY),
        job=SimpleNamespace(collecting=SimpleNamespace(threads=1)),
        model=SimpleNamespace(graph=None, graphs=list),
    )
    asked = []

    class Scripted(judged.JudgedOutputs):
        def _sums(self, model, plan, samples):
            asked.extend((plan, sample) for sample in samples)
            return [{"y": (errors[plan][sample], 1.0)} for sample in samples]

    return Scripted(prepared, None, range(20)), asked


@pytest.fixture(autouse=True)
def no_graph(monkeypatch):
    monkeypatch.setattr(judged, "output_parts", lambda graph: {})


def test_what_is_clearly_worse_is_not_asked_again():
    judging, asked = judge([[2.0, 2.1, 2.2, 1.9] + [0.0] * 12, [1.0, 1.1, 1.0, 1.0] + [9.0] * 12])
    found = judging.closest(None, [0, 1])
    assert found.best == 1 and found.samples == [4, 4] and len(asked) == 8
    assert found.pairs[0] == pytest.approx((2.05, 1.025)) and found.pairs[1] == pytest.approx((1.025, 1.025))


def test_what_is_not_clear_is_decided_on_all_samples():
    """The first plan is better on the first samples, but not on each: the others turn it round."""
    judging, asked = judge([[1.0, 1.0, 1.0, 4.0] + [3.0] * 12, [2.0, 2.0, 2.0, 2.0] + [1.0] * 12])
    found = judging.closest(None, [0, 1])
    assert found.best == 1 and found.samples == [16, 16] and len(asked) == len(set(asked)) == 32


def test_of_three_the_worst_leaves_first():
    errors = [[9.0] * 16, [1.0, 2.0] * 8, [2.0, 1.0] * 7 + [1.0, 2.0]]
    judging, _ = judge(errors)
    found = judging.closest(None, [0, 1, 2])
    assert found.samples == [4, 16, 16] and found.best == 2, "on a tie the later one"
    assert found.pairs[0] == pytest.approx((9.0, 1.5))


def test_answers_that_are_not_finite_lose():
    judging, _ = judge([[float("nan")] * 16, [1.0] * 16])
    assert judging.closest(None, [0, 1]).samples == [4, 4]
    assert judging.closest(None, [1, 0]).best == 0


def test_a_single_plan_is_not_run():
    judging, asked = judge([[1.0] * 16])
    assert judging.closest(None, [0]).best == 0 and not asked


def test_of_huge_models_one_is_in_memory_and_none_is_kept(monkeypatch):
    """Then all samples are asked at once: to ask again would mean to open the model again."""
    monkeypatch.setattr(judged, "HUGE_MODEL", 0)
    judging, asked = judge([[2.0, 2.1, 2.2, 1.9] * 4, [1.0, 1.1, 1.0, 1.0] * 4])
    found = judging.closest(None, [0, 1])
    assert found.best == 1 and found.samples == [16, 16]
    assert asked == [(plan, sample) for plan in (0, 1) for sample in range(16)]
    assert judging.opened(1) is None
