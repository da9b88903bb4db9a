from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from detent.comparison.folders import WINDOW, compare_folders, cosine, difference, psnr, ssim
from detent.errors import DataError
from detent.report.documents import text_of
from detent.results.compared import Worst


def test_by_hand():
    # x = (3, 4), y = (4, 3): products 24, norms 5 and 5, differences 1 and 1; the peak is 4.
    found = difference("a", [3.0, 4.0], [4.0, 3.0])
    assert found.cosine == pytest.approx(24 / 25)
    assert found.l1 == 1.0
    assert found.l2 == 1.0
    assert found.psnr_db == pytest.approx(10 * math.log10(16))
    assert found.ssim is None  # no image


def test_ssim_of_one_window_by_hand():
    # 24 times 3 and 25 times 4 against the same moved by one: means m and m + 1, equal variances and covariance v.
    x = np.array([3.0] * 24 + [4.0] * 25).reshape(7, 7)
    mean, v = x.mean(), x.var()
    c1, c2 = 0.04**2, 0.12**2
    expected = (2 * mean * (mean + 1) + c1) * (2 * v + c2) / ((mean**2 + (mean + 1) ** 2 + c1) * (2 * v + c2))
    assert difference("a", x, x + 1).ssim == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shape", "is_image"),
    [
        ((7, 7), True),
        ((6, 9), False),
        ((1000,), False),
        ((1, 1000), False),
        ((3, 8, 8), True),
        ((8, 8, 3), True),
        ((2, 4, 8, 8), True),
        ((1, 9, 8, 3), True),
        ((16, 8, 8), False),
        ((1, 3, 8, 6), False),
    ],
)
def test_only_images_have_a_structure(shape, is_image):
    x = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    found = difference("x", x, x).ssim
    assert (found == pytest.approx(1.0)) if is_image else found is None


def test_psnr_of_an_image_is_against_255():
    assert psnr(1.0, 255.0) == pytest.approx(48.1308036)
    assert psnr(0.0, 255.0) == math.inf
    assert psnr(1.0, 0.0) == -math.inf


def test_cosine_of_zeros():
    zero, one = np.zeros(3), np.ones(3)
    assert cosine(zero, zero) == 1.0
    assert cosine(zero, one) == 0.0
    assert cosine(one, -one) == pytest.approx(-1.0)


def _plain_ssim(x, y, peak):
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    values = []
    for top in range(x.shape[0] - WINDOW + 1):
        for left in range(x.shape[1] - WINDOW + 1):
            a, b = (each[top : top + WINDOW, left : left + WINDOW] for each in (x, y))
            spread = a.var() + b.var()
            joint = ((a - a.mean()) * (b - b.mean())).mean()
            above = (2 * a.mean() * b.mean() + c1) * (2 * joint + c2)
            values.append(above / ((a.mean() ** 2 + b.mean() ** 2 + c1) * (spread + c2)))
    return np.mean(values)


@given(st.integers(0, 1000), st.integers(WINDOW, 12), st.integers(WINDOW, 12))
def test_ssim_is_that_of_every_window(seed, height, width):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 255, (height, width))
    y = x + rng.normal(0, 20, x.shape)
    assert ssim(x, y, 255.0) == pytest.approx(_plain_ssim(x, y, 255.0), rel=1e-9)


@given(arrays.arrays(np.float64, arrays.array_shapes(max_dims=3), elements=st.floats(-1e3, 1e3)))
def test_equal_arrays_are_equal(x):
    found = difference("x", x, x)
    assert (found.l1, found.l2, found.psnr_db) == (0.0, 0.0, math.inf)
    assert found.cosine == pytest.approx(1.0)
    assert found.ssim is None or found.ssim == pytest.approx(1.0)


@pytest.fixture
def folders(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    return tmp_path / "a", tmp_path / "b"


def test_folders_of_arrays_and_images(folders):
    one, other = folders
    np.save(one / "0.npy", np.array([1.0, 2.0]))
    np.save(other / "0.npy", np.array([1.0, 1.0]))
    picture = np.full((8, 8, 3), 100, np.uint8)
    for folder, pixels in ((one, picture), (other, picture + 10)):
        Image.fromarray(pixels).save(folder / "1.png")
        (folder / "notes.txt").write_text("not a result")
    found = compare_folders(one, other)
    assert [file.name for file in found.files] == ["0.npy", "1.png"]
    assert found.files[1].l2 == 100.0
    assert found.files[1].psnr_db == pytest.approx(20 * math.log10(255) - 20)
    assert found.mean("l2") == pytest.approx((0.5 + 100) / 2)
    assert found.worst("l2") == Worst(100.0, "1.png")  # of a distance the largest
    assert found.worst("cosine").file == "0.npy"
    assert found.to_dict()["cosine"]["worst"] == pytest.approx(3 / math.sqrt(10))
    assert found.to_dict()["l1"]["file"] == "1.png"
    assert found.mean("ssim") == found.files[1].ssim  # the array has none
    lines = text_of(found).splitlines()
    assert lines[0] == f"2 files compared: {other} against {one}."
    assert next(line for line in lines if line.startswith("L2")).split()[-2:] == ["100", "1.png"]


def test_a_measure_that_no_file_has_is_left_out(folders):
    for folder in folders:
        np.save(folder / "0.npy", np.arange(1000.0))
    found = compare_folders(*folders)
    assert "SSIM" not in text_of(found)
    assert found.to_dict()["ssim"] is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_with_their_file(folders, bad):
    one, other = folders
    np.save(one / "0.npy", np.zeros(3))
    np.save(other / "0.npy", np.array([0.0, bad, bad]))
    with pytest.raises(DataError, match=r"b/0\.npy: 2 of 3 values are NaN or infinite"):
        compare_folders(one, other)


def test_missing_and_mismatched_files_are_named(folders):
    one, other = folders
    with pytest.raises(DataError, match="no results"):
        compare_folders(one, other)
    np.save(one / "0.npy", np.zeros(3))
    np.save(one / "1.npy", np.zeros(3))
    np.save(other / "0.npy", np.zeros(4))
    with pytest.raises(DataError, match=r"b has no 1\.npy"):
        compare_folders(one, other)
    with pytest.raises(DataError, match=r"b has no 1\.npy"):
        compare_folders(other, one)
    np.save(other / "1.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"0\.npy: the baseline has the shape \[3\], the other result \[4\]"):
        compare_folders(one, other)
    with pytest.raises(DataError, match="no folder"):
        compare_folders(one, other / "none")


@pytest.mark.parametrize(("name", "content"), [("0.npy", b"no array"), ("0.png", b"no image"), ("0.jpg", b"")])
def test_unreadable_files_are_named(folders, name, content):
    for folder in folders:
        (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        compare_folders(*folders)


def test_arrays_of_objects_and_empty_ones_are_refused(folders):
    for folder in folders:
        np.save(folder / "0.npy", np.array(["text"]))
    with pytest.raises(DataError, match="0.npy holds"):
        compare_folders(*folders)
    with pytest.raises(DataError, match="empty"):
        difference("x", [], [])
