"""Quantize an image classifier, measure it on labelled images, and write the folder that runs it on an NPU.

python examples/classifier.py                              the digits that come with Detent
python examples/classifier.py MODEL IMAGES LABELLED        your own; LABELLED has class folders or a labels.csv
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import detent
from detent.demo import copy_files


def main(arguments: list[str], folder: Path) -> None:
    preprocess = None
    if not arguments:
        copy_files(folder / "digits")
        arguments = [str(folder / "digits" / name) for name in ("digits.onnx", "calibration", "labelled")]
        preprocess = folder / "digits" / "preprocess.json"
    model, images, labelled = arguments
    candidates = []
    for recipe in ("XINT8", "A8W8"):
        output = folder / f"{Path(model).stem}_{recipe.lower()}.onnx"
        report = detent.quantize(model, output, images, recipe, preprocess=preprocess)
        detent.write_page(report, output.with_suffix(".html"))
        candidates.append(output)
    measured = detent.compare_candidates([model, *candidates], labelled, preprocess=preprocess)
    print(measured)
    detent.write_page(measured, folder / "candidates.html")
    print(detent.check(candidates[0], "stx"))


if __name__ == "__main__":
    main(sys.argv[1:], Path(tempfile.mkdtemp(prefix="detent-")))
