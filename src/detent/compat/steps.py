"""Which preparations, rewrites and rules a device has of its own, by the names that `Recipe.without` takes."""

from __future__ import annotations

from detent.devices.catalog import find_device
from detent.devices.constraints import CONCATS, SHIFTS
from detent.prepare import default_passes

SHIFT_RULES = SHIFTS.names
(CONCAT_RULE,) = CONCATS.names


def steps_of(target: str) -> frozenset[str]:
    """Return the steps that are done without being asked for."""
    device = find_device(target)
    passes = {each.step() for each in default_passes(None, [make() for make in device.preparations])}
    return frozenset((*passes, *device.steps, *device.constraints.names))


def device_rewrites() -> tuple[str, ...]:
    """Return what makes the file answer as the CNN device does, rounding aside."""
    device = find_device("npu-xint8")
    return tuple(each.step() for each in (*device.substitutions, *device.corrections))
