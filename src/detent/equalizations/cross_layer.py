"""Cross-layer equalization: factors from the weights alone, one pair of layers after another.

Of a channel between two layers let r be the largest weight that computes it, and t the largest that reads it. Times
sqrt(t / r) both are equal to sqrt(r t). With a depthwise layer between two others, whose largest weight of the channel
is d, both channels get factors at which all three are the cube root of r d t. Such layers are balanced in pairs as
well, since it is there that biases and the threshold count: the first pair before all three, the second one after.

A pair is two layers with nothing but channels of their own between them: no other layer computes or reads these. What
may stand between the layers, and how a Clip limits the factors, is the same as for equalizing all at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from detent.equalizations.channel_problem import (
    FIXED,
    ChannelFactors,
    ChannelProblem,
    Equalizer,
    Floats,
    LayerChannels,
    Variables,
    pad,
)
from detent.errors import UsageError

UNTIL_CONVERGED = -1  # as a number of steps: until nothing changes any more
MOST_STEPS = 1000  # when it should end by itself


@dataclass(frozen=True)
class CrossLayer(Equalizer):
    """Layer by layer, from the weights alone. Names in brackets are those of other tools' cross-layer equalization.

    A channel between two layers gets the factor at which the largest weights that compute it and that read it are
    equal; with a depthwise layer between them, the largest of all three. This is done `steps` times [CLESteps], or
    with -1 until a step changes the weights by less than `converged` [CLETotalLayerDiffThreshold], their mean changes
    summed over layers. Channels between two layers stay as they are where both maxima add up to less than `threshold`
    [CLEWeightThreshold; 0 is CLEScaleUseThreshold=False]. With `append_bias` [CLEScaleAppendBias] the bias counts among
    the weights that compute a channel, divided by 2 to 20: the more, the more it outweighs them. Without
    `through_pools`, layers on both sides of a pooling operator are no pair, as in other tools. With `absorb`, what a
    channel was observed to hold at least is first added by the layers behind instead.
    """

    needs_moments: ClassVar[bool] = False
    by_layers: ClassVar[bool] = True

    steps: int = 1
    converged: float = 1.9e-7
    threshold: float = 0.5
    append_bias: bool = True
    through_pools: bool = True
    absorb: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.steps < 1 and self.steps != UNTIL_CONVERGED:
            raise UsageError(f"steps of CrossLayer is {self.steps}: it must be at least 1, or -1 (until converged).")
        for name in ("converged", "threshold"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} of CrossLayer is {getattr(self, name)}: it must not be negative.")

    def solve(self, problem: ChannelProblem) -> ChannelFactors:
        """Balance one chain of layers after another, for all steps."""
        chains = find_chains(problem.layers, problem.count)
        return ChannelFactors(self.balance(chains, *problem.bounds()), np.zeros(len(problem.clips)))

    def balance(self, chains: Sequence[Chain], low: Floats, high: Floats) -> Floats:
        """Return the logarithms of the factors, within their bounds, after all steps."""
        variables = np.zeros(low.size)
        layers = {layer: None for chain in chains for layer in chain.layers}  # in order, each once
        weights = {layer: layer.scaled_weight(pad(variables)) for layer in layers}
        for _ in range(MOST_STEPS if self.steps == UNTIL_CONVERGED else self.steps):
            for chain in chains:
                for between, wanted in zip(chain.between, self._factors(chain, pad(variables)), strict=True):
                    variables[between] = np.clip(variables[between] + wanted, low[between], high[between])
            now = {layer: layer.scaled_weight(pad(variables)) for layer in layers}
            moved = sum(float(np.abs(now[layer] - weights[layer]).mean()) for layer in layers)
            weights = now
            if self.steps == UNTIL_CONVERGED and moved <= self.converged:
                break
        return variables

    def _factors(self, chain: Chain, padded: Floats) -> list[Floats]:
        """Return the logarithms of what the channels between the layers of a chain have to be multiplied by."""
        head = chain.layers[0]
        grouped = [layer.scaled_weight(padded) for layer in chain.layers]
        reading = np.abs(grouped[-1]).max(axis=(1, 3)).reshape(-1)
        rows = np.abs(grouped[0]).reshape(head.outputs.size, -1)
        computing = rows.max(axis=1)
        if len(grouped) == 3:
            middle = np.abs(grouped[1]).max(axis=(1, 2, 3))
            product = computing * middle * reading
            mean = np.cbrt(product)
            return [_logarithm(mean, computing, product > 0), _logarithm(reading, mean, product > 0)]
        bias = head.scaled_bias(padded) if self.append_bias else None
        if bias is not None:
            computing = np.maximum(computing, _share_of_bias(rows, np.abs(bias).reshape(-1)))
        live = (computing * reading > 0) & (computing + reading >= self.threshold)
        return [_logarithm(reading, computing, live) / 2]


@dataclass(frozen=True, eq=False)
class Chain:
    """Two layers with channels between them that only they have; or three, if the one in the middle is depthwise."""

    layers: tuple[LayerChannels, ...]

    @property
    def between(self) -> list[Variables]:
        """The variables of the channels between each two layers."""
        return [layer.outputs.reshape(-1) for layer in self.layers[:-1]]


def find_chains(layers: Sequence[LayerChannels], count: int) -> list[Chain]:
    """Find the pairs and triples, in the order of the graph. Layers of groups of several channels are left out."""
    simple = [layer for layer in layers if len(layer.inputs) == 1 or layer.is_depthwise]
    uses = np.zeros(count + 1, np.int64)
    for layer in layers:
        np.add.at(uses, layer.inputs.reshape(-1), 1)
        np.add.at(uses, layer.outputs.reshape(-1), 1)
    after: dict[int, LayerChannels] = {}
    for layer in simple:
        before = layer.inputs.reshape(-1)
        if (before != FIXED).all() and (uses[before] == 2).all():
            after[int(before[0])] = layer
    pairs = [Chain((layer, tail)) for layer in simple if (tail := _reader(layer, after)) is not None]
    chains: list[Chain] = []
    for pair in pairs:
        chains.append(pair)
        head, tail = pair.layers
        last = _reader(tail, after)
        if tail.is_depthwise and not head.is_depthwise and last is not None and not last.is_depthwise:
            chains.append(Chain((head, tail, last)))
    return chains


def _reader(layer: LayerChannels, after: dict[int, LayerChannels]) -> LayerChannels | None:
    """Return the one layer that reads just what this one computes."""
    outputs = layer.outputs.reshape(-1)
    reader = after.get(int(outputs[0]))
    return reader if reader is not None and np.array_equal(reader.inputs.reshape(-1), outputs) else None


def _logarithm(above: Floats, below: Floats, live: npt.NDArray[np.bool_]) -> Floats:
    """Return log(above / below), and 0 for channels with nothing to balance."""
    found = np.zeros_like(above)
    found[live] = np.log(above[live]) - np.log(below[live])
    return found


def _share_of_bias(rows: Floats, bias: Floats) -> Floats:
    """Return what the bias counts for beside the weights of each channel: the less, the more it outweighs them all."""
    dead: npt.NDArray[np.bool_] = rows.max(axis=1) == 0
    least = np.where(rows > 0, rows, np.inf).min(axis=1, keepdims=True)
    filled = np.maximum(np.where(rows > 0, rows, np.where(dead[:, None], 0.0, least)), 1e-7)
    counted = np.where(dead, 0.0, bias)
    ratios = counted[:, None] / filled
    median, mean = float(np.median(ratios)), float(ratios.mean())
    if bias.max() < 10 and bias.max() < 20 * filled.max():
        divisor = 5 if median > 100 or mean > 1000 else 2
    elif median > 30 or mean > 500:
        divisor = 20
    else:
        divisor = 10 if median > 15 or mean > 100 else 5
    return counted / divisor
