"""The demo: quantize the shipped model, and count on the shipped images what that cost."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.text import Text

from detent import quantize
from detent.errors import OutputError
from detent.graph.load import load
from detent.measure.accuracy import correct_top1, read_labels
from detent.observe.preprocess import Preprocess, PreprocessOptions
from detent.progress import Progress, silent
from detent.report.report import Report
from detent.report.terminal import print_report

FOLDER = Path(__file__).parent
MODEL = FOLDER / "digits.onnx"
CALIBRATION = FOLDER / "calibration"
PREPROCESS = FOLDER / "preprocess.json"


@dataclass(frozen=True)
class DemoResult:
    """The report, and for each labelled image whether each model got it right."""

    report: Report
    output: Path
    float_correct: npt.NDArray[np.bool_]
    quantized_correct: npt.NDArray[np.bool_]

    def show(self, console: Console) -> None:
        """Print the report and the accuracies."""
        print_report(self.report, console)
        images = len(self.float_correct)
        lost = int((self.float_correct & ~self.quantized_correct).sum())
        won = int((self.quantized_correct & ~self.float_correct).sum())
        console.print(
            Text(
                f"Accuracy on {images} labelled digits: float {100 * self.float_correct.mean():.2f} %, "
                f"{self.report.recipe.name} {100 * self.quantized_correct.mean():.2f} % "
                f"({lost} images lost, {won} won).",
                style="bold",
            )
        )
        console.print(Text(f"The quantized model is in {self.output}. Look inside: detent inspect {self.output}"))


def run_demo(output: Path, progress: Progress = silent) -> DemoResult:
    """Quantize the demo model to `output`, whose folder is made if it is missing."""
    output.parent.mkdir(parents=True, exist_ok=True)
    report = quantize(
        MODEL, output, CALIBRATION, "XINT8", preprocess=PreprocessOptions(file=PREPROCESS), progress=progress
    )
    images, preprocess = read_labels(FOLDER), Preprocess.from_json(PREPROCESS)
    return DemoResult(
        report,
        output,
        correct_top1(load(MODEL), images, preprocess),
        correct_top1(load(output), images, preprocess),
    )


def copy_files(folder: Path) -> None:
    """Copy what the demo works on into a new folder: the model, images to calibrate with, labelled images, settings."""
    if folder.exists():
        raise OutputError(f"{folder} exists already. Name a folder that does not, or remove it.")
    try:
        shutil.copytree(CALIBRATION, folder / "calibration")
        shutil.copytree(FOLDER / "images", folder / "labelled" / "images")
        shutil.copy(FOLDER / "labels.csv", folder / "labelled")
        for file in (MODEL, PREPROCESS):
            shutil.copy(file, folder)
    except OSError as error:
        raise OutputError(f"Cannot copy the demo's files to {folder}: {error}") from error
