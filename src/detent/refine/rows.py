"""The rows of a layer's matrix: its input as each sampled output position sees it.

For an output position o and a kernel offset k, with stride s, dilation d and padding p at the start of an axis,

    Conv reads the input at             o * s - p + k * d
    ConvTranspose reads it at           (o + p - k * d) / s          where that is a whole number

and outside of the input both read zero. A Gemm's row has one position and one offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.graph.values import constant
from detent.numerics.compiled import compiled
from detent.refine.codes import Array
from detent.refine.layers import Layer

Indices = npt.NDArray[np.int64]
OUTSIDE = -1


def sample_positions(count: int, wanted: int, seed: Sequence[int]) -> Indices:
    """Some of `count` positions, in order; all of them where no more are wanted."""
    if count <= wanted:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, wanted, replace=False))


def take_rows(maps: Array, positions: Indices) -> npt.NDArray[np.float32]:
    """The channels of (batch, channels, positions) at positions that are counted over the whole batch."""
    image, where = np.divmod(positions, maps.shape[2])
    return np.asarray(maps[image, :, where], np.float32)


def why_no_rows(layer: Layer) -> str | None:
    """Why the input positions of a layer are not known, or None."""
    attributes = layer.node.attributes
    if layer.node.op_type != "ConvTranspose":
        return None
    if attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or "output_shape" in attributes:
        return "a ConvTranspose with automatic padding"
    return None


def input_indices(
    layer: Layer, source: Sequence[int], result: Sequence[int], positions: Indices
) -> tuple[Indices, Indices]:
    """For each position the image of the batch, and for each kernel offset the position in the input, or OUTSIDE.

    `source` and `result` are the shapes of the layer's input and output.
    """
    if not layer.convolves:
        return positions, np.zeros((len(positions), 1), np.int64)
    sizes, spatial = source[2:], result[2:]
    image, where = np.divmod(positions, int(np.prod(spatial)))
    at = np.array(np.unravel_index(where, spatial)).reshape(len(spatial), -1)
    kernel = np.asarray(constant(layer.weight)).shape[2:]
    offsets = np.indices(kernel).reshape(len(kernel), -1)
    strides, dilations = (_per_axis(layer, name, [1] * len(kernel)) for name in ("strides", "dilations"))
    pads = _first_pads(layer, sizes, spatial, [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)])
    flat = np.zeros((len(positions), offsets.shape[1]), np.int64)
    inside = np.ones(flat.shape, bool)
    for axis, size in enumerate(sizes):
        offset = offsets[axis] * dilations[axis]
        if layer.node.op_type == "Conv":
            index = at[axis][:, None] * strides[axis] - pads[axis] + offset
        else:
            index, rest = np.divmod(at[axis][:, None] + pads[axis] - offset, strides[axis])
            inside &= rest == 0
        inside &= (index >= 0) & (index < size)
        flat = flat * size + index
    return image, np.where(inside, flat, OUTSIDE)


def _per_axis(layer: Layer, name: str, default: list[int]) -> Sequence[int]:
    return layer.node.attributes.get_ints(name, default) or default


def _first_pads(layer: Layer, sizes: Sequence[int], spatial: Sequence[int], windows: Sequence[int]) -> Sequence[int]:
    """The padding at the start of each axis; for SAME it follows from the number of outputs."""
    mode = layer.node.attributes.get_string("auto_pad", "NOTSET")
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return [0] * len(sizes) if mode == "VALID" else _per_axis(layer, "pads", [0] * 2 * len(sizes))
    strides = _per_axis(layer, "strides", [1] * len(sizes))
    zipped = zip(sizes, spatial, strides, windows, strict=True)
    totals = [max((outputs - 1) * stride + window - size, 0) for size, outputs, stride, window in zipped]
    return [total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals]


def float_rows(
    layer: Layer, source: npt.NDArray[np.float32], result: Sequence[int], positions: Indices
) -> npt.NDArray[np.float32]:
    """The rows (groups, positions, inputs) of an input that is not encoded."""
    image, indices = input_indices(layer, source.shape, result, positions)
    rows = np.empty((layer.groups, len(positions), layer.matrix().shape[2]), np.float32)
    gather(layer.maps(source), np.float32(1.0), np.float32(0.0), image, indices, rows)
    return rows


@compiled
def gather(
    maps: npt.NDArray[Any],
    scale: np.float32,
    zero_point: np.float32,
    image: Indices,
    indices: Indices,
    rows: npt.NDArray[np.float32],
) -> None:
    """Decode the input (batch, channels, positions) at `indices` into rows (groups, positions, inputs)."""
    groups, count, inputs = rows.shape
    offsets = indices.shape[1]
    for g in range(groups):
        first = g * (inputs // offsets)
        for p in range(count):
            for k in range(inputs):
                at = indices[p, k % offsets]
                if at < 0:
                    rows[g, p, k] = 0.0
                else:
                    code = np.float32(maps[image[p], first + k // offsets, at])
                    rows[g, p, k] = (code - zero_point) * scale
