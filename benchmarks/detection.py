"""What quantization costs a detector: mAP on 64 labelled COCO images, in exact arithmetic, paired image by image.

python -m benchmarks.detection [--models yolov8n ...] [--recipes A8W8 A16W8 XINT8] [--refine default Rounding ...]
                               [--samples 64] [--limit 32] [--float]

`default` is the recipe as it is. Nothing else is said: images are read, and post-processing is treated, as the model's
file says. Seconds are those of `quantize`. A model is a name in the folder of models, or a path.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import detent
from benchmarks.common import DATA, print_table
from detent.results.evaluated import ModelResult
from detent.results.task_scores import TaskScores

CALIBRATION = DATA / "coco-train-64"
EVALUATION = DATA / "coco-val-64"
HEADER = (
    "model",
    "recipe",
    "refinement",
    "mAP50-95",
    "lost",
    "95 % interval",
    "mAP50 lost",
    "95 % interval",
    "verdict",
    "seconds",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="mAP lost by every recipe and refinement.")
    parser.add_argument("--models", nargs="*", default=["yolov8n"], help="names, or paths of .onnx files")
    parser.add_argument("--recipes", nargs="*", default=["A8W8", "A16W8", "XINT8"])
    parser.add_argument("--refine", nargs="*", default=["default"], help="default, none, Rounding, AdaRound, ...")
    parser.add_argument("--samples", type=int, help="calibration images; default all")
    parser.add_argument("--limit", type=int, help="labelled images to judge on; default all")
    parser.add_argument("--float", action="store_true", help="only judge the float models")
    options = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            path = Path(name) if name.endswith(".onnx") else DATA / "models" / f"{name}.onnx"
            cases = [] if options.float else list(itertools.product(options.recipes, options.refine))
            outputs = [
                Path(folder) / f"{path.stem}_{recipe}_{refine.partition(':')[0]}.onnx" for recipe, refine in cases
            ]
            quantized = [
                quantize(path, output, recipe, refine, options.samples)
                for output, (recipe, refine) in zip(outputs, cases, strict=True)
            ]
            # All at once: the float model is run a single time, and every loss is paired with the same answers.
            models = detent.evaluate([path, *outputs], EVALUATION, limit=options.limit).models
            rows.append((path.stem, "float", "", figure(models[0]), *[""] * 6))
            for case, model, (verdict, seconds) in zip(cases, models[1:], quantized, strict=True):
                rows.append((path.stem, *case, figure(model), *losses(model), verdict, f"{seconds:.0f}"))
    print_table(HEADER, rows)


def quantize(path: Path, output: Path, recipe: str, refine: str, samples: int | None) -> tuple[str, float]:
    """Return what the report says of the result, and the seconds that it took."""
    changes: dict[str, Any] = {} if refine == "default" else {"refine": refine}
    start = time.perf_counter()
    report = detent.quantize(path, output, CALIBRATION, recipe, limit=samples, **changes)
    seconds = time.perf_counter() - start
    verdict = str((report.to_dict().get("fidelity") or {}).get("verdict", ""))
    print(path.stem, recipe, refine, verdict, f"{seconds:.0f} s", flush=True)
    return verdict, seconds


def figure(model: ModelResult) -> str:
    assert isinstance(model.scores, TaskScores), f"{EVALUATION} has labels of boxes"
    return f"{model.scores.figures[0].value:.1f}"


def losses(model: ModelResult) -> list[str]:
    """Return each loss and its interval."""
    cells = []
    for loss in model.losses:
        assert loss.interval is not None
        cells += [f"{loss.points:.1f}", f"{loss.interval[0]:.1f} .. {loss.interval[1]:.1f}"]
    return cells


if __name__ == "__main__":
    main()
