from __future__ import annotations

import numpy as np
import pytest

from detent.methods import LayerwisePercentile
from detent.methods.method import Points
from detent.methods.percentile import percentile_range
from detent.numerics.formats import IntegerFormat
from detent.plan.plan import choose_params
from tests.methods.data import DISTRIBUTIONS, FORMATS, observed

CANDIDATES = (90.0, 99.0, 99.9, 99.99)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("metric", ["mae", "mse"])
def test_the_candidate_with_the_least_error_on_the_data(name, metric):
    values = DISTRIBUTIONS[name][:2000].astype(np.float64)
    statistics = observed(values)

    def error(params):
        difference = np.abs(params.snap(values) - values)
        return (difference if metric == "mae" else difference**2).mean()

    for fmt in FORMATS:
        ranges = [percentile_range(Points.of_values(values), percentile, fmt.symmetric) for percentile in CANDIDATES]
        best = min(error(fmt.fit(*candidate)) for candidate in ranges)
        chosen = choose_params(statistics, fmt, LayerwisePercentile(CANDIDATES, metric), "x")
        assert error(chosen) <= best * 1.05 + 1e-7 * np.abs(values).max() / 127


def test_the_metric_decides():
    # Nine in ten are small. At 90 % they are rounded finely and 1.0 is cut to 0.1; at 100 % the other way round.
    values = np.concatenate((np.linspace(-0.1, 0.1, 1800), np.full(180, 1.0)))
    fmt = IntegerFormat("int4")
    by_square = choose_params(observed(values), fmt, LayerwisePercentile((90.0, 100.0), "mse"), "x")
    assert by_square.span[1] == pytest.approx(1.0)
    # Mean absolute errors: 0.9 / 11 = 0.08 + 0.004 against (10 * 0.05) / 11: the wide one too.
    assert choose_params(observed(values), fmt, LayerwisePercentile((90.0, 100.0)), "x").span[1] == pytest.approx(1.0)
    # With 20 of 1.0 in 2000 the absolute error prefers the narrow range (0.009 + 0.004 against 0.05).
    values[1820:] = 0.0
    narrow = choose_params(observed(values), fmt, LayerwisePercentile((98.0, 100.0)), "x")
    assert narrow.span[1] == pytest.approx(0.1, rel=0.01)
    wide = choose_params(observed(values), fmt, LayerwisePercentile((98.0, 100.0), "mse"), "x")
    assert wide.span[1] == pytest.approx(1.0)


def test_on_ties_the_first_wins():
    values = np.array([0.0, 0.0, 1.0, -1.0] * 10)
    first = choose_params(observed(values), IntegerFormat("int8"), LayerwisePercentile((99.0, 100.0)), "x")
    assert first.span == pytest.approx((-1.0, 1.0))
