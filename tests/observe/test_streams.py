"""Iterables, data loaders and readers, one item at a time."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

from detent.errors import DataError, UsageError
from detent.observe.preprocess import InputSpec
from detent.observe.sources import open_source

X = [InputSpec("x", np.dtype(np.float32), (None, 2))]
AB = [InputSpec("a", np.dtype(np.float32), (None, 2)), InputSpec("b", np.dtype(np.float32), (None,))]


def row(value):
    return np.full((1, 2), value, np.float32)


def first_numbers(source):
    return [float(pending.load().feeds["x"][0, 0]) for pending in source]


class Tensor:
    def __init__(self, array):
        self._array = array

    def numpy(self):
        return self._array


class Reader:
    """Like a calibration data reader of onnxruntime."""

    def __init__(self, count, fail_at=None):
        self.count, self.fail_at, self.at, self.calls = count, fail_at, 0, 0

    def get_next(self):
        self.calls += 1
        if self.at == self.fail_at:
            raise OSError("disk on fire")
        if self.at >= self.count:
            return None
        self.at += 1
        return {"x": row(self.at - 1)}


class RewindingReader(Reader):
    def rewind(self):
        self.at = 0


class Loader:
    """Like a data loader of torch: can be iterated again, gives [tensor, labels]."""

    def __iter__(self):
        return ([Tensor(row(value)), Tensor(np.array([value]))] for value in range(3))

    def __len__(self):
        return 3


@pytest.mark.parametrize(
    "data",
    [
        [row(0), row(1), row(2)],
        [row(0)[0], row(1)[0], row(2)[0]],
        ({"x": row(value)} for value in range(3)),
        [Tensor(row(value)) for value in range(3)],
        [(row(value), "label") for value in range(3)],
        [[row(value)] for value in range(3)],
        Loader(),
        Reader(3),
        [{"x": row(value).astype(np.float16)} for value in range(3)],
        [{"x": Tensor(row(value))} for value in range(3)],
    ],
    ids=[
        "arrays",
        "no batch",
        "generator",
        "tensors",
        "tuples",
        "lists",
        "loader",
        "reader",
        "float16",
        "dict tensors",
    ],
)
def test_kinds_of_streams(data):
    assert first_numbers(open_source(data, X)) == [0, 1, 2]


def test_what_the_model_does_not_take_is_left_out_and_named():
    source = open_source([{"x": row(0), "labels": 3}, {"x": row(1), "texts": "none"}], X)
    assert first_numbers(source) == [0, 1]
    assert "'labels', 'texts'" in source.describe


def test_origins_and_indices():
    found = [(one.index, one.origin) for one in open_source([row(0), row(1)], X)]
    assert found == [(0, "item 0 of the iterable"), (1, "item 1 of the iterable")]
    assert next(iter(open_source(Reader(1), X))).origin == "item 0 of the reader"


def test_batches_are_used_as_they_come():
    source = open_source([np.zeros((4, 2), np.float32), np.zeros((3, 2), np.float32)], X)
    assert [one.load().feeds["x"].shape[0] for one in source] == [4, 3]


def test_a_batch_is_divided_if_the_model_takes_smaller_ones():
    one = [InputSpec("x", np.dtype(np.float32), (1, 2))]
    source = open_source([np.concatenate([row(0), row(1), row(2)]), row(3)], one)
    assert first_numbers(source) == [0, 1, 2, 3]
    assert [pending.origin for pending in source][1:] == [
        "item 0 of the iterable, row 1",
        "item 0 of the iterable, row 2",
        "item 1 of the iterable",
    ]
    with pytest.raises(DataError, match="item 0 of the iterable"):  # three rows are no number of pairs
        first_numbers(open_source([np.zeros((3, 2), np.float32)], [InputSpec("x", np.dtype(np.float32), (2, 2))]))


def test_length():
    assert open_source(Loader(), X).length == 3
    assert open_source(Loader(), X, limit=2).length == 2
    assert open_source(Loader(), X, limit=2, hold_out=1).length == 2
    assert open_source(Loader(), X, limit=1, hold_out="beyond").length == 3
    assert open_source(iter(Loader()), X).length is None
    assert open_source(Reader(3), X).length is None

    class Unwilling(Loader):
        def __len__(self):
            raise NotImplementedError

    assert open_source(Unwilling(), X).length is None


def test_a_fresh_pass_each_time():
    for data in (Loader(), RewindingReader(3), [row(0), row(1), row(2)]):
        source = open_source(data, X)
        assert source.repeatable
        assert first_numbers(source) == first_numbers(source) == [0, 1, 2]


def test_a_reader_is_rewound_after_a_pass_that_was_cut():
    source = open_source(RewindingReader(5), X, limit=2)
    assert first_numbers(source) == first_numbers(source) == [0, 1]


@pytest.mark.parametrize(("data", "noun"), [(iter([row(0)]), "iterable"), (Reader(1), "reader")])
def test_what_can_be_read_only_once_says_so(data, noun):
    source = open_source(data, X)
    assert not source.repeatable
    assert first_numbers(source) == [0]
    with pytest.raises(DataError, match=f"The {noun} can be read only once"):
        iter(source)


def test_an_infinite_stream_is_cut_and_no_item_too_many_is_taken():
    taken = []

    def endless():
        for value in itertools.count():
            taken.append(value)
            yield row(value)

    assert first_numbers(open_source(endless(), X, limit=3)) == [0, 1, 2]
    assert taken == [0, 1, 2]
    taken.clear()
    source = iter(open_source(endless(), X))
    assert [next(source).index for _ in range(2)] == [0, 1]
    assert taken == [0, 1]
    reader = Reader(100)
    list(open_source(reader, X, limit=3, hold_out=1))
    assert reader.calls == 3


def test_held_out_items():
    def held(**options):
        return [one.index for one in open_source((row(v) for v in range(20)), X, **options) if one.held_out]

    assert held() == []
    assert held(limit=6, hold_out=2) == [2, 5]
    assert held(limit=30, hold_out=15) == list(range(1, 20, 2))
    assert held(limit=19, hold_out="beyond") == [19]
    assert held(hold_out=1) == [7]
    assert held(hold_out=9) == [7, 15]


@pytest.mark.parametrize("data", [[], iter([]), Reader(0)])
def test_an_empty_stream(data):
    with pytest.raises(DataError, match=r"The (iterable|reader) has no items"):
        list(open_source(data, X))


def test_a_reader_that_fails_in_the_middle():
    source = iter(open_source(Reader(5, fail_at=2), X))
    next(source), next(source)
    with pytest.raises(DataError, match="item 2 of the reader: .*OSError: disk on fire") as caught:
        next(source)
    assert isinstance(caught.value.__cause__, OSError)


def test_an_iterable_that_cannot_start():
    class Broken:
        def __iter__(self):
            raise RuntimeError("no workers")

    with pytest.raises(DataError, match="item 0 of the iterable: .*RuntimeError: no workers"):
        list(open_source(Broken(), X))


def test_an_error_of_ours_is_not_wrapped():
    def failing():
        yield row(0)
        raise DataError("my own words")

    with pytest.raises(DataError, match=r"^my own words$"):
        list(open_source(failing(), X))


def test_an_interrupt_passes_through():
    def interrupted():
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        list(open_source(interrupted(), X))


def test_a_reader_may_reuse_its_buffer():
    buffer = row(0)

    def reusing():
        for value in range(3):
            buffer[:] = value
            yield buffer

    # All are taken before the first is loaded, as threads may do.
    assert [float(one.load().feeds["x"][0, 0]) for one in list(open_source(reusing(), X))] == [0, 1, 2]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["a.jpg"], "item 0 of the iterable: expected an array, or a dict {input name: array}, found str"),
        ([[1.0, 2.0]], "item 0 of the iterable: expected an array.* found float"),
        ([[]], "found list"),
        ([None], "found NoneType"),
        ([{"y": row(0)}], "item 0 of the iterable: the model has no input 'y'"),
        ([{}], "item 0 of the iterable: there is no data for input 'x'"),
        ([{"x": [[1.0, 2.0], [3.0]]}], "item 0 of the iterable: input 'x': expected an array, found ragged data"),
        ([row(0), row(0).astype(int)], r"item 1 of the iterable: input 'x' expects float32, found int64"),
        ([row(0), row(np.nan)], "item 1 of the iterable: input 'x' expects finite numbers"),
        ([np.array([[1], [2, 3]], object)], "found Python objects"),
        ([np.zeros((1, 3), np.float32)], r"expects shape \[\?, 2\], found \[1, 3\]: axis 1 must be 2, not 3"),
        ([np.zeros((0, 2), np.float32)], "an empty batch"),
    ],
)
def test_bad_items(items, message):
    with pytest.raises(DataError, match=message):
        for pending in open_source(items, X):
            pending.load()


def test_items_of_several_inputs_are_dicts():
    source = open_source([{"b": np.zeros(1, np.float32), "a": row(5)}], AB)
    assert list(next(iter(source)).load().feeds) == ["a", "b"]
    for item in (row(0), (row(0), row(1))):
        with pytest.raises(DataError, match="item 0 of the iterable: "):
            list(open_source([item], AB))


def test_a_batch_cannot_be_asked_of_a_stream():
    with pytest.raises(UsageError, match="--batch 4"):
        open_source([row(0)], X, batch=4)
    assert first_numbers(open_source([row(0)], X, batch=1)) == [0]


@pytest.mark.parametrize("data", [3, b"abc", object()])
def test_what_is_no_data_at_all(data):
    with pytest.raises(UsageError, match=f"found {type(data).__name__}"):
        open_source(data, X)


def test_describe():
    assert open_source([row(0)] * 3, X).describe == "3 items from the iterable"
    assert open_source(iter([row(0)]), X).describe == "all items from the iterable"
    assert open_source(Reader(3), X, limit=2, hold_out=1).describe == "up to 2 samples from the reader, 1 held out"
    assert open_source(Reader(3), X, limit=2, hold_out="beyond").describe == (
        "up to 2 samples from the reader, then up to 16 held out"
    )
    assert open_source(Reader(3), X, hold_out=4).describe == "all items from the reader, every 8th held out up to 4"


def test_a_limit_counts_samples_and_not_batches():
    batches = [np.stack([np.full((2, 2), 3 * i + j, np.float32) for j in range(3)]) for i in range(6)]
    inputs = (InputSpec("x", np.dtype(np.float32), (None, 2, 2)),)
    taken = [
        (pending.size, pending.held_out, pending.load().feeds["x"].shape[0])
        for pending in open_source(iter(batches), inputs, limit=7, hold_out=4)
    ]
    assert taken == [(3, False, 3), (3, True, 3), (1, False, 1)]


def test_a_stream_that_seems_to_have_no_end_is_mentioned(monkeypatch):
    monkeypatch.setattr("detent.observe.streams.SUSPICIOUS", 5)
    items = [np.zeros((1, *X[0].shape[1:]), np.float32)] * 7
    with pytest.warns(UserWarning, match="has given 5 items"):
        assert len(list(open_source(iter(items), X))) == 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(open_source(iter(items), X, limit=7))) == 7
        assert len(list(open_source(items, X))) == 7


class DataLoader(list):
    """Batches of 4 of 11 samples, with what PyTorch's loader says about itself."""

    dataset = sampler = range(11)
    batch_size, drop_last = 4, False

    def collate_fn(self, items):
        raise AssertionError("calibration iterates")


def test_a_loader_is_described_by_its_samples():
    loader = DataLoader([row(0)] * 3)
    assert open_source(loader, X).describe == "11 samples from the DataLoader"
    loader.drop_last = True
    assert open_source(loader, X).describe == "8 samples from the DataLoader"
    loader.batch_size = None
    assert open_source(loader, X).describe == "3 items from the DataLoader"
