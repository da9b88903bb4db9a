"""A float model for a device: what will become of it once it is quantized for it.

The model is prepared and laid out as `detent quantize` does it, with the recipe of the device; nothing is calibrated.
What is wrong with the model as it is, and not any more after that, is a note that names the step that mends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from detent.errors import DetentError
from detent.graph.load import MINIMUM_OPSET
from detent.graph.opset import raise_opset
from detent.measure.device_check.findings import MODEL, Finding
from detent.measure.device_check.subject import Subject
from detent.plan.layout import Layout
from detent.plan.mixed import arrange
from detent.plan.select import Selection
from detent.prepare import default_passes, prepare
from detent.prepare.base import Change
from detent.recipe_file import find_recipe
from detent.targets.support import Device
from detent.targets.target import find_target

ANNOTATIONS = ("InferShapes",)


def prepared_subject(model: ir.Model, device: Device, source: str) -> tuple[Subject, list[Change], list[Finding]]:
    """The model as it will be before it is calibrated, what was changed, and why that failed where it did.

    `model` is changed.
    """
    recipe = find_recipe(device.recipe)
    target = find_target(recipe.target)
    try:
        model = raise_opset(model, MINIMUM_OPSET, source)
        changes = prepare(model, default_passes(None, [make() for make in target.preparations], recipe.without))
        layout = arrange(model, Selection(), recipe)
        passes = [step(layout.quantizes) for step in target.substitutions]
        changes += prepare(model, passes)
    except DetentError as error:
        failed = Finding("error", MODEL, "", "it cannot be quantized", str(error), "see `detent quantize --dry-run`")
        return Subject(model, device, (), quantized=False), [], [failed]
    return laid_out(model, device, layout), changes, []


def laid_out(model: ir.Model, device: Device, layout: Layout) -> Subject:
    """A prepared float model with what will be quantized of it."""
    reasons = {name: each.reason for name, each in layout.decisions.items() if not each.quantized}
    return Subject(model, device, frozenset(layout.sites), reasons=reasons, quantized=False)


def mended(before: Sequence[Finding], after: Sequence[Finding], changes: Sequence[Change]) -> Iterator[Finding]:
    """The findings on the model as it is that are gone once it is prepared, as notes that say what mends them."""
    still = {(finding.node, finding.what) for finding in after}
    by: dict[str, str] = {}
    for change in changes:
        if change.by not in ANNOTATIONS:
            by[change.node] = change.by
    for finding in before:
        if finding.level != "note" and (finding.node, finding.what) not in still:
            step = f" ({by[finding.node]})" if finding.node in by else ""
            yield replace(finding, level="note", fix=f"`detent quantize` mends it{step}")
