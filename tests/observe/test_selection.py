"""Which rows are used and held out, and how they are grouped."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import UsageError
from detent.observe.samples import StreamSelection, batch_count, batches, select, spread


def choose(total, limit=None, hold_out=0, seed=None, whole=1):
    return select(total, limit=limit, hold_out=hold_out, seed=seed, whole=whole)


@pytest.mark.parametrize(
    ("total", "options", "rows", "held_out", "used", "dropped"),
    [
        (5, {}, [0, 1, 2, 3, 4], [], 5, 0),
        (10, {"limit": 4}, [0, 2, 5, 7], [], 4, 0),  # i * 10 // 4
        (10, {"limit": 20}, list(range(10)), [], 10, 0),
        (12, {"limit": 6, "hold_out": 2}, [0, 2, 4, 6, 8, 10], [2, 5], 4, 0),
        (5, {"limit": 5, "hold_out": 1}, [0, 1, 2, 3, 4], [4], 4, 0),
        (4, {"limit": 9, "hold_out": 2}, [0, 1, 2, 3], [1, 3], 2, 0),
        (7, {"hold_out": None}, list(range(7)), [], 7, 0),
        (8, {"hold_out": None}, list(range(8)), [7], 7, 0),
        (20, {"hold_out": None}, list(range(20)), [7, 15], 18, 0),
        (20, {"hold_out": None, "limit": 10}, list(range(0, 20, 2)), [9], 9, 0),
        (10, {"whole": 4}, list(range(10)), [], 8, 2),
        (10, {"limit": 7, "whole": 4}, [0, 2, 5, 7], [], 4, 3),
        (8, {"hold_out": 1, "whole": 8}, list(range(8)), [], 8, 0),  # one row would not fill a batch
        (3, {"whole": 4}, [0, 1, 2], [], 0, 3),
        (9, {"limit": 3, "whole": 4}, [], [], 0, 3),
        (40, {"limit": 20, "hold_out": "beyond"}, [at * 40 // 36 for at in range(36)], None, 20, 0),
        (21, {"limit": 20, "hold_out": "beyond"}, list(range(21)), [20], 20, 0),  # one to spare
        (20, {"limit": 20, "hold_out": "beyond"}, list(range(20)), [], 20, 0),  # none to spare
        (20, {"hold_out": "beyond"}, list(range(20)), [7, 15], 18, 0),
    ],
)
def test_select_by_hand(total, options, rows, held_out, used, dropped):
    found = choose(total, **options)
    assert list(found.rows) == rows
    assert held_out is None or sorted(found.held_out) == held_out
    assert (found.used, found.dropped) == (used, dropped)


@pytest.mark.parametrize(("total", "held"), [(8, 1), (64, 8), (128, 16), (512, 64), (5000, 64)])
def test_usually_an_eighth_is_held_out_evenly_and_at_most_64(total, held):
    positions = sorted(choose(total, hold_out=None).held_out)
    assert len(positions) == held
    assert positions[0] >= total // held - 1 and positions[-1] > total - total // held - 1
    assert choose(2 * total, limit=total, hold_out=None).used == total - held


def test_none_are_left_to_calibrate_with():
    with pytest.raises(UsageError, match="--hold-out 5 of 5"):
        choose(9, limit=5, hold_out=5)


def test_class_folders_are_all_represented():
    # Ten folders of 50 files, sorted: the evenly spaced rows fall into all of them.
    assert {row // 50 for row in choose(500, limit=20).rows} == set(range(10))


def test_a_seed_chooses_at_random_but_repeatably():
    one = choose(1000, limit=24, hold_out=4, seed=1)
    assert one == choose(1000, limit=24, hold_out=4, seed=1)
    assert list(one.rows) != list(choose(1000, limit=24, hold_out=4, seed=2).rows)
    assert list(one.rows) == sorted(set(one.rows))
    assert (len(one.rows), len(one.held_out)) == (24, 4)


numbers = st.integers(0, 60)


@given(st.integers(1, 300), st.none() | st.integers(1, 60), numbers, st.none() | numbers, st.integers(1, 9))
def test_select_promises(total, limit, hold_out, seed, whole):
    read = min(total, limit or total)
    hold_out = None if hold_out >= read else hold_out
    found = choose(total, limit, hold_out, seed, whole)
    rows = list(found.rows)
    held = len(found.held_out)
    assert len(set(rows)) == len(rows)
    assert all(0 <= row < total for row in rows)
    assert held <= (read // 8 if hold_out is None else hold_out) and held % whole == 0
    assert found.used % whole == 0
    assert found.used + held + found.dropped == read
    assert all(0 <= position < len(rows) for position in found.held_out)
    if read >= whole and hold_out is None:
        assert found.used > 0  # holding out never takes the only batch


@given(st.integers(1, 200), st.integers(0, 200))
def test_spread_is_even(count, held):
    held = min(held, count)
    positions = sorted(spread(held, count))
    assert len(positions) == held
    gaps = {b - a for a, b in itertools.pairwise(positions)}
    assert len(gaps) <= 2 and (not gaps or max(gaps) - min(gaps) <= 1)


def test_batches_by_hand():
    chosen = choose(12, limit=6, hold_out=2)  # rows 0 2 4* 6 8 10*
    assert list(batches(chosen, 2, whole=True)) == [((0, 2), False), ((6, 8), False), ((4, 10), True)]
    assert list(batches(chosen, 3, whole=False)) == [((0, 2, 6), False), ((8,), False), ((4, 10), True)]
    assert list(batches(chosen, 3, whole=True)) == [((0, 2, 6), False)]


@given(st.integers(1, 200), st.none() | st.integers(1, 60), numbers, st.integers(1, 9), st.booleans())
def test_batch_promises(total, limit, hold_out, size, whole):
    hold_out = None if hold_out >= min(total, limit or total) else hold_out
    chosen = choose(total, limit, hold_out, None, size if whole else 1)
    groups = list(batches(chosen, size, whole=whole))
    assert len(groups) == batch_count(chosen, size, whole=whole)
    assert all(len(group) == size or not whole for group, _ in groups)
    held = {chosen.rows[position] for position in chosen.held_out}
    for group, held_out in groups:
        assert all((row in held) == held_out for row in group)
    grouped = [row for group, _ in groups for row in group]
    assert len(grouped) == len(set(grouped)) == chosen.used + len(held)


def held_out_of_a_stream(sizes, limit, hold_out):
    """Return the items that are held out of a stream of items of these sizes, and how many samples were read."""
    selection, held_out, taken, held = StreamSelection.of(limit, hold_out), [], 0, 0
    for index, size in enumerate(sizes):
        if selection.ends_after(taken, held):
            break
        if selection.holds_out(index, size, taken, held):
            held_out.append(index)
            held += size
        else:
            room = selection.room(taken, held)
            taken += size if room is None else min(size, room)
    return held_out, taken + held


@pytest.mark.parametrize(
    ("sizes", "limit", "hold_out", "held_out", "read"),
    [
        ([1] * 40, None, 2, [7, 15], 40),
        ([1] * 40, None, None, [7, 15, 23, 31, 39], 40),
        ([1] * 40, 16, None, [7, 15], 16),
        ([1] * 40, 6, 2, [2, 5], 6),
        ([1] * 40, 6, 0, [], 6),
        ([1] * 40, 3, "beyond", list(range(3, 19)), 19),
        ([4] * 20, 64, None, [7, 15], 64),
        ([32] * 9, 64, None, [], 64),  # a batch is more than the share that is due
    ],
)
def test_streams_hold_out_as_they_come(sizes, limit, hold_out, held_out, read):
    assert held_out_of_a_stream(sizes, limit, hold_out) == (held_out, read)
