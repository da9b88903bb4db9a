"""The compiled loops of the gradient methods. All of them are here: the machine code that numba keeps for a loop is not
renewed when a loop that it calls changes in another file.

Channels never meet: an output channel's error and gradient depend on its own weights alone. So channels are shared out
to threads, and no result depends on how many there are (the matrix products of BLAS do).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled, compiled_sums

Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

SHORT = 16  # below this many inputs a channel's sums run over the rows, as there are more of them

ZETA, GAMMA = 1.1, -0.1  # the sigmoid is stretched to this range and cut to 0..1, so that it reaches both ends

# The constants of Adam: how fast the means of the gradient and of its square forget, and what keeps it finite.
DECAY, DECAY_SQUARES, TINY = 0.9, 0.999, 1e-8


@compiled_sums
def dots(left: Singles, right: Singles, out: Singles) -> None:
    """out[i, j] = left[i] . right[j], in tiles of 2 x 4 (those at the edge compute a row or column again)."""
    count, others = left.shape[0], right.shape[0]
    for start in range(0, others, 16):
        for i in range(0, count, 2):
            i1 = min(i + 1, count - 1)
            a, b = left[i], left[i1]
            for j in range(start, min(start + 16, others), 4):
                j1, j2, j3 = min(j + 1, others - 1), min(j + 2, others - 1), min(j + 3, others - 1)
                x0, x1, x2, x3 = right[j], right[j1], right[j2], right[j3]
                a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = np.float32(0)
                for k in range(left.shape[1]):
                    a0 += a[k] * x0[k]
                    a1 += a[k] * x1[k]
                    a2 += a[k] * x2[k]
                    a3 += a[k] * x3[k]
                    b0 += b[k] * x0[k]
                    b1 += b[k] * x1[k]
                    b2 += b[k] * x2[k]
                    b3 += b[k] * x3[k]
                out[i, j], out[i, j1], out[i, j2], out[i, j3] = a0, a1, a2, a3
                out[i1, j], out[i1, j1], out[i1, j2], out[i1, j3] = b0, b1, b2, b3


@compiled_sums
def mixtures(shares: Singles, rows: Singles, out: Singles) -> None:
    """out[i] = the sum over k of shares[i, k] * rows[k]."""
    for i in range(shares.shape[0]):
        out[i] = np.float32(0)
        for k in range(shares.shape[1]):
            share, row, mixed = shares[i, k], rows[k], out[i]
            for b in range(row.size):
                mixed[b] += share * row[b]


@compiled_sums
def _errors_in_place(
    values: Singles, bias: float, target: Singles, count: int, act: Doubles, grid: Doubles
) -> tuple[float, float]:
    """Turn what enters the activation into the derivative of half the squared error; return the sums of both.

    `act` is the activation's low, high and slope; `grid` the output's scale, least and greatest number, and 1 where
    ties are rounded up and not to even; scale 0 if it is not rounded. The rounding is that of `numerics.formats`,
    inlined. It passes the gradient on as if it were not there, except where it saturates.
    """
    low, high, slope = np.float32(act[0]), np.float32(act[1]), np.float32(act[2])
    scale, least, most = np.float32(grid[0]), np.float32(grid[1]), np.float32(grid[2])
    offset, one, zero, half = np.float32(bias), np.float32(1), np.float32(0), np.float32(0.5)
    upwards = np.float32(grid[3])
    squares, total = zero, zero
    for b in range(count):
        x = values[b] + offset
        passed = one
        if x < low:
            x, passed = low + slope * (x - low) if slope != zero else low, slope
        elif x > high:
            x, passed = high, zero
        if scale > zero:
            if x < least or x > most:
                passed = zero
            steps = x / scale
            nearest = np.rint(steps)
            if steps - nearest == half:
                nearest += upwards
            x = min(max(nearest * scale, least), most)
        error = x - target[b]
        values[b] = error * passed
        squares += error * error
        total += values[b]
    return float(squares), float(total)


@compiled
def forward(
    by_sample: Singles,
    by_input: Singles,
    target: Singles,
    count: int,
    weights: Singles,
    bias: Doubles,
    act: Doubles,
    grid: Doubles,
    derivatives: Singles,
    squares: Doubles,
    sums: Doubles,
) -> None:
    """Fill in the derivatives of half the squared error over the first `count` rows, and for each channel the sum of
    the squared errors and of the derivatives.

    by_sample is (groups, rows, inputs), by_input (groups, inputs, rows), weights (groups, channels, inputs), target and
    derivatives (groups, channels, rows), bias, squares and sums (groups, channels).
    """
    for g in range(weights.shape[0]):
        if weights.shape[2] < SHORT:
            mixtures(weights[g], by_input[g], derivatives[g])
        else:
            dots(weights[g], by_sample[g], derivatives[g])
        for c in range(weights.shape[1]):
            squares[g, c], sums[g, c] = _errors_in_place(derivatives[g, c], bias[g, c], target[g, c], count, act, grid)


@compiled
def dots_of_groups(left: Singles, right: Singles, out: Singles) -> None:
    """out[g, i, j] = left[g, i] . right[g, j]: from derivatives and inputs, the gradient of the weights."""
    for g in range(left.shape[0]):
        dots(left[g], right[g], out[g])


@compiled
def rounding_step(
    gradient: Singles,
    scale: Doubles,
    floors: Singles,
    low: float,
    high: float,
    alpha: Singles,
    soft: Singles,
    mean: Singles,
    square: Singles,
    step: int,
    rate: float,
    share: Doubles,
    beta: float,
    weights: Singles,
) -> float:
    """Make a step of Adam on the variables alpha, then `soft` and the weights; return the sum of 1 - |2 soft - 1|^beta.

    soft = clip(sigmoid(alpha) * (ZETA - GAMMA) + GAMMA, 0, 1) and weights = scale * clip(floors + soft, low, high);
    `share` (groups, channels) is what the sum weighs in the loss, 0 if it does not count. `step` counts from 1.
    """
    one, two, low32, high32 = np.float32(1), np.float32(2), np.float32(low), np.float32(high)
    correction = np.float32(1.0 / np.sqrt(1.0 - DECAY_SQUARES**step))
    pace, tiny = np.float32(rate / (1.0 - DECAY**step)), np.float32(TINY)
    decay, decay_squares = np.float32(DECAY), np.float32(DECAY_SQUARES)
    power_less_one = np.float32(beta - 1.0)
    penalty = 0.0
    for g in range(alpha.shape[0]):
        for c in range(alpha.shape[1]):
            step_size, push = np.float32(scale[g, c]), np.float32(2.0 * beta * share[g, c])
            for k in range(alpha.shape[2]):
                h, floor = soft[g, c, k], floors[g, c, k]
                slide = np.float32(0)
                if 0 < h < 1:
                    if low32 <= floor + h <= high32:
                        slide = step_size * gradient[g, c, k]
                    if push > 0:
                        distance = abs(two * h - one)
                        power = distance**power_less_one
                        penalty += one - power * distance
                        slide -= push * power if two * h > one else -push * power
                    slide *= soft_slope(h)
                moment = decay * mean[g, c, k] + (one - decay) * slide
                energy = decay_squares * square[g, c, k] + (one - decay_squares) * slide * slide
                mean[g, c, k], square[g, c, k] = moment, energy
                alpha[g, c, k] -= pace * moment / (np.sqrt(energy) * correction + tiny)
                h = soft_step(alpha[g, c, k])
                soft[g, c, k] = h
                weights[g, c, k] = step_size * min(max(floor + h, low32), high32)
    return penalty


@compiled
def soft_step(alpha: np.float32) -> np.float32:
    """Return the rectified sigmoid of alpha, in 0..1."""
    if abs(alpha) > 2.4:  # beyond log 11 = 2.398 it is cut: that needs no exponential
        return np.float32(alpha > 0)
    one = np.float32(1)
    h = np.float32(ZETA - GAMMA) / (one + np.exp(-alpha)) + np.float32(GAMMA)
    return min(max(h, np.float32(0)), one)


@compiled
def soft_slope(soft: np.float32) -> np.float32:
    """Return the derivative of the rectified sigmoid where it has this value, between 0 and 1."""
    sigmoid = (soft - np.float32(GAMMA)) / np.float32(ZETA - GAMMA)
    return np.float32(ZETA - GAMMA) * sigmoid * (np.float32(1) - sigmoid)


@compiled
def adam_factors(step: int, rate: float) -> tuple[float, float]:
    """Return what multiplies the rate and the root of the squares' mean, because both means began at 0."""
    return rate / (1.0 - DECAY**step), 1.0 / np.sqrt(1.0 - DECAY_SQUARES**step)


@compiled
def adam(slide: float, mean: float, square: float, pace: float, correction: float) -> tuple[float, float, float]:
    """Return the means after a gradient `slide`, and what is to be taken off the number that has it."""
    moment = DECAY * mean + (1.0 - DECAY) * slide
    energy = DECAY_SQUARES * square + (1.0 - DECAY_SQUARES) * slide * slide
    return moment, energy, pace * moment / (np.sqrt(energy) * correction + TINY)


@compiled
def adam_step(
    gradient: npt.NDArray[np.floating],
    passes: npt.NDArray[np.bool_],
    values: Doubles,
    mean: Doubles,
    square: Doubles,
    step: int,
    rate: float,
) -> None:
    """Make a step of Adam on `values`; the gradient is 0 where it does not pass. All are (groups, channels, inputs)."""
    pace, correction = adam_factors(step, rate)
    for g in range(values.shape[0]):
        for c in range(values.shape[1]):
            for k in range(values.shape[2]):
                slide = float(gradient[g, c, k]) if passes[g, c, k] else 0.0
                moment, energy, change = adam(slide, mean[g, c, k], square[g, c, k], pace, correction)
                mean[g, c, k], square[g, c, k] = moment, energy
                values[g, c, k] -= change


@compiled
def straight_through_step(
    gradient: npt.NDArray[np.floating],
    scale: Doubles,
    low: Doubles,
    high: Doubles,
    values: Doubles,
    mean: Doubles,
    square: Doubles,
    step: int,
    rate: float,
    rounded: npt.NDArray[np.floating],
) -> None:
    """Make a step of Adam on `values`, and round them: scale * clip(rint(values / scale), low, high), as the codec.

    The gradient of a rounded number counts for the number itself, and is 0 where it saturates. All are (groups,
    channels, inputs), scale, low and high (groups, channels). `step` counts from 1; step 0 only rounds.
    """
    pace, correction = adam_factors(step, rate) if step else (0.0, 0.0)
    for g in range(values.shape[0]):
        for c in range(values.shape[1]):
            inverse, least, most = 1.0 / scale[g, c], low[g, c], high[g, c]
            for k in range(values.shape[2]):
                if step:
                    code = np.rint(values[g, c, k] * inverse)
                    slide = float(gradient[g, c, k]) if least <= code <= most else 0.0
                    moment, energy, change = adam(slide, mean[g, c, k], square[g, c, k], pace, correction)
                    mean[g, c, k], square[g, c, k] = moment, energy
                    values[g, c, k] -= change
                code = min(max(np.rint(values[g, c, k] * inverse), least), most)
                rounded[g, c, k] = code * scale[g, c]
