"""Minimising within bounds: quadratics whose minimum is known, and the ends of the road."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.equalizations.global_equalization import minimize

WIDE = np.full(3, 100.0)


class Quadratic:
    """1/2 (x - best)' A (x - best) + least; remembers where it was asked."""

    def __init__(self, matrix, best, least=0.0):
        self.matrix, self.best, self.least = np.asarray(matrix, float), np.asarray(best, float), least
        self.asked = []

    def __call__(self, point):
        self.asked.append(point.copy())
        aside = point - self.best
        return 0.5 * aside @ self.matrix @ aside + self.least, self.matrix @ aside


def test_a_quadratic_without_bounds():
    matrix = np.array([[4.0, 1, 0], [1, 3, -1], [0, -1, 10]])
    found = minimize(Quadratic(matrix, [3, -2, 0.5]), -WIDE, WIDE, 100, 0.0)
    assert found == pytest.approx([3, -2, 0.5], abs=1e-5)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(-4, 4), st.floats(-3, 0), st.floats(0, 3)), min_size=1, max_size=6)
)
def test_a_separable_quadratic_ends_at_the_nearest_point_of_the_box(axes):
    curvature, best, low, high = np.array(axes).T
    function = Quadratic(np.diag(curvature), best)
    found = minimize(function, low, high, 500, 0.0)
    assert found == pytest.approx(np.clip(best, low, high), abs=1e-4)
    assert all((low <= point).all() and (point <= high).all() for point in function.asked)


def test_a_bound_moves_the_other_coordinates():
    """x^2 + xy + y^2 - 3x, least at (2, -1). With y at least 0, it is least at (1.5, 0)."""

    def function(point):
        x, y = point
        return x * x + x * y + y * y - 3 * x, np.array([2 * x + y - 3, x + 2 * y])

    free = minimize(function, np.full(2, -9.0), np.full(2, 9.0), 100, 0.0)
    assert free == pytest.approx([2, -1], abs=1e-5)
    bounded = minimize(function, np.array([-9.0, 0.0]), np.full(2, 9.0), 100, 0.0)
    assert bounded == pytest.approx([1.5, 0], abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_no_point_of_the_box_nearby_is_better(seed):
    random = np.random.default_rng(seed)
    root = random.normal(size=(5, 5))
    function = Quadratic(root @ root.T + 0.1 * np.eye(5), random.normal(size=5) * 3, least=1.0)
    low, high = -random.random(5), random.random(5)
    found = minimize(function, low, high, 500, 0.0)
    assert (low <= found).all() and (found <= high).all()
    gradient = function(found)[1]
    downhill = np.clip(found - 1e-3 * gradient, low, high) - found
    assert np.abs(downhill).max() < 1e-5


def test_memory_finds_the_way_out_of_a_narrow_valley():
    """Curvatures of 1 to 1000, where steps along the gradient alone would take thousands."""
    function = Quadratic(np.diag([1.0, 30, 1000]), [3, -2, 1])
    assert minimize(function, -WIDE, WIDE, 40, 0.0) == pytest.approx([3, -2, 1], abs=1e-4)


def test_a_start_at_the_minimum():
    function = Quadratic(np.eye(3), np.zeros(3), least=2.0)
    assert minimize(function, -WIDE, WIDE, 100, 1e-3).tolist() == [0, 0, 0]


def test_a_flat_function():
    assert minimize(lambda point: (7.0, np.zeros(3)), -WIDE, WIDE, 100, 1e-3).tolist() == [0, 0, 0]


def test_zero_outside_of_the_box():
    """The start is the point of the box that is nearest to zero."""
    function = Quadratic(np.eye(2), np.zeros(2))
    found = minimize(function, np.array([1.0, -3.0]), np.array([2.0, -2.0]), 100, 0.0)
    assert found.tolist() == [1, -2]
    assert all((point >= [1, -3]).all() and (point <= [2, -2]).all() for point in function.asked)


def test_a_box_of_one_point_and_no_variables():
    assert minimize(Quadratic(np.eye(2), [3, 3]), np.zeros(2), np.zeros(2), 100, 0.0).tolist() == [0, 0]
    assert minimize(lambda point: (1.0, np.zeros(0)), np.zeros(0), np.zeros(0), 100, 1e-3).size == 0


def test_a_coarser_tolerance_ends_earlier():
    asked = []
    for tolerance in (1e-1, 1e-8):
        function = Quadratic(np.diag([1.0, 30, 200]), [3, 3, 3], least=1.0)
        minimize(function, -WIDE, WIDE, 100, tolerance)
        asked.append(len(function.asked))
    assert asked[0] < asked[1]


def test_a_misleading_gradient_does_no_harm():
    """What goes up wherever one goes: it stays where it is."""
    found = minimize(lambda point: (float(np.abs(point).sum()), np.ones(3)), -WIDE, WIDE, 100, 1e-3)
    assert found.tolist() == [0, 0, 0]


def test_it_is_deterministic():
    random = np.random.default_rng(1)
    root = random.normal(size=(8, 8))
    runs = [minimize(Quadratic(root @ root.T, np.arange(8)), np.full(8, -5.0), np.full(8, 5.0), 60, 1e-6) for _ in "ab"]
    assert runs[0].tobytes() == runs[1].tobytes()
