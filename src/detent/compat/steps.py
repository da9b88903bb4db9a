"""Which preparations, rewrites and rules a target has of its own, by the names that `Recipe.without` takes."""

from __future__ import annotations

from detent.devices.constraints import RULES, align_concats, constrain
from detent.devices.device import find_target
from detent.prepare import default_passes

SHIFT_RULES = tuple(dict.fromkeys(name for name, _, _ in RULES))
CONCAT_RULE = "align_concat"


def steps_of(target: str) -> frozenset[str]:
    """The steps that are done without being asked for."""
    device = find_target(target)
    passes = {each.step() for each in default_passes(None, [make() for make in device.preparations])}
    rewrites = {each.step() for each in (*device.substitutions, *device.corrections)}
    rules = SHIFT_RULES if device.constrain is constrain else (CONCAT_RULE,) * (device.constrain is align_concats)
    return frozenset((*passes, *rewrites, *rules))


def device_rewrites() -> tuple[str, ...]:
    """What makes the file answer as the CNN device does, rounding aside."""
    device = find_target("npu-cnn")
    return tuple(each.step() for each in (*device.substitutions, *device.corrections))
