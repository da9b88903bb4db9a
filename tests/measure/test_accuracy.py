from __future__ import annotations

import pytest

from detent.demo.run import FOLDER, MODEL, PREPROCESS
from detent.errors import DataError
from detent.graph.load import load
from detent.measure.accuracy import correct_top1, read_labels
from detent.observe.preprocess import Preprocess


def test_the_demo_model_knows_its_digits():
    images = read_labels(FOLDER)
    correct = correct_top1(load(MODEL), images[:100], Preprocess.from_json(PREPROCESS))
    assert correct.shape == (100,)
    assert correct.mean() > 0.9


@pytest.mark.parametrize("text", ["file,label\n000.png,seven\n", "name,label\n000.png,7\n"])
def test_labels_that_cannot_be_read(tmp_path, text):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(DataError, match=r"labels.csv must have the columns file,label"):
        read_labels(tmp_path)


def test_no_labels(tmp_path):
    with pytest.raises(DataError, match=r"Cannot read .*labels.csv"):
        read_labels(tmp_path)
