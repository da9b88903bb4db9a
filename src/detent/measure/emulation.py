"""A quantized model emulated on data: its answers as files, and how far they are from those of onnxruntime.

onnxruntime runs the same file in float32, without integer kernels. With the rounding half-even both should agree to
the last bit; with that of the DPU the difference is what the device will answer differently.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import OutputError
from detent.graph.load import ModelLike, load
from detent.graph.save import write_bytes
from detent.graph.session import Runner, usable_cores
from detent.measure.emulator import EmulatedRounding, EmulationReport, Emulator
from detent.measure.file_names import file_stems
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import PendingSample
from detent.observe.sources import open_source
from detent.progress import Progress, silent

STAGE = "emulate"
AHEAD = 32  # samples that are given to the threads at a time

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class OutputDifference:
    """One output of the emulated model against onnxruntime's: elements in all, those that differ, and by how much.

    `same_top1` counts the rows with the same largest element, where the output looks like class scores.
    """

    name: str
    elements: int
    differing: int
    farthest: float
    rows: int
    same_top1: int


@dataclass(frozen=True)
class Emulation:
    """What emulating a model on data gave."""

    data: str
    random: bool
    samples: int
    report: EmulationReport
    outputs: Sequence[OutputDifference]
    folder: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


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
    """Run `model` in integers on `data` and write each answer to `output` as .npy. See `Emulator` for what it takes."""
    emulator = Emulator(model, rounding=rounding)
    source = open_source(data, emulator.inputs, preprocess=preprocess, limit=limit, seed=seed, batch=batch)
    if output is not None:
        make_folder(output)
    reference = Runner(load(model), exact=True)
    stems = dict(zip(emulator.outputs, file_stems(emulator.outputs), strict=True))

    def answer(pending: PendingSample) -> list[OutputDifference]:
        sample = pending.load()
        found = emulator(sample.feeds, sample.origin)
        for name, array in zip(emulator.outputs, found, strict=True) if output is not None else ():
            assert output is not None
            _write(array, output / f"{sample.index:05d}_{stems[name]}.npy")
        expected = reference(sample.feeds, sample.origin)
        return [_difference(*each) for each in zip(emulator.outputs, found, expected, strict=True)]

    totals: list[OutputDifference] = []
    samples = done = 0
    progress(STAGE, 0, source.length)
    pending = iter(source)
    with ThreadPoolExecutor(usable_cores()) as pool:
        while some := list(islice(pending, AHEAD)):  # a stream is never held as a whole
            for differences in pool.map(answer, some):
                totals = [_sum(*pair) for pair in zip(totals, differences, strict=True)] if totals else differences
            samples += sum(each.size for each in some)
            done += len(some)
            progress(STAGE, done, source.length)
    folder = None if output is None else str(output)
    return Emulation(source.describe, source.random, samples, emulator.report(), totals, folder)


def make_folder(folder: Path) -> None:
    """Create a folder to write into, if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"Cannot create the folder {folder}: {error.strerror}. Give another one.") from error


def _write(array: Array, file: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array)
    write_bytes(buffer.getvalue(), file)


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
