"""Which function builds the document of which result; and results as text."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from detent.comparison.folders import Dump
from detent.comparison.inspection import Inspection
from detent.convert import Conversion
from detent.convert.splitting import Split
from detent.errors import UsageError
from detent.recipe import Recipe
from detent.report import differences, listings
from detent.report.document import Document
from detent.report.losses import evaluation_document
from detent.report.quantization import quantization_document
from detent.report.searches import precision_document, sensitivity_document, tuning_document
from detent.report.terminal import PlainConsole, print_document
from detent.results.checked import DeviceCheck
from detent.results.compared import Emulation, FolderComparison, ModelComparison
from detent.results.evaluated import Evaluation
from detent.results.quantized import Report
from detent.results.searched import PrecisionReport, SensitivityReport, Tuning
from detent.results.tensors import StatisticsView

BUILDERS: dict[type, Callable[[Any], Document]] = {
    Report: quantization_document,
    DeviceCheck: listings.check_document,
    Evaluation: evaluation_document,
    Tuning: tuning_document,
    SensitivityReport: sensitivity_document,
    PrecisionReport: precision_document,
    ModelComparison: differences.comparison_document,
    FolderComparison: differences.folders_document,
    Emulation: differences.emulation_document,
    Conversion: differences.conversion_document,
    Split: differences.split_document,
    Inspection: listings.inspection_document,
    Dump: listings.dump_document,
    StatisticsView: listings.statistics_document,
    Recipe: listings.recipe_document,
}


def document_of(result: object) -> Document:
    """Return the document of a result; a document is its own. Raise UsageError for anything else."""
    if isinstance(result, Document):
        return result
    builder = BUILDERS.get(type(result))
    if builder is None:
        raise UsageError(
            f"There is no page for {type(result).__name__}: give what quantize, evaluate, sensitivity or tune returned."
        )
    return builder(result)


def line_of(result: object, width: int = 160) -> str:
    """Return a result in one line: <Report: model.onnx -> model_int8.onnx. Close to float.>"""
    document = document_of(result)
    said = document.verdict.title if document.verdict is not None else next(iter(document.closing), "")
    words = " ".join(". ".join(part for part in (next(iter(document.headline), ""), said) if part).split())
    return f"<{type(result).__name__}: {words if len(words) <= width else words[: width - 1] + '…'}>"


def text_of(result: object, width: int = 120, *, verbose: bool = False) -> str:
    """Return what the command line prints, as plain text."""
    text = io.StringIO()
    print_document(document_of(result), PlainConsole(file=text, width=width), verbose=verbose)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
