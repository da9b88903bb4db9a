from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image

from detent.comparison.folders import save_outputs
from detent.errors import DataError, ModelError, OutputError
from tests.models import build, info, node

PAIR = build(
    [node("Relu", "x", "a/b:0"), node("Neg", "x", "c")],
    [info("a/b:0", ["N", 2]), info("c", ["N", 2])],
    {},
    [info("x", ["N", 2])],
)
SINGLE = build([node("Neg", "x", "y")], "y", {}, [info("x", ["N", 2])])
MEAN = build([node("GlobalAveragePool", "x", "y")], "y", {}, [info("x", ["N", 3, 4, 4])])


@pytest.fixture
def rows(tmp_path):
    data = tmp_path / "data"
    (data / "more").mkdir(parents=True)
    np.save(data / "many.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    np.save(data / "more" / "one.npy", np.array([[7, 8]], np.float32))
    return data


@pytest.mark.parametrize("batch", [1, 2])
def test_one_output(rows, tmp_path, batch):
    written = save_outputs(SINGLE, rows, tmp_path / "out", batch=batch)
    names = [file.relative_to(tmp_path / "out").as_posix() for file in written]
    assert names == ["many_0.npy", "many_1.npy", "many_2.npy", "more/one.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "out/many_1.npy"), [[-2, -3]])
    np.testing.assert_array_equal(np.load(tmp_path / "out/more/one.npy"), [[-7, -8]])


def test_several_outputs(rows, tmp_path):
    save_outputs(PAIR, rows / "more", tmp_path / "new" / "out")
    np.testing.assert_array_equal(np.load(tmp_path / "new/out/one/a_b_0.npy"), [[7, 8]])
    np.testing.assert_array_equal(np.load(tmp_path / "new/out/one/c.npy"), [[-7, -8]])


def test_a_sequence_is_refused_before_anything_is_written(rows, tmp_path):
    parts = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None)
    model = build([node("SplitToSequence", "x", "parts", axis=1)], [parts], {}, [info("x", ["N", 2])])
    with pytest.raises(ModelError, match=r"Output 'parts' .* is a sequence, and a \.npy file holds one array"):
        save_outputs(model, rows, tmp_path / "to" / "out")
    assert not (tmp_path / "to").exists()


def test_two_samples_of_one_name(tmp_path):
    (tmp_path / "d").mkdir()
    for name in ("a.png", "a.bmp"):
        Image.new("RGB", (4, 4)).save(tmp_path / "d" / name)
    with pytest.raises(DataError, match="outputs of a.bmp and a.png would both be called a.npy"):
        save_outputs(MEAN, tmp_path / "d", tmp_path / "out")


def test_results_of_two_runs_are_not_mixed(rows, tmp_path):
    save_outputs(SINGLE, rows, tmp_path / "out")
    with pytest.raises(OutputError, match="exists and is not an empty folder"):
        save_outputs(SINGLE, rows, tmp_path / "out")
    with pytest.raises(OutputError, match="Cannot write .*many_0.npy/x"):
        save_outputs(SINGLE, rows, tmp_path / "out" / "many_0.npy" / "x")


def test_an_empty_folder_is_filled_and_nothing_else_is_left(rows, tmp_path):
    (tmp_path / "to" / "out").mkdir(parents=True)
    save_outputs(SINGLE, rows, tmp_path / "to" / "out")
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["out"]


def test_all_or_nothing(rows, tmp_path):
    np.save(rows / "zzz.npy", np.full((1, 2), np.nan, np.float32))
    with pytest.raises(DataError, match="zzz.npy: input 'x' expects finite numbers"):
        save_outputs(SINGLE, rows, tmp_path / "to" / "out")
    assert list((tmp_path / "to").iterdir()) == []
