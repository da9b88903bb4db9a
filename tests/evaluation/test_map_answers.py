"""Maps of classes, masks, key points and images are compared as their users see them."""

from __future__ import annotations

import numpy as np
import pytest

from detent.evaluation.map_answers import OWN_ERROR
from detent.tasks import Task
from tests.evaluation.agreement import agreed


@pytest.mark.parametrize("shape", [(2, 16, 24), (3, 24, 16), (5, 20, 20)])
def test_maps_are_read_whichever_way_their_channels_lie(shape):
    """Non-square maps with channels last, too: else their rows would be taken for classes."""
    first, second = np.random.default_rng(2).standard_normal((2, 1, *shape))
    planes, lasts = (
        agreed(Task.SEGMENT, first, second),
        agreed(Task.SEGMENT, *(each.transpose(0, 2, 3, 1) for each in (first, second))),
    )
    assert planes.figures == pytest.approx(lasts.figures)


def peaks(*places, side=64, height=0.8):
    """Return maps [1, n, side, side] that are 0 but for a blob at each place."""
    rows, columns = np.mgrid[:side, :side]
    blobs = [np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / 8) for y, x in places]
    return height * np.array([blobs])


def test_maps_of_key_points_are_judged_by_their_peaks():
    """Where nothing is, any map may be the highest: pixels and regions say nothing."""
    noise = 0.01 * np.random.default_rng(0).standard_normal((1, 3, 64, 64))
    places = ((10, 10), (30, 40), (50, 20))
    same = agreed(Task.SEGMENT, peaks(*places), peaks(*places, height=0.6) + noise)
    assert same.loss == 0.0 and "3 of 3 peaks of the maps stay in place" in same.summary
    assert same.figures["height_shift"] == pytest.approx(-0.25, abs=0.05)
    moved = agreed(Task.SEGMENT, peaks(*places), peaks((10, 11), (30, 60), (50, 20)))
    assert moved.loss == pytest.approx(1 / 3)
    classes = np.random.default_rng(1).standard_normal((1, 3, 64, 64))
    assert "pixels keep their class" in agreed(Task.SEGMENT, classes, classes).summary


def test_logarithms_of_shares_have_no_peaks():
    """The highest is 0, where one class is certain: no pixel is above a half of that, and most are below a tenth."""
    scores = np.random.default_rng(0).standard_normal((1, 4, 16, 16)) * 4
    logarithms = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    logarithms[:, :, :2] = np.array([0.0, -20.0, -30.0, -40.0])[None, :, None, None]
    found = agreed(Task.SEGMENT, logarithms, logarithms[:, ::-1])
    assert found.loss > 0.3 and found.figures["same_pixels"] == 0.0


def test_pixels_and_regions():
    first = np.zeros((1, 3, 16, 16), np.float32)
    first[:, 0] = 5.0
    first[:, 1, :8] = 9.0
    second = first.copy()
    second[:, 1, 6:8] = 0.0
    found = agreed(Task.SEGMENT, first, second)
    assert found.figures["same_pixels"] == pytest.approx(1 - 2 / 16)
    assert found.figures["overlap"] == pytest.approx((6 / 8 + 8 / 10) / 2)
    assert agreed(Task.SEGMENT, first, first).loss == 0.0
    maps = first.argmax(1)
    assert agreed(Task.SEGMENT, maps, maps).figures["same_pixels"] == 1.0


def test_a_mask_is_judged_by_what_it_marks():
    """A quarter of the object is lost: the background, 31 of 32 of the image, would hide that."""
    first = np.zeros((1, 1, 16, 16), np.float32)
    first[0, 0, :4, :2] = 1.0
    second = first.copy()
    second[0, 0, 3, :2] = 0.0
    assert agreed(Task.SEGMENT, first, second).figures["overlap"] == pytest.approx(3 / 4)
    assert agreed(Task.SEGMENT, second, first).figures["overlap"] == pytest.approx(3 / 4)
    nothing = np.zeros_like(first)
    assert agreed(Task.SEGMENT, nothing, nothing).figures["overlap"] == 1.0
    assert agreed(Task.SEGMENT, nothing, first).figures["overlap"] == 0.0


def test_edges_that_moved_cost_less_than_they_are():
    """Float's own are off the labelled ones; a region that shares 0.95 with float's may be as near to those as that."""
    first = np.zeros((4, 1, 20, 20), np.float32)
    first[:, 0, :10] = 1.0
    second = first.copy()
    second[:, 0, 0, :10] = 0.0
    found = agreed(Task.SEGMENT, first, second)
    assert found.figures["overlap"] == pytest.approx(0.95) and 0.005 < found.loss < 0.01
    assert agreed(Task.SEGMENT, first, 1.0 - first).loss > 0.8


@pytest.mark.parametrize("indices", [False, True])
def test_a_background_does_not_hide_what_is_lost_of_a_small_object(indices):
    """Of 16 images one has an object, and half of that is lost. Fifteen images of nothing tell nothing."""
    first = np.zeros((16, 2, 16, 16), np.float32)
    first[:, 0] = 1.0
    first[3, 1, :4, :4] = 2.0
    second = first.copy()
    second[3, 1, :2, :4] = 0.0
    found = agreed(Task.SEGMENT, *((each.argmax(1) if indices else each) for each in (first, second)))
    assert found.figures["overlap"] == pytest.approx(1 / 2)
    assert found.loss == pytest.approx(np.hypot(OWN_ERROR, 1 / 2) - OWN_ERROR)
    assert found.figures["same_pixels"] == pytest.approx(1 - 8 / (16 * 256))
    gone = np.where(first == 2.0, 0.0, first)
    assert agreed(Task.SEGMENT, gone, gone).loss == 0.0
    assert agreed(Task.SEGMENT, gone, first).figures["overlap"] == pytest.approx(15 / 16)  # something new
