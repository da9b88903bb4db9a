"""What reads files that others wrote. A target is called with a scratch folder and the bytes of a file in it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
from benchmarks.foreign import RECIPES, feeds_for, try_recipe

import detent
from detent.comparison.inspection import inspect_model
from detent.convert import convert
from detent.device_check import check
from detent.evaluation.dataset import read_label_file
from detent.graph.guard import guarded
from detent.graph.load import load
from detent.observe.preprocess import InputSpec, PreprocessOptions, guess_preprocess
from detent.observe.sources import open_source
from detent.observe.statistics_file import unpack
from detent.recipe.file import read_recipe
from detent.refine.refine import _unpack as unpack_refinement
from detent.tasks.labels import read_coco, read_pairs, read_yolo
from fuzz import seeds

SPEC = InputSpec("x", np.dtype(np.float32), seeds.SHAPE)


def _file(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _load(folder: Path, data: bytes) -> None:
    load(_file(folder, "m.onnx", data))


def _inspect(folder: Path, data: bytes) -> None:
    inspect_model(_file(folder, "m.onnx", data))


def _check(folder: Path, data: bytes) -> None:
    check(_file(folder, "m.onnx", data), "npu-xint8")


def _quantize(folder: Path, data: bytes) -> None:
    """Quantize with one of the recipes, on data that the float model runs on, if it does; what comes out is judged."""
    path, recipe = _file(folder, "m.onnx", data), RECIPES[crc32(data) % len(RECIPES)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        feeds = feeds_for(path)
        if feeds is None:
            detent.quantize(path, None, limit=2, recipe=recipe, trust=True)
            return
        # Trusted: a trial in a process of its own would take most of the time.
        outcome = try_recipe(path, feeds, recipe, folder, trust=True)
    if outcome.kind not in ("ok", "refused"):
        raise AssertionError(f"{recipe}: {outcome.kind}: {outcome.detail}")


def _convert(folder: Path, data: bytes) -> None:
    with guarded(trust=True):  # a trial for each run would take most of the time
        for step in ("float", "bfloat16"):
            convert(_file(folder, "m.onnx", data), folder / "out.onnx", step, must_change=False)


def _recipe(folder: Path, data: bytes) -> None:
    read_recipe(_file(folder, "r.toml", data))


def _preprocess(folder: Path, data: bytes) -> None:
    guess_preprocess(SPEC, PreprocessOptions(file=_file(folder, "p.json", data)))


def _labels(folder: Path, data: bytes) -> None:
    errors = []
    for name, read in (
        ("labels.csv", lambda file: read_label_file(file, folder)),
        ("coco.json", read_coco),
        ("pairs.csv", read_pairs),
        ("a.txt", lambda file: read_yolo(file.parent)),
    ):
        path = _file(folder, name, data)
        try:
            read(path)
        except detent.DetentError as error:
            errors.append(error)
        path.unlink()


def _samples(name: str) -> Callable[[Path, bytes], None]:
    def run(folder: Path, data: bytes) -> None:
        for pending in open_source(_file(folder, name, data), [SPEC], limit=2):
            pending.load()

    return run


@dataclass(frozen=True)
class Target:
    """A reader, its corpus, and the files that a run may leave."""

    run: Callable[[Path, bytes], None]
    seeds: Callable[[], list[bytes]]
    model: bool = False
    files: frozenset[str] = frozenset({"m.onnx", "out.onnx", "r.toml", "p.json", "x.npy", "x.npz", "x.png"})


TARGETS = {
    "load": Target(_load, seeds.models, model=True),
    "inspect": Target(_inspect, seeds.models, model=True),
    "check": Target(_check, seeds.models, model=True),
    "quantize": Target(_quantize, seeds.models, model=True),
    "convert": Target(_convert, seeds.models, model=True),
    "statistics": Target(lambda _, data: unpack(data, "the file") and None, seeds.statistics),
    "checkpoint": Target(lambda _, data: unpack_refinement(data, "the file") and None, seeds.statistics),
    "recipe": Target(_recipe, seeds.recipes),
    "preprocess": Target(_preprocess, seeds.preprocess),
    "labels": Target(_labels, seeds.labels),
    "npy": Target(_samples("x.npy"), seeds.arrays),
    "npz": Target(_samples("x.npz"), seeds.archives),
    "image": Target(_samples("x.png"), seeds.images),
}
