"""The checks that every sample passes, one by one, and what they say."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import DataError, UsageError
from detent.observe.preprocess import InputSpec
from detent.observe.samples import (
    PendingSample,
    Sample,
    StreamSelection,
    as_array,
    batch_count,
    batches,
    check_feeds,
    select,
    shares_batch,
    spread,
)


def spec(*shape, dtype=np.float32, name="x"):
    return InputSpec(name, np.dtype(dtype), shape)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


IMAGE = spec(1, 3, 4, 5)


def test_good_data_passes_without_a_copy():
    data = zeros(1, 3, 4, 5)
    assert np.shares_memory(check_feeds({"x": data}, [IMAGE], "here")["x"], data)


def test_a_missing_batch_axis_is_added():
    assert check_feeds({"x": zeros(3, 4, 5)}, [IMAGE], "here")["x"].shape == (1, 3, 4, 5)
    assert check_feeds({"x": np.float32(2).reshape(())}, [spec(None)], "here")["x"].shape == (1,)


def test_scalars_stay_scalars():
    assert check_feeds({"x": np.array(2.0, np.float32)}, [spec()], "here")["x"].shape == ()


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_other_floats_are_converted_and_foreign_byte_order_turned(kind):
    found = check_feeds({"x": np.full((1, 3, 4, 5), 1.5, kind)}, [IMAGE], "here")["x"]
    assert found.dtype == np.float32 and (found == 1.5).all()
    found = check_feeds({"x": np.full((1, 3, 4, 5), 1.5, ">f4")}, [IMAGE], "here")["x"]
    assert found.dtype == np.float32 and found.dtype.isnative and (found == 1.5).all()


def test_the_result_is_contiguous_and_in_the_order_of_the_inputs():
    data = zeros(1, 4, 5, 3).transpose(0, 3, 1, 2)
    found = check_feeds({"b": data, "a": data}, [spec(1, 3, 4, 5, name="a"), spec(1, 3, 4, 5, name="b")], "here")
    assert list(found) == ["a", "b"]
    assert found["a"].flags.c_contiguous


def bad_number(value):
    data = zeros(1, 3, 4, 5)
    data[0, 1, 2, 3] = value
    return data


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        (zeros(1, 3, 4, 6), IMAGE, "expects shape [1, 3, 4, 5], found [1, 3, 4, 6]: axis 3 must be 5, not 6."),
        (zeros(2, 3, 4, 5), IMAGE, "found [2, 3, 4, 5]: axis 0 must be 1, not 2."),
        (zeros(1, 4, 5, 3), IMAGE, "The axes look transposed: try .transpose(0, 3, 1, 2)."),
        (zeros(1, 3, 4, 5), spec(1, 4, 5, 3), "The axes look transposed: try .transpose(0, 2, 3, 1)."),
        (zeros(1, 1, 3, 4, 5), IMAGE, "found [1, 1, 3, 4, 5]: 5 axes instead of 4."),
        (zeros(4, 5), IMAGE, "expects shape [1, 3, 4, 5], found [4, 5]: 2 axes instead of 4."),
        (zeros(0, 3, 4, 5), spec(None, 3, 4, 5), "found [0, 3, 4, 5]: an empty batch."),
        (zeros(1, 3, 0, 5), spec(None, 3, None, 5), "expects shape [?, 3, ?, 5], found [1, 3, 0, 5]: an empty array."),
        (
            zeros(1, 3, 4, 5, dtype=np.complex64),
            IMAGE,
            "expects float32, found complex64. Convert it with .astype(np.float32)",
        ),
        (zeros(1, 3, 4, 5), spec(1, 3, 4, 5, dtype=np.float16), "expects float16, found float32."),
        (
            zeros(1, 3, 4, 5, dtype=np.uint8),
            IMAGE,
            "expects float32, found uint8. Convert it with .astype(np.float32), after",
        ),
        (zeros(1, 3, 4, 5, dtype=np.int64), IMAGE, "expects float32, found int64."),
        (zeros(1, 3, 4, 5, dtype=bool), IMAGE, "expects float32, found bool."),
        (
            zeros(2, dtype=np.int32),
            spec(None, dtype=np.int64),
            "expects int64, found int32. Convert it with .astype(np.int64)",
        ),
        (zeros(2), spec(None, dtype=np.int64), "expects int64, found float32."),
        (np.array([[1], [2, 3]], object), spec(None, None), "expects float32, found Python objects"),
        (bad_number(np.nan), IMAGE, "expects finite numbers, found 1 NaN or infinite of 60."),
        (bad_number(np.inf), IMAGE, "found 1 NaN or infinite"),
        (bad_number(np.inf).astype(np.float16), IMAGE, "found 1 NaN or infinite"),
    ],
)
def test_each_complaint_names_sample_input_expected_and_found(data, model, message):
    with pytest.raises(DataError, match="^cat.npy: input 'x' .*" + re.escape(message)):
        check_feeds({"x": data}, [model], "cat.npy")


def test_names():
    inputs = [spec(1, name="image"), spec(1, name="mask")]
    with pytest.raises(DataError, match=r"a\.npz: .*'imag'.*'image'"):
        check_feeds({"imag": zeros(1), "mask": zeros(1)}, inputs, "a.npz")
    with pytest.raises(DataError, match=r"a\.npz: .*'mask'.*found 'image'"):
        check_feeds({"image": zeros(1)}, inputs, "a.npz")
    with pytest.raises(DataError, match="found none"):
        check_feeds({}, inputs, "a.npz")


class Tensor:
    """Like a tensor of torch: gives its numbers only after detach() and cpu()."""

    def __init__(self, array, free=False):
        self.array, self.free = array, free

    def detach(self):
        return Tensor(self.array)

    def cpu(self):
        return Tensor(self.array, free=True)

    def numpy(self):
        assert self.free
        return self.array


def test_as_array():
    data = zeros(3)
    assert as_array(data, "here") is data
    assert as_array(Tensor(data), "here") is data
    assert as_array([[1, 2], [3, 4]], "here").shape == (2, 2)
    with pytest.raises(DataError, match="here: .*ragged"):
        as_array([[1, 2], [3]], "here")


def test_a_pending_sample_reads_when_it_is_loaded():
    calls = []

    def read():
        calls.append(1)
        return {"x": zeros(1)}

    pending = PendingSample(3, "a.jpg", True, read)
    assert calls == []
    sample = pending.load()
    assert isinstance(sample, Sample)
    assert (sample.index, sample.origin, sample.held_out, list(sample.feeds)) == (3, "a.jpg", True, ["x"])


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(1, 3)], True),
        ([(None, 3), (None,)], True),
        ([(4, 3), (4,)], True),
        ([(1, 3), (4,)], False),
        ([(None, 3), (1,)], False),
        ([()], False),
    ],
)
def test_shares_batch(shapes, expected):
    assert shares_batch([spec(*shape) for shape in shapes]) is expected


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
        (20, {"hold_out": "beyond"}, list(range(20)), [7, 15], 20, 0),  # judged by, and counted
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


def test_a_mask_may_hold_minus_infinity():
    assert (check_feeds({"x": bad_number(-np.inf)}, [IMAGE], "cat.npy")["x"] == -np.inf).sum() == 1
