"""Equalization: every channel gets the factor at which rounding the whole network adds the least noise.

The float function stays what it was: `channels` knows what has to follow a factor, `ceilings` what Clips allow. First
each channel gets its share of the range that it lies in (`noise`), then all channels of a value are moved to where they
make the most of scales that are powers of two (`levels`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.equalize.ceilings import factor_bounds
from detent.equalize.channels import Ceiling, ChannelMap, ScaledLayer, map_channels
from detent.equalize.factors import Equalization, apply_factors, input_name, scaled_constants
from detent.equalize.levels import Limit, Part, choose_levels, find_levels, level_of, size_of
from detent.equalize.moments import Moments, observe_channels
from detent.equalize.noise import LayerNoise, NoiseModel
from detent.equalize.solve import minimise
from detent.graph.values import constant
from detent.observe.samples import PendingSample

Floats = npt.NDArray[np.float64]

STEPS, TOLERANCE = 100, 1e-3
LEAST_MOVABLE = 0.5  # of the channels: where Clips hold most of them, what the others could gain is not worth it
LEAST_SHARE = 1e-3  # of the largest channel: a channel below it counts as if it held that much


def equalize(
    model: ir.Model,
    sites: Collection[str],
    samples: Sequence[PendingSample],
    threads: int = 0,
    *,
    codes: Mapping[str, int] | None = None,
) -> Equalization:
    """Rescale the channels of `model`, in place.

    `sites` are the values that will be quantized, weights and biases included. `codes` has, for those whose scales are
    powers of two, the number of codes above zero.
    """
    channels = map_channels(model)
    unchanged = np.zeros(channels.count)
    if not channels.count or not samples:
        return apply_factors(model, channels, unchanged)
    wanted = {ceiling.value for ceiling in channels.ceilings}
    for layer in channels.layers:
        wanted |= {input_name(layer.node, 0), str(layer.node.outputs[0].name)}
    moments = observe_channels(model, sorted(wanted), samples, threads)
    if not all(np.isfinite(each.power).all() for each in moments.values()):
        return apply_factors(model, channels, unchanged)  # the sweep will name the sample and the tensor
    noise = NoiseModel([_layer_noise(layer, moments, sites) for layer in channels.layers], channels.count)
    low, high = factor_bounds(channels, moments)
    movable = float((low < high).mean()) >= LEAST_MOVABLE
    variables = minimise(noise, low, high, STEPS, TOLERANCE) if movable else unchanged
    raised = _levels(channels, moments, noise, variables, codes or {})
    done = apply_factors(model, channels, variables + raised[: channels.count], raised[channels.count :])
    return replace(done, noise_before=noise(unchanged)[0], noise_after=noise(variables)[0])


def _levels(
    channels: ChannelMap, moments: Mapping[str, Moments], noise: NoiseModel, variables: Floats, codes: Mapping[str, int]
) -> Floats:
    """The logarithm of the common factor of each variable, and after these of each Clip."""
    count, levels = find_levels(channels)
    padded = np.append(variables, 0.0)
    parts = [
        part
        for layer, noises in zip(channels.layers, noise.by_tensor(variables), strict=True)
        for part in _parts(layer, noises, padded, moments, levels, codes)
    ]
    limits = [
        _limit(ceiling, channels.of_value[ceiling.value], padded, moments, levels, codes)
        for ceiling in channels.ceilings
        if ceiling.result in codes
    ]
    chosen = np.append(choose_levels(count, parts, limits), 0.0) * np.log(2.0)
    of_ceilings = [chosen[level_of(channels.of_value[each.value], levels)] for each in channels.ceilings]
    return np.concatenate([chosen[levels[: channels.count]], of_ceilings])


def _parts(
    layer: ScaledLayer,
    noises: tuple[float, float, float],
    padded: Floats,
    moments: Mapping[str, Moments],
    levels: npt.NDArray[np.int64],
    codes: Mapping[str, int],
) -> list[Part]:
    """What the levels beside a layer change in its noise."""
    source, weight, bias = (input_name(layer.node, index) for index in range(3))
    before, after = level_of(layer.inputs, levels), level_of(layer.outputs, levels)
    scaled = scaled_constants(layer, padded)
    found = []
    if weight in codes:
        found.append(Part(noises[0], size_of(scaled.weight, codes[weight]), after, before))
    if source in codes:
        seen = moments[source].largest * np.exp(padded[layer.inputs].reshape(-1))
        found.append(Part(noises[1], size_of(seen, codes[source]), before))
    if bias in codes and scaled.bias is not None:
        found.append(Part(noises[2], size_of(scaled.bias, codes[bias]), after))
    return found


def _limit(
    ceiling: Ceiling,
    variables: npt.NDArray[np.int64],
    padded: Floats,
    moments: Mapping[str, Moments],
    levels: npt.NDArray[np.int64],
    codes: Mapping[str, int],
) -> Limit:
    """Where the edges of the codes may lie beside a Clip."""
    seen = np.minimum(moments[ceiling.value].maximum * np.exp(padded[variables]), ceiling.bound)
    above = codes[ceiling.result]
    return Limit(
        level_of(variables, levels), size_of(np.maximum(seen, 0.0), above), size_of(np.array(ceiling.bound), above)
    )


def _layer_noise(layer: ScaledLayer, moments: Mapping[str, Moments], sites: Collection[str]) -> LayerNoise:
    node = layer.node
    source, weight = input_name(node, 0), constant(node.inputs[1])
    assert weight is not None
    seen, grouped = moments[source], layer.grouped(weight).astype(np.float64)
    bias = constant(node.inputs[2]) if input_name(node, 2) in sites else None
    return LayerNoise(
        inputs=layer.inputs,
        outputs=layer.outputs,
        weight=np.abs(grouped).max(axis=-1) if input_name(node, 1) in sites else None,
        taps=grouped.shape[-1],
        energy=(grouped**2).sum(axis=(1, 3)),
        largest=_at_least(seen.largest, layer.inputs) if source in sites else None,
        power=seen.power.reshape(layer.inputs.shape),
        bias=None if bias is None else _at_least(np.abs(bias.astype(np.float64)).reshape(-1), layer.outputs),
        signal=max(moments[str(node.outputs[0].name)].signal, 1e-12),
    )


def _at_least(magnitudes: Floats, shape: npt.NDArray[np.int64]) -> Floats:
    """Magnitudes with a floor under them, so that a dead channel is not scaled up without end."""
    floor = max(LEAST_SHARE * float(magnitudes.max(initial=0.0)), 1e-30)
    return np.maximum(magnitudes, floor).reshape(shape.shape)
