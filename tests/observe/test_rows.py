"""Counting samples in arrays, and the rows made of them."""

from __future__ import annotations

import numpy as np
import pytest

from detent.errors import DataError, UsageError
from detent.observe.files import Part, PartRows, array_rows, count_rows, random_rows
from detent.observe.preprocess import InputSpec


def spec(*shape, dtype=np.float32, name="x"):
    return InputSpec(name, np.dtype(dtype), shape)


def specs(*shapes):
    return [spec(*shape, name=name) for name, shape in zip("abc", shapes, strict=False)]


def shapes(*each):
    return dict(zip("abc", each, strict=False))


@pytest.mark.parametrize(
    ("found", "model", "expected"),
    [
        ([(5, 3, 4)], [(1, 3, 4)], 5),
        ([(5, 3, 4)], [(None, 3, 4)], 5),
        ([(3, 4)], [(1, 3, 4)], None),
        ([(5, 3), (5,)], [(None, 3), (None,)], 5),
        ([(3,), ()], [(None, 3), (None,)], None),
        ([(3,), (1, 2)], [(1, 3), (1, 2)], None),  # one without the batch axis, one with a batch of one
        # Inputs that share no batch axis: complete feeds, or one axis more.
        ([(1, 3), (4,)], [(1, 3), (4,)], None),
        ([(9, 1, 3), (9, 4)], [(1, 3), (4,)], 9),
        ([(9, 3), (9, 4)], [(1, 3), (4,)], 9),
        ([()], [()], None),
        ([(6,)], [()], 6),
    ],
)
def test_count_rows(found, model, expected):
    assert count_rows(shapes(*found), specs(*model), "here") == expected


@pytest.mark.parametrize(
    ("found", "model", "message"),
    [
        (
            [(5, 1, 3, 4)],
            [(1, 3, 4)],
            r"here: input 'a' expects shape \[1, 3, 4\].*found \[5, 1, 3, 4\]: 4 axes instead of 3",
        ),
        ([(4,)], [(1, 3, 4)], r"found \[4\]: 1 axes instead of 3"),
        (
            [(5, 3), (6,)],
            [(None, 3), (None,)],
            "here: the inputs must have the same number of samples, found 'a' 5, 'b' 6",
        ),
        ([(5, 3), ()], [(None, 3), (None,)], "the same number of samples"),
        ([(0, 3)], [(None, 3)], "found an empty batch"),
    ],
)
def test_count_rows_complains(found, model, message):
    with pytest.raises(DataError, match=message):
        count_rows(shapes(*found), specs(*model), "here")


def test_parts_follow_each_other():
    def part(origin, count):
        return Part(origin, count, lambda row: {"x": (origin, row)}, lambda digest: digest.add(origin))

    rows = PartRows([part("a", 2), part("b", None), part("c", 1), part("d", 3)], "from here")
    assert len(rows) == 7
    assert [rows.origin(row) for row in range(7)] == ["a[0]", "a[1]", "b", "c", "d[0]", "d[1]", "d[2]"]
    expected = [("a", 0), ("a", 1), ("b", None), ("c", 0), ("d", 0), ("d", 1), ("d", 2)]
    assert [rows.read(row)["x"] for row in range(7)] == expected


def test_array_rows():
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    rows = array_rows(data, [spec(None, 2)])
    assert [rows.read(row)["x"].tolist() for row in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert rows.origin(2) == "array[2]"
    rows = array_rows({"x": data, "y": data[:, 0]}, [spec(None, 2), spec(None, name="y")])
    assert rows.read(1)["y"] == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((2, 3)), "the array: input 'x' expects float32, found float64"),
        (np.zeros((2, 3, 3), np.float32), "the array: input 'x' expects shape"),
        ({"y": np.zeros((2, 3), np.float32)}, "the dict: the model has no input 'y'"),
        ({}, "the dict: there is no data for input 'x'"),
        ({"x": [[1, 2, 3], [4]]}, "the dict: input 'x': expected an array, found ragged data"),
        (np.array([[1], [2, 3]], object), "found Python objects"),
    ],
)
def test_bad_arrays_are_refused_when_opened(data, message):
    with pytest.raises(DataError, match=message):
        array_rows(data, [spec(None, 3)])


def test_one_array_cannot_feed_two_inputs():
    with pytest.raises(DataError, match=r"2 inputs \('a', 'b'\): one array cannot feed it. Give a dict"):
        array_rows(np.zeros(3, np.float32), specs((None,), (None,)))


def test_random_rows():
    inputs = [
        spec(None, 50, name="a"),
        spec(None, 50, dtype=np.int64, name="b"),
        spec(None, 50, dtype=bool, name="c"),
        spec(None, 50, dtype=np.float16, name="d"),
    ]
    rows = random_rows(inputs, 0)
    assert len(rows) == 8
    feeds = rows.read(3)
    assert {name: feed.shape for name, feed in feeds.items()} == dict.fromkeys("abcd", (1, 50))
    assert [feed.dtype for feed in feeds.values()] == [one.dtype for one in inputs]
    assert set(feeds["b"].ravel().tolist()) == {0, 1}
    np.testing.assert_array_equal(feeds["a"], random_rows(inputs, 0).read(3)["a"])
    assert not np.array_equal(feeds["a"], rows.read(4)["a"])
    assert not np.array_equal(feeds["a"], random_rows(inputs, 1).read(3)["a"])
    many = np.concatenate([random_rows([spec(1, 5000)], 0).read(row)["x"].ravel() for row in range(8)])
    assert abs(many.mean()) < 0.03 and abs(many.std() - 1) < 0.03


def test_random_rows_of_static_batches_and_of_inputs_without_one():
    assert len(random_rows([spec(4, 2)], 0)) == 32
    twins = random_rows([spec(1, 9, name="a"), spec(1, 9, name="b")], 0).read(0)
    assert not np.array_equal(twins["a"], twins["b"])
    feeds = random_rows([spec(1, 2, name="a"), spec(4, name="b"), spec(name="c")], 0).read(0)
    assert [feed.shape for feed in feeds.values()] == [(1, 2), (4,), ()]


def test_random_rows_refuse_what_they_cannot_know():
    with pytest.raises(UsageError, match=r"input 'x' has the shape \[\?, 3, \?\].*--fix-shape"):
        random_rows([spec(None, 3, None)], 0)
    with pytest.raises(UsageError, match="there is no random data for it"):
        random_rows([spec(1, dtype=object)], 0)
