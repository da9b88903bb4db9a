"""What each channel of a value holds, over a few samples: its extremes, mean and mean square."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.session import Runner, usable_cores
from detent.numerics.compiled import compiled
from detent.observe.samples import PendingSample

Floats = npt.NDArray[np.float64]
LEAST_VARIANCE = 1e-6  # of the power: less is what rounding leaves of a constant


@dataclass(frozen=True, eq=False)
class Moments:
    """Per channel: least, greatest, mean and mean square."""

    minimum: Floats
    maximum: Floats
    mean: Floats
    power: Floats

    @property
    def largest(self) -> Floats:
        """The largest magnitude of each channel."""
        return np.maximum(-self.minimum, self.maximum)

    @property
    def signal(self) -> float:
        """The variance, summed over channels; of what does not vary, as a pooled value of one sample, the power."""
        variance, power = float(np.maximum(self.power - self.mean**2, 0.0).sum()), float(self.power.sum())
        return variance if variance > LEAST_VARIANCE * power else power


def observe_channels(
    model: ir.Model, names: Sequence[str], samples: Sequence[PendingSample], threads: int = 0, *, last: bool = False
) -> dict[str, Moments]:
    """Run `samples` and describe the channels of the named values. Those of fewer than two axes are left out.

    Channels lie along axis 1; with `last` along the last one.
    """
    inputs = {str(value.name) for value in model.graph.inputs}
    fetched = [name for name in names if name not in inputs]
    runner = Runner(model, fetched)

    def run(pending: PendingSample) -> dict[str, Floats]:
        sample = pending.load()
        arrays = dict(zip(fetched, runner(sample.feeds, sample.origin, fetched), strict=True)) if fetched else {}
        arrays |= {name: sample.feeds[name] for name in names if name in inputs}
        found = {name: array for name, array in arrays.items() if array.ndim > 1 and array.size}
        return {name: _sums(array.reshape(-1, array.shape[-1]) if last else array) for name, array in found.items()}

    totals: dict[str, Floats] = {}
    with ThreadPoolExecutor(threads or usable_cores()) as pool:
        # In the order of the samples: floating-point sums must not depend on who was first.
        for sums in pool.map(run, samples):
            for name, more in sums.items():
                totals[name] = _joined(totals[name], more) if name in totals else more
    return {name: _moments(sums) for name, sums in totals.items()}


def _sums(array: npt.NDArray[np.float32]) -> Floats:
    """Rows: least, greatest, sum, sum of squares, number of values; a column for each channel."""
    values = np.ascontiguousarray(array, np.float32).reshape(array.shape[0], array.shape[1], -1)
    sums = np.zeros((5, array.shape[1]))
    sums[0], sums[1] = np.inf, -np.inf
    _add_up(values, sums)
    return sums


@compiled
def _add_up(values: npt.NDArray[np.float32], sums: npt.NDArray[np.float64]) -> None:
    for n in range(values.shape[0]):
        for channel in range(values.shape[1]):
            low, high, total, squares = np.inf, -np.inf, 0.0, 0.0
            for i in range(values.shape[2]):
                value = np.float64(values[n, channel, i])
                low, high = min(low, value), max(high, value)
                total += value
                squares += value * value
            sums[0, channel] = min(sums[0, channel], low)
            sums[1, channel] = max(sums[1, channel], high)
            sums[2, channel] += total
            sums[3, channel] += squares
            sums[4, channel] += values.shape[2]


def _joined(one: Floats, other: Floats) -> Floats:
    return np.stack([np.minimum(one[0], other[0]), np.maximum(one[1], other[1]), *(one[2:] + other[2:])])


def _moments(sums: Floats) -> Moments:
    return Moments(sums[0], sums[1], sums[2] / sums[4], sums[3] / sums[4])
