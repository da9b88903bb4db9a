"""The checks that every sample passes, one by one, and what they say."""

from __future__ import annotations

import re

import numpy as np
import pytest

from detent.errors import DataError
from detent.observe.preprocess import InputSpec
from detent.observe.samples import PendingSample, Sample, as_array, check_feeds, shares_batch


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
