"""Which rows are used and held out, and how they are grouped."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.observe.samples import batch_count, batches, select, spread, stream_holds_out


def choose(total, limit=None, reserve=0, seed=None, whole=1):
    return select(total, limit=limit, reserve=reserve, seed=seed, whole=whole)


@pytest.mark.parametrize(
    ("total", "options", "rows", "held_out", "used", "dropped"),
    [
        (5, {}, [0, 1, 2, 3, 4], [], 5, 0),
        (10, {"limit": 4}, [0, 2, 5, 7], [], 4, 0),  # i * 10 // 4
        (10, {"limit": 20}, list(range(10)), [], 10, 0),
        (12, {"limit": 4, "reserve": 2}, [0, 2, 4, 6, 8, 10], [2, 5], 4, 0),
        (5, {"limit": 4, "reserve": 9}, [0, 1, 2, 3, 4], [4], 4, 0),  # one to spare
        (4, {"limit": 4, "reserve": 9}, [0, 1, 2, 3], [], 4, 0),  # none to spare
        (16, {"reserve": 1}, list(range(16)), [7], 15, 0),
        (16, {"reserve": 9}, list(range(16)), [7, 15], 14, 0),
        (7, {"reserve": 9}, list(range(7)), [], 7, 0),
        (10, {"whole": 4}, list(range(10)), [], 8, 2),
        (10, {"limit": 7, "whole": 4}, [0, 2, 5, 7], [], 4, 3),
        (8, {"reserve": 1, "whole": 8}, list(range(8)), [], 8, 0),  # one row would not fill a batch
        (3, {"whole": 4}, [0, 1, 2], [], 0, 3),
        (9, {"limit": 3, "whole": 4}, [], [], 0, 3),
    ],
)
def test_select_by_hand(total, options, rows, held_out, used, dropped):
    found = choose(total, **options)
    assert list(found.rows) == rows
    assert sorted(found.held_out) == held_out
    assert (found.used, found.dropped) == (used, dropped)


def test_class_folders_are_all_represented():
    # Ten folders of 50 files, sorted: the evenly spaced rows fall into all of them.
    assert {row // 50 for row in choose(500, limit=20).rows} == set(range(10))


def test_a_seed_chooses_at_random_but_repeatably():
    one = choose(1000, limit=20, reserve=4, seed=1)
    assert one == choose(1000, limit=20, reserve=4, seed=1)
    assert list(one.rows) != list(choose(1000, limit=20, reserve=4, seed=2).rows)
    assert list(one.rows) == sorted(set(one.rows))
    assert (len(one.rows), len(one.held_out)) == (24, 4)


numbers = st.integers(0, 60)


@given(st.integers(1, 300), st.none() | st.integers(1, 60), numbers, st.none() | numbers, st.integers(1, 9))
def test_select_promises(total, limit, reserve, seed, whole):
    found = choose(total, limit, reserve, seed, whole)
    rows = list(found.rows)
    held = len(found.held_out)
    assert len(set(rows)) == len(rows)
    assert all(0 <= row < total for row in rows)
    assert held <= reserve and held % whole == 0
    assert found.used % whole == 0
    assert found.used <= (total if limit is None else limit)
    assert all(0 <= position < len(rows) for position in found.held_out)
    if limit is None:
        assert found.used + held + found.dropped == total
        assert all(position % 8 == 7 for position in found.held_out)
    if total >= whole and (limit is None or limit >= whole):
        assert found.used > 0  # holding out never takes the only batch


@given(st.integers(1, 200), st.integers(0, 200))
def test_spread_is_even(count, held):
    held = min(held, count)
    positions = sorted(spread(held, count))
    assert len(positions) == held
    gaps = {b - a for a, b in itertools.pairwise(positions)}
    assert len(gaps) <= 2 and (not gaps or max(gaps) - min(gaps) <= 1)


def test_batches_by_hand():
    chosen = choose(12, limit=4, reserve=2)  # rows 0 2 4* 6 8 10*
    assert list(batches(chosen, 2, whole=True)) == [((0, 2), False), ((6, 8), False), ((4, 10), True)]
    assert list(batches(chosen, 3, whole=False)) == [((0, 2, 6), False), ((8,), False), ((4, 10), True)]
    assert list(batches(chosen, 3, whole=True)) == [((0, 2, 6), False)]


@given(st.integers(1, 200), st.none() | st.integers(1, 60), numbers, st.integers(1, 9), st.booleans())
def test_batch_promises(total, limit, reserve, size, whole):
    chosen = choose(total, limit, reserve, None, size if whole else 1)
    groups = list(batches(chosen, size, whole=whole))
    assert len(groups) == batch_count(chosen, size, whole=whole)
    assert all(len(group) == size or not whole for group, _ in groups)
    held = {chosen.rows[position] for position in chosen.held_out}
    for group, held_out in groups:
        assert all((row in held) == held_out for row in group)
    grouped = [row for group, _ in groups for row in group]
    assert len(grouped) == len(set(grouped)) == chosen.used + len(held)


def test_streams_hold_out_what_comes_later():
    with_limit = [stream_holds_out(index, min(index, 3), 0, limit=3, reserve=2) for index in range(5)]
    assert with_limit == [False, False, False, True, True]
    without = [index for index in range(40) if stream_holds_out(index, index, index // 8, limit=None, reserve=2)]
    assert without == [7, 15]
