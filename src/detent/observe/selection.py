"""Which samples are used, which of them are held out, and how they are grouped into batches.

Pure arithmetic on positions. Held-out samples measure the result and never take part in calibration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# Without a limit, the last one of each run of this many samples may be held out.
HOLD_OUT_EVERY = 8


@dataclass(frozen=True)
class Selection:
    """The rows to use, in order. `held_out` are positions in `rows`.

    `used` rows take part in calibration; `dropped` more were asked for but do not fill a whole batch.
    """

    rows: Sequence[int]
    held_out: frozenset[int]
    used: int
    dropped: int


def select(total: int, *, limit: int | None, reserve: int, seed: int | None, whole: int = 1) -> Selection:
    """Choose from `total` rows at most `limit` for calibration and up to `reserve` to hold out.

    With a limit that the rows reach, both come from rows spread evenly over all (or chosen at random, if there is a
    seed), and only what is left beyond the limit is held out. Without, every eighth row is held out until there are
    `reserve` of them. Both numbers are multiples of `whole`, the batch size that the model insists on; rows beyond are
    counted as dropped.
    """
    if limit is not None and limit > total:
        limit = None
    if limit is None or limit == total:
        # A limit that takes exactly everything leaves no surplus to hold out.
        wanted = 0 if limit is not None else min(reserve, total // HOLD_OUT_EVERY)
        held = wanted // whole * whole
        positions = frozenset(range(HOLD_OUT_EVERY - 1, held * HOLD_OUT_EVERY, HOLD_OUT_EVERY))
        dropped = (total - held) % whole
        return Selection(range(total), positions, total - held - dropped, dropped)
    used = limit // whole * whole
    held = min(reserve, total - limit) // whole * whole
    count = used + held
    if seed is None:
        rows = [position * total // count for position in range(count)]
    else:
        rows = sorted(np.random.default_rng(seed).choice(total, count, replace=False).tolist())
    return Selection(rows, spread(held, count), used, limit - used)


def spread(held: int, count: int) -> frozenset[int]:
    """`held` of `count` positions, evenly spaced, the last one at the end."""
    return frozenset(at for at in range(count) if (at + 1) * held // count > at * held // count)


def batches(selection: Selection, size: int, *, whole: bool) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Groups of `size` rows and whether they are held out, in the order in which the groups fill up.

    Calibration and held-out rows are never in one group. What is left at the end is given as smaller groups, or
    dropped if only `whole` ones will do.
    """
    filling: dict[bool, list[int]] = {False: [], True: []}
    for position, row in enumerate(selection.rows):
        held_out = position in selection.held_out
        group = filling[held_out]
        group.append(row)
        if len(group) == size:
            yield tuple(group), held_out
            group.clear()
    if not whole:
        yield from ((tuple(group), held_out) for held_out, group in filling.items() if group)


def batch_count(selection: Selection, size: int, *, whole: bool) -> int:
    """How many groups `batches` gives."""
    held = len(selection.held_out)
    used = len(selection.rows) - held
    return used // size + held // size if whole else -(-used // size) - (-held // size)


def stream_holds_out(index: int, taken: int, held: int, *, limit: int | None, reserve: int) -> bool:
    """Whether item `index` of a stream is held out, after `taken` samples to calibrate with and `held` held out."""
    if limit is not None:
        return taken >= limit
    return index % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1 and held < reserve
