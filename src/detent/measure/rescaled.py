"""Whether a tensor is another one with its channels at other scales, as equalization and SmoothQuant leave them.

With x a channel in the first model, y in the second, the factor a that brings y closest to x leaves

    sum (x - a y)^2 = sum x^2 - (sum x*y)^2 / sum y^2

of the squared difference. Noise cannot be taken away like that: of y = x + e it leaves x^2 e^2 / (x^2 + e^2), so a
quarter or less of e^2 only where less than a quarter of x^2 is explained. Where most of x is explained and most of the
difference gone, it was the scales.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

TAKEN = 0.25  # of the squared difference may be left: 6 dB are gained
EXPLAINED = 0.5  # of the squared values may be left
BLOCKS = (8, 16)
LEAST = 16
"""Elements of a channel; with few of them a factor for each explains anything."""


def is_rescaled(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> bool:
    """Whether y is x but for a factor for each channel, or for one throughout.

    Channels may be the second dimension, the last, or lie in blocks as in the memory of onnxruntime (graph/taps.py).
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    signal, noise = float(np.sum(x * x)), float(np.sum((x - y) ** 2))
    if not noise > 0.0 or not np.isfinite(noise):
        return False
    left = min(map(_left, _by_channel(x), _by_channel(y)))
    return left <= TAKEN * noise and left <= EXPLAINED * signal


def _by_channel(x: Floats) -> Iterator[Floats]:
    """The values with a row for each channel, in each way that they may lie."""
    yield x.reshape(1, -1)
    if x.ndim < 3:
        return
    yield np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)
    yield x.reshape(-1, x.shape[-1]).T
    for block in BLOCKS:
        if x.shape[1] % block == 0:
            blocks = x.reshape(x.shape[0], x.shape[1] // block, -1, block)
            yield blocks.transpose(1, 3, 0, 2).reshape(x.shape[1], -1)


def _left(x: Floats, y: Floats) -> float:
    """What the best factor for each row leaves of the squared difference."""
    if x.shape[1] < LEAST:
        return np.inf
    own, product, power = (np.sum(each, 1) for each in (x * x, x * y, y * y))
    explained = np.divide(product**2, power, out=np.zeros_like(power), where=power > 0.0)
    return float(np.sum(np.maximum(own - explained, 0.0)))
