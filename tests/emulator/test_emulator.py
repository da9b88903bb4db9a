from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import detent
from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.emulator import Emulator
from detent.errors import DataError, UsageError
from detent.observe.preprocess import PreprocessOptions
from detent.observe.sources import open_source
from tests.emulator.qdq import assert_same_codes


@pytest.fixture(scope="module")
def demo():
    recipe = detent.find_recipe("XINT8").replace(refinement=None)
    return detent.quantize(MODEL, None, CALIBRATION, recipe, limit=24, preprocess=PREPROCESS).model


@pytest.fixture(scope="module")
def images(demo):
    source = open_source(CALIBRATION, Emulator(demo).inputs, preprocess=PreprocessOptions(file=PREPROCESS), limit=6)
    return [dict(pending.load().feeds) for pending in source]


def test_every_code_of_the_demo_model_is_that_of_onnxruntime(demo, images):
    for feeds in images:
        emulator = assert_same_codes(demo, feeds)
    report = emulator.report()
    assert report.float_steps == []
    assert report.quantized_tensors == len(emulator.tensors) > 20
    assert report.to_dict()["rounding"] == "half-even"


def test_the_dpu_rounds_ties_upwards(demo, images):
    exact, device = Emulator(demo).codes(images[0]), Emulator(demo, rounding="dpu").codes(images[0])
    first = next(name for name in exact if (exact[name] != device[name]).any())
    apart = device[first].astype(int) - exact[first].astype(int)
    assert set(np.unique(apart)) == {0, 1}


def test_fetching_all_codes_changes_no_answer(demo, images):
    emulator = Emulator(demo)
    plain = emulator(images[0])
    detailed = emulator(images[0], outputs=[*emulator.outputs, emulator.tensors[3]])
    np.testing.assert_array_equal(plain[0], detailed[0])
    np.testing.assert_array_equal(detailed[1], emulator.codes(images[0])[emulator.tensors[3]])


def test_many_threads_at_once(demo, images):
    emulator = Emulator(demo)
    alone = [emulator(feeds)[0] for feeds in images]
    with ThreadPoolExecutor(4) as pool:
        for expected, found in zip(alone, pool.map(emulator, images), strict=True):
            np.testing.assert_array_equal(found[0], expected)


def test_names_and_data_that_do_not_fit(demo, images):
    emulator = Emulator(demo)
    with pytest.raises(UsageError, match="Did you mean"):
        emulator(images[0], outputs=[emulator.tensors[0] + "x"])
    with pytest.raises(DataError, match="photo.png: .*'image'"):
        emulator({}, "photo.png")
    with pytest.raises(DataError, match=r"axis 2 must be 32, not 31"):
        emulator({"image": images[0]["image"][:, :, 1:]})
    with pytest.raises(DataError, match="expects float32, found uint8"):
        emulator({"image": images[0]["image"].astype(np.uint8)})
