"""A comparison of two folders of results, as lines of text."""

from __future__ import annotations

from detent.report.names import printable
from detent.results.compared import FolderComparison

_TITLES = {
    "cosine": "cosine similarity",
    "l2": "L2 (mean squared error)",
    "l1": "L1 (mean absolute error)",
    "psnr_db": "PSNR (dB)",
    "ssim": "SSIM",
}


def results_table(comparison: FolderComparison) -> str:
    """The mean of each measure, its worst value and the file that has it, a line each."""
    lines = [
        f"{len(comparison.files)} files compared: {printable(comparison.other)} against "
        f"{printable(comparison.baseline)}",
        f"{'':26}{'mean':>14}{'worst':>14}  in",
    ]
    for measure, title in _TITLES.items():
        if measure in comparison.measures():
            worst = comparison.worst(measure)
            mean = comparison.mean(measure)
            lines.append(f"{title:26}{mean:>14.6g}{worst.value:>14.6g}  {printable(worst.file)}")
    return "\n".join(lines) + "\n"
