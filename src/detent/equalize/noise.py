"""How much noise rounding adds to a network, as a function of its channels' factors.

Rounding with step s adds noise of variance s^2 / 12. A step is the largest magnitude of a tensor over 127, and the
factors decide what is largest: a channel that is scaled up is rounded more finely, and may make the step of its tensor
coarser for all others. With g and h the logarithms of the factors of a layer's input and output channels, in units of
the original network, the noise in the layer's output is the sum of

    weights       s_w^2 / 12 * sum over outputs of e^(-2h) * sum over inputs of e^(2g) E[x^2] taps
    activations   s_x^2 / 12 * sum over inputs of e^(-2g) * (sum over outputs and taps of w^2)
    bias          s_b^2 / 12 * sum over outputs of e^(-2h)

    s_w = max |w| e^(h - g) / 127        s_x = max |x| e^g / 127        s_b = max |b| e^h / 127

and what is minimised is the sum over all layers of this noise over the variance of the layer's output. With a p-norm in
place of each maximum it is smooth, and a sum of exponentials of linear functions: convex, with one minimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
NORM = 24.0
CODES = 127.0


@dataclass(frozen=True, eq=False)
class LayerNoise:
    """What the noise of one layer depends on: all arrays are per group (first axis), and of the original network.

    `weight` is the largest magnitude over the taps (groups x outputs x inputs), `energy` the sum of squares of the
    weights that read an input, `largest` and `power` of the input its largest magnitude and mean square, `signal` the
    variance of the output summed over channels. Parts that are not quantized are None.
    """

    inputs: npt.NDArray[np.int64]
    outputs: npt.NDArray[np.int64]
    weight: Floats | None
    taps: int
    energy: Floats
    largest: Floats | None
    power: Floats
    bias: Floats | None
    signal: float


class NoiseModel:
    """The noise of a network and its gradient. Variable -1 stands for channels that keep their factor of 1."""

    def __init__(self, layers: Sequence[LayerNoise], count: int) -> None:
        self._layers = layers
        self._count = count
        self._raised = [None if each.weight is None else _raised(each.weight) for each in layers]

    def __call__(self, variables: Floats) -> tuple[float, Floats]:
        """The noise, and its gradient."""
        padded = np.append(variables, 0.0)
        gradient = np.zeros(self._count + 1)
        total = 0.0
        for layer, raised in zip(self._layers, self._raised, strict=True):
            g, h = padded[layer.inputs], padded[layer.outputs]
            noises, by_g, by_h = _noise(layer, raised, g, h)
            total += sum(noises) / layer.signal
            np.add.at(gradient, layer.inputs, by_g / layer.signal)
            np.add.at(gradient, layer.outputs, by_h / layer.signal)
        return total, gradient[: self._count]

    def by_tensor(self, variables: Floats) -> list[tuple[float, float, float]]:
        """The noise of each layer's weights, activations and bias."""
        padded = np.append(variables, 0.0)
        found = []
        for layer, raised in zip(self._layers, self._raised, strict=True):
            (weight, source, bias), *_ = _noise(layer, raised, padded[layer.inputs], padded[layer.outputs])
            found.append((weight / layer.signal, source / layer.signal, bias / layer.signal))
        return found


def _raised(weight: Floats) -> tuple[Floats, float]:
    """|w|^p over its maximum, so that nothing overflows; and the logarithm of the maximum."""
    largest = max(float(weight.max(initial=0.0)), 1e-30)
    return (weight / largest) ** NORM, float(np.log(largest))


def _noise(
    layer: LayerNoise, raised: tuple[Floats, float] | None, g: Floats, h: Floats
) -> tuple[tuple[float, float, float], Floats, Floats]:
    """The noise in one layer's output that comes from weights, activations and bias, and the derivatives of their sum
    by the variables of its inputs and outputs."""
    of_weight = of_source = of_bias = 0.0
    by_g, by_h = np.zeros_like(g), np.zeros_like(h)
    spread = np.exp(-2 * h)
    if raised is not None:
        step, share_h, share_g = _weight_step(*raised, g, h)
        power = np.exp(2 * g) * layer.power * layer.taps
        outputs, inputs = spread.sum(axis=1, keepdims=True), power.sum(axis=1, keepdims=True)
        of_weight = step * float((outputs * inputs).sum())
        by_h += of_weight * 2 * share_h - step * 2 * spread * inputs
        by_g += step * 2 * power * outputs - of_weight * 2 * share_g
    if layer.largest is not None:
        step, share = _step(layer.largest, g)
        received = np.exp(-2 * g) * layer.energy
        of_source = step * float(received.sum())
        by_g += of_source * 2 * share - step * 2 * received
    if layer.bias is not None:
        step, share = _step(layer.bias, h)
        of_bias = step * float(spread.sum())
        by_h += of_bias * 2 * share - step * 2 * spread
    return (of_weight, of_source, of_bias), by_g, by_h


def _step(largest: Floats, exponent: Floats) -> tuple[float, Floats]:
    """s^2 / 12 for values up to `largest` * e^exponent, and the share of each in the p-norm."""
    logs = NORM * (np.log(largest) + exponent)
    top = float(logs.max())
    weights = np.exp(logs - top)
    total = float(weights.sum())
    return float(np.exp(2 / NORM * (top + np.log(total)))) / CODES**2 / 12, weights / total


def _weight_step(raised: Floats, log_largest: float, g: Floats, h: Floats) -> tuple[float, Floats, Floats]:
    """The same for a weight that is |w| e^(h - g): products with vectors, because the p-th powers are factored."""
    top_h, top_g = float(h.max()), float(-g.min())
    rows, columns = np.exp(NORM * (h - top_h)), np.exp(NORM * (-g - top_g))
    by_rows = rows * (raised @ columns[..., None])[..., 0]
    by_columns = columns * (rows[:, None, :] @ raised)[:, 0, :]
    total = max(float(by_rows.sum()), 1e-300)
    log_norm = log_largest + top_h + top_g + np.log(total) / NORM
    return float(np.exp(2 * log_norm)) / CODES**2 / 12, by_rows / total, by_columns / total
