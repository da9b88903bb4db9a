from __future__ import annotations

import pytest

from detent.commands.images import ImageOptions
from detent.commands.samples import CountingOptions, ReadingOptions, SampleOptions
from detent.errors import UsageError
from detent.observe.preprocess import PreprocessOptions


def test_images_as_written_and_as_meant():
    images = ImageOptions(size="8,6", mean="1", std="2,3,4", order="bgr", layout="nhwc", resample="Bicubic")
    meant = PreprocessOptions(
        size=(8, 6), mean=(1.0,), std=(2.0, 3.0, 4.0), order="BGR", layout="NHWC", resample="bicubic"
    )
    assert images.parsed() == meant
    assert ImageOptions(size="8").parsed() == PreprocessOptions(size=8)
    assert ImageOptions().parsed().given() == {}


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (ImageOptions(size="1,2,3"), "--size '1,2,3': expected one number or H,W"),
        (ImageOptions(size="8.5"), "--size '8.5': expected whole numbers"),
        (ImageOptions(mean="red"), "--mean 'red': expected numbers"),
    ],
)
def test_images_that_cannot_be_meant(images, words):
    with pytest.raises(UsageError, match=words):
        images.parsed()


def test_reading_has_all_that_its_samples_have():
    samples = SampleOptions(limit=3, seed=1, batch=2, images=ImageOptions(size="8"))
    reading = ReadingOptions(fix_shape=["x=1,3,8,8"], samples=samples, threads=4)
    assert reading.given() == {**samples.given(), "fix_shapes": {"x": [1, 3, 8, 8]}, "threads": 4}
    assert samples.given() == {"limit": 3, "seed": 1, "batch": 2, "preprocess": PreprocessOptions(size=8)}
    assert ReadingOptions().given()["fix_shapes"] is None


def test_workers_of_one_kind():
    with CountingOptions().executor() as executor:
        assert executor is None
    with pytest.raises(UsageError, match="give one of them"), CountingOptions(workers=2, dask="host:1").executor():
        pass
