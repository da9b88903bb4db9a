"""What every refinement is: settings, what it needs, and `solve`, which offers solutions of one layer.

The solution that is taken is the one closest to float on rows that no solution was made from. A new refinement is a
frozen dataclass in a module of its own, derived from `WeightRefinement`, and a line in this package's `REFINEMENTS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from detent.errors import UsageError
from detent.numerics.formats import QuantParams, holds_integers, is_integer
from detent.numerics.interface import NumberFormat, Params
from detent.refinements.layer_problem import Floats, LayerProblem, Solution


@dataclass(frozen=True, eq=False)
class ScaleCandidate:
    """Another scale of a layer's weights, and what its bias is then counted in."""

    weights: QuantParams
    weight_scale: Floats
    bias: Params | None

    def of(self, problem: LayerProblem) -> LayerProblem:
        """Return the problem with this scale."""
        return replace(problem, weight_scale=self.weight_scale, bias_params=self.bias)


@dataclass(frozen=True, eq=False)
class Choice:
    """The best solution, None if none was better than rounding to nearest; and the errors of both.

    `matches_means`: its bias is the one that gives the channels their means, which all positions tell better than rows.
    `scale` is the scale that it has its codes in, None for the present one. `reason` says why there is no solution.
    """

    solution: Solution | None
    matches_means: bool
    before: float
    after: float
    scale: ScaleCandidate | None = None
    reason: str = "no other weights were better on the samples held out"


class Contest:
    """Solutions are offered, and the one with the least error on the rows held out is `best`.

    To begin with there is none: nearest codes, whose bias is corrected on the rows of the problem. `scales` are others
    that the weights may have.
    """

    def __init__(self, problem: LayerProblem, held_out: LayerProblem, scales: Sequence[ScaleCandidate] = ()) -> None:
        self._held_out, self.scales = held_out, scales
        nearest = problem.nearest()
        before = held_out.relative_error(nearest, problem.matching_bias(nearest))
        self.best = Choice(None, problem.free_bias, before, before)

    def offer(self, solution: Solution, matches_means: bool, scale: ScaleCandidate | None = None) -> bool:
        """Compare a solution with the best; return whether it is that now."""
        held_out = self._held_out if scale is None else scale.of(self._held_out)
        error = held_out.relative_error(solution.codes, solution.bias)
        better = error < self.best.after
        if better:
            self.best = Choice(solution, matches_means, self.best.before, error, scale)
        return better


@dataclass(frozen=True)
class Refinement:
    """A way to choose biases or weights by what they do. `samples` of the calibration data are looked at.

    The class attributes tell what it is: `chooses_weights` (otherwise only biases change), `learns_weights` (it takes
    its time for that, so it is asked for, can be resumed, and is compared with bias correction alone),
    `learns_by_gradient` (it takes minutes), and `integer_weights_only`.
    """

    chooses_weights: ClassVar[bool] = False
    learns_weights: ClassVar[bool] = False
    learns_by_gradient: ClassVar[bool] = False
    integer_weights_only: ClassVar[bool] = False

    samples: int = 128

    def __post_init__(self) -> None:
        """Check the settings."""
        self._at_least_one("samples")

    @property
    def name(self) -> str:
        """The name that users choose it by."""
        return type(self).__name__

    @property
    def rows_per_sample(self) -> int:
        """How many output positions of each sample a layer learns from."""
        return 0

    @property
    def needs_float_inputs(self) -> bool:
        """Whether a layer learns from the rows of its float input, too."""
        return False

    @property
    def tries_scales(self) -> bool:
        """Whether other scales of the weights are tried."""
        return False

    def check_formats(
        self,
        recipe: str,
        weights: Sequence[NumberFormat | None],
        activations: Sequence[NumberFormat | None],  # noqa: ARG002
    ) -> None:
        """Raise UsageError if it cannot work on the formats of a recipe."""
        for fmt in weights if self.integer_weights_only else ():
            if not is_integer(fmt):
                what = "stay float" if fmt is None else f"are {fmt.label}"
                raise UsageError(
                    f"{self.name} chooses between integers, and weights of recipe {recipe} {what}. AdaQuant works on "
                    "every format."
                )

    def why_not(self, weights: Params) -> str | None:
        """Say why it cannot choose between the numbers that weights may be, or return None."""
        if self.integer_weights_only and not holds_integers(weights):
            return f"its weights are {weights.format.label}"
        return None

    def choose(
        self, problem: LayerProblem, held_out: LayerProblem, pool: Executor, scales: Sequence[ScaleCandidate] = ()
    ) -> Choice:
        """Solve a layer, and judge the solutions on the rows that are held out."""
        contest = Contest(problem, held_out, scales)
        if not (np.isfinite(problem.rows).all() and np.isfinite(problem.target).all()):
            return replace(contest.best, reason="its input or output is not finite")
        reason = self.solve(problem, contest, pool)
        return contest.best if reason is None else replace(contest.best, reason=reason)

    def solve(self, problem: LayerProblem, contest: Contest, pool: Executor) -> str | None:
        """Offer solutions to the contest; return why the layer has none, if it is known before the contest."""
        raise NotImplementedError

    def _at_least_one(self, *settings: str) -> None:
        for setting in settings:
            count = getattr(self, setting)
            if count < 1:
                raise UsageError(f"{setting} of {self.name} is {count}: it must be at least 1.")

    def _not_negative(self, setting: str) -> None:
        number = getattr(self, setting)
        if not 0.0 <= number < math.inf:
            raise UsageError(f"{setting} of {self.name} is {number}: it must not be negative.")

    def _share(self, setting: str) -> None:
        share = getattr(self, setting)
        if not 0.0 <= share <= 1.0:
            raise UsageError(f"{setting} of {self.name} is {share}: it must be between 0 and 1.")


@dataclass(frozen=True)
class WeightRefinement(Refinement):
    """A refinement that chooses weights. Each layer sees `rows` output positions of each sample."""

    chooses_weights: ClassVar[bool] = True
    learns_weights: ClassVar[bool] = True

    rows: int = 64

    def __post_init__(self) -> None:
        """Check the settings."""
        self._at_least_one("samples", "rows")

    @property
    def rows_per_sample(self) -> int:
        """How many output positions of each sample a layer learns from."""
        return self.rows
