"""Tables that can be sorted by any column, searched, and opened row by row.

All rows are in the markup, so that the table is whole without a script. What a row opens into is in a `template`:
the browser reads it, and draws it when it is opened.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from detent.report.page.html import Child, Markup, joined, tag

FEW = 12
"""Rows that are shown before the others are asked for."""


@dataclass(frozen=True)
class Column:
    """A column: what it means in a sentence, whether it holds numbers, and whether narrow screens leave it out."""

    title: str
    meaning: str = ""
    numeric: bool = False
    minor: bool = False


@dataclass(frozen=True)
class Cell:
    """What is shown, and what is sorted by; without a `key` the cell is sorted behind all others."""

    shown: Child
    key: float | str | None = None


@dataclass(frozen=True)
class Row:
    """The cells of a row. `opens` is what is shown below it on demand; then it has a `name` that others refer to."""

    cells: Sequence[Cell]
    name: str | None = None
    opens: Markup | None = None


def words(shown: Child, key: str | None = None) -> Cell:
    """A cell that is sorted by its text, or by `key` where it is markup."""
    return Cell(shown, key if key is not None else str(shown))


def number(value: float | None, shown: Child = None) -> Cell:
    """A cell that is sorted by a number; None is a dash."""
    if value is None or math.isnan(value):
        return Cell("–" if value is None else "NaN")
    return Cell(f"{value:,}" if shown is None else shown, value)


def table(
    columns: Sequence[Column], rows: Sequence[Row], what: str, *, order: tuple[int, bool] | None = None, few: int = FEW
) -> Markup:
    """The table, with a field to search in where there are many rows.

    `what` names the rows ("layers"). `order` is the column that the rows are sorted by, and whether that is upwards.
    """
    if not rows:
        return tag("p", f"There are no {what}.", class_="quiet")
    heads = [_head(at, column, order) for at, column in enumerate(columns)]
    body = [_row(row, columns) for row in rows]
    templates = [tag("template", row.opens, id=f"of-{row.name}") for row in rows if row.opens is not None]
    return tag(
        "div",
        _tools(what, len(rows)) if len(rows) > few else None,
        tag(
            "div",
            tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body)),
            class_="scroll",
        ),
        tag("button", f"Show all {len(rows)} {what}", type="button", class_="more", hidden=True),
        _meanings(columns),
        *templates,
        class_="table",
        data_few=few,
    )


def _head(at: int, column: Column, order: tuple[int, bool] | None) -> Markup:
    sorted_by = None if order is None or order[0] != at else "ascending" if order[1] else "descending"
    button = tag("button", column.title, type="button", title=column.meaning or None)
    return tag("th", button, class_=_style(column), scope="col", aria_sort=sorted_by)


def _row(row: Row, columns: Sequence[Column]) -> Markup:
    cells = [
        tag("td", cell.shown, class_=_style(column), data_key=None if cell.key is None else str(cell.key))
        for cell, column in zip(row.cells, columns, strict=True)
    ]
    return tag("tr", *cells, data_name=row.name, data_opens=row.name if row.opens is not None else None)


def _style(column: Column) -> str | None:
    styles = [*(["number"] if column.numeric else []), *(["minor"] if column.minor else [])]
    return " ".join(styles) or None


def _tools(what: str, count: int) -> Markup:
    field = tag("input", type="search", placeholder=f"Search {count} {what}", aria_label=f"Search {what}")
    return tag("div", field, tag("span", class_="found", role="status"), class_="tools", hidden=True)


def _meanings(columns: Sequence[Column]) -> Markup | None:
    told = {column.title: column.meaning for column in columns if column.meaning}
    if not told:
        return None
    pairs = joined(joined((tag("dt", title), tag("dd", meaning))) for title, meaning in told.items())
    return tag("details", tag("summary", "What the columns mean"), tag("dl", pairs), class_="meanings")
