from __future__ import annotations

import pytest

from detent.errors import UsageError
from detent.methods import (
    METHODS,
    Distribution,
    Entropy,
    LayerwisePercentile,
    MinMax,
    MinMSE,
    Percentile,
    parse_method,
)


def test_every_method_is_listed_by_its_name_with_its_defaults():
    assert list(METHODS) == [
        *["MinMSE", "NonOverflow", "MinMax", "Percentile", "LayerwisePercentile", "Entropy", "Distribution"]
    ]
    assert all(type(method).__name__ == name and method == type(method)() for name, method in METHODS.items())


def test_a_percentage_per_tensor():
    method = Percentile(99.9, by_tensor=(("relu1", 99.0),))
    assert method.of("relu1") == 99.0
    assert method.of("relu2") == 99.9


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Percentile(0.0), "0.0"),
        (lambda: Percentile(100.5), "at most 100"),
        (lambda: Percentile(by_tensor=(("x", -1.0),)), "'x'"),
        (lambda: LayerwisePercentile(()), "no candidates"),
        (lambda: LayerwisePercentile((99.0, 101.0)), "101"),
        (lambda: LayerwisePercentile(metric="rmse"), "mae, mse"),
        (lambda: Entropy(bins=3), "even"),
        (lambda: Entropy(bins=0), "even"),
        (lambda: Entropy(bins=64, quantized_bins=128), "2 to 64"),
        (lambda: Entropy(quantized_bins=1), "2 to 2048"),
        (lambda: Entropy(quantized_bins=-1), "2 to 2048"),
        (lambda: MinMSE("Most"), "All, MostCommon, Percentile"),
        (lambda: MinMSE(percentile=0), "percentile"),
        (lambda: Distribution("p4"), "same, p3"),
    ],
)
def test_what_means_nothing_is_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("MinMSE", MinMSE()),
        ("minmse", MinMSE()),
        ("MinMSE:mode=MostCommon", MinMSE("MostCommon")),
        ("Percentile:percentile=99.9", Percentile(99.9)),
        ("MinMax:moving_average=true", MinMax(moving_average=True)),
        ("Entropy:bins=512,quantized_bins=64", Entropy(512, 64)),
        ("LayerwisePercentile:candidates=99.9/99,metric=mse", LayerwisePercentile((99.9, 99.0), "mse")),
    ],
)
def test_methods_from_text(text, method):
    assert parse_method(text) == method


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("MinMES", "Did you mean 'MinMSE'"),
        ("Percentile:percentil=99", "Did you mean 'percentile'"),
        ("NonOverflow:percentile=99", "It has: none"),
        ("Percentile:percentile=high", "expected a number"),
        ("Percentile:percentile", "expected a number"),
        ("MinMax:moving_average=yes", "true or false"),
        ("MinMSE:mode=Some", "All, MostCommon, Percentile"),
        ("Percentile:by_tensor=x", "no setting 'by_tensor'"),
    ],
)
def test_bad_methods_from_text(text, words):
    with pytest.raises(UsageError, match=words):
        parse_method(text)
