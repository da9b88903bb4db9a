"""Bias absorption: what a channel always holds at least is added once by the layer behind, and not in every value.

    W2 max(W1 x + b1, 0) + b2  =  W2 max(W1 x + b1 - a, 0) + (b2 + W2 a)        where W1 x + b1 >= a >= 0

The channel then begins at 0 and uses its codes for what varies. `a` is the least value that was observed, or three
standard deviations below the mean where that is less: on the samples the function stays the same, and what they did not
show is not cut off lightly.

What stands between the layers may be anything that adds a constant where one was added to its input, for values above
zero: Relu and its relatives, pooling, Concat. Zeros that are padded do not follow, so padded layers take nothing; nor
do the upper bounds of Clips, so channels that come near one give nothing. Layers without a bias neither give nor take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from detent.equalizations.channel_problem import CEILING_ROOM, FIXED, ChannelMoments, Floats
from detent.equalize.channels import ChannelMap, ScaledLayer, input_name, map_channels
from detent.equalize.equalize import replace_constant
from detent.equalize.moments import observe_channels
from detent.errors import UsageError
from detent.observe.samples import PendingSample

DEVIATIONS = 3.0  # below its mean, where a channel practically never goes

ACTIVATIONS = frozenset(("Relu", "LeakyRelu", "PRelu", "Clip"))
POOLS = frozenset(("MaxPool", "GlobalMaxPool", "GlobalAveragePool", "ReduceMean"))  # and AveragePool without padding
SAME_NUMBERS = frozenset(("Identity", "Dropout", "Flatten", "Reshape", "Squeeze", "Concat"))
SHIFTED = ACTIVATIONS | POOLS | SAME_NUMBERS


@dataclass(frozen=True)
class Absorption:
    """What was absorbed: how many channels of how many layers gave something, and at most how much.

    `amounts` has a number for each channel of the values that gave any, by name.
    """

    channels: int
    layers: int
    largest_amount: float
    amounts: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class Giver:
    """A layer that can give some of its bias, those that take it, and the least bound of the Clips between them."""

    layer: ScaledLayer
    takers: tuple[ScaledLayer, ...]
    ceiling: float = np.inf

    @property
    def value(self) -> str:
        """What the layer computes."""
        return str(self.layer.node.outputs[0].name)


def absorb(model: ir.Model, samples: Sequence[PendingSample], threads: int = 0) -> Absorption:
    """Let every layer of `model` give what its channels held at least on `samples` to the layers behind, in place."""
    givers = find_givers(map_channels(model))
    if not givers or not samples:
        return Absorption(0, 0, 0.0)
    moments = observe_channels(model, [giver.value for giver in givers], samples, threads)
    if not all(np.isfinite(each.power).all() for each in moments.values()):
        return Absorption(0, 0, 0.0)  # the sweep will name the sample and the tensor
    found = {giver.value: safe_amounts(moments[giver.value], giver.ceiling) for giver in givers}
    return _apply(givers, {name: amounts for name, amounts in found.items() if amounts.any()})


def absorb_again(model: ir.Model, amounts: Mapping[str, Sequence[float]]) -> Absorption:
    """Absorb what was absorbed before in the same model."""
    givers = find_givers(map_channels(model))
    channels = {giver.value: giver.layer.outputs.size for giver in givers}
    for name, given in amounts.items():
        if channels.get(name) != len(given):
            raise UsageError(
                f"The statistics were counted on a model in which '{name}' gave {len(given)} biases to the layers "
                "behind; prepared in this way it does not. Give the target that they were saved with, or calibrate "
                "again."
            )
    return _apply(givers, {name: np.array(given, np.float64) for name, given in amounts.items()})


def safe_amounts(seen: ChannelMoments, ceiling: float = np.inf) -> Floats:
    """Return how much each channel can give: what all its values surely have, and 0 if a Clip may cut it off."""
    deviation = np.sqrt(np.maximum(seen.power - seen.mean**2, 0.0))
    least = np.minimum(seen.minimum, seen.mean - DEVIATIONS * deviation)
    return np.where(seen.maximum * CEILING_ROOM <= ceiling, np.maximum(least, 0.0), 0.0)


def find_givers(channels: ChannelMap) -> list[Giver]:
    """Find the layers that can give, in the order of the graph."""
    layers = {layer.node: layer for layer in channels.layers if _adds_bias(layer.node)}
    bounds = {ceiling.node: ceiling.bound for ceiling in channels.ceilings}
    found = []
    for layer in layers.values():
        between = None if (layer.outputs == FIXED).any() else _between(layer.node, layers)
        if between is not None:
            takers, passed = between
            ceiling = min((bounds.get(node, np.inf) for node in passed), default=np.inf)
            found.append(Giver(layer, tuple(layers[node] for node in takers), ceiling))
    return found


def _between(first: ir.Node, layers: Mapping[ir.Node, ScaledLayer]) -> tuple[list[ir.Node], list[ir.Node]] | None:
    """Return the layers that read what a layer computes, and the nodes on the way; None if anything else does."""
    takers: dict[ir.Node, None] = {}
    passed: dict[ir.Node, None] = {}
    waiting = [first]
    while waiting:
        for node in waiting.pop().outputs[0].consumers():
            if node in layers and not _pads(node):
                takers[node] = None
            elif node.op_type in SHIFTED or (node.op_type == "AveragePool" and not _pads(node)):
                if node not in passed:
                    waiting.append(node)
                passed[node] = None
            else:
                return None
    return list(takers), list(passed)


def _adds_bias(node: ir.Node) -> bool:
    """Tell whether there is a bias, added as it is."""
    return bool(input_name(node, 2)) and node.attributes.get_float("beta", 1.0) == 1.0


def _pads(node: ir.Node) -> bool:
    """Tell whether a node may see values beyond the edge of its input."""
    automatic = node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return automatic or any(node.attributes.get_ints("pads", ())) or node.attributes.get_int("ceil_mode", 0) != 0


def _apply(givers: Sequence[Giver], amounts: Mapping[str, Floats]) -> Absorption:
    for giver in givers:
        if giver.value in amounts:
            _give(giver, amounts[giver.value])
    given = np.concatenate([np.zeros(0), *amounts.values()])
    return Absorption(
        channels=int((given > 0).sum()),
        layers=len(amounts),
        largest_amount=float(given.max(initial=0.0)),
        amounts={name: tuple(each.tolist()) for name, each in amounts.items()},
    )


def _give(giver: Giver, amounts: Floats) -> None:
    """Write the amounts into the biases. The takers know the channels by their variables, wherever Concat put them."""
    _add_to_bias(giver.layer, -amounts)
    by_variable = dict(zip(giver.layer.outputs.reshape(-1).tolist(), amounts.tolist(), strict=True))
    for taker in giver.takers:
        arriving = np.array([by_variable.get(number, 0.0) for number in taker.inputs.reshape(-1).tolist()])
        summed = taker.weight.astype(np.float64).sum(axis=-1)  # groups x outputs x inputs
        _add_to_bias(taker, np.einsum("goi,gi->go", summed, arriving.reshape(taker.inputs.shape)))


def _add_to_bias(layer: ScaledLayer, more: Floats) -> None:
    bias = layer.bias
    assert bias is not None, f"'{layer.node.name}' has no bias"
    replace_constant(layer.node, 2, bias.astype(np.float64) + more.reshape(bias.shape))
