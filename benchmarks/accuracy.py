"""What quantization costs in accuracy: top-1 on 1,000 labelled images, in exact arithmetic, paired image by image.

python -m benchmarks.accuracy [--models ...] [--recipes XINT8 A8W8 ...] [--limit 100]
    --refine none BiasCorrection ...    in place of what each recipe does; with --equalize no yes, all combinations
    --rounding dpu                      quantized for that rounding, and judged in integers with it
"""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import detent
from benchmarks.common import (
    CALIBRATION,
    Case,
    arguments,
    chosen,
    evaluator,
    paired_difference,
    percent,
    print_table,
    top1_right,
)
from detent.evaluation.evaluator import Evaluator
from detent.numerics.codec import DEVICE_ROUNDINGS
from detent.recipe import Recipe
from detent.refinements import parse_refinement

AS_RECIPE = "default"


def main() -> None:
    parser = arguments("Top-1 loss of every recipe and refinement.", samples=128)
    parser.add_argument("--recipes", nargs="*", default=["XINT8"])
    parser.add_argument("--refine", nargs="*", default=[AS_RECIPE])
    parser.add_argument("--equalize", nargs="*", default=[AS_RECIPE], choices=[AS_RECIPE, "no", "yes"])
    parser.add_argument("--rounding", default="half-even", choices=DEVICE_ROUNDINGS, help="the device's")
    parser.add_argument("--limit", type=int, help="labelled images to judge on; default all")
    options = parser.parse_args()
    rows = []
    recipes = {name: detent.find_recipe(name).replace(rounding=options.rounding) for name in options.recipes}
    emulated = None if options.rounding == "half-even" else options.rounding
    for case in (case for case in chosen(options.models) if case.labelled):
        labelled = evaluator(case, options.limit, emulated)
        float_right = top1_right(labelled, case.path)
        for name, equalize, refine in itertools.product(recipes, options.equalize, options.refine):
            recipe = changed(recipes[name], equalize, refine)
            seconds, right = quantized(case, recipe, options.samples, labelled)
            loss = paired_difference(float_right, right)
            row = (case.name, name, equalize, refine, percent(float_right), percent(right), loss, f"{seconds:.1f}")
            print(*row, flush=True)
            rows.append(row)
    print_table(
        ("model", "recipe", "equalized", "refinement", "top-1 float", "quantized", "loss", "seconds"),
        rows,
    )


def changed(recipe: Recipe, equalize: str, refine: str) -> Recipe:
    """The recipe with other steps, or with its own."""
    recipe = recipe if equalize == AS_RECIPE else recipe.replace(equalize=equalize == "yes")
    return recipe if refine == AS_RECIPE else recipe.replace(refinement=parse_refinement(refine))


def quantized(
    case: Case, recipe: Recipe, samples: int, labelled: Evaluator
) -> tuple[float, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Seconds to quantize, and which images the result gets right."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.onnx"
        start = time.perf_counter()
        detent.quantize(case.path, output, CALIBRATION, recipe, limit=samples, preprocess=case.options)
        return time.perf_counter() - start, top1_right(labelled, output)


if __name__ == "__main__":
    main()
