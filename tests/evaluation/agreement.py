"""What the tests of answers share."""

from __future__ import annotations

from detent.evaluation.task_agreement import compare_answers, summarize_answers
from detent.tasks.purpose import Purpose


def agreed(task, expected, found, **facts):
    """Return the agreement of two arrays, or of two dictionaries of them."""
    one, other = (each if isinstance(each, dict) else {"y": each} for each in (expected, found))
    purpose = Purpose(task, "by test", **facts)
    count = len(next(iter(one.values())))
    return summarize_answers(purpose, compare_answers(purpose, one, other, count))
