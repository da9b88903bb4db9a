"""AWQ on a model: rows of the values that layers read, and the factors that they ask for.

The search for factors is `equalizations.awq`; what takes the division of a value in is `input_channels`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.equalizations import Awq
from detent.equalizations.awq import Rounding
from detent.equalizations.channel_problem import Floats
from detent.equalize.input_channels import Editor, Group, Smoother, Smoothing, apply_all, groups_of, row_axis, rows_of
from detent.graph.session import usable_cores
from detent.graph.taps import open_taps
from detent.observe.samples import PendingSample

WeightRounding = Callable[[str], Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None]
"""What makes of the numbers of a weight, by its name, those that are written; None if it stays float."""


@dataclass(frozen=True)
class AwqSmoother(Smoother):
    """Scales the input channels of weights by what their activations are."""

    awq: Awq = Awq()  # noqa: RUF009  (frozen: one instance serves all)

    def smooth(
        self, model: ir.Model, samples: Sequence[PendingSample], rounding: WeightRounding, threads: int = 0
    ) -> Smoothing:
        """Scale the weights of every layer of `model` that is rounded better by it, in place."""
        groups = groups_of(model.graph)
        editor = Editor(model, self.insert)
        idle = {str(group.source.name): reason for group in groups if (reason := _why_not(editor, group, rounding))}
        possible = [group for group in groups if str(group.source.name) not in idle]
        if not possible or not samples:
            return apply_all(model, groups, {}, idle, self.insert)
        rows = _rows_of_values(model, [str(group.source.name) for group in possible], samples, self.awq.rows, threads)
        factors: dict[str, Floats] = {}
        for group in possible:
            name = str(group.source.name)
            halves = rows.pop(name, (np.zeros((0, 0)), np.zeros((0, 0))))
            learned, confirmed = (half.astype(np.float64) for half in halves)
            if not confirmed.size or not (np.isfinite(learned).all() and np.isfinite(confirmed).all()):
                idle[name] = f"'{name}' has too few rows, or numbers that are not finite"
                continue
            found = self.awq.choose(learned, confirmed, [_rounded(node, rounding) for node in group.layers])
            if found is None:
                idle[name] = f"rounding the weights that '{name}' meets would not get better by it"
            else:
                factors[name] = found[0]
        return apply_all(model, groups, factors, idle, self.insert)


def _why_not(editor: Editor, group: Group, rounding: WeightRounding) -> str | None:
    if all(rounding(str(weight.name)) is None for node in group.layers if (weight := node.inputs[1]) is not None):
        return "its weights are not rounded"
    return editor.why_not(group)


def _rounded(node: ir.Node, rounding: WeightRounding) -> tuple[Floats, Rounding]:
    """Return the weight of a layer with a row for each channel of its input, and how such rows are rounded."""
    weight, axis = node.inputs[1], row_axis(node)
    assert weight is not None and weight.shape is not None and axis is not None, "a group holds layers"
    shape = list(weight.shape.numpy())
    moved = [shape.pop(axis), *shape]
    written = rounding(str(weight.name))

    def rounded(rows: Floats) -> Floats:
        if written is None:
            return rows
        found = written(np.ascontiguousarray(np.moveaxis(rows.reshape(moved), 0, axis), np.float32))
        return np.moveaxis(found, axis, 0).reshape(rows.shape).astype(np.float64, copy=False)

    return rows_of(node), rounded


def _rows_of_values(
    model: ir.Model, names: Sequence[str], samples: Sequence[PendingSample], count: int, threads: int
) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Return about `count` rows of each value: those of every other sample to learn from, the others to confirm by."""
    inputs = {str(value.name) for value in model.graph.inputs}
    fetched = [name for name in names if name not in inputs]
    runner = open_taps(model, fetched).ordered if fetched else None
    found: dict[str, tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]]]] = {name: ([], []) for name in names}
    each = -(-count // len(samples))

    def run(pending: PendingSample) -> dict[str, npt.NDArray[Any]]:
        sample = pending.load()
        picked = {name: _some_rows(sample.feeds[name], each) for name in names if name in inputs}
        for part in runner.parts(sample.feeds, sample.origin, fetched) if runner is not None else ():
            picked |= {name: _some_rows(array, each) for name, array in part.items()}
        return picked

    with ThreadPoolExecutor(threads or usable_cores()) as pool:
        for at, picked in enumerate(pool.map(run, samples)):
            for name, rows in picked.items():
                for half in (0, 1):
                    if len(samples) > 1 and half == at % 2:
                        found[name][half].append(rows)
                    elif len(samples) == 1:
                        found[name][half].append(rows[half::2])
    return {name: (np.concatenate(halves[0]), np.concatenate(halves[1])) for name, halves in found.items() if halves[0]}


def _some_rows(array: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Return at most so many rows of the last axis, evenly spread; a copy, since the array is part of a larger one."""
    rows = array.reshape(-1, array.shape[-1])
    return rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.intp)].copy()
