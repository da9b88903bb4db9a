"""The means of a layer's channels, and bias correction.

A layer computes W x + b in the float model and W' x' + b' in the quantized one. The bias that makes the mean of each
channel right again is

    b' = b' before + mean(W x + b) - mean(W' x' + b' before)

over all samples and positions, before the activation. It is encoded with the plan's own parameters, if it is at all;
where it does not fit them it saturates, and where its step is coarser than the correction nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.graph.values import constant
from detent.numerics.interface import Params
from detent.plan.plan import Plan
from detent.refine.codes import Array, stored_constant
from detent.refine.layers import Layer
from detent.refine.walk import Walk


@dataclass(frozen=True, eq=False)
class ChannelSums:
    """The sum of every channel over positions, their number, and the sum of all squares. Two add up."""

    sums: npt.NDArray[np.float64]
    count: int
    squares: float = 0.0

    @classmethod
    def of(cls, maps: Array) -> ChannelSums:
        """The sums of (batch, channels, positions)."""
        flat = maps.reshape(-1)
        with np.errstate(over="ignore"):  # near the largest float32 sums are infinite, and the layer is left alone
            sums = maps.sum(axis=2).sum(axis=0, dtype=np.float64)
            return cls(sums, maps.shape[0] * maps.shape[2], float(np.dot(flat, flat)))

    @classmethod
    def total(cls, parts: Sequence[ChannelSums]) -> ChannelSums:
        """All of them together."""
        return cls(
            np.sum([part.sums for part in parts], axis=0),
            sum(part.count for part in parts),
            sum(part.squares for part in parts),
        )

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """The mean of every channel; 0 where there is nothing."""
        return self.sums / max(self.count, 1)

    @property
    def power(self) -> float:
        """The mean square of all elements."""
        return self.squares / max(self.count * self.sums.size, 1)


@dataclass(frozen=True)
class Correction:
    """What correcting a bias did: the mean square of the channels' mean errors before and after, and a note."""

    before: float
    after: float
    note: str = ""


def correct_bias(layer: Layer, walk: Walk, expected: ChannelSums) -> Correction:
    """Give a layer the bias with which its channels have the means of the float model."""
    found = ChannelSums.total(walk.over_outputs(layer.node, lambda _, output: ChannelSums.of(layer.maps(output))))
    with np.errstate(invalid="ignore"):
        difference = expected.mean - found.mean
    if not np.isfinite(difference).all():
        return Correction(0.0, 0.0, "its output is not finite")
    before = float(np.square(difference).mean())
    if layer.bias is None:
        return Correction(before, before, layer.note)
    present = stored_bias(layer, walk.plan)
    note = set_bias(layer, walk.plan, present + difference)
    left = difference - (stored_bias(layer, walk.plan) - present)
    return Correction(before, float(np.square(left).mean()), note)


def params_of_bias(layer: Layer, plan: Plan) -> Params | None:
    """How the bias of a layer is stored; None where it stays float."""
    assert layer.bias is not None, f"layer '{layer.name}' has no bias of its own"
    name = str(layer.bias.name)
    return plan.of(name) if name in plan.layout.sites else None


def set_bias(layer: Layer, plan: Plan, wanted: npt.NDArray[np.float64]) -> str:
    """Give a layer a bias, as far as it fits the plan's parameters, and note where it does not. A fixed one stays."""
    if layer.bias is None:
        return layer.note
    name, params = str(layer.bias.name), params_of_bias(layer, plan)
    shaped = wanted.reshape(np.asarray(constant(layer.bias)).shape)
    plan.refined[name] = stored_constant(shaped, params)
    saturated = 0 if params is None else int(params.clipped(shaped).sum())
    return f"the bias of {saturated} of {shaped.size} channels saturates" if saturated else ""


def stored_bias(layer: Layer, plan: Plan) -> npt.NDArray[np.float64]:
    """The bias of each channel as it is encoded now."""
    assert layer.bias is not None, f"layer '{layer.name}' has no bias of its own"
    name, params = str(layer.bias.name), params_of_bias(layer, plan)
    own = np.asarray(constant(layer.bias), np.float32)
    return stored_constant(plan.refined.get(name, own), params).reshape(-1).astype(np.float64)
