from __future__ import annotations

import numpy as np
import pytest

from detent.errors import DataError
from detent.observe import fingerprints as module
from detent.observe.fingerprints import Digest


def of(*items):
    digest = Digest()
    digest.add(*items)
    return digest.text


def of_array(array):
    digest = Digest()
    digest.add_array(array)
    return digest.text


def of_file(path):
    digest = Digest()
    digest.add_file(path)
    return digest.text


def test_items_do_not_run_together():
    sequences = [
        (12,),
        (1, 2),
        ("ab",),
        ("a", "b"),
        ("", "ab"),
        ("ab", ""),
        ("a'b",),
        (1,),
        ("1",),
        (1.0,),
        (None,),
        ("None",),
        (),
    ]
    assert len({of(*sequence) for sequence in sequences}) == len(sequences)


def test_any_text_is_taken():
    assert of("\ud800") != of("\udfff") != of("é\0\n")


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8", "float16"])
def test_arrays_differ_by_type_shape_and_contents(dtype):
    array = np.arange(12).astype(dtype).reshape(3, 4)
    other = array.copy()
    other[2, 3] = 0
    assert of_array(array) == of_array(array.copy()) == of_array(np.asfortranarray(array))
    assert len({of_array(each) for each in (array, other, array.reshape(4, 3), array.astype("float64"))}) == 4


def test_arrays_of_no_axes_no_elements_and_of_texts():
    texts = np.array(["a", "b"], dtype=object)
    arrays = [np.float32(1), np.float32([1]), np.zeros((0, 3), np.float32), np.zeros((3, 0), np.float32), texts]
    assert len({of_array(np.asarray(array)) for array in arrays}) == 5


def test_the_name_of_a_file_does_not_count_and_its_contents_do(tmp_path):
    for name, contents in (("a", b"12"), ("b", b"12"), ("c", b"13"), ("d", b"")):
        (tmp_path / name).write_bytes(contents)
    assert of_file(tmp_path / "a") == of_file(tmp_path / "b")
    assert len({of_file(tmp_path / name) for name in "acd"}) == 3


def test_a_large_file_is_sampled_and_no_long_change_escapes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WHOLE_FILE_LIMIT", 1000)
    monkeypatch.setattr(module, "PAGE", 16)
    monkeypatch.setattr(module, "PAGE_STRIDE", 64)
    path = tmp_path / "large"
    contents = bytes(1001)
    path.write_bytes(contents)
    before = of_file(path)
    for start in (*range(0, 130, 5), 500, 1001 - 64):
        path.write_bytes(contents[:start] + b"\1" * 64 + contents[start + 64 :])
        assert of_file(path) != before
    path.write_bytes(contents[:-1] + b"\1")
    assert of_file(path) != before
    path.write_bytes(contents + b"\0")
    assert of_file(path) != before
    path.write_bytes(contents[:20] + b"\1" + contents[21:])  # between two pages: the price of being quick
    assert of_file(path) == before


def test_a_file_that_is_gone_is_named(tmp_path):
    with pytest.raises(DataError, match="gone.png: this file cannot be read"):
        of_file(tmp_path / "gone.png")
