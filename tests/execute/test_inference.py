from __future__ import annotations

import threading
import time

import pytest

from detent.execute.inference import AHEAD, map_in_order


def test_results_come_in_order():
    def work(item):
        time.sleep(0.002 * (item % 3))
        return item * item

    assert list(map_in_order(work, range(40), threads=4)) == [(item, item * item) for item in range(40)]
    assert list(map_in_order(work, [], threads=4)) == []


def test_only_a_few_are_begun_ahead():
    begun = []

    def items():
        for item in range(100):
            begun.append(item)
            yield item

    for done, _ in enumerate(map_in_order(str, items(), threads=2)):
        assert len(begun) - done <= AHEAD * 2


def test_what_fails_is_raised_in_its_turn():
    release = threading.Event()

    def work(item):
        if item == 0:
            release.wait(5)
        if item == 2:
            release.set()
            raise ValueError("two")
        return item

    results = map_in_order(work, range(10), threads=3)
    assert next(results) == (0, 0)
    assert next(results) == (1, 1)
    with pytest.raises(ValueError, match="two"):
        next(results)
