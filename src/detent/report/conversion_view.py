"""A conversion on the terminal: what was in the model before and after, and what each step did and declined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detent.convert import Conversion
from detent.prepare.base import Change
from detent.report.names import inert

_SHOWN = 5


def print_conversion(conversion: Conversion, console: Console) -> None:
    """A short table, then the notes."""
    console.print(Text(f"{conversion.source} -> {conversion.output}\n{', '.join(conversion.steps)}", "bold"))
    console.print(_table(conversion))
    for step in dict.fromkeys(change.by for change in (*conversion.changes, *conversion.declined)):
        done = [change for change in conversion.changes if change.by == step]
        left = [change for change in conversion.declined if change.by == step]
        console.print(Text(f"{step}: {_counted(done) or 'nothing'}."))
        for change in left[:_SHOWN]:
            console.print(Text(f"  left '{change.node}': {change.what}"))
        if len(left) > _SHOWN:
            console.print(Text(f"  and {len(left) - _SHOWN} more that were left; --json lists them."))


def _counted(changes: Sequence[Change]) -> str:
    """What was done, equal notes once with their number; a note on one thing with its name."""
    counts = Counter(change.what for change in changes)
    names = {change.what: change.node for change in changes}
    shown = [
        f"{what} ({count} times)" if count > 1 else f"'{names[what]}' {what}"
        for what, count in counts.most_common(_SHOWN)
    ]
    rest = len(counts) - len(shown)
    return "; ".join(shown) + (f"; and {rest} more" if rest else "")


def _table(conversion: Conversion) -> Table:
    """One row for each figure that differs, and always the size."""
    before, after = conversion.before, conversion.after
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("", "before", "after"):
        table.add_column(column, justify="right" if column else "left", overflow="fold")
    table.add_row("file", f"{before.bytes:,} bytes", f"{after.bytes:,} bytes")
    for title, old, new in (
        ("opset", before.opset, after.opset),
        ("constants", before.constants, after.constants),
        ("", before.operators, after.operators),
    ):
        for key in sorted(set(old) | set(new)):
            if old.get(key) != new.get(key):
                label = inert(f"{title} {key}".strip())
                unit = " bytes" if title == "constants" else ""
                table.add_row(label, *(f"{each[key]:,}{unit}" if key in each else "-" for each in (old, new)))
    return table
