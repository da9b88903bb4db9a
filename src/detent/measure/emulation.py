"""A quantized model emulated on data: its answers as files, and how far they are from those of onnxruntime.

onnxruntime runs the same file in float32, without integer kernels. With the rounding half-even both should agree to
the last bit; with that of the DPU the difference is what the device will answer differently.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.emulator.arithmetic import EmulatedRounding
from detent.emulator.emulator import Emulator
from detent.execute.inference import Batch, map_in_order, named_batches
from detent.execute.output_folder import OutputFolder, new_folder
from detent.graph.load import ModelLike, load
from detent.graph.session import Runner
from detent.observe.preprocess import PreprocessOptions
from detent.observe.sources import open_source
from detent.progress import Progress, silent
from detent.results.compared import Emulation, OutputDifference

STAGE = "emulate"

Array = npt.NDArray[Any]


def emulate(
    model: ModelLike,
    data: Any = None,
    *,
    rounding: EmulatedRounding = "half-even",
    output: Path | None = None,
    preprocess: PreprocessOptions | None = None,
    limit: int | None = None,
    seed: int | None = None,
    batch: int | None = None,
    progress: Progress = silent,
) -> Emulation:
    """Run `model` in integers on `data`; answers go to the new folder `output`. See `Emulator` for what it takes."""
    emulator = Emulator(model, rounding=rounding)
    source = open_source(data, emulator.inputs, preprocess=preprocess, limit=limit, seed=seed, batch=batch)
    reference = Runner(load(model), exact=True)

    def answer(item: Batch) -> tuple[dict[str, Array], list[OutputDifference]]:
        sample = item.pending.load()
        found = emulator(sample.feeds, sample.origin)
        expected = reference(sample.feeds, sample.origin)
        differences = [_difference(*each) for each in zip(emulator.outputs, found, expected, strict=True)]
        return dict(zip(emulator.outputs, found, strict=True)), differences

    totals: list[OutputDifference] = []
    samples = 0
    with new_folder(output) if output is not None else nullcontext() as folder:
        answers = None if folder is None else OutputFolder(folder)
        progress(STAGE, 0, source.length)
        for done, (item, (outputs, differences)) in enumerate(map_in_order(answer, named_batches(source)), 1):
            if answers is not None:
                for name, each in zip(item.names, item.split(outputs), strict=True):
                    answers.save(each, name)
            totals = [_sum(*pair) for pair in zip(totals, differences, strict=True)] if totals else differences
            samples += item.pending.size
            progress(STAGE, done, source.length)
    written = None if output is None else str(output)
    return Emulation(source.describe, source.note, source.random, samples, emulator.report(), totals, written)


def _difference(name: str, found: Array, expected: Array) -> OutputDifference:
    differing = found != expected
    distance = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    scores = found.ndim == 2 and found.shape[1] >= 2
    same = found.argmax(-1) == expected.argmax(-1) if scores else np.zeros(0, bool)
    return OutputDifference(
        name,
        int(found.size),
        int(np.count_nonzero(differing)),
        float(distance.max(initial=0.0)),
        int(same.size),
        int(np.count_nonzero(same)),
    )


def _sum(one: OutputDifference, other: OutputDifference) -> OutputDifference:
    return OutputDifference(
        one.name,
        one.elements + other.elements,
        one.differing + other.differing,
        max(one.farthest, other.farthest),
        one.rows + other.rows,
        one.same_top1 + other.same_top1,
    )
