"""Self-gated activations x * sigmoid(x) for a device whose only sigmoid is HardSigmoid(x) = clip(x/6 + 1/2, 0, 1).

HardSigmoid is flatter than the sigmoid around zero (1/6 against 1/4) and steeper beyond its knees. With a slope of a/6,
for the a that suits the values that occur, the error of x * HardSigmoid(x) is half as large. The device has no other
slope, but the network has: if the layer before computes a x instead of x, then

    a x * HardSigmoid(a x) = a * (x * clip(a x/6 + 1/2, 0, 1))

and the layers behind divide by a, as `channels` knows. Until the Sigmoid is replaced, the float model stays exactly
what it was: the Sigmoid gets a factor 1/a in front of it, which goes when it is replaced.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from detent.equalizations.channel_problem import FIXED, ChannelFactors, Floats
from detent.equalize.channels import map_channels, self_gates
from detent.equalize.equalize import apply_factors
from detent.graph.values import Names, add_initializer, constant, rank, set_input

SLOPE = 1.1
"""Layers of trained detectors by themselves would have 1.1 to 1.2. Above 1.1, the whole network answers too weakly."""

FACTOR = "/gate_factor"
"""How the factor in front of a Sigmoid is named, after the name of the Sigmoid."""


def scale_gates(model: ir.Model, replaced: Callable[[ir.Node], bool]) -> int:
    """Make the input of every self-gated Sigmoid that will be replaced larger, in place; return how many there are.

    Channels that cannot be rescaled, because something else reads them, keep their size.
    """
    gates = [gate for gate in self_gates(model) if replaced(gate) and rank(gate.inputs[0]) is not None]
    channels = map_channels(model, gates)
    factors = np.zeros(channels.count + 1)  # the last one is that of FIXED
    for gate in gates:
        factors[channels.of_value[_input(gate)]] = np.log(SLOPE)
    factors[FIXED] = 0.0
    if not factors.any():
        return 0
    apply_factors(model, channels, ChannelFactors(factors[:-1], np.zeros(len(channels.ceilings))))
    names = Names(model)
    scaled = [(gate, channels.of_value[_input(gate)]) for gate in gates]
    scaled = [(gate, variables) for gate, variables in scaled if factors[variables].any()]
    for gate, variables in scaled:
        _divide_input(model, names, gate, np.exp(-factors[variables]))
    return len(scaled)


def gate_factor(gate: ir.Node) -> ir.Node | None:
    """Return the node that divides the input of a Sigmoid by what `scale_gates` multiplied it with, if there is one."""
    before = gate.inputs[0].producer() if gate.inputs and gate.inputs[0] is not None else None
    return before if before is not None and str(before.name).endswith(FACTOR) else None


def slope_of(gate: ir.Node) -> Floats:
    """Return the factor in front of a Sigmoid, one for each channel or one for all; 1 if there is none."""
    before = gate_factor(gate)
    return np.ones(1) if before is None else np.asarray(constant(before.inputs[1]), np.float64).reshape(-1)


def _input(gate: ir.Node) -> str:
    assert gate.inputs[0] is not None, "a gate has an input"
    return str(gate.inputs[0].name)


def _divide_input(model: ir.Model, names: Names, gate: ir.Node, factors: Floats) -> None:
    source = gate.inputs[0]
    assert source is not None, "a gate has an input"
    shape = (1, -1, *[1] * ((rank(source) or 2) - 2))
    array = factors[:1].reshape([]) if np.ptp(factors) == 0.0 else factors.reshape(shape)
    name = names.fresh(f"{gate.name}{FACTOR}")
    value = add_initializer(model.graph, f"{name}_value", array.astype(np.float32))
    product = ir.node("Mul", [source, value], name=name)
    product.outputs[0].type, product.outputs[0].shape = source.type, source.shape
    product.outputs[0].name = f"{name}_output"
    model.graph.insert_before(gate, product)
    set_input(gate, 0, product.outputs[0])
