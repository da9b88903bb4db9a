"""Clips at 0 and b: what they allow the factors of their channels, and how their bounds follow.

    a min(max(x, 0), b)  =  min(max(a x, 0), a b)        for every a > 0

so a Clip computes the same function as before if all the channels that it cuts off have one factor a, and its bound
becomes a b. Which a is free to choose. Bounds are first settled for a = 1: channels that are cut keep their factor, the
others may grow until they meet the bound, with some room for values not observed. `levels` then multiplies all channels
of a value, and the bound, by the same number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.equalize.channels import Ceiling, ChannelMap
from detent.equalize.moments import Moments
from detent.graph.names import Names
from detent.graph.values import add_initializer, set_input

Floats = npt.NDArray[np.float64]

FARTHEST = 5.0  # the logarithm of the largest factor up or down: a channel that needs more is all but dead
CEILING_ROOM = 1.25  # how much larger than all that was observed a value may be without meeting a Clip


def factor_bounds(channels: ChannelMap, moments: Mapping[str, Moments]) -> tuple[Floats, Floats]:
    """The least and largest logarithm of each factor, where the Clips keep their bounds."""
    low, high = np.full(channels.count + 1, -FARTHEST), np.full(channels.count + 1, FARTHEST)
    for ceiling in channels.ceilings:
        variables, highest = channels.of_value[ceiling.value], moments[ceiling.value].maximum
        room = np.log(ceiling.bound / np.maximum(highest * CEILING_ROOM, 1e-30))
        np.minimum.at(high, variables, np.maximum(room, 0.0))
        cut = variables[highest >= ceiling.bound]
        low[cut] = high[cut] = 0.0
    return low[: channels.count], high[: channels.count]


def move_bounds(model: ir.Model, ceilings: Sequence[Ceiling], logarithms: Sequence[float]) -> None:
    """Multiply the upper bounds of Clips. One bound may serve several of them, so each gets one of its own."""
    names = Names(model)
    for ceiling, logarithm in zip(ceilings, logarithms, strict=True):
        if logarithm:
            bound = np.array(ceiling.bound * np.exp(logarithm), np.float32)
            name = names.fresh(f"{ceiling.node.name}/bound")
            set_input(ceiling.node, 2, add_initializer(model.graph, name, bound))
