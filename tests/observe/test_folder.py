"""Finding the data in a folder."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from detent.errors import DataError
from detent.observe.folder import find_files, without_broken


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_in_the_place_of_the_data_is_named_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(DataError, match=r"x\.npy is a pipe or a device"):
        find_files(tmp_path / "x.npy")


def test_images_are_found_everywhere_and_sorted(tmp_path):
    names = ["b.JPG", "a/2.png", "a/1.jpeg", "c/d/e.webp", "z.tif", "z.tiff", "y.bmp", "x.jpg"]
    touch(tmp_path, *names, ".hidden.jpg", ".git/a.jpg", "notes.txt", "labels.csv", "a/Thumbs.db", "jpg")
    found = find_files(tmp_path)
    assert found.kind == "image"
    assert list(found.names) == sorted(names)
    assert found.place == f"from {tmp_path}/ (2 files skipped: .txt, jpg)"


def images_of(folder, count, broken=()):
    """Write small JPEG files, some of them cut short, empty or of text."""
    folder.mkdir(exist_ok=True)
    for at in range(count):
        Image.fromarray(np.full((8, 8, 3), at, np.uint8)).save(folder / f"{at:03}.jpg")
    for at, kind in broken:
        whole = (folder / f"{at:03}.jpg").read_bytes()
        (folder / f"{at:03}.jpg").write_bytes({"cut": whole[:-200], "empty": b"", "text": b"<html>"}[kind])
    return find_files(folder)


def test_a_few_images_that_cannot_be_read_are_passed_over_and_named(tmp_path):
    found = images_of(tmp_path / "calib", 12, [(3, "cut"), (7, "empty"), (9, "text")])
    kept = without_broken(found)
    assert len(kept.names) == 9 and not {"003.jpg", "007.jpg", "009.jpg"} & set(kept.names)
    assert kept.place.endswith("/ (3 images skipped that cannot be read: 003.jpg, 007.jpg, 009.jpg)")
    with pytest.raises(DataError, match=r"3 of 12 images .*003\.jpg, 007\.jpg, 009\.jpg"):
        without_broken(found, strict=True)
    assert without_broken(kept) is kept


def test_only_images_that_are_chosen_are_looked_at(tmp_path):
    found = images_of(tmp_path / "calib", 40, [(at, "empty") for at in (0, 3, 7, 12, 22)])
    kept = without_broken(found, lambda total: [position * total // 8 for position in range(8)])
    assert len(kept.names) == 39  # 0, 5, 10, ... are chosen, and 1 in the place of 0
    assert kept.place.endswith("(1 image skipped that cannot be read: 000.jpg)")


@pytest.mark.parametrize(("count", "broken"), [(1, 1), (4, 2), (12, 4), (80, 5)])
def test_many_images_that_cannot_be_read_are_an_error(tmp_path, count, broken):
    found = images_of(tmp_path / "calib", count, [(at, "empty") for at in range(broken)])
    with pytest.raises(DataError, match=rf"{broken} of {count} images .*000\.jpg.*the file is empty"):
        without_broken(found)


def test_an_image_without_its_end_is_read_if_it_can_be(tmp_path):
    found = images_of(tmp_path / "calib", 4)
    whole = (tmp_path / "calib/000.jpg").read_bytes()
    (tmp_path / "calib/000.jpg").write_bytes(whole + b"more than the image")
    assert without_broken(found) is found


def test_a_single_file(tmp_path):
    touch(tmp_path, "cat.jpg", "notes.txt")
    assert find_files(tmp_path / "cat.jpg").names == ("cat.jpg",)
    with pytest.raises(DataError, match=r"notes\.txt: .*\.jpg, .*\.npz"):
        find_files(tmp_path / "notes.txt")
    with pytest.raises(DataError, match="nowhere: there is no such file or folder"):
        find_files(tmp_path / "nowhere")


def test_a_folder_without_data_names_the_endings(tmp_path):
    touch(tmp_path, "notes.txt", ".a.jpg")
    with pytest.raises(
        DataError, match=r"there is no data in this folder.*\.jpg, \.jpeg, \.png.*\.npy, \.npz"
    ) as caught:
        find_files(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_images_of_kinds_that_are_not_read_are_named(tmp_path):
    touch(tmp_path, "a.HEIC", "b.avif", "labels.csv")
    said = r"no data in this folder \(2 files skipped: \.avif, \.heic\)\. Images in \.avif and \.heic .*to JPEG"
    with pytest.raises(DataError, match=said):
        find_files(tmp_path)
    with pytest.raises(DataError, match=r"a\.HEIC: this is not a data file\. Images in \.heic .*to JPEG"):
        find_files(tmp_path / "a.HEIC")


def test_mixed_kinds_name_both(tmp_path):
    touch(tmp_path, "a.jpg", "b/c.npy")
    with pytest.raises(DataError, match=r"a\.jpg.*b/c\.npy"):
        find_files(tmp_path)


def test_linked_folders_are_followed_but_not_in_circles(tmp_path):
    touch(tmp_path, "real/a.jpg", "data/b.jpg")
    try:
        (tmp_path / "data/link").symlink_to(tmp_path / "real", target_is_directory=True)
        (tmp_path / "data/circle").symlink_to(tmp_path / "data", target_is_directory=True)
    except OSError:
        pytest.skip("no symbolic links here")
    assert find_files(tmp_path / "data").names == ("b.jpg", "link/a.jpg")


def test_what_is_skipped_in_a_folder_is_said_but_not_labels_and_settings(tmp_path):
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.zeros(3, np.float32))
    for name in ("labels.txt", "labels.csv", "preprocess.json", "classes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").touch()
    assert find_files(tmp_path).place == f"from {tmp_path}/"
    for name in ("photo.HEIC", "notes.txt", "more.heic"):
        (tmp_path / name).touch()
    assert find_files(tmp_path).place == f"from {tmp_path}/ (3 files skipped: .heic, .txt)"
    assert find_files(tmp_path).names == ("a.npy", "b.npy")
