"""Which layers take another format, activations and weights together."""

from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat
from detent.pipeline.job import Job, make_job
from detent.pipeline.run import Run
from detent.recipe.file import find_recipe
from detent.recipe.recipe import LAYERS
from detent.search import unrefined
from detent.search.mixed_precision import Layers, OtherFormats, search_layers, signal_power
from tests.conftest import tiny_model
from tests.models import run

INT8, INT16 = IntegerFormat("int8"), IntegerFormat("int16")
A8W8 = find_recipe("A8W8").replace(refinement=None)
A16W16 = A8W8.replace(activations=INT16, weights=INT16)
DEMO = make_job(MODEL, CALIBRATION, A16W16, preprocess=PREPROCESS, limit=8)
ALL = Layers(op_types=LAYERS)


def test_as_many_layers_in_fewer_bits_as_the_error_allows():
    narrow = OtherFormats(activations=INT8, weights=INT8)
    none, some, most = (
        search_layers(DEMO, narrow, ALL, lambda _, wanted=wanted: wanted, count=2) for wanted in (1e-9, 3e-4, 0.5)
    )
    assert none.layers == ()
    assert not none.reached
    assert none.recipe == A16W16
    assert 0 < len(some.layers) < len(most.layers) == 15
    assert some.reached
    assert none.error < some.error <= 3e-4
    (override,) = some.recipe.overrides
    assert (override.nodes, override.activations, override.weights) == (some.layers, INT8, INT8)
    report = detent.quantize(MODEL, None, CALIBRATION, some.recipe, preprocess=PREPROCESS, limit=32)
    assert next(iter(report.fidelity.outputs.values())).sqnr_db > 25


def test_as_few_layers_in_more_bits_as_it_takes(samples):
    wide = OtherFormats(activations=INT16, weights=INT16)
    job = Job(tiny_model(), None, A8W8, samples)
    assert search_layers(job, wide, ALL, lambda _: 0.5, count=2).layers == ()
    both = search_layers(job, wide, ALL, lambda _: 1e-7, count=2)
    assert both.layers == ("first", "second")
    only = search_layers(job, wide, Layers(nodes=("f*",)), lambda _: 1e-12, count=2)
    assert only.layers == ("first",)
    assert not only.reached
    assert search_layers(job, wide, Layers(exclude=("first",)), lambda _: 1e-12, count=2).layers == ("second",)


def test_the_power_of_the_outputs(samples):
    job = Job(tiny_model(), None, A8W8, samples)
    planned = Run(unrefined(job, 3)).planned
    expected = np.mean([np.square(run(tiny_model(), each.load().feeds)["y"]).sum() for each in planned.probes])
    assert signal_power(planned) == pytest.approx(expected, rel=1e-4)
    asked = []
    search_layers(job, OtherFormats(weights=INT16), ALL, lambda power: asked.append(power) or 1.0, count=3)
    assert asked == [pytest.approx(expected, rel=1e-4)]


def test_what_cannot_be_searched(samples):
    job = Job(tiny_model(), None, A8W8, samples)
    with pytest.raises(UsageError, match="No quantized layer"):
        search_layers(job, OtherFormats(weights=INT16), Layers(op_types=("Gemm",)), lambda _: 1.0)
    for layers in (Layers(nodes=("frist",)), Layers(exclude=("frist",))):
        with pytest.raises(UsageError, match="'frist' matches no layer of the prepared model. Did you mean 'first'"):
            search_layers(job, OtherFormats(weights=INT16), layers, lambda _: 1.0)
    floats = Job(tiny_model(), None, find_recipe("BF16"), samples)
    with pytest.raises(UsageError, match="weights of recipe BF16 are not integers"):
        search_layers(floats, OtherFormats(weights=INT8), ALL, lambda _: 1.0)
