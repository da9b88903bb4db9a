"""Quick rounding: GPTQ in blocks of inputs, on the few rows that bias correction looks at.

Each weight is rounded once, and those that follow make up for its error (see `gptq`). For all inputs of a layer
together, that takes a factor of their second moments: its cost is the cube of their number, and it needs more rows than
inputs. But a weight is made up for best by those of inputs that resemble its own, which are the other positions of its
kernel and the channels beside it. So `block` inputs at a time are looked at, as if blocks knew nothing of each other,

    minimize over w in a block   (w - float w) H (w - float w)^T          H = second moments of its inputs + damping

around the means, which the bias takes. The cost grows with the number of inputs alone, to a fraction of a second for
most networks. Everything is summed in one order, so the codes are the same for any number of threads.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled
from detent.numerics.formats import holds_integers
from detent.numerics.interface import Params
from detent.refinements.layer_problem import Floats, LayerProblem, Solution
from detent.refinements.least_squares import LEAST_VARIANCE, flat_box, flat_rows, in_pieces
from detent.refinements.refinement import Contest, WeightRefinement

Singles = npt.NDArray[np.float32]

_LEAST_PIVOT = 1e-12  # as a share of the second moment: less is what rounding left of equal inputs


@dataclass(frozen=True)
class QuickRounding(WeightRefinement):
    """Biases are corrected, and weights are rounded so that they make up for each other's errors, in seconds.

    `damping` is a share of the mean second moment of the inputs, `block` how many of them are looked at together.
    Weights that are not integers are left as they are.
    """

    learns_weights: ClassVar[bool] = False

    samples: int = 32
    rows: int = 32
    damping: float = 0.1
    block: int = 128

    def __post_init__(self) -> None:
        """Check the settings."""
        self._at_least_one("samples", "rows", "block")
        self._not_negative("damping")

    def why_not(self, weights: Params) -> str | None:
        """Say why it cannot choose between the numbers that weights may be, or return None."""
        return None if holds_integers(weights) else f"its weights are {weights.format.label}"

    def solve(self, problem: LayerProblem, contest: Contest, pool: Executor) -> str | None:
        """Offer the one solution there is."""
        codes = problem.codes_of_steps(self.steps(problem, pool))
        contest.offer(Solution(codes, problem.matching_bias(codes), "quick rounding"), problem.free_bias)
        return None

    def steps(self, problem: LayerProblem, pool: Executor) -> Floats:
        """Return how many times its scale each weight becomes."""
        groups, _, inputs = problem.weight.shape
        weights, box = flat_rows(problem.weight), flat_box(problem.grid())
        steps = np.empty_like(weights)
        blocks = groups * -(-inputs // self.block)

        def round_piece(first: int, last: int) -> None:
            _round_blocks(problem.rows, problem.free_bias, weights, box, steps, self.damping, self.block, first, last)

        in_pieces(blocks, round_piece, pool)
        return steps.reshape(problem.weight.shape)


@compiled
def _round_blocks(
    rows: Singles,
    centered: bool,
    weights: Floats,
    box: Floats,
    steps: Floats,
    damping: float,
    block: int,
    first: int,
    last: int,
) -> None:
    """Round the weights of blocks first..last, which are counted group by group.

    `box` has the scales, least and greatest steps.
    """
    groups, _, inputs = rows.shape
    channels, blocks = len(weights) // groups, -(-inputs // block)
    for at in range(first, last):
        group, start = at // blocks, at % blocks * block
        stop, own = min(start + block, inputs), group * channels
        second = _second_moments(rows[group], centered, start, stop, damping)
        order = np.argsort(np.diag(second), kind="mergesort")  # the last is rounded first: there errors cost most
        lower = _factor(second, order)
        _round_in_turn(weights, box, steps, lower, order + start, own, own + channels)


@compiled
def _second_moments(rows: Singles, centered: bool, start: int, stop: int, damping: float) -> Floats:
    """Return the damped second moments of the inputs from `start` to `stop`, around their means if `centered`."""
    size, count = stop - start, len(rows)
    mean, second, x = np.zeros(size), np.zeros((size, size)), np.zeros((4, size))
    if centered:
        for r in range(count):
            for j in range(size):
                mean[j] += rows[r, start + j] / count
    for above in range(0, count, 4):  # four at a time: each sum is read and written once for all of them
        for r in range(4):
            for j in range(size):
                x[r, j] = rows[above + r, start + j] - mean[j] if above + r < count else 0.0
        for i in range(size):
            a, b, c, d, into = x[0, i], x[1, i], x[2, i], x[3, i], second[i]
            for j in range(i + 1):
                into[j] += a * x[0, j] + b * x[1, j] + c * x[2, j] + d * x[3, j]
    power = np.diag(second).mean()
    if power <= LEAST_VARIANCE * count * (mean * mean).mean():  # inputs that never change: the nearest weights stay
        second[...], power = 0.0, 1.0
    added = max(damping, _LEAST_PIVOT) * power
    for i in range(size):
        second[i, i] += added
        for j in range(i):
            second[j, i] = second[i, j]
    return second


@compiled
def _factor(second: Floats, order: npt.NDArray[np.int64]) -> Floats:
    """Return L with L L^T = the second moments in this order. A pivot that rounding made negative counts as tiny."""
    size = len(second)
    lower = np.zeros((size, size))
    for i in range(size):
        for j in range(i + 1):
            rest = second[order[i], order[j]]
            for k in range(j):
                rest -= lower[i, k] * lower[j, k]
            if i != j:
                lower[i, j] = rest / lower[j, j]
            else:
                lower[i, i] = np.sqrt(max(rest, _LEAST_PIVOT * second[order[i], order[i]]))
    return lower


@compiled
def _round_in_turn(
    weights: Floats,
    box: Floats,
    steps: Floats,
    lower: Floats,
    order: npt.NDArray[np.int64],
    first: int,
    last: int,
) -> None:
    """Round the inputs in `order`, from the last to the first, of the channels first..last."""
    pulls = np.empty(len(order))
    for c in range(first, last):
        pulls[:] = 0.0
        for j in range(len(order) - 1, -1, -1):
            at = order[j]
            scale, weight = box[0, c, at], weights[c, at]
            wanted = (weight - pulls[j] / lower[j, j]) / scale
            step = min(max(np.rint(wanted), box[1, c, at]), box[2, c, at])
            steps[c, at] = step
            error, row = step * scale - weight, lower[j]
            for k in range(j):
                pulls[k] += error * row[k]
