"""What the two gradient methods share: the settings, a layer's error and gradient on batches of rows, and the search.

    error = mean over rows of the sum over channels of (act(weight . row + bias) - act(target))^2

Without an activation the error is a quadratic form. With d the change of the weights and e that of the bias,
H = mean(x x^T), m = mean(x), and r what was wrong before the change:

    error = d H d^T + 2 d . (mean(r x) + e m) + e^2 + 2 e mean(r) + mean(r^2)

so moments of the inputs say all about it, over all rows at once.

The search makes its steps in windows, and keeps the best codes of every channel at their ends. Channels are cut into
blocks of a fixed size, which threads work on side by side; a channel's result depends neither on the block that it is
in nor on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError
from detent.numerics.formats import holds_integers, is_integer
from detent.numerics.interface import NumberFormat
from detent.refinements.gradient_loops import SHORT, Doubles, Singles, dots_of_groups, forward
from detent.refinements.layer_problem import Floats, LayerProblem, Solution, Where
from detent.refinements.refinement import Contest, WeightRefinement

Indices = npt.NDArray[np.int64]

IDENTITY = np.array([-np.inf, np.inf, 0.0])
UNROUNDED = np.zeros(4)

WINDOWS = 10
CHANNELS_PER_BLOCK = 32
HELD_OUT = 8  # one row in so many is held out


@dataclass(frozen=True)
class GradientSearch(WeightRefinement):
    """The settings of both gradient methods. Names in brackets are those of other tools' fast finetuning.

    Each layer sees `rows` output positions of each of `samples` calibration samples [DataSize]; one of `iterations`
    [NumIterations] steps of Adam takes `batch` of these rows [BatchSize, there in images], at `learning_rate`
    [LearningRate]. `learning_rate_above` [LRAdjust] is (error, rate): layers whose mean squared error with weights
    rounded to the nearest is above the first number learn at the second. `seed` [FixedSeed] fixes the batches.

    With `early_stop` [EarlyStop] a layer is done when a tenth of the iterations brought nothing. A channel keeps what
    was found only if it is better than rounding to the nearest: over the rows that were learned from or, with
    `selective_update` [SelectiveUpdate], over the last eighth of the rows, which are then not learned from.
    `output_rounded` [OutputQDQ] measures the error after the layer's output is quantized, if it is.
    `quantized_share` [DropRatio] is the share of input values that come from the quantized model while learning, the
    others come from the float model.
    """

    learns_by_gradient: ClassVar[bool] = True

    batch: int = 256
    iterations: int = 1000
    learning_rate: float = 0.1
    learning_rate_above: tuple[float, float] | None = None
    seed: int = 1705472343
    early_stop: bool = False
    selective_update: bool = False
    output_rounded: bool = False
    quantized_share: float = 1.0

    def __post_init__(self) -> None:
        """Check the settings."""
        self._at_least_one("samples", "rows", "batch", "iterations")
        rates = [self.learning_rate, *(self.learning_rate_above or ())[1:]]
        if not all(0.0 < rate < math.inf for rate in rates):
            raise UsageError(f"A learning rate of {self.name} is {min(rates)}: it must be above 0, such as 0.1.")
        if self.seed < 0:
            raise UsageError(f"seed of {self.name} is {self.seed}: it must not be negative.")
        self._share("quantized_share")

    @property
    def needs_float_inputs(self) -> bool:
        """Whether a layer learns from the rows of its float input, too."""
        return self.quantized_share < 1.0

    @property
    def warm_steps(self) -> float:
        """The share of the steps that are never cut short."""
        return 0.0

    def check_formats(
        self, recipe: str, weights: Sequence[NumberFormat | None], activations: Sequence[NumberFormat | None]
    ) -> None:
        """Raise UsageError if it cannot work on the formats of a recipe."""
        super().check_formats(recipe, weights, activations)
        for fmt in activations if self.output_rounded else ():
            if fmt is not None and not is_integer(fmt):
                raise UsageError(
                    f"output_rounded of {self.name} is for activations that are integers, and those of recipe {recipe} "
                    f"are {fmt.label}. Leave it out."
                )

    def solve(self, problem: LayerProblem, contest: Contest, pool: Executor) -> str | None:
        """Offer what was learned, with its own bias and with the one that matches the means.

        The error is that after the activation, so its bias may be better than the matching one, or was left alone.
        """
        solution = self.learn(problem, pool)
        contest.offer(solution, matches_means=False)
        if problem.free_bias:
            matched = replace(
                solution, bias=problem.matching_bias(solution.codes), method=f"{solution.method}, bias correction"
            )
            contest.offer(matched, matches_means=True)
        return None

    def learn(self, problem: LayerProblem, pool: Executor) -> Solution:
        """Return codes and biases that bring the layer's output closer to the target, on the rows of the problem."""
        return _LayerSearch(problem, self, pool).solve()

    def start(self, problem: LayerProblem, where: Where, errors: Floats) -> Variables:
        """Return the variables of some channels, whose errors with weights rounded to the nearest are given."""
        raise NotImplementedError


class Variables(Protocol):
    """What a method changes, for one block of channels, and the (softly) rounded weights and biases that follow."""

    weights: Singles
    bias: Doubles

    def step(self, step: int, rate: float, loss: float, gradient: Singles, bias_gradient: Doubles) -> float:
        """Make step number `step`, counted from 1; return the number that tells whether there is progress."""

    def settled(self) -> tuple[Floats, Floats]:
        """Return the codes and the float biases, if it ended here."""


class Gradient(Protocol):
    """The error of weights and biases; it fills in the gradients."""

    def __call__(
        self, batch: int, weights: Singles, bias: Doubles, gradient: Singles, bias_gradient: Doubles, /
    ) -> float:
        """Return the error; `batch` says on which rows, if it matters."""


@dataclass(frozen=True, eq=False)
class Batches:
    """Rows and targets of some groups and channels, batch after batch, the last one filled up with zeros.

    `by_sample` holds the rows again in the other order of axes, as products over inputs read them (it is by_input where
    inputs are few). `act` and `grid` are the activation and the output's rounding in the form of the compiled loops.
    """

    by_input: Singles  # batches, groups, inputs, rows
    by_sample: Singles  # batches, groups, rows, inputs
    target: Singles  # batches, groups, channels, rows; after the activation
    counts: Indices  # the rows of each batch
    act: Doubles
    grid: Doubles

    @property
    def linear(self) -> bool:
        """Whether the output is the weighted sum itself."""
        return bool(np.array_equal(self.act, IDENTITY) and self.grid[0] == 0)

    def part(self, where: Where) -> Batches:
        """Return the same rows for some of the groups and of their channels."""
        groups, channels = where
        target = np.ascontiguousarray(self.target[:, groups, channels])
        return replace(self, by_input=self.by_input[:, groups], by_sample=self.by_sample[:, groups], target=target)

    def errors(self, weights: Singles, bias: Doubles) -> Doubles:
        """Return each channel's mean squared error over all rows."""
        squares, sums, total = np.empty_like(bias), np.empty_like(bias), np.zeros_like(bias)
        scratch = np.empty(self.target.shape[1:], np.float32)
        for batch in range(len(self.counts)):
            self.forward(batch, weights, bias, scratch, squares, sums)
            total += squares
        total /= float(self.counts.sum())
        return total

    def forward(
        self, batch: int, weights: Singles, bias: Doubles, derivatives: Singles, squares: Doubles, sums: Doubles
    ) -> None:
        """Fill in the derivatives of one batch, and each channel's sums (see `gradient_loops.forward`)."""
        rows, columns = self.by_sample[batch], self.by_input[batch]
        count = self.counts[batch]
        forward(
            rows, columns, self.target[batch], count, weights, bias, self.act, self.grid, derivatives, squares, sums
        )


def batches_of(problem: LayerProblem, order: Indices, size: int, rows: Singles, *, round_output: bool) -> Batches:
    """Cut the rows with the indices `order`, in that order, into batches of at most `size`, of about the same size."""
    groups, _, inputs = rows.shape
    number = -(-len(order) // size)
    size = -(-len(order) // number)
    counts = np.minimum(size, len(order) - size * np.arange(number, dtype=np.int64))
    padded = np.zeros((groups, number * size, inputs), np.float32)
    padded[:, : len(order)] = rows[:, order]
    by_sample = padded.reshape(groups, number, size, inputs).swapaxes(0, 1)
    target = np.zeros((number * size, *problem.target.shape[1:]), np.float32)
    target[: len(order)] = problem.activation(problem.target[order])
    act = problem.activation
    grid = UNROUNDED
    if round_output and holds_integers(problem.output):
        grid = np.array([float(problem.output.scale), *problem.output.span, problem.output_ties == "half_up"])
    by_input = np.ascontiguousarray(by_sample.swapaxes(2, 3))
    return Batches(
        by_input=by_input,
        by_sample=by_input if inputs < SHORT else np.ascontiguousarray(by_sample),
        target=np.ascontiguousarray(target.reshape(number, size, *target.shape[1:]).transpose(0, 2, 3, 1)),
        counts=counts,
        act=np.array([act.low, act.high, act.slope]),
        grid=grid,
    )


class BatchGradient:
    """Error and gradient on one batch after the other."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        shape = batches.target.shape[1:]
        self._derivatives = np.empty(shape, np.float32)
        self._squares = np.empty(shape[:2])

    def __call__(self, batch: int, weights: Singles, bias: Doubles, gradient: Singles, bias_gradient: Doubles) -> float:
        """Fill in the gradients; return the error."""
        batches = self._batches
        batches.forward(batch, weights, bias, self._derivatives, self._squares, bias_gradient)
        dots_of_groups(self._derivatives, batches.by_input[batch], gradient)
        share = 2.0 / float(batches.counts[batch])
        gradient *= np.float32(share)
        bias_gradient *= share
        return float(self._squares.sum()) * share / 2.0


@dataclass(frozen=True, eq=False)
class InputMoments:
    """The means of x and of x x^T over all rows."""

    mean: Singles  # groups, inputs
    square: Singles  # groups, inputs, inputs

    @classmethod
    def of(cls, batches: Batches) -> InputMoments:
        """Return the moments of the batches' rows."""
        _, groups, inputs, _ = batches.by_input.shape
        square = np.zeros((groups, inputs, inputs))
        product = np.empty((groups, inputs, inputs), np.float32)
        for columns in batches.by_input:
            dots_of_groups(columns, columns, product)
            square += product
        rows = batches.counts.sum()
        mean = batches.by_input.sum(axis=3, dtype=np.float64).sum(axis=0) / rows
        return cls(mean.astype(np.float32), (square / rows).astype(np.float32))

    def part(self, groups: slice) -> InputMoments:
        """Return those of some of the groups."""
        return InputMoments(self.mean[groups], self.square[groups])


class MomentGradient:
    """Error and gradient over all rows, for a layer without activation; `weights` and `bias` are where it starts."""

    def __init__(self, batches: Batches, moments: InputMoments, weights: Singles, bias: Doubles) -> None:
        self._moments, self._weights, self._bias = moments, weights.copy(), bias.copy()
        at_start = BatchGradient(batches)
        self._cross = np.zeros(weights.shape)
        self._residual = np.zeros(bias.shape)
        self._error = 0.0
        gradient, bias_gradient = np.empty_like(weights), np.empty_like(bias)
        rows = float(batches.counts.sum())
        for batch, count in enumerate(batches.counts):
            share = float(count) / rows
            self._error += share * at_start(batch, weights, bias, gradient, bias_gradient)
            self._cross += share / 2.0 * gradient
            self._residual += share / 2.0 * bias_gradient

    def __call__(
        self, _batch: int, weights: Singles, bias: Doubles, gradient: Singles, bias_gradient: Doubles
    ) -> float:
        """Fill in the gradients; return the error."""
        change, shift = weights - self._weights, bias - self._bias
        dots_of_groups(change, self._moments.square, gradient)
        pull = self._cross + shift[..., None] * self._moments.mean[:, None]
        quadratic = float((change * (gradient + 2.0 * pull)).sum())
        gradient += pull
        gradient *= np.float32(2.0)
        bias_gradient[:] = 2.0 * (self._residual + shift + (change * self._moments.mean[:, None]).sum(axis=2))
        return quadratic + float((shift * (shift + 2.0 * self._residual)).sum()) + self._error


def blocks_of(groups: int, channels: int) -> Iterator[Where]:
    """Cut channels into blocks of about the same number, for any number of groups."""
    some_groups = max(1, CHANNELS_PER_BLOCK // channels)
    for group in range(0, groups, some_groups):
        for channel in range(0, channels, CHANNELS_PER_BLOCK):
            yield (
                slice(group, min(group + some_groups, groups)),
                slice(channel, min(channel + CHANNELS_PER_BLOCK, channels)),
            )


@dataclass
class BlockSearch:
    """A block of channels, with its variables and their gradient."""

    where: Where
    variables: Variables
    gradient: Gradient

    def advance(self, steps: range, order: Indices, rate: float) -> float:
        """Make the steps, each on its batch of `order`; return the sum of the numbers that tell of progress."""
        variables, progress = self.variables, 0.0
        gradient, bias_gradient = np.empty_like(variables.weights), np.empty_like(variables.bias)
        for step in steps:
            loss = self.gradient(int(order[step]), variables.weights, variables.bias, gradient, bias_gradient)
            progress += variables.step(step + 1, rate, loss, gradient, bias_gradient)
        return progress


class _LayerSearch:
    """One layer's search for what is better than rounding to the nearest."""

    def __init__(self, problem: LayerProblem, options: GradientSearch, pool: Executor) -> None:
        if options.needs_float_inputs and problem.float_rows is None:
            raise UsageError(
                f"quantized_share is {options.quantized_share}, but for '{problem.name}' the input of the float model "
                "was not recorded. Leave it at 1."
            )
        self._problem, self._options, self._pool = problem, options, pool
        self._random = np.random.default_rng(options.seed)
        held_out = problem.samples // HELD_OUT if options.selective_update else 0
        self._learned: Indices = self._random.permutation(problem.samples - held_out)
        self._held_out: Indices = np.arange(problem.samples - held_out, problem.samples)
        self._blocks = list(blocks_of(*problem.bias.shape))
        self._codes, self._bias = problem.nearest(), problem.bias.copy()

    def solve(self) -> Solution:
        """Search, and keep of it what is better than rounding to the nearest."""
        options = self._options
        judge = self._batches(self._learned, self._problem.rows)
        best = self._errors(judge, self._codes, self._bias)
        rate = self._rate(float(best.mean()))
        order = self._order(len(judge.counts))
        searches = self._searches(judge, best)
        least = np.inf
        for steps in _windows(options.iterations):
            watched = sum(self._pool.map(lambda search, steps=steps: search.advance(steps, order, rate), searches))
            self._keep_best(judge, searches, best)
            if options.early_stop and steps.start >= options.warm_steps * options.iterations:
                if watched / len(steps) >= least:
                    break
                least = watched / len(steps)
            if options.needs_float_inputs:
                mixed = self._mixed()
                for search in searches:
                    search.gradient = BatchGradient(mixed.part(search.where))
        self._revert_what_fails()
        return Solution(self._codes, self._bias, options.name.lower())

    def _batches(self, rows: Indices, values: Singles) -> Batches:
        options = self._options
        return batches_of(self._problem, rows, options.batch, values, round_output=options.output_rounded)

    def _order(self, batches: int) -> Indices:
        """Return the batch of each step: all in turn, every time in another order."""
        rounds = -(-self._options.iterations // batches)
        return np.concatenate([self._random.permutation(batches) for _ in range(rounds)])

    def _rate(self, error: float) -> float:
        bound, rate = self._options.learning_rate_above or (np.inf, 0.0)
        return rate if error > bound else self._options.learning_rate

    def _mixed(self) -> Batches:
        """Return batches whose inputs come from the quantized or from the float model, each value by chance."""
        rows, others = self._problem.rows, self._problem.float_rows
        assert others is not None
        chance = self._random.random(rows.shape, dtype=np.float32)
        return self._batches(self._learned, np.where(chance < self._options.quantized_share, rows, others))

    def _searches(self, judge: Batches, errors: Floats) -> list[BlockSearch]:
        mixed = self._options.needs_float_inputs
        batches = self._mixed() if mixed else judge
        inputs = self._problem.weight.shape[2]
        # A step costs inputs^2 by moments and 2 * batch * inputs otherwise, for each channel.
        by_moments = batches.linear and not mixed and inputs <= 2 * self._options.batch
        moments = InputMoments.of(batches) if by_moments else None
        searches = []
        for where in self._blocks:
            variables = self._options.start(self._problem, where, errors[where].copy())
            own = batches.part(where)
            gradient: Gradient = BatchGradient(own)
            if moments is not None:
                gradient = MomentGradient(own, moments.part(where[0]), variables.weights, variables.bias)
            searches.append(BlockSearch(where, variables, gradient))
        return searches

    def _errors(self, judge: Batches, codes: Floats, bias: Floats) -> Floats:
        """Return each channel's mean squared error, with weights and biases as they will be stored."""
        weights = (codes * self._problem.weight_scale[..., None]).astype(np.float32)
        stored = self._problem.stored_bias(bias)
        errors = np.empty_like(bias)

        def measure(where: Where) -> None:
            own = judge.part(where)
            errors[where] = own.errors(np.ascontiguousarray(weights[where]), stored[where].copy())

        list(self._pool.map(measure, self._blocks))
        return errors

    def _keep_best(self, judge: Batches, searches: list[BlockSearch], best: Floats) -> None:
        codes, bias = np.empty_like(self._codes), np.empty_like(self._bias)
        for search in searches:
            codes[search.where], bias[search.where] = search.variables.settled()
        errors = self._errors(judge, codes, bias)
        better = errors < best
        best[better], self._codes[better], self._bias[better] = errors[better], codes[better], bias[better]

    def _revert_what_fails(self) -> None:
        """Round channels to the nearest again that are no better on the held-out rows."""
        if not len(self._held_out):
            return
        judge = self._batches(self._held_out, self._problem.rows)
        nearest = self._problem.nearest()
        before = self._errors(judge, nearest, self._problem.bias)
        worse = self._errors(judge, self._codes, self._bias) >= before
        self._codes[worse], self._bias[worse] = nearest[worse], self._problem.bias[worse]


def _windows(iterations: int) -> Iterator[range]:
    edges = np.linspace(0, iterations, min(WINDOWS, iterations) + 1).astype(int).tolist()
    return (range(first, last) for first, last in pairwise(edges))
