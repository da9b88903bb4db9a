"""What quantization costs in accuracy: top-1 on 1,000 labelled images, in exact arithmetic, paired image by image.

python -m benchmarks.accuracy [--models ...] [--recipes XINT8 ...] [--refine none BiasCorrection ...]
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import detent
from benchmarks.common import CALIBRATION, Case, arguments, chosen, evaluation_images, print_table
from detent.graph.load import load
from detent.measure.accuracy import LabelledImage, correct_top1
from detent.recipe import Recipe
from detent.refinements import parse_refinement


def main() -> None:
    parser = arguments("Top-1 loss of every recipe and refinement.", samples=128)
    parser.add_argument("--recipes", nargs="*", default=["XINT8"])
    parser.add_argument("--refine", nargs="*", default=["none", "BiasCorrection", "Rounding"])
    parser.add_argument("--equalize", nargs="*", default=["no", "yes"], choices=["no", "yes"])
    options = parser.parse_args()
    rows = []
    for case in (case for case in chosen(options.models) if case.labelled):
        images, preprocess = evaluation_images(case)
        float_right = correct_top1(load(case.path), images, preprocess)
        for name, equalize, refine in itertools.product(options.recipes, options.equalize, options.refine):
            recipe = detent.find_recipe(name)
            recipe = recipe.replace(equalize=equalize == "yes", refinement=parse_refinement(refine))
            seconds, right = quantized(case, recipe, options.samples, images, preprocess)
            row = (case.name, name, equalize, refine, *figures(float_right, right), f"{seconds:.1f}")
            print(*row, flush=True)
            rows.append(row)
    print_table(
        ("model", "recipe", "equalized", "refinement", "top-1 float", "quantized", "loss", "seconds"),
        rows,
    )


def quantized(case: Case, recipe: Recipe, samples: int, images: Sequence[LabelledImage], preprocess: object):
    """Seconds to quantize, and which images the result gets right."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.onnx"
        start = time.perf_counter()
        detent.quantize(case.path, output, CALIBRATION, recipe, limit=samples, preprocess=case.options)
        return time.perf_counter() - start, correct_top1(load(output), images, preprocess)


def figures(before: np.ndarray, after: np.ndarray) -> tuple[str, str, str]:
    """Top-1 of both, and the loss with its standard error from the pairs."""
    changes = before.astype(float) - after.astype(float)
    error = changes.std() / np.sqrt(len(changes))
    return f"{100 * before.mean():.1f}", f"{100 * after.mean():.1f}", f"{100 * changes.mean():.1f} ± {100 * error:.1f}"


if __name__ == "__main__":
    main()
