"""An emulated model, and a dump of its codes, on the terminal."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detent.comparison.value_files import Dump
from detent.report.names import printable
from detent.results.compared import Emulation


def print_emulation(emulation: Emulation, console: Console) -> None:
    """What was computed how, and each output against onnxruntime's."""
    report = emulation.report
    console.print(Text(f"Emulated in integers on {emulation.data}, rounding {report.rounding}.", "bold"))
    if emulation.note:
        console.print(Text(emulation.note))
    console.print(Text(f"{report.integer_steps} nodes in integers, {report.quantized_tensors} tensors of codes."))
    kinds = Counter((step.op_type, step.reason) for step in report.float_steps)
    for (op_type, reason), count in kinds.most_common():
        console.print(Text(f"In float, on the host: {count} x {op_type}: {reason}."))
    for node, count in report.overflows.items():
        console.print(Text(f"'{printable(node)}': {count:,} sums left the 32 bits of the accumulator.", "bold red"))
    console.print(_table(emulation))
    if emulation.folder is not None:
        console.print(Text(f"Answers written to {emulation.folder}."))
    if emulation.random:
        console.print(Text("The data was random: give --data to see what real inputs do.", "yellow"))


def _table(emulation: Emulation) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("output, against onnxruntime", overflow="fold")
    for column in ("elements", "differ", "by at most", "same top-1"):
        table.add_column(column, justify="right")
    for output in emulation.outputs:
        top = f"{output.same_top1} of {output.rows}" if output.rows else "-"
        name = Text(printable(output.name))
        table.add_row(name, f"{output.elements:,}", f"{output.differing:,}", f"{output.farthest:.6g}", top)
    return table


def print_dump(dump: Dump, console: Console) -> None:
    """What was written where."""
    floats = f", {len(dump.floats)} float values" if dump.floats else ""
    console.print(
        Text(
            f"Codes of {dump.activations} tensors and {dump.constants} constants{floats} for {dump.origin} "
            f"in {dump.folder}, each as .bin and .txt."
        )
    )
