"""A search for mixed precision, as data and as a table: the format of every layer, and what that costs and saves."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detent.numerics.formats import IntegerFormat
from detent.recipe import Recipe
from detent.recipe_file import to_plain, to_toml
from detent.report.console import PlainConsole
from detent.report.names import inert
from detent.sensitivity_analysis.layers import decibels
from detent.sensitivity_analysis.precision import Option, PrecisionSearch, bits_of

SHOWN = 40


@dataclass(frozen=True)
class PrecisionReport:
    """What was found for which model, on top of which recipe, and what had been wished for: one of the two bounds."""

    source: str
    base: Recipe
    found: PrecisionSearch
    max_error: float | None = None
    mean_bits: float | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe to quantize with."""
        return self.found.recipe

    @property
    def reached(self) -> bool:
        """Whether the wish came true."""
        return self.found.reached

    @property
    def numbers(self) -> int:
        """How many numbers have a chosen format; of activations, for one sample."""
        return sum(numbers_of(option) for option in self.found.choice.values())

    @property
    def bits(self) -> int:
        """The bits of all these numbers."""
        return bits_of(self.found.choice)

    @property
    def bits_before(self) -> int:
        """The same in the format of the recipe that the search began with."""
        usual = self.base.formats[self.found.what]
        assert isinstance(usual, IntegerFormat), "only integers are searched"
        return self.numbers * usual.bits

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. An error of nothing is null in dB."""
        found = self.found
        return {
            "model": self.source,
            "base": self.base.name,
            "what": found.what,
            "samples": found.samples,
            "max_error": self.max_error,
            "wanted_mean_bits": self.mean_bits,
            "reached": found.reached,
            "error": found.error,
            "error_db": _finite(decibels(found.error)),
            "mean_bits": found.mean_bits,
            "bits": self.bits,
            "bits_before": self.bits_before,
            "uniform": {
                fmt.label: {"error": error, "error_db": _finite(decibels(error))} for fmt, error in _uniform(found)
            },
            "formats": [
                {
                    "name": name,
                    "format": option.format.label,
                    "numbers": numbers_of(option),
                    "bits": option.bits,
                    "error": option.error,
                    "error_db": _finite(decibels(option.error)),
                }
                for name, option in found.choice.items()
            ],
            "recipe": to_plain(found.recipe),
        }

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_toml(self) -> str:
        """The recipe that was found, as a file for `--recipe`."""
        return to_toml(self.found.recipe)

    def __str__(self) -> str:
        console = PlainConsole(file=io.StringIO(), width=120)
        print_precision(self, console)
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def numbers_of(option: Option) -> int:
    """How many numbers an option is about."""
    assert isinstance(option.format, IntegerFormat), "only integers are searched"
    return option.bits // option.format.bits


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
        row = (option.format.label, f"{numbers_of(option):,}", f"{decibels(option.error):.1f}")
        table.add_row(inert(slot), *row)
    return table


def _whole(report: PrecisionReport) -> Table:
    table = _table(("whole model", "bits", "size", "error dB"), left=1)
    for fmt, error in _uniform(report.found):
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


def _uniform(found: PrecisionSearch) -> list[tuple[IntegerFormat, float]]:
    """Each format with the error that it has throughout, from the fewest bits on."""
    return sorted(found.uniform.items(), key=lambda each: (each[0].bits, each[0].label))


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
    formats = ", ".join(fmt.label for fmt, _ in _uniform(report.found))
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


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
