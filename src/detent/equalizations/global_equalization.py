"""Global equalization: every channel gets the factor at which rounding the whole network adds the least noise.

Rounding with step s adds noise of variance s^2 / 12. A step is the largest magnitude of a tensor over 127, and the
factors decide what is largest: a channel that is scaled up is rounded more finely, and may make the step of its tensor
coarser for all others. With g and h the logarithms of the factors of a layer's input and output channels, in units of
the original network, the noise in the layer's output is the sum of

    weights       s_w^2 / 12 * sum over outputs of e^(-2h) * sum over inputs of e^(2g) E[x^2] taps
    activations   s_x^2 / 12 * sum over inputs of e^(-2g) * (sum over outputs and taps of w^2)
    bias          s_b^2 / 12 * sum over outputs of e^(-2h)

    s_w = max |w| e^(h - g) / 127        s_x = max |x| e^g / 127        s_b = max |b| e^h / 127

and what is minimized is the sum over all layers of this noise over the variance of the layer's output. With a p-norm
for each maximum it is smooth, and a sum of exponentials of linear functions: convex, with one minimum.

**Levels.** Then all channels of a value are moved to where they make the most of scales that are powers of two. Those
that can be rescaled can all be multiplied by the same number. A float scale follows, and nothing changes. A scale that
is a power of two follows in leaps, and a value whose largest magnitude is just above 127 steps is rounded twice as
coarsely as one just below. So the common factors are chosen by which the largest magnitudes of activations, weights and
biases come to lie just below the edge 127 * 2^-p. With u the logarithm to base 2 of magnitude / 127, the noise that
rounding adds is 4^(ceil(u) - u) times that of a float scale. What is minimized is the noise of all layers, by one
common factor after another.

A value that a Clip cuts off at b uses its codes best with the edge at b. Then the end of the codes is the Clip, and the
device may compute a Relu instead; with a lower edge, the same holds. So the channels of a Clip are placed such that
there is an edge between the largest value that was observed and b.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from detent.equalizations.channel_problem import (
    ChannelFactors,
    ChannelProblem,
    ClipChannels,
    Equalizer,
    Floats,
    LayerChannels,
    Variables,
    pad,
)
from detent.numerics.compiled import compiled, compiled_sums, read_only

STEPS, TOLERANCE = 100, 1e-3  # of the minimizer
LEAST_MOVABLE = 0.5  # of the channels: if Clips hold most of them, what the others could gain is not worth it
LEAST_SHARE = 1e-3  # of the largest channel: a channel below it counts as if it held that much

NORM = 24.0  # a norm this high is near the maximum, and still smooth
CODES = 127.0  # of int8, on either side of zero

CANDIDATES = 32  # levels that are tried between two powers of two

ROUNDS = 10
EXACT = 1e-9  # levels are whole numbers up to rounding
KEPT = -1  # the level of channels that stay where they are

Function = Callable[[Floats], tuple[float, Floats]]
MEMORY = 10  # pairs of steps and gradients that L-BFGS keeps
SMALLEST = 1e-200  # what has an inverse that can be multiplied with


@dataclass(frozen=True)
class GlobalEqualization(Equalizer):
    """All channels of the network at once: the factors at which rounding weights, activations and biases adds the least
    noise, from what the channels were observed to hold.

    With `absorb`, what a channel holds at least is first added by the layers behind instead.
    """

    absorb: bool = False

    def solve(self, problem: ChannelProblem) -> ChannelFactors:
        """Give each channel its share of the range that it lies in, then choose the levels."""
        unchanged = np.zeros(problem.count)
        noise = NoiseModel([LayerNoise.of(layer) for layer in problem.layers], problem.count)
        low, high = problem.bounds()
        movable = float((low < high).mean()) >= LEAST_MOVABLE
        variables = minimize(noise, low, high, STEPS, TOLERANCE) if movable else unchanged
        count, levels = find_levels(problem.values, problem.count)
        shares = [
            share
            for layer, noises in zip(problem.layers, noise.by_tensor(variables), strict=True)
            for share in _shares(layer, noises, pad(variables), levels)
        ]
        limits = [_limit(clip, pad(variables), levels) for clip in problem.clips if clip.codes]
        chosen = np.append(choose_levels(count, shares, limits), 0.0) * np.log(2.0)
        return ChannelFactors(
            variables + chosen[levels[: problem.count]],
            np.array([chosen[level_of(clip.variables, levels)] for clip in problem.clips]),
            noise_before=noise(unchanged)[0],
            noise_after=noise(variables)[0],
        )


@dataclass(frozen=True, eq=False)
class LayerNoise:
    """What the noise of one layer depends on: all arrays are per group (first axis), and of the original network.

    `weight` is the largest magnitude over the taps (groups x outputs x inputs), `energy` the sum of squares of the
    weights that read an input, `largest` and `power` of the input its largest magnitude and mean square, `signal` the
    variance of the output summed over channels. Parts that are not quantized are None.
    """

    inputs: Variables
    outputs: Variables
    weight: npt.NDArray[np.float32] | None
    taps: int
    energy: Floats
    largest: Floats | None
    power: Floats
    bias: Floats | None
    signal: float

    @classmethod
    def of(cls, layer: LayerChannels) -> LayerNoise:
        """Return what is known of a layer, which has the moments of its input."""
        assert layer.seen is not None, f"the input of '{layer.name}' was not observed"
        weight = np.ascontiguousarray(layer.weight, np.float32)
        groups, _, inputs, taps = weight.shape
        energy = np.zeros((groups, inputs))
        # The weights are the largest array here, so those with one tap are read where they are. Signs do not matter.
        largest = weight[..., 0] if taps == 1 else np.empty(weight.shape[:3], np.float32)
        _look_at_taps(read_only(weight), np.empty((0, 0, 0), np.float32) if taps == 1 else largest, energy)
        bias = None if layer.bias is None or layer.bias_codes is None else layer.bias.astype(np.float64)
        return cls(
            inputs=layer.inputs,
            outputs=layer.outputs,
            weight=None if layer.weight_codes is None else largest,
            taps=taps,
            energy=energy,
            largest=None if layer.input_codes is None else _at_least(layer.seen.largest, layer.inputs),
            power=layer.seen.power.reshape(layer.inputs.shape),
            bias=None if bias is None else _at_least(np.abs(bias).reshape(-1), layer.outputs),
            signal=max(layer.signal, 1e-12),
        )


@compiled
def _look_at_taps(weight: npt.NDArray[np.float32], largest: npt.NDArray[np.float32], energy: Floats) -> None:
    """Add the squares that each input is read with to `energy`; fill `largest` with magnitudes, if it is not empty."""
    groups, outputs, inputs, taps = weight.shape
    for group in range(groups):
        for o in range(outputs):
            for i in range(inputs):
                most, squares = np.float32(0.0), 0.0
                for tap in range(taps):
                    value = weight[group, o, i, tap]
                    most = max(most, abs(value))
                    squares += np.float64(value) * np.float64(value)
                energy[group, i] += squares
                if largest.size:
                    largest[group, o, i] = most


def _at_least(magnitudes: Floats, shape: Variables) -> Floats:
    """Return magnitudes with a floor under them, so that a dead channel is not scaled up without end."""
    floor = max(LEAST_SHARE * float(magnitudes.max(initial=0.0)), 1e-30)
    return np.maximum(magnitudes, floor).reshape(shape.shape)


class NoiseModel:
    """The noise of a network and its gradient. Variable -1 stands for channels that keep their factor of 1."""

    def __init__(self, layers: Sequence[LayerNoise], count: int) -> None:
        self._layers = [_loop_of(layer) for layer in layers]
        self._count = count

    def __call__(self, variables: Floats) -> tuple[float, Floats]:
        """Return the noise, and its gradient."""
        noises, gradient = self._evaluate(variables)
        return float(noises.sum()), gradient[: self._count]

    def by_tensor(self, variables: Floats) -> list[tuple[float, float, float]]:
        """Return the noise of each layer's weights, activations and bias."""
        return [(weight, source, bias) for weight, source, bias in self._evaluate(variables)[0].tolist()]

    def _evaluate(self, variables: Floats) -> tuple[Floats, Floats]:
        # A product of factors instead of an exponential of a sum: all that the loop needs are powers of these.
        factors = np.exp(pad(variables))
        gradient, noises = np.zeros(self._count + 1), np.zeros((len(self._layers), 3))
        for add_noise, found in zip(self._layers, noises, strict=True):
            add_noise(factors, found, gradient)
        return noises, gradient


def _loop_of(layer: LayerNoise) -> Callable[[Floats, Floats, Floats], None]:
    """Return the loop with what it knows of a layer: a part that is not quantized is an empty array."""
    none = np.zeros((0, 0))
    weight = np.zeros((0, 0, 0), np.float32) if layer.weight is None else layer.weight
    return partial(
        _add_noise,
        layer.inputs,
        layer.outputs,
        read_only(weight),
        max(float(weight.max(initial=0.0)), -float(weight.min(initial=0.0)), 1e-30),
        layer.taps * layer.power,
        layer.energy,
        none if layer.largest is None else layer.largest,
        none if layer.bias is None else layer.bias,
        np.ones(layer.outputs.shape),
        layer.signal,
    )


@compiled_sums
def _add_noise(
    inputs: Variables,
    outputs: Variables,
    weight: npt.NDArray[np.float32],
    largest_weight: float,
    power: Floats,
    energy: Floats,
    largest: Floats,
    bias: Floats,
    ones: Floats,
    signal: float,
    factors: Floats,
    noises: Floats,
    gradient: Floats,
) -> None:
    """Set the noise in one layer's output that comes from weights, activations and bias, and add its derivatives."""
    # Explicit loops throughout: functions of NumPy take Numba seconds to compile.
    by_g, by_h = np.zeros(inputs.shape), np.zeros(outputs.shape)
    e_g, e_h = np.zeros(inputs.shape), np.zeros(outputs.shape)
    _gather(factors, inputs, e_g)
    _gather(factors, outputs, e_h)
    if weight.size:
        noises[0] = _weight_noise(weight, largest_weight, power, e_g, e_h, by_g, by_h) / signal
    if largest.size:
        noises[1] = _step_noise(largest, e_g, energy, by_g) / signal
    if bias.size:
        noises[2] = _step_noise(bias, e_h, ones, by_h) / signal
    for group in range(inputs.shape[0]):
        for i in range(inputs.shape[1]):
            gradient[inputs[group, i]] += by_g[group, i] / signal
        for o in range(outputs.shape[1]):
            gradient[outputs[group, o]] += by_h[group, o] / signal


@compiled_sums
def _weight_noise(
    weight: npt.NDArray[np.float32],
    largest: float,
    power: Floats,
    e_g: Floats,
    e_h: Floats,
    by_g: Floats,
    by_h: Floats,
) -> float:
    """Return the noise of weights |w| e^(h - g), and add its derivatives."""
    share_h, share_g = np.zeros(e_h.shape), np.zeros(e_g.shape)
    spread, received = np.zeros(e_h.shape), np.zeros(e_g.shape)
    top_h, low_g = e_h[0, 0], e_g[0, 0]
    for group in range(weight.shape[0]):
        for o in range(e_h.shape[1]):
            top_h = e_h[group, o] if e_h[group, o] > top_h else top_h
            spread[group, o] = 1.0 / (e_h[group, o] * e_h[group, o])
        for i in range(e_g.shape[1]):
            low_g = e_g[group, i] if e_g[group, i] < low_g else low_g
            received[group, i] = e_g[group, i] * e_g[group, i] * power[group, i]
    total = _weight_shares(weight, 1.0 / largest, low_g, top_h, e_g, e_h, share_g, share_h)
    total = total if total > 1e-300 else 1e-300
    step = _variance(largest * top_h / low_g, total)
    sent, met, noise = np.zeros(weight.shape[0]), np.zeros(weight.shape[0]), 0.0
    for group in range(weight.shape[0]):
        for o in range(e_h.shape[1]):
            sent[group] += spread[group, o]
        for i in range(e_g.shape[1]):
            met[group] += received[group, i]
        noise += step * sent[group] * met[group]
    for group in range(weight.shape[0]):
        for o in range(e_h.shape[1]):
            by_h[group, o] += 2.0 * (noise * share_h[group, o] / total - step * met[group] * spread[group, o])
        for i in range(e_g.shape[1]):
            by_g[group, i] += 2.0 * (step * sent[group] * received[group, i] - noise * share_g[group, i] / total)
    return noise


@compiled_sums
def _weight_shares(
    weight: npt.NDArray[np.float32],
    unit: float,
    low_g: float,
    top_h: float,
    e_g: Floats,
    e_h: Floats,
    share_g: Floats,
    share_h: Floats,
) -> float:
    """Add the share of each channel in the p-norm of the weights to the shares, and return the sum of either kind.

    The p-th power of |w| e^(h - g) is the product of three: none but that of |w| is computed for every weight.
    """
    columns = np.zeros(e_g.shape[1])
    total = 0.0
    for group in range(weight.shape[0]):
        for i in range(e_g.shape[1]):
            columns[i] = _raised(low_g / e_g[group, i])
        for o in range(e_h.shape[1]):
            found, row = 0.0, _raised(e_h[group, o] / top_h)
            for i in range(e_g.shape[1]):
                raised = _raised(weight[group, o, i] * unit)
                found += raised * columns[i]
                share_g[group, i] += raised * row
            share_h[group, o] += found * row
            total += found * row
        for i in range(e_g.shape[1]):
            share_g[group, i] *= columns[i]
    return total


@compiled_sums
def _step_noise(largest: Floats, factors: Floats, energy: Floats, by: Floats) -> float:
    """Return the noise of values up to `largest` times the factors, which are read with `energy`; add derivatives."""
    top, total, received = 0.0, 0.0, 0.0
    shares = np.zeros(largest.shape)
    for group in range(largest.shape[0]):
        for i in range(largest.shape[1]):
            reached = largest[group, i] * factors[group, i]
            top = reached if reached > top else top
    for group in range(largest.shape[0]):
        for i in range(largest.shape[1]):
            shares[group, i] = _raised(largest[group, i] * factors[group, i] / top)
            total += shares[group, i]
            received += energy[group, i] / (factors[group, i] * factors[group, i])
    step = _variance(top, total)
    for group in range(largest.shape[0]):
        for i in range(largest.shape[1]):
            reached = energy[group, i] / (factors[group, i] * factors[group, i])
            by[group, i] += 2.0 * step * (received * shares[group, i] / total - reached)
    return step * received


@compiled
def _gather(factors: Floats, variables: Variables, found: Floats) -> None:
    for group in range(variables.shape[0]):
        for i in range(variables.shape[1]):
            found[group, i] = factors[variables[group, i]]


@compiled
def _raised(ratio: float) -> float:
    """Return the p-th power, p = NORM = 24, of what is at most 1."""
    squared = ratio * ratio
    fourth = squared * squared
    eighth = fourth * fourth
    return eighth * eighth * eighth


@compiled
def _variance(top: float, total: float) -> float:
    """Return s^2 / 12 for the step s of values whose p-norm is `top` times the p-th root of `total`."""
    step: float = top * total ** (1.0 / NORM) / CODES
    return step * step / 12.0


def minimize(function: Function, low: Floats, high: Floats, steps: int, tolerance: float) -> Floats:
    """Return the point within low..high where `function` (which returns its value and gradient) is least.

    Projected gradient steps with memory (L-BFGS), from zero on. Ends after `steps`, or when one gains less than
    `tolerance` of the value.
    """
    point: Floats = np.clip(np.zeros_like(low), low, high)
    value, gradient = function(point)
    pairs: deque[tuple[Floats, Floats, float]] = deque(maxlen=MEMORY)
    for _ in range(steps):
        # At a bound, a step beyond it leads nowhere.
        free = ((point < high) | (gradient > 0)) & ((point > low) | (gradient < 0))
        direction = np.where(free, -_apply_inverse(pairs, np.where(free, gradient, 0.0)), 0.0)
        moved = _search(function, point, value, gradient, direction, (low, high))
        if moved is None:
            if not pairs:
                break
            pairs.clear()  # what was remembered has misled: once more along the gradient
            continue
        after, value_after, gradient_after = moved
        step, change = after - point, gradient_after - gradient
        curvature = _dot(step, change)
        if curvature > max(1e-12 * _dot(step, step), SMALLEST):
            pairs.append((step, change, 1.0 / curvature))
        gained = value - value_after
        point, value, gradient = after, value_after, gradient_after
        if gained < tolerance * value:
            break
    return point


def _search(
    function: Function,
    point: Floats,
    value: float,
    gradient: Floats,
    direction: Floats,
    bounds: tuple[Floats, Floats],
) -> tuple[Floats, float, Floats] | None:
    """Return the first of ever shorter steps that gains enough; None if none does."""
    length = 1.0
    for _ in range(30):
        after = np.clip(point + length * direction, *bounds)
        value_after, gradient_after = function(after)
        expected = _dot(gradient, after - point)
        if expected < 0 and value_after <= value + 1e-4 * expected:
            return after, value_after, gradient_after
        length *= 0.5
    return None


def _apply_inverse(pairs: deque[tuple[Floats, Floats, float]], gradient: Floats) -> Floats:
    """Return the gradient times the inverse of the second derivatives, as far as the remembered steps tell it."""
    if not pairs:
        largest = float(np.abs(gradient).max(initial=0.0))
        return gradient * (0.1 / largest) if largest > SMALLEST else gradient
    direction = gradient.copy()
    factors = []
    for step, change, inverse in reversed(pairs):
        factor = inverse * _dot(step, direction)
        direction -= factor * change
        factors.append(factor)
    step, change, inverse = pairs[-1]
    direction *= 1.0 / (inverse * _dot(change, change))
    for (step, change, inverse), factor in zip(pairs, reversed(factors), strict=True):
        direction += (factor - inverse * _dot(change, direction)) * step
    return direction


def _dot(one: Floats, other: Floats) -> float:
    """Return the scalar product. BLAS would sum in another order with another number of threads."""
    return float((one * other).sum())


@dataclass(frozen=True)
class NoiseShare:
    """The noise that a tensor would add at a float scale, and its `size`.

    Its level is `up` less `down`: a weight grows with its output channels, and shrinks where its input channels grow.
    """

    noise: float
    size: float
    up: int
    down: int = KEPT


@dataclass(frozen=True)
class ClipLimit:
    """A Clip: an edge must lie between the largest value observed, `least`, and the bound, `most` (both as sizes)."""

    level: int
    least: float
    most: float


def find_levels(values: Sequence[Variables], count: int) -> tuple[int, Variables]:
    """Return the number of levels, and the level of each of `count` variables: channels that share a value share it."""
    parents = list(range(count + 1))

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    for variables in {each.tobytes(): each for each in values}.values():
        for number in np.unique(variables).tolist():
            # FIXED, which is -1, is the last one: what shares a value with it stays where it is.
            parents[root(number % (count + 1))] = root(int(variables[0]) % (count + 1))
    roots = [root(number) for number in range(count)]
    free = sorted(set(roots) - {root(count)})
    number_of = {each: number for number, each in enumerate(free)}
    return len(free), np.array([number_of.get(each, KEPT) for each in roots] + [KEPT], np.int64)


def size_of(array: Floats, codes: int) -> float:
    """Return the logarithm to base 2 of the largest magnitude over the number of codes."""
    return float(np.log2(max(float(np.abs(array).max(initial=0.0)), 1e-30) / codes))


def level_of(variables: Variables, levels: Variables) -> int:
    """Return the level of a value, from the variables of its channels."""
    return int(levels[variables.reshape(-1)[0]]) if variables.size else KEPT


def choose_levels(count: int, shares: Sequence[NoiseShare], limits: Sequence[ClipLimit]) -> Floats:
    """Return the power of two (a fraction) by which each level is multiplied."""
    chosen = np.zeros(count + 1)
    touching: dict[int, list[NoiseShare]] = {level: [] for level in range(count)}
    for share in shares:
        for level in {share.up, share.down} - {KEPT}:
            touching[level].append(share)
    allowed = {level: _candidates([limit for limit in limits if limit.level == level]) for level in range(count)}
    for _ in range(ROUNDS):
        before = chosen.copy()
        for level in range(count):
            candidates = allowed[level]
            noise = [
                sum(_rounding_noise(share, chosen, level, each) for share in touching[level]) for each in candidates
            ]
            chosen[level] = candidates[int(np.argmin(noise))]
        if (before == chosen).all():
            break
    return chosen[:count]


def _rounding_noise(share: NoiseShare, chosen: Floats, level: int, candidate: float) -> float:
    up = candidate if share.up == level else float(chosen[share.up])
    down = candidate if share.down == level else float(chosen[share.down])
    size = share.size + up - down
    coarser: float = 4.0 ** (math.ceil(size - EXACT) - size)
    return share.noise * coarser


def _candidates(limits: Sequence[ClipLimit]) -> list[float]:
    """Return levels to try. 0 is always one, as Clips can stay as they are; it is first, and so wins among equals."""
    even = [each / CANDIDATES for each in range(CANDIDATES)]
    ends = [float(np.ceil(end) - end) for limit in limits for end in (limit.least, limit.most)]
    return [each for each in (*even, *ends) if each == 0.0 or all(_fits(limit, each) for limit in limits)]


def _fits(limit: ClipLimit, level: float) -> bool:
    """Tell whether there is an edge between the two ends."""
    return bool(np.floor(limit.most + level + EXACT) >= limit.least + level - EXACT)


def _shares(
    layer: LayerChannels, noises: tuple[float, float, float], padded: Floats, levels: Variables
) -> list[NoiseShare]:
    """Return what the levels beside a layer change in its noise."""
    before, after = level_of(layer.inputs, levels), level_of(layer.outputs, levels)
    found = []
    if layer.weight_codes:
        largest = max(float(np.abs(rows).max(initial=0.0)) for _, rows in layer.scaled_rows(padded))
        found.append(NoiseShare(noises[0], size_of(np.array(largest), layer.weight_codes), after, before))
    if layer.input_codes and layer.seen is not None:
        seen = layer.seen.largest * np.exp(padded[layer.inputs].reshape(-1))
        found.append(NoiseShare(noises[1], size_of(seen, layer.input_codes), before))
    bias = layer.scaled_bias(padded)
    if layer.bias_codes and bias is not None:
        found.append(NoiseShare(noises[2], size_of(bias, layer.bias_codes), after))
    return found


def _limit(clip: ClipChannels, padded: Floats, levels: Variables) -> ClipLimit:
    """Return where the edges of the codes may lie beside a Clip."""
    assert clip.codes, "only powers of two have edges"
    seen = np.minimum(clip.maximum * np.exp(padded[clip.variables]), clip.bound)
    return ClipLimit(
        level_of(clip.variables, levels),
        size_of(np.maximum(seen, 0.0), clip.codes),
        size_of(np.array(clip.bound), clip.codes),
    )
