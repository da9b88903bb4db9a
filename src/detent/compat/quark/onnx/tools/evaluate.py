"""Two folders of results compared: `python -m quark.onnx.tools.evaluate BASELINE QUANTIZED`.

Quark's manual gives the folders by flags, its program takes them in order: both work.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from detent.comparison.folders import compare_folders
from detent.errors import UsageError
from detent.report.documents import text_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the mean and the worst of each measure over all files."""
    parser = argparse.ArgumentParser("quark.onnx.tools.evaluate", description="Compare two folders of results.")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--baseline_results_folder", type=Path)
    parser.add_argument("--quantized_results_folder", type=Path)
    given = parser.parse_args(arguments)
    positions = iter(given.folders)
    baseline: Path | None = given.baseline_results_folder or next(positions, None)
    quantized: Path | None = given.quantized_results_folder or next(positions, None)
    if baseline is None or quantized is None or next(positions, None) is not None:
        raise UsageError(
            "evaluate compares two folders. Usage: evaluate BASELINE QUANTIZED, or "
            "--baseline_results_folder BASELINE --quantized_results_folder QUANTIZED."
        )
    sys.stdout.write(f"{text_of(compare_folders(baseline, quantized))}\n")
