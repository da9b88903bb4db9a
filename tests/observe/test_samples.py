"""The checks that every sample passes, one by one, and what they say."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import DataError
from detent.observe.preprocess import InputSpec
from detent.observe.samples import (
    PendingSample,
    Sample,
    as_array,
    batch_count,
    batches,
    check_feeds,
    select,
    shares_batch,
    spread,
    stream_holds_out,
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


def test_float16_is_widened_and_foreign_byte_order_turned():
    found = check_feeds({"x": np.full((1, 3, 4, 5), 1.5, np.float16)}, [IMAGE], "here")["x"]
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
            zeros(1, 3, 4, 5, dtype=np.float64),
            IMAGE,
            "expects float32, found float64. Convert it with .astype(np.float32)",
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
        (bad_number(-np.inf).astype(np.float16), IMAGE, "found 1 NaN or infinite"),
    ],
)
def test_each_complaint_names_sample_input_expected_and_found(data, model, message):
    with pytest.raises(DataError, match="^cat.npy: input 'x' .*" + re.escape(message)):
        check_feeds({"x": data}, [model], "cat.npy")


def test_names():
    inputs = [spec(1, name="image"), spec(1, name="mask")]
    with pytest.raises(DataError, match=r"a\.npz: the model has no input 'imag'. Did you mean 'image'"):
        check_feeds({"imag": zeros(1), "mask": zeros(1)}, inputs, "a.npz")
    with pytest.raises(
        DataError, match=r"a\.npz: there is no data for input 'mask'. Expected 'image', 'mask', found 'image'"
    ):
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
    with pytest.raises(DataError, match="here: expected an array, found ragged data"):
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
