"""The demo: quantize the shipped model, and count on the shipped images what that cost."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from detent import evaluate, quantize
from detent.errors import OutputError
from detent.observe.preprocess import PreprocessOptions
from detent.progress import Progress, silent
from detent.report.documents import document_of
from detent.report.figures import command
from detent.report.terminal import print_document
from detent.results.evaluated import Answers, Evaluation
from detent.results.quantized import Report

FOLDER = Path(__file__).parent
MODEL = FOLDER / "digits.onnx"
CALIBRATION = FOLDER / "calibration"
PREPROCESS = FOLDER / "preprocess.json"


@dataclass(frozen=True)
class DemoResult:
    """The report, and what the float and the quantized model got on the labelled images."""

    report: Report
    output: Path
    evaluation: Evaluation

    def show(self, console: Console, *, verbose: bool = False) -> None:
        """Print the report, with the accuracies as what it cost."""
        before, after = (result.scores for result in self.evaluation.models)
        loss = self.evaluation.models[1].loss
        assert isinstance(before, Answers) and isinstance(after, Answers) and loss is not None, "there are labels"
        accuracy = (
            f"Accuracy on {loss.samples} labelled digits: float {before.accuracy():.2f} %, {self.report.recipe.name} "
            f"{after.accuracy():.2f} % ({loss.became_wrong} images lost, {loss.became_right} won)."
        )
        document = document_of(self.report)
        closing = [*document.closing[:2], f"{accuracy} Next: {command('inspect', self.output)}"]
        print_document(replace(document, closing=closing), console, verbose=verbose)


def run_demo(output: Path, progress: Progress = silent) -> DemoResult:
    """Quantize the demo model to `output`, whose folder is made if it is missing."""
    output.parent.mkdir(parents=True, exist_ok=True)
    preprocess = PreprocessOptions(file=PREPROCESS)
    report = quantize(MODEL, output, CALIBRATION, "XINT8", preprocess=preprocess, progress=progress)
    return DemoResult(report, output, evaluate([MODEL, output], FOLDER, preprocess=preprocess, progress=progress))


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
