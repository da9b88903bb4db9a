"""Factors of channels, written into the constants of the layers that have to follow them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.equalize.ceilings import move_bounds
from detent.equalize.channels import FIXED, ChannelMap, ScaledLayer, map_channels
from detent.errors import UsageError
from detent.graph.values import constant

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Equalization:
    """What equalization did: how many channels it rescaled, and by at most what factor.

    `noise_before` and `noise_after` are what the rounding noise was expected to be; None where the factors were known
    already. `factors` are their logarithms, and after them those of the bounds of Clips.
    """

    channels: int
    layers: int
    largest_factor: float
    noise_before: float | None = None
    noise_after: float | None = None
    factors: tuple[float, ...] = field(default=(), repr=False)


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
    return apply_factors(model, channels, known[: channels.count], known[channels.count :])


def apply_factors(
    model: ir.Model, channels: ChannelMap, variables: Floats, bounds: Floats | None = None
) -> Equalization:
    """Write factors into the layers, and into the bounds of Clips. All are logarithms."""
    for layer in channels.layers:
        _rescale(layer, np.append(variables, 0.0))
    moved = np.zeros(len(channels.ceilings)) if bounds is None else bounds
    move_bounds(model, channels.ceilings, moved.tolist())
    return Equalization(
        channels=int((np.abs(variables) > 1e-6).sum()),
        layers=len(channels.layers),
        largest_factor=float(np.exp(np.abs(variables).max(initial=0.0))),
        factors=(*variables.tolist(), *moved.tolist()),
    )


def input_name(node: ir.Node, index: int) -> str:
    """The name of an input; empty where there is none."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return "" if value is None else str(value.name)


@dataclass(frozen=True, eq=False)
class Scaled:
    """The constants of a layer, with factors."""

    weight: Floats
    bias: Floats | None


def scaled_constants(layer: ScaledLayer, padded: Floats) -> Scaled:
    """A layer's constants times the factors. `padded` has the 0 of FIXED channels at its end."""
    assert FIXED == -1
    weight = constant(layer.node.inputs[1])
    assert weight is not None
    factors = np.exp(padded[layer.outputs][:, :, None] - padded[layer.inputs][:, None, :])
    scaled = layer.ungrouped(layer.grouped(weight).astype(np.float64) * factors[..., None])
    bias = constant(layer.node.inputs[2]) if input_name(layer.node, 2) else None
    return Scaled(scaled, None if bias is None else bias * np.exp(padded[layer.outputs]).reshape(bias.shape))


def _rescale(layer: ScaledLayer, padded: Floats) -> None:
    """Write the factors into a layer's weight and bias."""
    scaled = scaled_constants(layer, padded)
    replace_constant(layer.node, 1, scaled.weight)
    if scaled.bias is not None:
        replace_constant(layer.node, 2, scaled.bias)


def replace_constant(node: ir.Node, index: int, array: npt.NDArray[np.floating]) -> None:
    """Give a node another constant of the same shape, in float32."""
    value = node.inputs[index]
    assert value is not None
    value.const_value = ir.tensor(np.ascontiguousarray(array, np.float32), name=value.name)
