"""The table of verdicts: which rows break a rule, and what is done to the data."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.verdicts import Row, _treated_images, _treated_tokens

from detent.observe.preprocess import Preprocess


def row(verdict, lost, treatment="good", findings=()):
    return Row("m", "XINT8", treatment, lost, lost - 1, lost + 1, verdict, "why", findings, 1.0)


@pytest.mark.parametrize(
    ("verdict", "lost", "held"),
    [
        ("close", 2.9, "yes"),
        ("close", 3.1, "NO: close"),
        ("unclear", 50.0, "yes"),
        ("unknown", 0.0, "yes"),
        ("worse", 0.9, "NO: worse"),
        ("broken", 0.5, "NO: broken"),
        ("worse", 1.1, "yes"),
    ],
)
def test_rules(verdict, lost, held):
    assert row(verdict, lost).held == held


def test_only_wrong_data_may_be_questioned():
    assert row("unknown", 1.0, "w4", ("Only 3 different samples.",)).held == "NO: questioned"
    assert row("unknown", 1.0, "few", ("Only 3 different samples.",)).held == "yes"


def test_images_are_treated_from_their_pixels():
    how = Preprocess(size=(2, 2), mean=(10.0, 20.0, 30.0), std=(2.0, 4.0, 5.0))
    pixels = np.arange(3 * 3 * 4, dtype=np.float32).reshape(3, 3, 2, 2) + 100
    images = (pixels - np.array([10, 20, 30])[:, None, None]) / np.array([2, 4, 5])[:, None, None]
    np.testing.assert_allclose(_treated_images(images, how, "good"), images, rtol=1e-6)
    np.testing.assert_allclose(_treated_images(images, how, "raw"), pixels, rtol=1e-6)
    np.testing.assert_allclose(_treated_images(images, how, "unit"), pixels / 255, rtol=1e-6)
    np.testing.assert_allclose(_treated_images(images, how, "bgr")[:, 0], (pixels[:, 2] - 10) / 2, rtol=1e-6)
    np.testing.assert_allclose(_treated_images(images, how, "black")[:, 1], -5.0)
    assert (_treated_images(images, how, "one") == images[:1].astype(np.float32)).all()


def test_sentences_are_treated():
    feeds = {"ids": np.array([[101, 7, 9, 0], [101, 3, 0, 0]]), "mask": np.array([[1, 1, 1, 0], [1, 1, 0, 0]])}
    noise = _treated_tokens(feeds, "noise")
    assert ((noise["ids"] == 0) == (feeds["ids"] == 0)).all()
    assert (noise["mask"] == feeds["mask"]).all()
    assert (_treated_tokens(feeds, "one")["ids"] == feeds["ids"][0]).all()
    assert _treated_tokens(feeds, "good") is feeds
