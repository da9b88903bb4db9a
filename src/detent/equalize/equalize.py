"""Equalizing the channels of a model: what a way to equalize has to know of it, and its factors written into constants.

The float function stays what it was: `channels` knows what has to follow a factor, and a Clip's bound follows its
channels (see `equalizations.channel_problem`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.equalizations import Equalizer
from detent.equalizations.channel_problem import (
    ChannelFactors,
    ChannelMoments,
    ChannelProblem,
    ClipChannels,
    Floats,
    LayerChannels,
    pad,
)
from detent.equalize.channels import ChannelMap, ScaledLayer, input_name, map_channels
from detent.equalize.moments import Answers, observe_channels
from detent.errors import UsageError
from detent.graph.values import Names, add_initializer, set_input
from detent.observe.samples import PendingSample


@dataclass(frozen=True)
class Equalization:
    """What equalization did: how many channels it rescaled, and by at most what factor.

    `noise_before` and `noise_after` are what the rounding noise was expected to be; None if the factors were known
    already. `factors` are their logarithms, and after them those of the bounds of Clips.
    """

    channels: int
    layers: int
    largest_factor: float
    noise_before: float | None = None
    noise_after: float | None = None
    factors: tuple[float, ...] = field(default=(), repr=False)


def equalize(
    model: ir.Model,
    equalizer: Equalizer,
    samples: Sequence[PendingSample],
    threads: int = 0,
    *,
    codes: Mapping[str, int],
    answers: Answers | None = None,
) -> Equalization:
    """Rescale the channels of `model`, in place.

    `codes` has all values that will be quantized, weights and biases included: the number of codes above zero of those
    whose scale is one power of two, and 0 for the others. `answers` takes what the model answers to the first samples.
    """
    channels = map_channels(model, through_pools=equalizer.through_pools)
    unchanged = ChannelFactors.unchanged(channels.count, len(channels.ceilings))
    wanted = {ceiling.value for ceiling in channels.ceilings}
    if equalizer.needs_moments:
        for layer in channels.layers:
            wanted |= {input_name(layer.node, 0), str(layer.node.outputs[0].name)}
    if not channels.count or (wanted and not samples):
        return apply_factors(model, channels, unchanged)
    moments = observe_channels(model, sorted(wanted), samples, threads, answers=answers) if wanted else {}
    if not all(np.isfinite(each.power).all() for each in moments.values()):
        return apply_factors(model, channels, unchanged)  # the sweep will name the sample and the tensor
    return apply_factors(model, channels, equalizer.solve(problem_of(channels, moments, codes)))


def equalize_again(model: ir.Model, factors: Sequence[float]) -> Equalization:
    """Rescale by factors that an earlier equalization of the same model found."""
    channels = map_channels(model)
    expected = channels.count + len(channels.ceilings)
    if expected != len(factors):
        raise UsageError(
            f"The statistics were counted on a model with {len(factors)} factors of channels and Clips; prepared in "
            f"this way it has {expected}. Give the target that they were saved with, or calibrate again."
        )
    known = np.array(factors, np.float64)
    return apply_factors(model, channels, ChannelFactors(known[: channels.count], known[channels.count :]))


def problem_of(channels: ChannelMap, moments: Mapping[str, ChannelMoments], codes: Mapping[str, int]) -> ChannelProblem:
    """Return the channels as arrays, with what they were observed to hold."""
    return ChannelProblem(
        channels.count,
        [_layer_channels(layer, moments, codes) for layer in channels.layers],
        [
            ClipChannels(channels.of_value[each.value], each.bound, moments[each.value].maximum, codes.get(each.result))
            for each in channels.ceilings
        ],
        list(channels.of_value.values()),
    )


def _layer_channels(
    layer: ScaledLayer, moments: Mapping[str, ChannelMoments], codes: Mapping[str, int]
) -> LayerChannels:
    node = layer.node
    source, weight, bias = (input_name(node, index) for index in range(3))
    output = moments.get(str(node.outputs[0].name))
    return LayerChannels(
        str(node.name),
        layer.inputs,
        layer.outputs,
        layer.weight,
        layer.bias,
        weight_codes=codes.get(weight),
        input_codes=codes.get(source),
        bias_codes=codes.get(bias),
        seen=moments.get(source),
        signal=1.0 if output is None else output.signal,
    )


def apply_factors(model: ir.Model, channels: ChannelMap, factors: ChannelFactors) -> Equalization:
    """Write factors into the layers, and into the bounds of Clips."""
    padded = pad(factors.variables)
    for layer in channels.layers:
        if not padded[layer.inputs].any() and not padded[layer.outputs].any():
            continue  # weights that stay as they are stay where they are
        scaled = LayerChannels(str(layer.node.name), layer.inputs, layer.outputs, layer.weight, layer.bias)
        bias = scaled.scaled_bias(padded)
        weight = np.empty(layer.weight.shape, np.float32)
        for rows, numbers in scaled.scaled_rows(padded):
            weight[:, rows] = numbers
        replace_constant(layer.node, 1, layer.ungrouped(weight))
        if bias is not None:
            replace_constant(layer.node, 2, bias)
    _move_bounds(model, channels, factors.clips)
    return Equalization(
        channels=int((np.abs(factors.variables) > 1e-6).sum()),
        layers=len(channels.layers),
        largest_factor=float(np.exp(np.abs(factors.variables).max(initial=0.0))),
        noise_before=factors.noise_before,
        noise_after=factors.noise_after,
        factors=(*factors.variables.tolist(), *factors.clips.tolist()),
    )


def _move_bounds(model: ir.Model, channels: ChannelMap, logarithms: Floats) -> None:
    """Multiply the upper bounds of Clips. One bound may serve several of them, so each gets one of its own."""
    names = Names(model)
    for ceiling, logarithm in zip(channels.ceilings, logarithms.tolist(), strict=True):
        if logarithm:
            bound = np.array(ceiling.bound * np.exp(logarithm), np.float32)
            name = names.fresh(f"{ceiling.node.name}/bound")
            set_input(ceiling.node, 2, add_initializer(model.graph, name, bound))


def replace_constant(node: ir.Node, index: int, array: npt.NDArray[np.floating]) -> None:
    """Give a node another constant of the same shape, in float32."""
    value = node.inputs[index]
    assert value is not None, f"'{node.name}' has no input {index}"
    value.const_value = ir.tensor(np.ascontiguousarray(array, np.float32), name=value.name)
