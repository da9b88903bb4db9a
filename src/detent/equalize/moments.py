"""What each channel of a value holds, from a run over some samples: extremes, mean and mean square.

The values are fetched in the blocks of channels that onnxruntime computes in, and section by section (graph/taps.py): a
section is looked at while it is in the cache. Memory is that of a section, and some numbers for each channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.equalizations.channel_problem import ChannelMoments, Floats
from detent.graph.session import usable_cores
from detent.graph.taps import in_order, open_taps
from detent.numerics.compiled import compiled_sums
from detent.observe.samples import PendingSample

Answers = dict[int, dict[str, npt.NDArray[np.float32]]]
"""A model's outputs by the index of the sample."""

ANSWERS, ANSWER_BYTES = 32, 1 << 20
"""How many samples' outputs are kept, and of how many bytes each at most."""

WIDTH = 256
"""Neighbours in memory that are summed up side by side: a multiple of the lanes of any block."""

IN_FLOAT = 64
"""Rows of so many values are added in float32, before they go to the sums in float64."""


def observe_channels(
    model: ir.Model,
    names: Sequence[str],
    samples: Sequence[PendingSample],
    threads: int = 0,
    *,
    last: bool = False,
    answers: Answers | None = None,
) -> dict[str, ChannelMoments]:
    """Run `samples` and describe the channels of the named values. Those of fewer than two axes are left out.

    Channels lie along axis 1; with `last` along the last one. `answers` takes the outputs of the first samples, which
    are computed anyway, unless they are large.
    """
    inputs = {str(value.name) for value in model.graph.inputs}
    outputs = [] if answers is None else [str(value.name) for value in model.graph.outputs]
    fetched = [name for name in names if name not in inputs]
    taps = open_taps(model, list(dict.fromkeys([*fetched, *outputs])))
    lanes = {} if last else taps.lanes
    runner = taps.unordered if lanes else taps.ordered
    kept = {pending.index for pending in samples[:ANSWERS]} if outputs else set()
    asked = set(names)

    def look(values: dict[str, npt.NDArray[np.float32]]) -> dict[str, Floats]:
        found = {name: array for name, array in values.items() if name in asked and array.ndim > 1 and array.size}
        if last:
            return {name: _sums_of_columns(array.reshape(-1, array.shape[-1])) for name, array in found.items()}
        return {name: _sums(array, lanes.get(name, 1)) for name, array in found.items()}

    def run(pending: PendingSample) -> dict[str, Floats]:
        sample = pending.load()
        found = look({name: sample.feeds[name] for name in names if name in inputs})
        answer: dict[str, npt.NDArray[np.float32]] = {}
        wanted = runner.outputs if pending.index in kept else fetched
        for part in runner.parts(sample.feeds, sample.origin, wanted) if wanted else ():
            found |= look(part)
            # Copies: an array of onnxruntime's keeps all memory that it is in.
            answer |= {name: in_order(part[name], lanes.get(name, 1)).copy() for name in outputs if name in part}
            part.clear()
        small = sum(array.nbytes for array in answer.values()) <= ANSWER_BYTES
        if answers is not None and pending.index in kept and small:
            answers[pending.index] = answer
        return found

    totals: dict[str, Floats] = {}
    with ThreadPoolExecutor(threads or usable_cores()) as pool:
        # In the order of the samples: floating-point sums must not depend on who was first.
        for sums in pool.map(run, samples):
            for name, more in sums.items():
                if name in totals:
                    _join(totals[name], more)
                else:
                    totals[name] = more
    return {name: _moments(sums) for name, sums in totals.items()}


def _sums(array: npt.NDArray[np.float32], lanes: int) -> Floats:
    """Return rows of least, greatest, sum, sum of squares and number of values; a column for each channel."""
    n, channels = array.shape[:2]
    values = np.ascontiguousarray(array, np.float32).reshape(n, channels // lanes, -1)
    sums = np.zeros((5, channels))
    sums[0], sums[1] = np.inf, -np.inf
    _add_up(values, lanes, np.empty((4, WIDTH), np.float32), sums)
    return sums


def _sums_of_columns(rows: npt.NDArray[np.float32]) -> Floats:
    """Return the same of a matrix, a column of which holds a channel: there NumPy takes many channels at once."""
    total, squares = (array.sum(0, dtype=np.float64) for array in (rows, np.square(rows)))
    return np.stack([rows.min(0), rows.max(0), total, squares, np.full(rows.shape[1], len(rows))])


@compiled_sums
def _add_up(
    values: npt.NDArray[np.float32], lanes: int, side: npt.NDArray[np.float32], sums: npt.NDArray[np.float64]
) -> None:
    """Add to the rows of `sums`. `values` has a row for each block of `lanes` channels, which take turns in it.

    `side` is scratch memory: least, greatest, sum and sum of squares of what stands at each place of a row of WIDTH
    values. Such loops need no order, so that the processor takes many places at once. What is not a number is seen in
    the sum of squares.
    """
    least, most, total, squares = side[0], side[1], side[2], side[3]
    for n in range(values.shape[0]):
        for block in range(values.shape[1]):
            row = values[n, block]
            start = 0
            while start < row.size:
                width = min(WIDTH, row.size - start)
                rows = max(1, min(IN_FLOAT, (row.size - start) // WIDTH))
                for i in range(width):
                    value = row[start + i]
                    least[i] = most[i] = total[i] = value
                    squares[i] = value * value
                for step in range(1, rows):
                    some = row[start + step * WIDTH : start + (step + 1) * WIDTH]
                    for i in range(WIDTH):
                        value = some[i]
                        least[i] = value if value < least[i] else least[i]
                        most[i] = value if value > most[i] else most[i]
                        total[i] += value
                        squares[i] += value * value
                for others in range(lanes, width, lanes):
                    for i in range(lanes):
                        low, high = least[others + i], most[others + i]
                        least[i] = low if low < least[i] else least[i]
                        most[i] = high if high > most[i] else most[i]
                        total[i] += total[others + i]
                        squares[i] += squares[others + i]
                for i in range(lanes):
                    channel = block * lanes + i
                    sums[0, channel] = min(sums[0, channel], np.float64(least[i]))
                    sums[1, channel] = max(sums[1, channel], np.float64(most[i]))
                    sums[2, channel] += np.float64(total[i])
                    sums[3, channel] += np.float64(squares[i])
                start += rows * WIDTH if width == WIDTH else width
            for lane in range(lanes):
                sums[4, block * lanes + lane] += row.size // lanes


def _join(totals: Floats, more: Floats) -> None:
    """Add the sums of another sample to the totals, in place."""
    np.minimum(totals[0], more[0], out=totals[0])
    np.maximum(totals[1], more[1], out=totals[1])
    totals[2:] += more[2:]


def _moments(sums: Floats) -> ChannelMoments:
    return ChannelMoments(sums[0], sums[1], sums[2] / sums[4], sums[3] / sums[4])
