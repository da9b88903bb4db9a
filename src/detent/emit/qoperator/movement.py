"""Operators that give values of their input and nothing new: they do it to codes as well.

It holds where the result is on the grid of the input. MaxPool compares, and codes are ordered as the numbers that they
stand for; a padded value is the code that QuantizeLinear gives it. Max, Min, GlobalMaxPool and DepthToSpace are not
here: onnxruntime's kernels for them took no 8-bit integers for a long time, or take none.
"""

from __future__ import annotations

import numpy as np

from detent.emit.qoperator.codes import Coded, Constant, DeclinedError
from detent.emit.qoperator.site import CLIPS_CODES, Operation, Site
from detent.graph.values import constant, input_at

MOVES = (
    "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather", "GatherElements", "GatherND",
    "Expand", "Tile", "Identity",
)  # fmt: skip
READS = {"Shape": 1, "Size": 1, "ArgMax": 13}
"""Operators whose answer is no number of the grid, and the opset from which codes give the same one."""

PADS_AT_RUNTIME = 11
"""The opset from which the pads and sizes of Pad and Resize are inputs."""


def move(site: Site) -> Operation:
    """The operator itself, on the codes of its first input."""
    return Operation(
        site.node.op_type, [_source(site).codes, *site.node.inputs[1:]], list(site.node.attributes.values()), domain=""
    )


def max_pool(site: Site) -> Operation:
    """MaxPool on codes: what it pads with is below every code."""
    if site.opset < CLIPS_CODES:
        raise DeclinedError(f"MaxPool on integers needs opset {CLIPS_CODES}")
    return move(site)


def resize(site: Site) -> Operation:
    """Resize to the nearest element; interpolation makes new values, and so stays float."""
    attributes = site.node.attributes
    mode = attributes.get_string("mode", "nearest")
    if mode != "nearest":
        raise DeclinedError(f"it interpolates ({mode}), which codes would round differently")
    if attributes.get_string("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise DeclinedError("it fills in values from outside the picture")
    if site.opset < PADS_AT_RUNTIME:
        raise DeclinedError(f"Resize on integers needs opset {PADS_AT_RUNTIME}")
    return move(site)


def pad(site: Site) -> Operation:
    """Pad with the code of the number."""
    if site.opset < PADS_AT_RUNTIME:
        raise DeclinedError(f"Pad on integers needs opset {PADS_AT_RUNTIME}")
    source, filler = _source(site), input_at(site.node, 2)
    number = constant(filler) if filler is not None else np.zeros(())
    if number is None or number.size != 1:
        raise DeclinedError(f"it pads with '{'' if filler is None else filler.name}', which is not constant")
    grid = source.grid
    code = np.array(grid.encode(float(number.reshape(()))), grid.dtype.numpy())
    inputs = [source.codes, site.node.inputs[1], Constant("padding", code), *site.node.inputs[3:]]
    return Operation("Pad", inputs, list(site.node.attributes.values()), domain="")


def _source(site: Site) -> Coded:
    """The first input, whose codes can be taken over."""
    source = site.input(0).whole()
    if any(not result.grid.equals(source.grid) for result in site.results):
        raise DeclinedError(f"its result has another scale or zero point than '{source.name}'")
    return source
