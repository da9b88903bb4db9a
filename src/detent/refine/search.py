"""The course that both gradient methods take: windows of steps, and the best codes of every channel at their ends.

Channels are cut into parts of a fixed size, which threads work on side by side; a channel's result depends neither on
the part that it is in nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from detent.errors import UsageError
from detent.graph.session import usable_cores
from detent.refine.batches import Batches, BatchGradient, Indices, InputMoments, MomentGradient, batches_of
from detent.refine.kernels import Doubles, Singles
from detent.refine.problem import Floats, LayerProblem, Solution
from detent.refinements import GradientSearch

WINDOWS = 10
CHANNELS_PER_PART = 32
HELD_OUT = 8
"""One row in so many is held out."""


@dataclass(frozen=True)
class Part:
    """Some channels of some groups."""

    groups: slice
    channels: slice

    @property
    def where(self) -> tuple[slice, slice]:
        """The index of the part in an array of groups and channels."""
        return self.groups, self.channels


def parts_of(groups: int, channels: int) -> Iterator[Part]:
    """Parts of about the same number of channels, for any number of groups."""
    some_groups = max(1, CHANNELS_PER_PART // channels)
    for group in range(0, groups, some_groups):
        for channel in range(0, channels, CHANNELS_PER_PART):
            yield Part(
                slice(group, min(group + some_groups, groups)),
                slice(channel, min(channel + CHANNELS_PER_PART, channels)),
            )


class Variables(Protocol):
    """What a method changes, for one part, and the rounded (or softly rounded) weights and biases that follow."""

    weights: Singles
    bias: Doubles

    def step(self, step: int, rate: float, loss: float, gradient: Singles, bias_gradient: Doubles) -> float:
        """Make step number `step`, counted from 1; the number that tells whether there is progress."""

    def settled(self) -> tuple[Floats, Floats]:
        """The codes and the float biases, if it ended here."""


class Gradient(Protocol):
    """The error of weights and biases; it fills in the gradients."""

    def __call__(
        self, batch: int, weights: Singles, bias: Doubles, gradient: Singles, bias_gradient: Doubles, /
    ) -> float:
        """The error; `batch` says on which rows, where it matters."""


@dataclass
class Run:
    """A part on its way."""

    part: Part
    variables: Variables
    gradient: Gradient

    def advance(self, steps: range, order: Indices, rate: float) -> float:
        """Make the steps, each on its batch of `order`; the sum of the numbers that tell of progress."""
        variables, progress = self.variables, 0.0
        gradient, bias_gradient = np.empty_like(variables.weights), np.empty_like(variables.bias)
        for step in steps:
            loss = self.gradient(int(order[step]), variables.weights, variables.bias, gradient, bias_gradient)
            progress += variables.step(step + 1, rate, loss, gradient, bias_gradient)
        return progress


class Search:
    """One layer's search.

    `start` makes the variables of a part, given its channels' errors with weights rounded to the nearest; the first
    `warm` of the steps are never cut short.
    """

    def __init__(
        self,
        problem: LayerProblem,
        options: GradientSearch,
        start: Callable[[Part, Floats], Variables],
        warm: float = 0.0,
    ) -> None:
        if options.quantized_share < 1.0 and problem.float_rows is None:
            raise UsageError(
                f"quantized_share is {options.quantized_share}, but for '{problem.name}' the input of the float model "
                "was not recorded. Leave it at 1."
            )
        self._problem, self._options, self._start, self._warm = problem, options, start, warm
        self._random = np.random.default_rng(options.seed)
        held_out = problem.samples // HELD_OUT if options.selective_update else 0
        self._learned: Indices = self._random.permutation(problem.samples - held_out)
        self._held_out: Indices = np.arange(problem.samples - held_out, problem.samples)
        self._parts = list(parts_of(*problem.bias.shape))
        self._codes, self._bias = problem.nearest(), problem.bias.copy()

    def solve(self, method: str) -> Solution:
        """Search, and keep of it what is better than rounding to the nearest."""
        options = self._options
        with ThreadPoolExecutor(usable_cores()) as threads:
            judge = self._batches(self._learned, self._problem.rows)
            best = self._errors(threads, judge, self._codes, self._bias)
            rate = self._rate(float(best.mean()))
            order = self._order(len(judge.counts))
            runs = self._runs(judge, best)
            least = np.inf
            for steps in _windows(options.iterations):
                watched = sum(threads.map(Run.advance, runs, *zip(*[(steps, order, rate)] * len(runs), strict=True)))
                self._keep_best(threads, judge, runs, best)
                if options.early_stop and steps.start >= self._warm * options.iterations:
                    if watched / len(steps) >= least:
                        break
                    least = watched / len(steps)
                if options.quantized_share < 1.0:
                    self._feed(runs, self._mixed())
            self._revert_what_fails(threads)
        return Solution(self._codes, self._bias, method)

    def _batches(self, rows: Indices, values: Singles) -> Batches:
        options = self._options
        return batches_of(self._problem, rows, options.batch, values, round_output=options.output_rounded)

    def _order(self, batches: int) -> Indices:
        """The batch of each step: all in turn, every time in another order."""
        rounds = -(-self._options.iterations // batches)
        return np.concatenate([self._random.permutation(batches) for _ in range(rounds)])

    def _rate(self, error: float) -> float:
        bound, rate = self._options.learning_rate_above or (np.inf, 0.0)
        return rate if error > bound else self._options.learning_rate

    def _mixed(self) -> Batches:
        """Batches whose inputs come from the quantized or from the float model, each value by chance."""
        rows, others = self._problem.rows, self._problem.float_rows
        assert others is not None
        chance = self._random.random(rows.shape, dtype=np.float32)
        return self._batches(self._learned, np.where(chance < self._options.quantized_share, rows, others))

    def _runs(self, judge: Batches, errors: Floats) -> list[Run]:
        mixed = self._options.quantized_share < 1.0
        batches = self._mixed() if mixed else judge
        inputs = self._problem.weight.shape[2]
        # A step costs inputs^2 by moments and 2 * batch * inputs otherwise, for each channel.
        by_moments = batches.linear and not mixed and inputs <= 2 * self._options.batch
        moments = InputMoments.of(batches) if by_moments else None
        runs = []
        for part in self._parts:
            variables, own = self._start(part, errors[part.where].copy()), batches.part(*part.where)
            if moments is None:
                runs.append(Run(part, variables, BatchGradient(own)))
            else:
                of_part = moments.part(part.groups)
                runs.append(Run(part, variables, MomentGradient(own, of_part, variables.weights, variables.bias)))
        return runs

    @staticmethod
    def _feed(runs: list[Run], batches: Batches) -> None:
        for run in runs:
            run.gradient = BatchGradient(batches.part(*run.part.where))

    def _errors(self, threads: ThreadPoolExecutor, judge: Batches, codes: Floats, bias: Floats) -> Floats:
        """Each channel's mean squared error, with weights and biases as they will be stored."""
        weights = (codes * self._problem.weight_scale[..., None]).astype(np.float32)
        stored = self._problem.stored_bias(bias)
        errors = np.empty_like(bias)

        def judged(part: Part) -> None:
            own = judge.part(*part.where)
            errors[part.where] = own.errors(np.ascontiguousarray(weights[part.where]), stored[part.where].copy())

        list(threads.map(judged, self._parts))
        return errors

    def _keep_best(self, threads: ThreadPoolExecutor, judge: Batches, runs: list[Run], best: Floats) -> None:
        codes, bias = np.empty_like(self._codes), np.empty_like(self._bias)
        for run in runs:
            codes[run.part.where], bias[run.part.where] = run.variables.settled()
        errors = self._errors(threads, judge, codes, bias)
        better = errors < best
        best[better], self._codes[better], self._bias[better] = errors[better], codes[better], bias[better]

    def _revert_what_fails(self, threads: ThreadPoolExecutor) -> None:
        """Channels that are no better on the rows that were held out go back to rounding to the nearest."""
        if not len(self._held_out):
            return
        judge = self._batches(self._held_out, self._problem.rows)
        nearest = self._problem.nearest()
        before = self._errors(threads, judge, nearest, self._problem.bias)
        worse = self._errors(threads, judge, self._codes, self._bias) >= before
        self._codes[worse], self._bias[worse] = nearest[worse], self._problem.bias[worse]


def _windows(iterations: int) -> Iterator[range]:
    edges = np.linspace(0, iterations, min(WINDOWS, iterations) + 1).astype(int).tolist()
    return (range(first, last) for first, last in pairwise(edges))
