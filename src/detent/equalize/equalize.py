"""Equalization: every channel gets the factor at which rounding the whole network adds the least noise.

The float function stays what it was. Where channels pass a Clip at 0 and b, a factor is at most what brings the largest
observed value to b, with some room for values not observed. Where the Clip cut something off, all of its channels stay
as they are: they fill the range to b already, and what is beyond their room would be lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.equalize.channels import FIXED, ChannelMap, ScaledLayer, map_channels
from detent.equalize.moments import Moments, observe_channels
from detent.equalize.noise import LayerNoise, NoiseModel
from detent.equalize.solve import minimise
from detent.errors import UsageError
from detent.graph.values import constant
from detent.observe.samples import PendingSample

Floats = npt.NDArray[np.float64]

STEPS, TOLERANCE = 100, 1e-3
FARTHEST = 5.0  # the logarithm of the largest factor up or down: a channel that needs more is all but dead
CEILING_ROOM = 1.25  # how much larger than all that was observed a value may be without meeting a Clip
LEAST_MOVABLE = 0.5  # of the channels: where Clips hold most of them, what the others could gain is not worth it
LEAST_SHARE = 1e-3  # of the largest channel: a channel below it counts as if it held that much


@dataclass(frozen=True)
class Equalization:
    """What equalization did: how many channels it rescaled, and by at most what factor.

    `noise_before` and `noise_after` are what the rounding noise was expected to be; None where the factors were known
    already. `factors` are their logarithms.
    """

    channels: int
    layers: int
    largest_factor: float
    noise_before: float | None = None
    noise_after: float | None = None
    factors: tuple[float, ...] = field(default=(), repr=False)


def equalize(
    model: ir.Model, sites: Collection[str], samples: Sequence[PendingSample], threads: int = 0
) -> Equalization:
    """Rescale the channels of `model`, in place.

    `sites` are the values that will be quantized, weights and biases included.
    """
    channels = map_channels(model)
    unchanged = np.zeros(channels.count)
    if not channels.count or not samples:
        return _apply(channels, unchanged)
    wanted = {_name(ceiling.node, 0) for ceiling in channels.ceilings}
    for layer in channels.layers:
        wanted |= {_name(layer.node, 0), str(layer.node.outputs[0].name)}
    moments = observe_channels(model, sorted(wanted), samples, threads)
    if not all(np.isfinite(each.power).all() for each in moments.values()):
        return _apply(channels, unchanged)  # the sweep will name the sample and the tensor
    low, high = _bounds(channels, moments)
    if (low < high).mean() < LEAST_MOVABLE:
        return _apply(channels, unchanged)
    noise = NoiseModel([_layer_noise(layer, moments, sites) for layer in channels.layers], channels.count)
    variables = minimise(noise, low, high, STEPS, TOLERANCE)
    done = _apply(channels, variables)
    return replace(done, noise_before=noise(unchanged)[0], noise_after=noise(variables)[0])


def equalize_again(model: ir.Model, factors: Sequence[float]) -> Equalization:
    """Rescale by factors that an earlier equalization of the same model found."""
    channels = map_channels(model)
    if channels.count != len(factors):
        raise UsageError(
            f"The statistics were counted on a model with {len(factors)} rescaled channels; prepared in this way it "
            f"has {channels.count}. Give the target that they were saved with, or calibrate again."
        )
    return _apply(channels, np.array(factors, np.float64))


def _apply(channels: ChannelMap, variables: Floats) -> Equalization:
    for layer in channels.layers:
        _rescale(layer, np.append(variables, 0.0))
    return Equalization(
        channels=int((np.abs(variables) > 1e-6).sum()),
        layers=len(channels.layers),
        largest_factor=float(np.exp(np.abs(variables).max(initial=0.0))),
        factors=tuple(variables.tolist()),
    )


def _layer_noise(layer: ScaledLayer, moments: Mapping[str, Moments], sites: Collection[str]) -> LayerNoise:
    node = layer.node
    source, weight = _name(node, 0), constant(node.inputs[1])
    assert weight is not None
    seen, grouped = moments[source], layer.grouped(weight).astype(np.float64)
    bias = constant(node.inputs[2]) if _name(node, 2) in sites else None
    return LayerNoise(
        inputs=layer.inputs,
        outputs=layer.outputs,
        weight=np.abs(grouped).max(axis=-1) if _name(node, 1) in sites else None,
        taps=grouped.shape[-1],
        energy=(grouped**2).sum(axis=(1, 3)),
        largest=_at_least(seen.largest, layer.inputs) if source in sites else None,
        power=seen.power.reshape(layer.inputs.shape),
        bias=None if bias is None else _at_least(np.abs(bias.astype(np.float64)).reshape(-1), layer.outputs),
        signal=max(moments[str(node.outputs[0].name)].signal, 1e-12),
    )


def _name(node: ir.Node, index: int) -> str:
    value = node.inputs[index] if index < len(node.inputs) else None
    return "" if value is None else str(value.name)


def _at_least(magnitudes: Floats, shape: npt.NDArray[np.int64]) -> Floats:
    """Magnitudes with a floor under them, so that a dead channel is not scaled up without end."""
    floor = max(LEAST_SHARE * float(magnitudes.max(initial=0.0)), 1e-30)
    return np.maximum(magnitudes, floor).reshape(shape.shape)


def _bounds(channels: ChannelMap, moments: Mapping[str, Moments]) -> tuple[Floats, Floats]:
    """The least and largest logarithm of each factor that the Clips allow."""
    low, high = np.full(channels.count + 1, -FARTHEST), np.full(channels.count + 1, FARTHEST)
    for ceiling in channels.ceilings:
        source = _name(ceiling.node, 0)
        variables, highest = channels.of_value[source], moments[source].maximum
        room = np.log(ceiling.bound / np.maximum(highest * CEILING_ROOM, 1e-30))
        np.minimum.at(high, variables, np.maximum(room, 0.0))
        if (highest >= ceiling.bound).any():
            low[variables] = high[variables] = 0.0
    return low[: channels.count], high[: channels.count]


def _rescale(layer: ScaledLayer, padded: Floats) -> None:
    """Write the factors into a layer's weight and bias. `padded` has the 0 of FIXED channels at its end."""
    assert FIXED == -1
    node = layer.node
    weight = constant(node.inputs[1])
    assert weight is not None
    factors = np.exp(padded[layer.outputs][:, :, None] - padded[layer.inputs][:, None, :])
    scaled = layer.ungrouped(layer.grouped(weight).astype(np.float64) * factors[..., None])
    _replace(node, 1, scaled)
    bias = constant(node.inputs[2]) if _name(node, 2) else None
    if bias is not None:
        _replace(node, 2, bias * np.exp(padded[layer.outputs]).reshape(bias.shape))


def _replace(node: ir.Node, index: int, array: npt.NDArray[np.floating]) -> None:
    value = node.inputs[index]
    assert value is not None
    value.const_value = ir.tensor(np.ascontiguousarray(array, np.float32), name=value.name)
