"""Documents as text for a terminal.

A model's names are untrusted text. Nothing of a document is taken for markup, and PlainConsole spells out terminal
codes wherever they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from detent.report import document as doc
from detent.report.figures import in_the_middle, printable, printable_lines

_STYLES: dict[doc.Level, str] = {"good": "green", "warn": "yellow", "bad": "red", "plain": ""}
BAR = 20  # characters of a full bar

SHORTEST_NAME = 16  # characters that are left of a name on a narrow terminal


class PlainConsole(Console):
    """A console that spells out terminal codes, reversed writing and the like, and draws no emoji."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is printed, piece by piece. Line breaks stay: those of names are spelled out before."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable_lines(segment.text), segment.style)


def print_document(
    document: doc.Document, console: Console, *, verbose: bool = False, beside: Sequence[str | PathLike[str]] = ()
) -> None:
    """Print a document: the headline, what it is about, its sections, and the closing lines.

    Without `verbose` it is a short answer. `beside` are files that were written beside the result.
    """
    if document.headline:
        # Paths may be long: the terminal wraps them, so that they can be copied whole.
        console.print(Text("\n".join(map(printable, document.headline)), "bold"), soft_wrap=True)
    for line in document.about:
        if line:
            console.print(Text(printable_lines(line)))
    for section in document.sections:
        if section is not None and _is_shown(section.on, verbose):
            _print_section(section, console, verbose)
    files = f"Also wrote {', '.join(map(str, beside))}." if beside else ""
    first, *others = document.closing or [""]
    for line in (f"{first} {files}".strip(), *others):
        if line:
            console.print(Text(printable(line), "bold"), soft_wrap=True)


def _is_shown(on: doc.Audience, verbose: bool) -> bool:
    return verbose if on == "verbose" else on != "page"


def _print_section(section: doc.Section, console: Console, verbose: bool) -> None:
    if section.brief:
        console.print(Text(printable_lines(section.brief)))
    if verbose or not section.brief:
        for block in section.blocks:
            if _is_shown(block.on, verbose):
                _print_block(block, console, verbose)


def _print_block(block: doc.Block, console: Console, verbose: bool) -> None:
    if isinstance(block, doc.Paragraph):
        style = _STYLES[block.level] or ("bold" if block.strong else "dim" if block.quiet else "")
        console.print(Text(printable_lines(block.text), style))
    elif isinstance(block, doc.Table):
        shown = len(block.rows) if verbose or block.shown is None else block.shown
        console.print(_table(block, shown, verbose, console.width))
        _print_hidden(len(block.rows) - shown, console)
    elif isinstance(block, doc.NoteList):
        _print_notes(block, console, verbose)
    elif isinstance(block, doc.Code):
        console.print(Text(f"\n{printable_lines(block.text)}"), end="", soft_wrap=True)


def _print_notes(block: doc.NoteList, console: Console, verbose: bool) -> None:
    shown = len(block.notes) if verbose or block.shown is None else block.shown
    for note in block.notes[:shown]:
        subject = f"{note.subject}: " if note.subject else ""
        line = Text(printable(f"{note.label}: {subject}{note.text}"), _STYLES[note.level])
        console.print(line, soft_wrap=bool(note.details))
        for detail in note.details:
            console.print(Text(f"    {printable(detail)}"), soft_wrap=True)
    _print_hidden(len(block.notes) - shown, console)


def _print_hidden(count: int, console: Console) -> None:
    if count > 0:
        console.print(Text(f"and {count} more; --verbose lists them.", "dim"))


def _table(table: doc.Table, shown: int, verbose: bool, width: int) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    kept = [(at, column) for at, column in enumerate(table.columns) if _is_shown(column.on, verbose)]
    titles: list[str] = []
    for place, (_, column) in enumerate(kept):
        title = table.title if place == 0 and table.title else _title(column)
        justify: Literal["left", "right"] = "right" if column.numeric else "left"
        for text in (title, *([column.below] if column.below else [])):
            titles.append(printable(text))
            drawn.add_column(Text(titles[-1]), justify=justify, overflow="fold")
    rows = [
        [(text, row.cells[at].name) for at, column in kept for text in _texts(row.cells[at], column)]
        for row in table.rows[:shown]
    ]
    room = _room_for_names(titles, rows, width)
    for row in rows:
        drawn.add_row(*(Text(in_the_middle(text, room) if is_name else text) for text, is_name in row))
    return drawn


def _room_for_names(titles: Sequence[str], rows: Sequence[Sequence[tuple[str, bool]]], width: int) -> int:
    """Return how long a name may be so that the table fits: names are shortened, figures are not."""
    if not rows:
        return width
    columns = list(zip(*rows, strict=True))
    names = [at for at, column in enumerate(columns) if any(is_name for _, is_name in column)]
    texts = [[title, *(text for text, _ in column)] for title, column in zip(titles, columns, strict=True)]
    widths = [max(map(len, each)) for each in texts]
    if not names or sum(widths) + 2 * len(widths) <= width:
        return max(widths, default=width)
    others = sum(each for at, each in enumerate(widths) if at not in names)
    return max((width - others - 2 * len(widths)) // len(names), SHORTEST_NAME)


def _title(column: doc.Column) -> str:
    """Begin a title with a small letter, but leave names and abbreviations (SQNR, McNemar) as they are."""
    first = column.title.partition(" ")[0]
    kept = column.verbatim or first[1:].lower() != first[1:]
    return column.title if kept else column.title[:1].lower() + column.title[1:]


def _texts(cell: doc.Cell, column: doc.Column) -> Sequence[str]:
    shown = "#" * round(BAR * cell.bar) if cell.bar is not None else cell.text if cell.short is None else cell.short
    return [printable(shown), printable(cell.below or "-")] if column.below else [printable(shown)]
