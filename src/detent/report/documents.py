"""What to print for each kind of result."""

from __future__ import annotations

import io

from rich.console import Console

from detent.errors import UsageError
from detent.report.console import PlainConsole
from detent.report.evaluation_view import print_evaluation
from detent.report.precision_view import print_precision
from detent.report.sensitivity_view import print_sensitivity
from detent.report.terminal import print_report
from detent.report.tuning_view import print_tuning
from detent.results import Result
from detent.results.evaluated import Evaluation
from detent.results.quantized import Report
from detent.results.searched import PrecisionReport, SensitivityReport, Tuning


def print_result(result: Result, console: Console) -> None:
    """Print a result."""
    if isinstance(result, Report):
        print_report(result, console)
    elif isinstance(result, Evaluation):
        print_evaluation(result, console)
    elif isinstance(result, SensitivityReport):
        print_sensitivity(result, console)
    elif isinstance(result, PrecisionReport):
        print_precision(result, console)
    elif isinstance(result, Tuning):
        print_tuning(result, console)
    else:
        raise UsageError(f"There is no text for {type(result).__name__}.")


def text_of(result: Result, width: int = 120) -> str:
    """Return what the command line prints, as plain text."""
    text = io.StringIO()
    print_result(result, PlainConsole(file=text, width=width))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
