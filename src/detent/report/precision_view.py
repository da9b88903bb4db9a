"""A search for mixed precision, as data and as a table: the format of every layer, and what that costs and saves."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detent.report.names import inert
from detent.results.searched import PrecisionReport, PrecisionSearch, decibels

SHOWN = 40


def print_precision(report: PrecisionReport, console: Console) -> None:
    """Every layer with its format, the whole beside one format throughout, and what is saved."""
    found = report.found
    console.print(Text(f"{report.source}, {report.base.name}: the format of each layer's {found.what}", "bold"))
    console.print(_layers(found))
    if len(found.choice) > SHOWN:
        console.print(Text(f"and {len(found.choice) - SHOWN} more; --json lists them."))
    console.print()
    console.print(_whole(report))
    console.print(Text(_saved(report)))
    if not found.reached and report.max_error is not None:
        console.print(Text(_missed(report), style="yellow"))
    console.print(Text(f"Measured on {found.samples} samples, nothing refined.", style="dim"))


def _layers(found: PrecisionSearch) -> Table:
    name = "layer" if found.what == "weights" else "activation"
    table = _table((name, "format", "numbers", "error alone dB"), left=2)
    for slot, option in list(found.choice.items())[:SHOWN]:
        row = (option.format.label, f"{option.numbers:,}", f"{decibels(option.error):.1f}")
        table.add_row(inert(slot), *row)
    return table


def _whole(report: PrecisionReport) -> Table:
    table = _table(("whole model", "bits", "size", "error dB"), left=1)
    for fmt, error in report.found.uniform_errors():
        size = report.numbers * fmt.bits
        table.add_row(f"all {fmt.label}", str(fmt.bits), size_text(size), f"{decibels(error):.1f}")
    counts = Counter(option.format.label for option in report.found.choice.values())
    mixed = "mixed: " + ", ".join(f"{count} {label}" for label, count in sorted(counts.items()))
    table.add_row(mixed, f"{report.found.mean_bits:.2f}", size_text(report.bits), f"{decibels(report.found.error):.1f}")
    return table


def _table(names: tuple[str, ...], left: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for at, name in enumerate(names):
        table.add_column(name, justify="left" if at < left else "right", overflow="fold")
    return table


def _saved(report: PrecisionReport) -> str:
    """How much smaller or larger than with the recipe as it was."""
    what = report.found.what
    difference = report.bits_before - report.bits
    if not difference:
        return f"{what.capitalize()} take as much as with {report.base.name}."
    said = "less" if difference > 0 else "more"
    share = 100 * abs(difference) / report.bits_before
    return f"{what.capitalize()} take {size_text(abs(difference))} {said} than with {report.base.name} ({share:.1f} %)."


def _missed(report: PrecisionReport) -> str:
    assert report.max_error is not None
    formats = ", ".join(fmt.label for fmt, _ in report.found.uniform_errors())
    return (
        f"{decibels(report.max_error):.1f} dB cannot be reached by choosing from {formats}: the best is "
        f"{decibels(report.found.error):.1f} dB. The rest comes from what keeps its format; offer finer ones, or "
        "see `detent sensitivity`."
    )


def size_text(bits: int) -> str:
    """Bits as bytes that a person can read."""
    size = bits / 8
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
