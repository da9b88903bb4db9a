"""Cross-layer equalization: factors from the weights alone, one pair of layers after another.

Of a channel between two layers let r be the largest weight that computes it, and t the largest that reads it. Times
sqrt(t / r) both are equal to sqrt(r t). With a depthwise layer between two others, whose largest weight of the channel
is d, both channels get factors at which all three are the cube root of r d t. Such layers are balanced in pairs as
well, since it is there that biases and the threshold count: the first pair before all three, the second one after.

A pair is two layers with nothing but channels of their own between them: no other layer computes or reads these. What
may stand between the layers, and how a Clip limits the factors, is the same as for equalizing all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.equalizations import UNTIL_CONVERGED, CrossLayer
from detent.equalize.ceilings import factor_bounds
from detent.equalize.channels import FIXED, ChannelMap, ScaledLayer, map_channels
from detent.equalize.factors import Equalization, apply_factors, scaled_constants
from detent.equalize.moments import observe_channels
from detent.observe.samples import PendingSample

Floats = npt.NDArray[np.float64]

MOST_STEPS = 1000
"""Where it should end by itself."""


@dataclass(frozen=True, eq=False)
class Chain:
    """Two layers with channels between them that only they have; or three, where the one in the middle is depthwise."""

    layers: tuple[ScaledLayer, ...]

    @property
    def between(self) -> list[npt.NDArray[np.int64]]:
        """The variables of the channels between each two layers."""
        return [layer.outputs.reshape(-1) for layer in self.layers[:-1]]


def equalize_pairs(
    model: ir.Model, settings: CrossLayer, samples: Sequence[PendingSample], threads: int = 0
) -> Equalization:
    """Rescale the channels of `model` between pairs of layers, in place. Samples tell what Clips allow."""
    channels = map_channels(model)
    chains = find_chains(channels)
    wanted = [ceiling.value for ceiling in channels.ceilings]
    if not chains or (wanted and not samples):
        return apply_factors(model, channels, np.zeros(channels.count))
    moments = observe_channels(model, sorted(set(wanted)), samples, threads) if wanted else {}
    if not all(np.isfinite(each.power).all() for each in moments.values()):
        return apply_factors(model, channels, np.zeros(channels.count))  # the sweep will name the sample
    low, high = factor_bounds(channels, moments)
    return apply_factors(model, channels, balance(chains, settings, low, high))


def find_chains(channels: ChannelMap) -> list[Chain]:
    """The pairs and triples, in the order of the graph. Layers of groups that are not single channels are left out."""
    simple = [layer for layer in channels.layers if len(layer.inputs) == 1 or is_depthwise(layer)]
    uses = np.zeros(channels.count + 1, np.int64)
    for layer in channels.layers:
        np.add.at(uses, layer.inputs.reshape(-1), 1)
        np.add.at(uses, layer.outputs.reshape(-1), 1)
    after: dict[int, ScaledLayer] = {}
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
        if is_depthwise(tail) and not is_depthwise(head) and last is not None and not is_depthwise(last):
            chains.append(Chain((head, tail, last)))
    return chains


def is_depthwise(layer: ScaledLayer) -> bool:
    """Whether each channel is computed from the one of the same number."""
    return len(layer.inputs) > 1 and layer.inputs.shape[1:] == layer.outputs.shape[1:] == (1,)


def _reader(layer: ScaledLayer, after: dict[int, ScaledLayer]) -> ScaledLayer | None:
    """The one layer that reads just what this one computes."""
    outputs = layer.outputs.reshape(-1)
    reader = after.get(int(outputs[0]))
    return reader if reader is not None and np.array_equal(reader.inputs.reshape(-1), outputs) else None


def balance(chains: Sequence[Chain], settings: CrossLayer, low: Floats, high: Floats) -> Floats:
    """The logarithms of the factors, within their bounds, after all steps."""
    variables = np.zeros(low.size)
    layers = {layer: None for chain in chains for layer in chain.layers}  # in order, each once
    weights = {layer: scaled_constants(layer, np.append(variables, 0.0)).weight for layer in layers}
    for _ in range(MOST_STEPS if settings.steps == UNTIL_CONVERGED else settings.steps):
        for chain in chains:
            for between, wanted in zip(chain.between, _factors(chain, variables, settings), strict=True):
                variables[between] = np.clip(variables[between] + wanted, low[between], high[between])
        padded = np.append(variables, 0.0)
        now = {layer: scaled_constants(layer, padded).weight for layer in layers}
        moved = sum(float(np.abs(now[layer] - weights[layer]).mean()) for layer in layers)
        weights = now
        if settings.steps == UNTIL_CONVERGED and moved <= settings.converged:
            break
    return variables


def _factors(chain: Chain, variables: Floats, settings: CrossLayer) -> list[Floats]:
    """The logarithms of what the channels between the layers of a chain have to be multiplied by."""
    padded = np.append(variables, 0.0)
    head = chain.layers[0]
    grouped = [layer.grouped(scaled_constants(layer, padded).weight) for layer in chain.layers]
    reading = np.abs(grouped[-1]).max(axis=(1, 3)).reshape(-1)
    rows = np.abs(grouped[0]).reshape(head.outputs.size, -1)
    computing = rows.max(axis=1)
    if len(grouped) == 3:
        middle = np.abs(grouped[1]).max(axis=(1, 2, 3))
        product = computing * middle * reading
        mean = np.cbrt(product)
        return [_logarithm(mean, computing, product > 0), _logarithm(reading, mean, product > 0)]
    bias = scaled_constants(head, padded).bias if settings.append_bias else None
    if bias is not None:
        computing = np.maximum(computing, _share_of_bias(rows, np.abs(bias).reshape(-1)))
    live = (computing * reading > 0) & (computing + reading >= settings.threshold)
    return [_logarithm(reading, computing, live) / 2]


def _logarithm(above: Floats, below: Floats, live: npt.NDArray[np.bool_]) -> Floats:
    """log(above / below), and 0 where there is nothing to balance."""
    found = np.zeros_like(above)
    found[live] = np.log(above[live]) - np.log(below[live])
    return found


def _share_of_bias(rows: Floats, bias: Floats) -> Floats:
    """What the bias counts for beside the weights of each channel: the less, the more it outweighs them all."""
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
