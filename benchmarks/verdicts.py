"""Whether verdicts are true: models and treatments, with the loss that labels show beside what `quantize` said.

python -m benchmarks.verdicts [--models mobilenetv2 ...] [--recipes XINT8 ...] [--treatments good noise ...]
                              [--folder FOLDER] [--record FILE] [--samples 80] [--calibrate 32] [--limit 200]

Two rules: never "close" where more than 3 points are lost, and never worse than "unclear" where less than 1 is. A third
one for the data: it is questioned only where something is wrong with it. Rows that break a rule are marked. Without
--models, all rows of TABLE whose models are there are run; `--folder` has more models (resnet50, minilm), `--record`
keeps each row, so that the same command goes on where it was stopped. Treatments:

    good      data as it should be                     noise    normal noise, or random tokens
    black     black images, or empty sentences         one      one sample again and again
    raw       0..255 instead of normalised             unit     0..1 instead of normalised
    signed    -1..1 instead of normalised              imagenet ImageNet's mean and deviation, though others are right
    few       four samples                             bgr      channels in the other order
    guessed   images from files, nothing said about them
    w4        good data, 4-bit weights                 keep     good data, the detector's decoding quantized too
    minmax    good data, no clipping                   plain    good data, no equalization and no refinement
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import detent
from benchmarks.common import CALIBRATION, DATA, EVALUATION, print_table
from detent.evaluation.evaluator import Evaluator
from detent.graph.load import load
from detent.observe.preprocess import Preprocess, PreprocessOptions
from detent.observe.sources import input_specs, open_source
from detent.results.evaluated import Scores, compare_scores

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
SETTINGS: dict[str, dict[str, Any]] = {
    "w4": {"set": ["weights=int4"]},
    "keep": {"postprocessing": "keep"},
    "minmax": {"method": "MinMax"},
    "plain": {"equalize": False, "refine": "none"},
}
GOOD = ("good", *SETTINGS)
"""Treatments whose data nothing is wrong with."""

TABLE: dict[str, dict[str, tuple[str, ...]]] = {
    "mobilenetv2": {
        "XINT8": ("good", "noise", "black", "one", "raw", "unit", "signed", "bgr", "few", "guessed", "plain"),
        "A8W8": ("good", "w4", "unit", "few"),
        "A16W8": ("good",),
        "BF16": ("good",),
    },
    "efficientnet_lite0": {
        "XINT8": ("good", "noise", "unit", "imagenet", "bgr", "few", "plain"),
        "A8W8": ("good", "w4"),
    },
    "squeezenet11": {
        "XINT8": ("good", "noise", "unit", "raw", "bgr", "few"),
        "A8W8": ("good", "w4", "raw"),
        "MX6": ("good",),
    },
    "minilm": {
        "A8W8": ("good", "noise", "one", "few", "w4"),
        "INT8_TRANSFORMER_DEFAULT": ("good",),
        "A16W8": ("good",),
        "BF16": ("good",),
    },
    "resnet50": {"A8W8": ("good", "w4"), "XINT8": ("guessed",)},
    "yolov8n": {"A8W8": ("good", "imagenet", "bgr", "keep")},
}
HEADER = ("model", "recipe", "treatment", "lost", "95 % interval", "verdict", "questioned", "held", "why")


@dataclass(frozen=True)
class Row:
    """One model quantized once: points lost on labels with their interval, what was said, and what of the data."""

    model: str
    recipe: str
    treatment: str
    lost: float
    low: float
    high: float
    verdict: str
    why: str
    findings: tuple[str, ...]
    seconds: float

    @property
    def held(self) -> str:
        """Which rule is broken, if one is."""
        if self.verdict == "close" and self.lost > 3:
            return "NO: close"
        if self.verdict in ("worse", "broken") and self.lost < 1:
            return f"NO: {self.verdict}"
        return "NO: questioned" if self.treatment in GOOD and self.findings else "yes"

    @property
    def cells(self) -> tuple[str, ...]:
        found = self.findings[0] if self.findings else self.why
        ends = f"{self.low:.1f} .. {self.high:.1f}"
        named = (self.model, self.recipe, self.treatment)
        said = (self.verdict, "yes" if self.findings else "no", self.held, found[:80])
        return (*named, f"{self.lost:.1f}", ends, *said)


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with data to calibrate and to judge it with."""

    path: Path
    calibration: Path
    evaluation: Path
    limit: int

    @property
    def options(self) -> PreprocessOptions:
        settings = self.path.with_suffix(".json")
        return PreprocessOptions(file=settings if settings.exists() else None)

    @cached_property
    def evaluator(self) -> Evaluator:
        images = self.options if self.evaluation.is_dir() else None
        return Evaluator(self.path, self.evaluation, preprocess=images, limit=self.limit)

    @cached_property
    def score(self) -> Scores:
        return self.evaluator.evaluate(self.path)

    def lost(self, quantized: Path) -> tuple[float, float, float]:
        """Return the points lost, and the interval."""
        loss = compare_scores(self.score, self.evaluator.evaluate(quantized))
        low, high = loss.interval or (loss.points, loss.points)
        return loss.points, low, high

    def samples(self, count: int) -> tuple[Feeds, Preprocess | None]:
        """Return data as it should be, each input as one array."""
        specs = input_specs(load(self.path))
        images = self.options if self.calibration.suffix != ".npz" and specs[0].dtype.kind == "f" else None
        source = open_source(self.calibration, specs, preprocess=images, limit=count)
        feeds = [pending.load().feeds for pending in source]
        return {spec.name: np.concatenate([each[spec.name] for each in feeds]) for spec in specs}, source.preprocess


def subject(name: str, folders: Sequence[Path], limit: int) -> Subject | None:
    """Return a model that is in one of the folders."""
    path = next((folder / f"{name}.onnx" for folder in folders if (folder / f"{name}.onnx").exists()), None)
    if path is None:
        return None
    if name == "yolov8n":
        return Subject(path, DATA / "coco-train-64", DATA / "coco-val-64", min(limit, 40))
    if name == "minilm":
        return Subject(path, DATA / "stsb" / "calib", DATA / "stsb" / "pairs.npz", limit)
    return Subject(path, CALIBRATION, EVALUATION, limit)


def _pixels(images: Array, how: Preprocess) -> Array:
    mean, deviation = (np.resize(np.array(each, np.float32), 3)[:, None, None] for each in (how.mean, how.std))
    return np.clip(images * deviation + mean, 0, 255)


def _normalised(pixels: Array, mean: Sequence[float], deviation: Sequence[float]) -> Array:
    return (pixels - np.array(mean)[:, None, None]) / np.array(deviation)[:, None, None]


def _treated_images(images: Array, how: Preprocess, treatment: str) -> Array:
    pixels = _pixels(images, how)
    mean, deviation = (np.resize(np.array(each), 3) for each in (how.mean, how.std))
    ways: dict[str, Callable[[], Array]] = {
        "noise": lambda: np.random.default_rng(0).standard_normal(images.shape),
        "black": lambda: _normalised(np.zeros_like(pixels), mean, deviation),
        "one": lambda: np.repeat(images[:1], len(images), 0),
        "raw": lambda: pixels,
        "unit": lambda: pixels / 255,
        "signed": lambda: pixels / 127.5 - 1,
        "imagenet": lambda: _normalised(pixels, IMAGENET_MEAN, IMAGENET_STD),
        "few": lambda: images[:4],
        "bgr": lambda: _normalised(pixels[:, ::-1], mean, deviation),
    }
    return np.ascontiguousarray(ways.get(treatment, lambda: images)(), np.float32)


def _treated_tokens(feeds: Feeds, treatment: str) -> Feeds:
    ids = max(feeds, key=lambda name: int(feeds[name].max()))
    if treatment == "noise":
        drawn = np.random.default_rng(0).integers(1, int(feeds[ids].max()), feeds[ids].shape)
        return feeds | {ids: np.where(feeds[ids] != 0, drawn, 0).astype(feeds[ids].dtype)}
    if treatment == "one":
        return {name: np.repeat(array[:1], len(array), 0) for name, array in feeds.items()}
    return {name: array[:4] for name, array in feeds.items()} if treatment == "few" else feeds


def treated(model: Subject, treatment: str, count: int) -> Any:
    """Return what to calibrate with."""
    if treatment == "guessed":
        return model.calibration
    feeds, how = model.samples(count)
    if how is None:
        return _treated_tokens(feeds, treatment)
    name, images = next(iter(feeds.items()))
    return {name: _treated_images(images, how, treatment)}


def measure(model: Subject, recipe: str, treatment: str, count: int, calibrate: int) -> Row:
    """Quantize once, and judge the result by labels."""
    start = time.perf_counter()
    data = treated(model, treatment, count)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "quantized.onnx"
        settings = SETTINGS.get(treatment, {})
        report = detent.quantize(model.path, output, data, recipe, limit=calibrate, hold_out="beyond", **settings)
        lost = model.lost(output)
    assert report.judgement is not None, "there was data"
    findings = () if report.calibration is None else tuple(report.calibration.findings)
    said = report.judgement.level, report.judgement.reason, findings
    return Row(model.path.stem, recipe, treatment, *lost, *said, time.perf_counter() - start)


def wanted(options: argparse.Namespace) -> Iterable[tuple[str, str, str]]:
    """Return model, recipe and treatment of each row."""
    for name in options.models or TABLE:
        rows = TABLE.get(name, {"XINT8": ("good",)})
        for recipe in options.recipes or rows:
            for treatment in options.treatments or rows.get(recipe, ("good",)):
                yield name, recipe, treatment


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Verdicts beside the loss that labels show.")
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--recipes", nargs="*")
    parser.add_argument("--treatments", nargs="*")
    parser.add_argument("--folder", type=Path, nargs="*", default=[], help="more models: resnet50.onnx, minilm.onnx")
    parser.add_argument("--record", type=Path, help="a file of rows that are known, and to add to")
    parser.add_argument("--samples", type=int, default=80, help="samples that there are")
    parser.add_argument("--calibrate", type=int, default=32, help="samples to calibrate with")
    parser.add_argument("--limit", type=int, default=200, help="labelled samples")
    options = parser.parse_args()
    rows = {(row.model, row.recipe, row.treatment): row for row in _recorded(options.record)}
    subjects: dict[str, Subject | None] = {}
    for key in wanted(options):
        name, recipe, treatment = key
        if name not in subjects:
            subjects = {name: subject(name, [DATA / "models", *options.folder], options.limit)}
        model = subjects[name]
        if key in rows or model is None:
            continue
        rows[key] = row = measure(model, recipe, treatment, options.samples, options.calibrate)
        print("  ".join(row.cells), f"{row.seconds:.0f} s", flush=True)
        if options.record is not None:
            with options.record.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    shown = [rows[key] for key in wanted(options) if key in rows]
    print_table(HEADER, [row.cells for row in shown])
    print(f"{len(shown)} rows, {sum(row.held != 'yes' for row in shown)} break a rule.")


def _recorded(path: Path | None) -> list[Row]:
    if path is None or not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [Row(**line | {"findings": tuple(line["findings"])}) for line in lines]


if __name__ == "__main__":
    main()
