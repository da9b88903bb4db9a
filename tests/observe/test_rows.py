"""The rows of files and arrays, and what is refused in .npy and .npz."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detent.errors import DataError, UsageError
from detent.observe.folder import find_files
from detent.observe.preprocess import InputSpec, Preprocess
from detent.observe.rows import (
    Part,
    PartRows,
    array_rows,
    count_rows,
    image_rows,
    npy_rows,
    npz_rows,
    npz_shapes,
    open_npy,
    random_rows,
)


def spec(*shape, dtype=np.float32, name="x"):
    return InputSpec(name, np.dtype(dtype), shape)


X = [spec(None, 2)]
AB = [spec(None, 2, name="a"), spec(None, name="b")]


def save(path, *shape, start=0, dtype=np.float32):
    path.parent.mkdir(parents=True, exist_ok=True)
    array = (np.arange(np.prod(shape), dtype=np.int64) + start).reshape(shape).astype(dtype)
    np.save(path, array)
    return array


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_an_empty_file_is_said_to_be_empty(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=rf"{name}: .*the file is empty"):
        open_npy(tmp_path / name) if name.endswith("y") else npz_shapes(tmp_path / name)


def test_an_npy_file_is_read_row_by_row(tmp_path, monkeypatch):
    array = save(tmp_path / "calib.npy", 5, 2)
    # Read through the memory map only: a plain read of the file would go through fromfile.
    monkeypatch.setattr(np, "fromfile", None)
    rows = npy_rows(find_files(tmp_path / "calib.npy"), X)
    assert len(rows) == 5
    assert rows.origin(3) == "calib.npy[3]"
    row = rows.read(3)["x"]
    assert not isinstance(row, np.memmap) and row.base is None
    np.testing.assert_array_equal(row, array[3])


def test_a_huge_npy_file_costs_nothing_to_open(tmp_path):
    path = tmp_path / "huge.npy"
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(1 << 20, 1 << 10))  # 4 GiB, sparse
    rows = npy_rows(find_files(path), [spec(None, 1 << 10)])
    assert len(rows) == 1 << 20
    assert rows.read((1 << 20) - 1)["x"].shape == (1 << 10,)


def test_no_file_handles_stay_open(tmp_path):
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    (tmp_path / "z").mkdir()
    for at in range(20):
        save(tmp_path / f"{at:02}.npy", 3, 2)
        np.savez(tmp_path / f"z/{at:02}.npz", x=np.zeros((3, 2), np.float32))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    npz = npz_rows(find_files(tmp_path / "z"), X)
    npy = [npy_rows(find_files(tmp_path / f"{at:02}.npy"), X) for at in range(20)]
    kept = [rows.read(0) for rows in npy] + [npz.read(row) for row in range(len(npz))]
    assert len(kept) == 20 + 60
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208


def test_a_folder_of_npy_with_samples_and_batches(tmp_path):
    save(tmp_path / "a.npy", 2)
    save(tmp_path / "b.npy", 3, 2, start=10)
    save(tmp_path / "c.npy", 1, 2, start=20)
    rows = npy_rows(find_files(tmp_path), X)
    assert [rows.origin(row) for row in range(len(rows))] == ["a.npy", "b.npy[0]", "b.npy[1]", "b.npy[2]", "c.npy"]
    assert [rows.read(row)["x"].tolist() for row in (0, 2, 4)] == [[0, 1], [12, 13], [20, 21]]


def test_one_sub_folder_per_input(tmp_path):
    for at in range(3):
        save(tmp_path / f"a/{at}.npy", 2, start=at)
        save(tmp_path / f"b/{at}.npy", start=100 + at)
    rows = npy_rows(find_files(tmp_path), AB)
    assert [rows.origin(row) for row in range(len(rows))] == ["0.npy", "1.npy", "2.npy"]
    feeds = rows.read(2)
    assert feeds["a"].tolist() == [2, 3] and feeds["b"] == 102


def test_input_names_with_slashes(tmp_path):
    save(tmp_path / "in/a/0.npy", 2)
    save(tmp_path / "in/0.npy", 2, start=5)
    rows = npy_rows(find_files(tmp_path), [spec(None, 2, name="in"), spec(None, 2, name="in/a")])
    assert {name: feed.tolist() for name, feed in rows.read(0).items()} == {"in": [5, 6], "in/a": [0, 1]}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a/0.npy", "b/0.npy", "a/1.npy"], r"a/1\.npy has no counterpart for input 'b'\. Expected b/1\.npy"),
        (["a/0.npy", "bb/0.npy"], r"bb/0\.npy belongs to no input\. Did you mean 'b'\?.*a/, b/"),
        (["0.npy", "1.npy"], r"0\.npy belongs to no input.*one sub-folder"),
        (["0.npy"], r"2 inputs \('a', 'b'\): 0\.npy cannot feed it\. Give a \.npz"),
    ],
)
def test_bad_sub_folders(tmp_path, names, message):
    for name in names:
        save(tmp_path / name, 2)
    with pytest.raises(DataError, match=message):
        npy_rows(find_files(tmp_path), AB)


class Trap:
    """Unpickling this would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_pickles_are_never_loaded(tmp_path):
    sprung = tmp_path / "sprung"
    data = np.array([Trap(sprung)], object)
    np.save(tmp_path / "a.npy", data, allow_pickle=True)
    np.savez(tmp_path / "a.npz", x=data)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Trap(sprung)))
    for name, message in (("a.npy", "holds Python objects"), ("a.npz", "holds Python objects"), ("b.npy", "magic")):
        with pytest.raises(DataError, match=rf"{name[0]}\.{name[2:]}: this .* cannot be read \(.*{message}"):
            (npz_rows if name.endswith("z") else npy_rows)(find_files(tmp_path / name), X)
    assert not sprung.exists()


@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_damaged_files_name_themselves(tmp_path, ending):
    good = tmp_path / f"good.{ending}"
    data = np.random.default_rng(0).random((50, 2)).astype(np.float32)
    np.save(good, data) if ending == "npy" else np.savez(good, x=data)
    raw = good.read_bytes()
    bad = tmp_path / f"bad.{ending}"
    for content in (b"", raw[:7], raw[:100], raw[: len(raw) // 2], b"\0" * 200):
        bad.write_bytes(content)
        with pytest.raises(DataError, match=rf"bad\.{ending}: this \.{ending} file cannot be read \(."):
            (npy_rows if ending == "npy" else npz_rows)(find_files(bad), X)


def test_npz(tmp_path):
    np.savez_compressed(tmp_path / "0.npz", a=np.ones((3, 2), np.float32), b=np.arange(3, dtype=np.float32))
    np.savez(tmp_path / "1.npz", a=np.ones(2, np.float32), b=np.float32(7))
    rows = npz_rows(find_files(tmp_path), AB)
    assert [rows.origin(row) for row in range(len(rows))] == ["0.npz[0]", "0.npz[1]", "0.npz[2]", "1.npz"]
    assert rows.read(2)["b"] == 2 and rows.read(3)["b"] == 7


def test_an_npz_file_is_not_decompressed_for_every_row(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "0.npz", x=np.ones((30, 2), np.float32))
    loads = []
    original = np.load
    monkeypatch.setattr(np, "load", lambda *args, **named: loads.append(named) or original(*args, **named))
    rows = npz_rows(find_files(tmp_path), X)
    assert loads == []
    for row in range(30):
        rows.read(row)
    assert loads == [{"allow_pickle": False}]


def test_npz_names(tmp_path):
    np.savez(tmp_path / "0.npz", a=np.ones(2, np.float32), c=np.float32(7))
    with pytest.raises(DataError, match=r"0\.npz: the model has no input 'c'"):
        npz_rows(find_files(tmp_path), AB)
    np.savez(tmp_path / "0.npz", a=np.ones(2, np.float32))
    with pytest.raises(DataError, match=r"0\.npz: there is no data for input 'b'"):
        npz_rows(find_files(tmp_path), AB)


@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_an_empty_batch_in_a_file(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    data = np.zeros((0, 2), np.float32)
    np.save(path, data) if ending == "npy" else np.savez(path, x=data)
    with pytest.raises(DataError, match=rf"a\.{ending}: .*found an empty batch"):
        (npy_rows if ending == "npy" else npz_rows)(find_files(path), X)


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
        (np.zeros((2, 3), int), "the array: input 'x' expects float32, found int64"),
        (np.zeros((2, 3, 3), np.float32), "the array: input 'x' expects shape"),
        ({"y": np.zeros((2, 3), np.float32)}, "the dict: the model has no input 'y'"),
        ({}, r"the dict: there is no data for input 'x'\. Expected 'x', found none\.$"),
        ({"x": [[1, 2, 3], [4]]}, "the dict: input 'x': expected an array, found ragged data"),
        (np.array([[1], [2, 3]], object), "found Python objects"),
    ],
)
def test_bad_arrays_are_refused_when_opened(data, message):
    with pytest.raises(DataError, match=message):
        array_rows(data, [spec(None, 3)])


def test_one_array_cannot_feed_two_inputs():
    with pytest.raises(DataError, match=r"2 inputs \('a', 'b'\)"):
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
    with pytest.raises(UsageError, match="too large"):
        random_rows([spec(1, (1 << 28) + 1)], 0)


def test_pixels_of_the_first_images_are_kept_and_not_sent(tmp_path, monkeypatch):
    """Room for one image of 8x8 in RGB: the first is read once, the second every time; both are what they were."""
    for name, shade in (("a.png", 10), ("b.png", 200)):
        Image.new("RGB", (8, 8), (shade, 0, 255)).save(tmp_path / name)
    monkeypatch.setattr("detent.observe.rows.KEPT_BYTES", 8 * 8 * 3)
    read, original = [], Preprocess.pixels
    monkeypatch.setattr(Preprocess, "pixels", lambda self, path: read.append(path.name) or original(self, path))
    rows = image_rows(find_files(tmp_path), [spec(None, 3, 8, 8)], Preprocess(size=(8, 8), mean=(0.0,), std=(1.0,)))
    first = [rows.read(row)["x"] for row in (0, 1)]
    for expected, row in zip(first, (0, 1), strict=True):
        np.testing.assert_array_equal(rows.read(row)["x"], expected)
    assert read == ["a.png", "b.png", "b.png"]
    assert not pickle.loads(pickle.dumps(rows)).kept


def archive_of(path, header, payload, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(payload >> 20):
            member.write(bytes(1 << 20))


def test_an_archive_that_unpacks_to_many_times_its_size_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("detent.observe.rows.LARGE_ARCHIVE", 1 << 20)
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 20,)}
    archive_of(tmp_path / "bomb.npz", header, 4 << 20)
    with pytest.raises(DataError, match="bomb.npz"):
        npz_shapes(tmp_path / "bomb.npz")


def test_headers_that_declare_more_than_there_is(tmp_path):
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
    archive_of(tmp_path / "x.npz", header, 1 << 20)
    with pytest.raises(DataError, match="x.npz"):
        npz_shapes(tmp_path / "x.npz")
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(DataError, match="x.npy"):
        open_npy(tmp_path / "x.npy")


@pytest.mark.parametrize("text", [b"{" * 40, b"{'descr': '''", b"(" * 90 + b"\n"])
def test_headers_that_are_no_python(tmp_path, text):
    text = text.ljust(118) + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(DataError, match="x.npy"):
        open_npy(tmp_path / "x.npy")


def test_arrays_that_the_model_does_not_take_are_not_read_and_named(tmp_path):
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    texts = np.array([{"an": "object"}], dtype=object)
    np.savez(tmp_path / "tokens.npz", x=x, token_type_ids=np.zeros((1, 9), np.int64), texts=texts)
    rows = npz_rows(find_files(tmp_path / "tokens.npz"), [spec(None, 2)])
    assert len(rows) == 3 and "'token_type_ids', 'texts'" in rows.place
    assert rows.read(2).keys() == {"x"}
    np.testing.assert_array_equal(rows.read(2)["x"], x[2])
    rows = array_rows({"x": x, "more": "no array"}, [spec(None, 2)])
    assert "'more'" in rows.place and rows.read(0).keys() == {"x"}
