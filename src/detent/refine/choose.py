"""Which solution of a layer is taken: the one that is closest to float on rows that no solution was made from."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from detent.refine.adaquant import adaquant
from detent.refine.adaround import adaround
from detent.refine.problem import Floats, LayerProblem, Solution
from detent.refine.rounding import input_means, mean_products, round_layer
from detent.refinements import AdaQuant, AdaRound, Rounding

WeightRefinement = Rounding | AdaRound | AdaQuant


@dataclass(frozen=True, eq=False)
class Choice:
    """The best solution, None where none was better than rounding to nearest; and the errors of both.

    `matches_means`: its bias is the one that gives the channels their means, which all positions tell better than rows.
    """

    solution: Solution | None
    matches_means: bool
    before: float
    after: float


def solutions(problem: LayerProblem, refinement: WeightRefinement, pool: Executor) -> Iterator[tuple[Solution, bool]]:
    """What a refinement finds for a layer, and whether the bias matches the means.

    The gradient methods look at the output after its activation, and may have found a better bias or left it alone:
    both theirs and the matching one are offered.
    """
    if isinstance(refinement, Rounding):
        for solution in round_layer(problem, refinement, pool):
            yield solution, problem.free_bias
        return
    solution = adaround(problem, refinement) if isinstance(refinement, AdaRound) else adaquant(problem, refinement)
    yield solution, False
    if problem.free_bias:
        matched = matching_bias(problem, solution.codes)
        yield replace(solution, bias=matched, method=f"{solution.method}, bias correction"), True


def choose(problem: LayerProblem, held_out: LayerProblem, refinement: WeightRefinement, pool: Executor) -> Choice:
    """Solve a layer, and compare with nearest codes whose bias is corrected on the same rows."""
    nearest = problem.nearest()
    before = relative_error(held_out, nearest, matching_bias(problem, nearest))
    best = Choice(None, problem.free_bias, before, before)
    for solution, matches in solutions(problem, refinement, pool):
        error = relative_error(held_out, solution.codes, solution.bias)
        if error < best.after:
            best = Choice(solution, matches, before, error)
    return best


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
