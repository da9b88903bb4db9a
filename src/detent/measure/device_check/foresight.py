"""What another recipe changes on the device: more nodes left float are fewer on it, and divide the rest."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from detent.errors import ModelError
from detent.measure.device_check.check import check_prepared
from detent.measure.device_check.findings import DeviceCheck
from detent.recipe import Recipe
from detent.targets.support import device_of


@dataclass(frozen=True)
class Placement:
    """The device's part of a model with one recipe and with another."""

    before: DeviceCheck
    after: DeviceCheck

    @property
    def is_worse(self) -> bool:
        """Whether the device gets fewer nodes, or gets them in more pieces."""
        return self.after.device_nodes < self.before.device_nodes or self.after.subgraphs > self.before.subgraphs > 0

    def __str__(self) -> str:
        was, now = self.before, self.after
        share = f"{now.device_nodes} of {now.device_nodes + now.cpu_nodes} nodes run on {now.target} then, in"
        return f"{share} {_pieces(now)} (as it is: {was.device_nodes}, in {_pieces(was)})"


def placement(model: ir.Model, before: Recipe, after: Recipe, source: str) -> Placement | None:
    """How much of a prepared float model runs on the device of its recipe.

    Both recipes are for the same device, and differ in what they leave float. None where the device computes no
    integers, or where nothing at all would be quantized: `detent quantize` refuses such a recipe.
    """
    device = device_of(before)
    if device is None or not device.integers:
        return None
    as_it_is = check_prepared(model, device, before, source)
    try:
        return Placement(as_it_is, check_prepared(model, device, after, source))
    except ModelError:  # there is no node to quantize
        return None


def _pieces(check: DeviceCheck) -> str:
    return f"{check.subgraphs} subgraph{'' if check.subgraphs == 1 else 's'}"
