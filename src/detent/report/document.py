"""A document: everything to say about a result, independent of where it is shown.

Each result type has one function that builds its document; documents.py lists them, and makes pages of documents.
terminal.py prints documents. Neither knows results. A new section is one function in the module of its result.

Every text in a document may hold anything, because names come from model files that anybody may have written. The
renderers escape all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal

from detent.recipe import Recipe
from detent.recipe.file import to_toml
from detent.report.charts import Chart

Level = Literal["good", "warn", "bad", "plain"]  # how to color it

# Where a part is shown. A page has everything; a terminal has what is "verbose" only with --verbose.
Audience = Literal["both", "page", "terminal", "verbose"]


@dataclass(frozen=True)
class Verdict:
    """What the reader wants to know first, in a few words and a sentence."""

    level: Level
    title: str
    text: str


@dataclass(frozen=True)
class KeyFigure:
    """A large figure and its meaning. `name` is the name of a model, shown in front of the title."""

    title: str
    figure: str
    meaning: str
    level: Level = "plain"
    name: str = ""


@dataclass(frozen=True)
class Paragraph:
    """A line of text."""

    text: str
    level: Level = "plain"
    on: Audience = "both"
    strong: bool = False
    quiet: bool = False


@dataclass(frozen=True)
class Note:
    """Something to mind: a badge, what it is about, the text, and details such as the reason and the remedy."""

    label: str
    level: Level
    text: str
    subject: str = ""
    details: Sequence[str] = ()


@dataclass(frozen=True)
class NoteList:
    """A list of notes. A terminal shows the first `shown`, or all with --verbose."""

    notes: Sequence[Note]
    on: Audience = "both"
    shown: int | None = None


@dataclass(frozen=True)
class Facts:
    """Short facts, each under its title. Those that are None are left out."""

    pairs: Mapping[str, str | None]
    on: Audience = "page"


@dataclass(frozen=True)
class Code:
    """A file as it is."""

    text: str
    on: Audience = "page"


@dataclass(frozen=True)
class Figure:
    """A chart. A terminal has none."""

    chart: Chart
    on: Audience = "page"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    `cell` makes the cell of an item. `meaning` explains the column in a sentence. Narrow screens leave out columns that
    are `minor`. `below` is the title of the small print that cells have below them on a page; on a terminal that is a
    column of its own. A terminal begins titles with a small letter, except those that are `verbatim`.
    """

    title: str
    meaning: str = ""
    numeric: bool = False
    minor: bool = False
    below: str = ""
    on: Audience = "both"
    verbatim: bool = False
    cell: Callable[[Any], Cell] = field(default=lambda text: Cell(text, text), repr=False)


@dataclass(frozen=True)
class Cell:
    """The text that is shown, and the key to sort by; without a key a cell comes after all others.

    `name` says that the text is a name out of a model or folder. `below` is small print. `bar` is drawn instead of the
    text, full at 1. `short` is the text for a terminal.
    """

    text: str
    key: float | str | None = None
    name: bool = False
    below: str = ""
    below_is_name: bool = False
    badges: Sequence[str] = ()
    bar: float | None = None
    short: str | None = None


@dataclass(frozen=True)
class Row:
    """The cells of a row. With `opens`, it has an `id`, and can be opened to show these blocks below it."""

    cells: Sequence[Cell]
    id: str | None = None
    opens: Sequence[Block] = ()


@dataclass(frozen=True)
class Table:
    """A table. A page shows all rows, which can be sorted by any column and searched.

    `what` names the rows ("layers"). `order` is the column that they are sorted by, and whether that is ascending. A
    terminal shows the first `shown` rows, or all with --verbose, and has `title` above the first column.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    what: str
    order: tuple[int, bool] | None = None
    shown: int | None = None
    title: str = ""
    on: Audience = "both"


Block = Paragraph | NoteList | Facts | Code | Figure | Table


@dataclass(frozen=True)
class Section:
    """A part of a document, and what it means in a sentence or two.

    On a page it is `folded` at first, with `count` beside the title. A terminal prints `brief` if it is given, and the
    blocks only with --verbose then.
    """

    title: str
    meaning: str = ""
    blocks: Sequence[Block] = ()
    folded: bool = True
    count: str = ""
    brief: str = ""
    on: Audience = "both"


@dataclass(frozen=True)
class Document:
    """Everything to say about one result.

    `kind` names the action, `title` its object. `headline` and `about` describe the run. `verdict` and `figures` are
    for a summary of a few lines. A terminal ends with the lines of `closing`, at most three: what was written or found,
    whether the device takes it, and what it cost with the command to type next.
    """

    kind: str
    title: str
    headline: Sequence[str]
    about: Sequence[str] = ()
    verdict: Verdict | None = None
    figures: Sequence[KeyFigure] = ()
    sections: Sequence[Section | None] = field(default_factory=tuple)
    closing: Sequence[str] = ()

    @property
    def next_command(self) -> str:
        """The command to type next, if the last line has one."""
        following = self.closing[-1].partition("Next: ")[2] if self.closing else ""
        return following if following.startswith("detent ") else ""


def name(text: str, **more: object) -> Cell:
    """Return a cell with a name out of a model or folder."""
    return Cell(text, text, name=True, **more)  # type: ignore[arg-type]  # fields of Cell


def words(text: str, below: str = "") -> Cell:
    return Cell(text, text, below=below)


def number(value: float | None, text: str | None = None, below: str = "") -> Cell:
    """Return a cell that is sorted by a number; None is a dash."""
    if value is None or math.isnan(value):
        return Cell("–" if value is None else "NaN", short="-" if value is None else None)
    return Cell(f"{value:,}" if text is None else text, value, below=below)


def bar(value: float, share: float) -> Cell:
    """Return a cell with a bar; it is full if the share is 1."""
    return Cell("", value, bar=min(max(share, 0.0), 1.0))


# How a column takes its value from an item: a path of attributes, or a function.
Getter = str | Callable[[Any], Any]


def named(title: str, get: Getter, meaning: str = "", **more: Any) -> Column:
    """Return a column of names out of a model or folder."""
    take = _taker(get)
    return Column(title, meaning, cell=lambda item: name(take(item)), **more)


def worded(title: str, get: Getter, meaning: str = "", **more: Any) -> Column:
    take = _taker(get)
    return Column(title, meaning, cell=lambda item: words(take(item)), **more)


def figure(
    title: str,
    get: Getter,
    form: str | Callable[[Any], str] = ",",
    meaning: str = "",
    *,
    text: Callable[[Any], str] | None = None,
    small: Callable[[Any], str] = lambda _: "",
    **more: Any,
) -> Column:
    """Return a column of numbers, or None. `form` formats them, and `small` makes the small print below.

    `text` replaces `form` if the text needs more than the number: it gets the whole item.
    """
    take, spell = _taker(get), form if callable(form) else f"{{:{form}}}".format

    def cell(item: Any) -> Cell:
        value = take(item)
        if value is None:
            return number(None)
        return number(value, spell(value) if text is None else text(item), small(item))

    return Column(title, meaning, numeric=True, cell=cell, **more)


def table(what: str, columns: Sequence[Column | None], items: Iterable[Any], **more: Any) -> Table:
    """Return a table with a row for each item. Columns that are None are left out."""
    kept = [column for column in columns if column is not None]
    return Table(kept, [Row([column.cell(item) for column in kept]) for item in items], what, **more)


def _taker(get: Getter) -> Callable[[Any], Any]:
    """Return a function that takes a value from an item. A path of attributes ends at a None."""
    if not isinstance(get, str):
        return get
    names = get.split(".")
    return lambda item: reduce(lambda value, name: None if value is None else getattr(value, name), names, item)


def recipe_section(recipe: Recipe, meaning: str) -> Section:
    """Return the section of a page that shows a recipe in full."""
    return Section("Recipe", meaning, [Code(to_toml(recipe))], count=recipe.name, on="page")
