from __future__ import annotations

import numpy as np
import pytest

from detent.compat.option_rows import ScriptNote
from detent.compat.readers import CachedDataReader, CalibrationDataReader, PathDataReader, RandomDataReader
from detent.errors import DataError, UsageError
from tests.conftest import tiny_model
from tests.models import build, info, node


class Counting(CalibrationDataReader):
    def __init__(self, count):
        self.left = count

    def get_next(self):
        self.left -= 1
        return {"x": np.full((1,), self.left)} if self.left >= 0 else None


def test_a_reader_is_an_iterator_of_its_samples():
    assert [int(feeds["x"][0]) for feeds in Counting(3)] == [2, 1, 0]


def test_anything_with_get_next_is_a_reader():
    class Stranger:
        def get_next(self):
            return None

    assert isinstance(Stranger(), CalibrationDataReader)
    assert not isinstance(object(), CalibrationDataReader)
    with pytest.raises(TypeError):
        CalibrationDataReader()


def test_cached_data_can_be_read_again():
    reader = CachedDataReader(Counting(5), data_size=3)
    assert len(reader) == 3
    first = [int(feeds["x"][0]) for feeds in reader]
    assert first == [4, 3, 2]
    assert reader.get_next() is None
    reader.rewind()
    assert [int(feeds["x"][0]) for feeds in reader] == first


def test_random_data_fits_the_model_and_repeats():
    reader = RandomDataReader(tiny_model())
    samples = [feeds["x"] for feeds in reader]
    assert {sample.shape for sample in samples} == {(1, 3, 8, 8)}
    assert samples[0].dtype == np.float32
    assert min(sample.min() for sample in samples) >= 0
    assert max(sample.max() for sample in samples) <= 1
    assert not np.array_equal(samples[0], samples[1])
    reader.reset_iter()
    np.testing.assert_array_equal(reader.get_next()["x"], samples[0])


@pytest.mark.parametrize("ranges", [{"x": [-3, 5]}, [[-3, 5]], [-3, 5]])
def test_random_data_keeps_to_ranges(ranges):
    samples = np.concatenate([feeds["x"] for feeds in RandomDataReader(tiny_model(), input_data_range=ranges)])
    assert -3 <= samples.min() < -2.5
    assert 4.5 < samples.max() <= 5


def _open(height="H"):
    return build([node("Relu", "x", "y")], [info("y", None)], inputs=[info("x", [None, 3, None, None])])


@pytest.mark.parametrize("shape", [{"x": [2, 3, 5, 7]}, [[2, 3, 5, 7]], [2, 3, 5, 7]])
def test_random_data_fills_dynamic_dimensions(shape):
    assert RandomDataReader(_open(), shape).get_next()["x"].shape == (2, 3, 5, 7)


def test_dimensions_that_nobody_gives_are_guessed():
    assert RandomDataReader(_open()).get_next()["x"].shape == (1, 3, 32, 32)
    text = build([node("Relu", "x", "y")], [info("y", None)], inputs=[info("x", [None, None])])
    assert RandomDataReader(text).get_next()["x"].shape == (1, 16)


def test_random_data_complains_by_name():
    with pytest.warns(ScriptNote, match="input 'z', which the model lacks"):
        RandomDataReader(_open(), {"z": [1]})
    with pytest.raises(UsageError, match="given for 2 inputs"):
        RandomDataReader(_open(), [[1, 2], [3, 4]])
    with pytest.raises(UsageError, match=r"input_shape \[1, 3\]"):
        RandomDataReader(_open(), {"x": [1, 3]})
    with pytest.raises(UsageError, match="it fills what is dynamic"):
        RandomDataReader(_open(), {"x": [1, 4, 5, 7]})


def test_whole_numbers_for_integer_inputs():
    import onnx

    model = build(
        [node("Cast", "x", "y", to=onnx.TensorProto.FLOAT)], "y", inputs=[info("x", [2], onnx.TensorProto.INT64)]
    )
    samples = np.concatenate([feeds["x"] for feeds in RandomDataReader(model, input_data_range=[0, 9])])
    assert samples.dtype == np.int64
    assert samples.max() > 3


def test_files_of_a_folder(tmp_path, samples):
    for index, sample in enumerate(samples):
        np.save(tmp_path / f"{index:02}.npy", sample)
    reader = PathDataReader(tiny_model(), tmp_path)
    found = [feeds["x"] for feeds in reader]
    np.testing.assert_array_equal(np.concatenate(found), samples)
    with pytest.raises(DataError):
        PathDataReader(tiny_model(), tmp_path / "nothing")
    with pytest.raises(UsageError, match="input_shape"):
        PathDataReader(tiny_model(), tmp_path, [1, 3, 8, 8])
