"""What the float model answers: the means of every layer's channels, and its outputs at sampled positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.session import Runner
from detent.progress import Progress
from detent.refine.budget import Budget
from detent.refine.layers import Layer
from detent.refine.means import ChannelSums
from detent.refine.rows import Indices, float_rows, sample_positions, take_rows
from detent.refine.walk import Walk

SEED = 20
STAGE = "refine"


@dataclass(frozen=True, eq=False)
class SampledOutput:
    """A layer's float output of one sample: its shape, and its channels at some positions, before the activation.

    `inputs` are the rows of the float input (groups, positions, inputs), where they were asked for.
    """

    shape: tuple[int, ...]
    positions: Indices
    rows: npt.NDArray[np.float32]
    inputs: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False)
class LayerTarget:
    """What a layer should answer. `outputs` has an entry for each sample."""

    sums: ChannelSums
    outputs: Sequence[SampledOutput]


def float_targets(
    reference: ir.Model,
    layers: Sequence[Layer],
    budget: Budget,
    walk: Walk,
    progress: Progress,
) -> dict[str, LayerTarget]:
    """One pass over the float model: the targets by the names of the layers' outputs.

    The samples' inputs go to the start of the walk, so that each is decoded once.
    """
    samples, with_inputs = budget.samples, budget.with_inputs
    given = {str(value.name) for value in reference.graph.inputs}
    read = [layer.input for layer in layers if layer.input not in given] if with_inputs else []
    runner = Runner(reference, list(dict.fromkeys([*(layer.output for layer in layers), *read])))
    total = len(samples) + len(layers)
    progress(STAGE, 0, total)

    def run(index: int) -> list[tuple[ChannelSums, SampledOutput]]:
        sample = samples[index].load()
        walk.start(index, sample)
        found = []
        values = dict(sample.feeds) | dict(zip(runner.outputs, runner(sample.feeds, sample.origin), strict=True))
        for number, layer in enumerate(layers):
            output = values[layer.output]
            maps = layer.maps(output)
            positions = sample_positions(maps.shape[0] * maps.shape[2], budget.rows, [SEED, number, index])
            inputs = float_rows(layer, values[layer.input], output.shape, positions) if with_inputs else None
            kept = SampledOutput(output.shape, positions, take_rows(maps, positions), inputs)
            found.append((ChannelSums.of(maps), kept))
        return found

    collected = []
    for done, found in enumerate(walk.pool.map(run, range(len(samples))), 1):
        collected.append(found)
        progress(STAGE, done, total)
    columns = zip(*collected, strict=True)
    return {
        layer.output: LayerTarget(ChannelSums.total([sums for sums, _ in column]), [output for _, output in column])
        for layer, column in zip(layers, columns, strict=True)
    }
