"""What the float model answers: the means of every layer's channels, and its outputs at sampled positions."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.session import Runner
from detent.observe.samples import PendingSample
from detent.progress import Progress
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
    samples: Sequence[PendingSample],
    rows: int,
    walk: Walk,
    progress: Progress,
    *,
    with_inputs: bool = False,
) -> list[LayerTarget]:
    """One pass over the float model, with at most `rows` positions of each output kept, and of each input if asked for.

    The samples' inputs go to the start of the walk, so that each is decoded once.
    """
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
            positions = sample_positions(maps.shape[0] * maps.shape[2], rows, [SEED, number, index])
            inputs = float_rows(layer, values[layer.input], output.shape, positions) if with_inputs else None
            kept = SampledOutput(output.shape, positions, take_rows(maps, positions), inputs)
            found.append((ChannelSums.of(maps), kept))
        return found

    collected = []
    with ThreadPoolExecutor(walk.threads) as pool:
        for done, found in enumerate(pool.map(run, range(len(samples))), 1):
            collected.append(found)
            progress(STAGE, done, total)
    columns = zip(*collected, strict=True)
    return [
        LayerTarget(ChannelSums.total([sums for sums, _ in column]), [output for _, output in column])
        for column in columns
    ]
