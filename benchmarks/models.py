"""Every benchmark model quantized with nothing but calibration data (or the one flag that the error message names).

python -m benchmarks.models
"""

from __future__ import annotations

import tempfile
from pathlib import Path

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
from detent.results.quantized import Report

HEADER = ("model", "flag", "quantized nodes", "left float", "MB before", "MB after", "output SQNR dB", "s", "top-1 float", "top-1 XINT8", "loss (± std. error)")  # fmt: skip  # noqa: E501


def main() -> None:
    options = arguments("All benchmark models to XINT8.", samples=128).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print_table(HEADER, [row(case, options.samples, Path(folder)) for case in chosen(options.models)])


def row(case: Case, samples: int, folder: Path) -> list[object]:
    output = folder / f"{case.name}.onnx"
    report = detent.quantize(case.path, output, calibration=CALIBRATION, preprocess=case.options, limit=samples)
    assert report.fidelity is not None
    sqnr = min(closeness.sqnr_db for closeness in report.fidelity.outputs.values())
    return [
        case.name,
        "-" if case.size is None else "--size {},{}".format(*case.size),
        len(report.nodes) - len(report.left_float()),
        left_float(report),
        f"{report.bytes_before / 1e6:.1f}",
        f"{(report.bytes_after or 0) / 1e6:.1f}",
        f"{sqnr:.1f}",
        f"{sum(report.seconds.values()):.1f}",
        *(accuracy(case, output) if case.labelled else ["-"] * 3),
    ]


def left_float(report: Report) -> str:
    counts: dict[str, int] = {}
    for node in report.left_float():
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "-"


def accuracy(case: Case, output: Path) -> list[str]:
    labelled = evaluator(case)
    before, after = (top1_right(labelled, path) for path in (case.path, output))
    return [percent(before), percent(after), paired_difference(before, after)]


if __name__ == "__main__":
    main()
