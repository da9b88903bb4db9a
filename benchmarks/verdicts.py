"""Whether verdicts are true: models and treatments, with the loss that labels show beside what `quantize` said.

python -m benchmarks.verdicts [--models mobilenetv2 ...] [--recipes XINT8 A8W8] [--treatments good noise ...]
                              [--samples 64] [--limit 200]

Never "close" where more than 3 points are lost, and never worse than "unclear" where less than 1 is: rows that break
this are marked. Calibration images are those of the benchmarks, or made from them:

    good      as they should be                        noise    normal noise
    black     black images                             one      one image again and again
    raw       0..255 instead of normalised             unit     0..1 instead of normalised
    few       four images                              bgr      channels in the other order
    w4        good images, 4-bit weights               minmax   good images, no clipping
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import detent
from benchmarks.common import Case, calibration_array, chosen, evaluator, print_table, top1_right

Array = np.ndarray[Any, Any]
HEADER = ("model", "recipe", "treatment", "lost", "verdict", "held", "why")
MEAN = np.array([123.675, 116.28, 103.53], np.float32)[:, None, None]
DEVIATION = np.array([58.395, 57.12, 57.375], np.float32)[:, None, None]


def _pixels(images: Array) -> Array:
    return images * DEVIATION + MEAN


TREATMENTS: dict[str, tuple[Callable[[Array], Array], dict[str, Any]]] = {
    "good": (lambda images: images, {}),
    "noise": (lambda images: np.asarray(np.random.default_rng(0).standard_normal(images.shape)), {}),
    "black": (lambda images: np.zeros_like(images) - MEAN / DEVIATION, {}),
    "one": (lambda images: np.repeat(images[:1], len(images), 0), {}),
    "raw": (lambda images: np.clip(_pixels(images), 0, 255), {}),
    "unit": (lambda images: np.clip(_pixels(images) / 255, 0, 1), {}),
    "few": (lambda images: images[:4], {}),
    "bgr": (lambda images: np.ascontiguousarray(images[:, ::-1]), {}),
    "w4": (lambda images: images, {"set": ["weights.dtype=int4"]}),
    "minmax": (lambda images: images, {"method": "MinMax"}),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Verdicts beside the loss that labels show.")
    parser.add_argument("--models", nargs="*", default=["mobilenetv2", "efficientnet_lite0", "squeezenet11"])
    parser.add_argument("--recipes", nargs="*", default=["XINT8", "A8W8"])
    parser.add_argument("--treatments", nargs="*", default=list(TREATMENTS))
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--limit", type=int, default=500)
    options = parser.parse_args()
    rows = [
        _row(case, recipe, treatment, options.samples, options.limit)
        for case in chosen(options.models)
        for recipe in options.recipes
        for treatment in options.treatments
    ]
    print_table(HEADER, rows)


def _row(case: Case, recipe: str, treatment: str, samples: int, limit: int) -> tuple[str, ...]:
    treat, settings = TREATMENTS[treatment]
    images = treat(calibration_array(case, samples)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "quantized.onnx"
        if recipe != "A8W8" and treatment == "minmax":
            settings = {"method": "NonOverflow"}
        report = detent.quantize(case.path, output, images, recipe, **settings)
        on = evaluator(case, limit)
        lost = 100 * float(top1_right(on, case.path).mean() - top1_right(on, output).mean())
    assert report.judgement is not None, "there was data"
    level = report.judgement.level
    wrong = (level == "close" and lost > 3) or (level in ("worse", "broken") and lost < 1)
    row = (case.name, recipe, treatment, f"{lost:.1f}", level, "NO" if wrong else "yes", report.judgement.reason[:90])
    print("  ".join(row), flush=True)
    return row


if __name__ == "__main__":
    main()
