from __future__ import annotations

import pytest

import detent
from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat
from detent.pipeline.job import Job, make_job
from detent.recipe.file import find_recipe, to_toml
from detent.search.mixed_precision import search_precision
from tests.conftest import tiny_model

A8W8 = find_recipe("A8W8").replace(refinement=None)
INT4, INT8, INT16 = (IntegerFormat(dtype) for dtype in ("int4", "int8", "int16"))
DEMO = make_job(MODEL, CALIBRATION, A8W8, preprocess=PREPROCESS)


def test_as_few_bits_as_an_error_allows():
    found = search_precision(DEMO, [INT4, INT8, INT16], max_error=0.01, count=4)
    assert found.reached
    assert found.error <= 0.01
    assert 4 < found.mean_bits < 16
    stricter = search_precision(DEMO, [INT4, INT8, INT16], max_error=0.001, count=4)
    assert stricter.mean_bits > found.mean_bits
    assert stricter.error < found.error
    report = detent.quantize(MODEL, None, CALIBRATION, found.recipe, preprocess=PREPROCESS)
    sqnr = next(iter(report.fidelity.outputs.values())).sqnr_db
    assert sqnr > 15  # 20 on the samples of the search, without any correction
    assert 'type = "int4"' in to_toml(found.recipe) or 'type = "int16"' in to_toml(found.recipe)


def test_as_little_error_as_bits_allow():
    found = search_precision(DEMO, [INT4, INT8], mean_bits=7.0, count=2)
    assert found.reached
    assert 4 < found.mean_bits <= 7
    assert {fmt.bits for fmt in found.formats.values()} == {4, 8}


def test_activations():
    found = search_precision(
        DEMO,
        [A8W8.activations, IntegerFormat("int16", symmetric=A8W8.activations.symmetric)],
        what="activations",
        mean_bits=10.0,
        count=2,
    )
    assert 8 < found.mean_bits <= 10
    (override,) = found.recipe.overrides
    assert override.tensors
    detent.quantize(MODEL, None, CALIBRATION, found.recipe, preprocess=PREPROCESS)


def test_out_of_reach(samples):
    job = Job(tiny_model(), None, A8W8, samples)
    found = search_precision(job, [INT4, INT8], max_error=1e-12, count=2)
    assert not found.reached
    assert set(found.formats.values()) == {INT8}
    assert found.recipe.overrides == () or A8W8.weights != INT8


@pytest.mark.parametrize(
    ("candidates", "bounds", "message"),
    [
        ([INT8], {"max_error": 0.1}, "at least two"),
        ([INT8, INT16], {}, "Give one of"),
        ([INT8, INT16], {"max_error": 0.1, "mean_bits": 8}, "Give one of"),
        ([INT8, IntegerFormat("int32")], {"max_error": 0.1}, "int32"),
    ],
)
def test_bad_input(samples, candidates, bounds, message):
    with pytest.raises(UsageError, match=message):
        search_precision(Job(tiny_model(), None, A8W8, samples), candidates, **bounds)
