"""A comparison of two folders of results, as lines of text."""

from __future__ import annotations

from detent.measure.results import Comparison

_MEASURES = (
    ("cosine", "cosine similarity"),
    ("l2", "L2 (mean squared error)"),
    ("l1", "L1 (mean absolute error)"),
    ("psnr_db", "PSNR (dB)"),
    ("ssim", "SSIM"),
)


def results_table(comparison: Comparison) -> str:
    """Mean and least of each measure, a line each."""
    lines = [f"{len(comparison.files)} files compared", f"{'':26}{'mean':>14}{'min':>14}"]
    lines += [
        f"{title:26}{comparison.mean(measure):>14.6g}{comparison.least(measure):>14.6g}" for measure, title in _MEASURES
    ]
    return "\n".join(lines) + "\n"
