"""Least squares over steps: a layer's error as a quadratic form in its weights, and two ways to make it small.

With X the rows of the quantized input and Y the float output, both centered if a bias takes the means, weights w of a
channel have the error

    |X w - y|^2  =  w H w^T - 2 r w^T + |y|^2          H = X^T X,   r = y^T X

A damping of lam, a share of the mean of H's diagonal, adds lam |w - float w|^2: it draws the weights to the float ones
where the rows say little, and H + lam I can be inverted wherever any input is alive.

**Coordinate descent** is exact in each coordinate. With s the scale of a weight, q its step and e = r - w H the
residual of its channel,

    q_k <- round(q_k + e_k / (s_k H_kk))          within low_k .. high_k

and it ends where no single step of any weight makes the error smaller.

**Exhaustive search** finds the best steps of all, for a channel with few weights: it leaves out what cannot be better.
With G = S H S for scales S = diag(s), its factor G = L L^T, and x the steps that would be best if they need not be
whole, the error of steps q is, up to a constant,

    |(q - x) L|^2  =  sum over j of (L_jj (q_j - c_j))^2          c_j = x_j - sum over k > j of (q_k - x_k) L_kj / L_jj

Term j depends on q_j and later ones only. So the last step is chosen first, each from its center c_j outwards, and a
branch ends as soon as its terms add up to more than the best that is known. All steps between low and high are covered.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from detent.numerics.compiled import compiled
from detent.refinements.layer_problem import Floats, LayerProblem, StepRounder

CONSTANT_INPUTS = "its inputs are the same in all samples, which says nothing about weights"
# Below this share of its squared mean, the variance of an input is what centering in float32 leaves.
LEAST_VARIANCE = 1e-10

FEW_INPUTS = 12  # up to so many weights a channel is searched: a depthwise kernel of 3 x 3 has nine

# Branches that are better by less than this share are not worth a change. A pivot below it counts as none.
_PRECISION = 1e-9

_PIECES = 16  # channels are divided into, for the threads


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The error w H w^T - 2 r w^T of every channel, up to a constant."""

    second: Floats  # H: groups, inputs, inputs
    cross: Floats  # r: groups, channels, inputs

    def residual(self, weights: Floats) -> Floats:
        """Return half the slope of the error, downwards: r - w H."""
        return np.asarray(self.cross - np.matmul(weights, self.second))

    def errors(self, weights: Floats) -> Floats:
        """Return the error of each channel."""
        return np.asarray(-(weights * (self.cross + self.residual(weights))).sum(axis=2))


@dataclass(frozen=True, eq=False)
class RowMoments:
    """The means of input and output, the second moments of the input and the cross moments with the output."""

    input_mean: Floats  # groups, inputs
    output_mean: Floats  # groups, channels
    second: Floats  # groups, inputs, inputs
    cross: Floats  # groups, channels, inputs
    rows: int

    @classmethod
    def of(cls, problem: LayerProblem) -> RowMoments:
        """Sum up a layer's rows, centered if its bias is free to take the means."""
        groups, _, inputs = problem.weight.shape
        input_mean, output_mean = np.zeros((groups, inputs)), problem.bias
        if problem.free_bias:
            input_mean, output_mean = problem.mean_input, problem.target.mean(axis=0, dtype=np.float64)
        second, cross = np.empty((groups, inputs, inputs)), np.empty(problem.weight.shape)
        targets = np.ascontiguousarray(problem.target.transpose(1, 2, 0))
        for g in range(groups):  # one at a time: a copy of one group's rows is small
            rows = problem.rows[g] - input_mean[g].astype(np.float32)
            target = targets[g] - output_mean[g].astype(np.float32)[:, None]
            second[g], cross[g] = rows.T @ rows, target @ rows
        return cls(input_mean, output_mean, second, cross, problem.samples)

    @property
    def vary(self) -> bool:
        """Whether any input has different values, beyond what centering in float32 leaves of equal ones."""
        left = LEAST_VARIANCE * self.rows * np.square(self.input_mean)
        return bool((np.einsum("gkk->gk", self.second) > left).any())

    def bias(self, problem: LayerProblem, codes: Floats) -> Floats:
        """Return the bias with which codes give the right mean; the layer's own if that is not free."""
        if not problem.free_bias:
            return problem.bias
        return self.output_mean - problem.mean_products(codes, self.input_mean)

    def to_output(self, weight: Floats, damping: float) -> Quadratic:
        """Return the damped error against the float output, whatever the quantized input is."""
        second, added = self.damped(damping)
        return Quadratic(second, self.cross + added[:, None, None] * weight)

    def to_weights(self, weight: Floats, damping: float) -> Quadratic:
        """Return the damped error against what the float weights make of the same quantized input."""
        second, _ = self.damped(damping)
        return Quadratic(second, np.matmul(weight, second))

    def damped(self, damping: float) -> tuple[Floats, Floats]:
        """Return the damped second moments, and what was added to those of each group."""
        power = np.einsum("gkk->gk", self.second).mean(axis=1)
        added = np.where(power > 0.0, damping * power, 1.0)  # a group that sees nothing but zeros keeps its weights
        second = self.second.copy()
        np.einsum("gkk->gk", second)[...] += added[:, None]
        return second, added


def flat_rows(array: Floats) -> Floats:
    """Return an array (groups, channels, inputs) as contiguous rows, one for each channel of each group."""
    return np.ascontiguousarray(array).reshape(-1, array.shape[2])


def flat_box(box: StepRounder) -> Floats:
    """Return scales, least and greatest steps as one array of rows, for the compiled loops."""
    return np.stack([flat_rows(part) for part in (box.scale, box.low, box.high)])


def in_pieces(count: int, task: Callable[[int, int], None], pool: Executor) -> None:
    """Call `task` with the first and last of some channels, for all of them, in all threads."""
    edges = np.linspace(0, count, min(_PIECES, count) + 1).astype(int)
    list(pool.map(task, edges[:-1], edges[1:]))


def descend(start: Floats, error: Quadratic, box: StepRounder, sweeps: int, pool: Executor) -> Floats:
    """Return the steps that `start` comes to within the limits of `box`. An input of zeros alone keeps its step."""
    steps, residual = flat_rows(start.copy()), flat_rows(error.residual(start * box.scale))
    limits = flat_box(box)

    def descend_piece(first: int, last: int) -> None:
        _descend(steps, residual, limits, error.second, start.shape[1], sweeps, first, last)

    in_pieces(len(steps), descend_piece, pool)
    return steps.reshape(start.shape)


def search_exhaustively(start: Floats, error: Quadratic, box: StepRounder, pool: Executor) -> Floats:
    """Return the best steps within the limits of `box`; `start`, which is within them, stays unless others are better.

    So it does in groups whose second moments cannot be inverted.
    """
    steps, cross, limits = flat_rows(start.copy()), flat_rows(error.cross), flat_box(box)

    def search_piece(first: int, last: int) -> None:
        _search(steps, cross, limits, error.second, start.shape[1], first, last)

    in_pieces(len(steps), search_piece, pool)
    return steps.reshape(start.shape)


@compiled
def _descend(
    steps: Floats, residual: Floats, box: Floats, second: Floats, channels: int, sweeps: int, first: int, last: int
) -> None:
    """Descend in the rows first..last of `steps`, in place. `box` has the scales, least and greatest steps."""
    scale, low, high = box[0], box[1], box[2]
    inputs = steps.shape[1]
    for c in range(first, last):
        moments, r = second[c // channels], residual[c]
        for _ in range(sweeps):
            moved = False
            for k in range(inputs):
                curvature = scale[c, k] * moments[k, k]
                if curvature <= 0.0:
                    continue
                step = min(max(np.rint(steps[c, k] + r[k] / curvature), low[c, k]), high[c, k])
                change = step - steps[c, k]
                if change != 0.0:
                    steps[c, k] = step
                    moved = True
                    change *= scale[c, k]
                    row = moments[k]
                    for j in range(inputs):
                        r[j] -= change * row[j]
            if not moved:
                break


@compiled
def _factor(second: Floats, scale: Floats, lower: Floats) -> bool:
    """L of S H S; whether there is one."""
    for i in range(scale.size):
        for j in range(i + 1):
            rest = scale[i] * second[i, j] * scale[j]
            for k in range(j):
                rest -= lower[i, k] * lower[j, k]
            if i != j:
                lower[i, j] = rest / lower[j, j]
            elif rest <= _PRECISION * scale[i] * second[i, i] * scale[i]:
                return False
            else:
                lower[i, i] = np.sqrt(rest)
    return True


@compiled
def _unrounded(lower: Floats, cross: Floats, scale: Floats) -> Floats:
    """x, where L L^T x = S r."""
    x = cross * scale
    for i in range(x.size):
        for k in range(i):
            x[i] -= lower[i, k] * x[k]
        x[i] /= lower[i, i]
    for i in range(x.size - 1, -1, -1):
        for k in range(i + 1, x.size):
            x[i] -= lower[k, i] * x[k]
        x[i] /= lower[i, i]
    return x


@compiled
def _center(lower: Floats, x: Floats, q: Floats, j: int) -> float:
    pull = 0.0
    for k in range(j + 1, x.size):
        pull += (q[k] - x[k]) * lower[k, j]
    return float(x[j] - pull / lower[j, j])


@compiled
def _improve(steps: Floats, x: Floats, lower: Floats, low: Floats, high: Floats) -> None:
    """Replace the steps of one channel by the best ones."""
    inputs = steps.size
    bound = 0.0
    for j in range(inputs):
        bound += (lower[j, j] * (steps[j] - _center(lower, x, steps, j))) ** 2
    bound *= 1.0 - _PRECISION
    trial, cost = np.empty(inputs), np.zeros(inputs + 1)  # cost[j]: the terms from j on
    center, below, above = np.empty(inputs), np.empty(inputs), np.empty(inputs)
    j, entered = inputs - 1, True
    while j < inputs:
        if entered:
            center[j] = _center(lower, x, trial, j)
            below[j] = min(np.floor(center[j]), high[j])
            above[j] = max(np.floor(center[j]) + 1.0, low[j])
            entered = False
        if below[j] >= low[j] and (above[j] > high[j] or center[j] - below[j] <= above[j] - center[j]):
            trial[j] = below[j]
            below[j] -= 1.0
        elif above[j] <= high[j]:
            trial[j] = above[j]
            above[j] += 1.0
        else:
            j += 1
            continue
        total = cost[j + 1] + (lower[j, j] * (trial[j] - center[j])) ** 2
        if total >= bound:  # and so are all steps that are further from the center
            j += 1
        elif j > 0:
            cost[j] = total
            j -= 1
            entered = True
        else:
            bound = total
            steps[:] = trial


@compiled
def _search(steps: Floats, cross: Floats, box: Floats, second: Floats, channels: int, first: int, last: int) -> None:
    """Find the best steps of the rows first..last, in place."""
    scale, low, high = box[0], box[1], box[2]
    lower = np.zeros((steps.shape[1], steps.shape[1]))
    for c in range(first, last):
        if _factor(second[c // channels], scale[c], lower):
            _improve(steps[c], _unrounded(lower, cross[c], scale[c]), lower, low[c], high[c])
