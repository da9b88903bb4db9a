"""Which solution of a layer is taken: the one that is closest to float on rows that no solution was made from."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from detent.numerics.formats import QuantParams
from detent.numerics.interface import Params
from detent.refine.adaquant import adaquant
from detent.refine.adaround import adaround
from detent.refine.gptq import gptq
from detent.refine.moments import Moments, input_means, mean_products
from detent.refine.problem import Floats, LayerProblem, Solution
from detent.refine.rounding import dampings, round_layer
from detent.refinements import AdaQuant, AdaRound, Gptq, GradientSearch, Rounding

WeightRefinement = Rounding | Gptq | AdaRound | AdaQuant

STILL = 1e-10
"""Inputs whose variance is below this share of their squared mean do not change."""


@dataclass(frozen=True, eq=False)
class Spacing:
    """Another scale of a layer's weights, and what its bias is then counted in."""

    weights: QuantParams
    weight_scale: Floats
    bias: Params | None

    def of(self, problem: LayerProblem) -> LayerProblem:
        """The problem with it."""
        return replace(problem, weight_scale=self.weight_scale, bias_params=self.bias)


@dataclass(frozen=True, eq=False)
class Choice:
    """The best solution, None where none was better than rounding to nearest; and the errors of both.

    `matches_means`: its bias is the one that gives the channels their means, which all positions tell better than rows.
    `spacing` is the scale that it has its codes in, None for the present one. `reason` says why there is no solution.
    """

    solution: Solution | None
    matches_means: bool
    before: float
    after: float
    spacing: Spacing | None = None
    reason: str = "no other weights were better on the samples held out"


class Contest:
    """Solutions are offered, and the one with the least error on the rows held out is `best`.

    To begin with that is none: nearest codes, whose bias is corrected on the rows of the problem.
    """

    def __init__(self, problem: LayerProblem, held_out: LayerProblem) -> None:
        self._held_out = held_out
        nearest = problem.nearest()
        before = relative_error(held_out, nearest, matching_bias(problem, nearest))
        self.best = Choice(None, problem.free_bias, before, before)

    def offer(self, solution: Solution, matches_means: bool, spacing: Spacing | None = None) -> bool:
        """Compare a solution with the best; whether it is that now."""
        held_out = self._held_out if spacing is None else spacing.of(self._held_out)
        error = relative_error(held_out, solution.codes, solution.bias)
        better = error < self.best.after
        if better:
            self.best = Choice(solution, matches_means, self.best.before, error, spacing)
        return better


def choose(
    problem: LayerProblem,
    held_out: LayerProblem,
    refinement: WeightRefinement,
    pool: Executor,
    spacings: Sequence[Spacing] = (),
) -> Choice:
    """Solve a layer. Rounding also tries other scales of the weights."""
    contest = Contest(problem, held_out)
    if not (np.isfinite(problem.rows).all() and np.isfinite(problem.target).all()):
        return replace(contest.best, reason="its input or output is not finite")
    if isinstance(refinement, GradientSearch):
        _learn(problem, refinement, contest)
        return contest.best
    moments = Moments.of(problem)
    if not _changes(problem, moments):
        return replace(contest.best, reason="its inputs are the same in all samples, which says nothing about weights")
    if isinstance(refinement, Rounding):
        _round(problem, moments, refinement, pool, contest, spacings)
        return contest.best
    solution = gptq(problem, moments, refinement, pool)
    if solution is None:
        return replace(contest.best, reason="the second moments of its inputs are singular: raise the damping")
    contest.offer(solution, problem.free_bias)
    return contest.best


def _changes(problem: LayerProblem, moments: Moments) -> bool:
    """Whether any input has different values, beyond what centring in float32 leaves of equal ones."""
    left = STILL * problem.samples * np.square(moments.input_mean)
    return bool((np.einsum("gkk->gk", moments.second) > left).any())


def _learn(problem: LayerProblem, refinement: AdaRound | AdaQuant, contest: Contest) -> None:
    """The gradient methods look at the output after its activation, and may have found a better bias or left it alone:
    both theirs and the one that matches the means are offered.
    """
    solution = adaround(problem, refinement) if isinstance(refinement, AdaRound) else adaquant(problem, refinement)
    contest.offer(solution, matches_means=False)
    if problem.free_bias:
        matched = matching_bias(problem, solution.codes)
        contest.offer(replace(solution, bias=matched, method=f"{solution.method}, bias correction"), matches_means=True)


def _round(
    problem: LayerProblem,
    moments: Moments,
    settings: Rounding,
    pool: Executor,
    contest: Contest,
    spacings: Sequence[Spacing],
) -> None:
    """Every damping with the present scale, and every other scale with the damping that was best."""
    best, *_ = tried = dampings(problem, settings)
    for damping in tried:
        if contest.offer(round_layer(problem, moments, damping, settings, pool), problem.free_bias):
            best = damping
    for spacing in spacings:
        solution = round_layer(spacing.of(problem), moments, best, settings, pool)
        contest.offer(solution, problem.free_bias, spacing)


def matching_bias(problem: LayerProblem, codes: Floats) -> Floats:
    """The bias with which codes give the mean of the target on the problem's own rows."""
    if not problem.free_bias:
        return problem.bias
    products = mean_products(problem, codes, input_means(problem))
    return np.asarray(problem.target.mean(axis=0, dtype=np.float64) - products)


def relative_error(problem: LayerProblem, codes: Floats, bias: Floats) -> float:
    """The mean square error of a solution on the problem's rows, after activation and saturation, relative to float."""
    stored = problem.stored_bias(bias)
    weights = (codes * problem.weight_scale[..., None]).astype(np.float32)
    found = np.stack([rows @ matrix.T for rows, matrix in zip(problem.rows, weights, strict=True)])
    found += stored[:, None, :].astype(np.float32)
    wanted = _finish(problem, problem.target.transpose(1, 0, 2))
    error = float(np.square(_finish(problem, found) - wanted, dtype=np.float64).mean())
    power = float(np.square(wanted, dtype=np.float64).mean())
    return error / (power or 1.0)


def _finish(problem: LayerProblem, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    activated = problem.activation(values)
    return activated if problem.output is None else np.clip(activated, *problem.output.span)
