from __future__ import annotations

import math

from detent.report.page.html import tag
from detent.report.page.table import Column, Row, number, table, words

COLUMNS = [Column("Name", "What it is called."), Column("Size", numeric=True, minor=True)]


def rows(count):
    return [Row([words(f"row <{at}>"), number(at)], f"r{at}", tag("p", f"of {at}")) for at in range(count)]


def test_cells_have_what_is_shown_and_what_is_sorted_by():
    markup = table(COLUMNS, rows(2), "rows", order=(1, False))
    assert '<td data-key="row &lt;0&gt;">row &lt;0&gt;</td><td class="number minor" data-key="0">0</td>' in markup
    assert '<th class="number minor" scope="col" aria-sort="descending">' in markup


def test_what_a_row_opens_into_is_in_a_template_and_not_in_the_table():
    markup = table(COLUMNS, rows(2), "rows")
    assert '<tr data-name="r1" data-opens="r1">' in markup
    assert '<template id="of-r1"><p>of 1</p></template>' in markup[markup.index("</table>") :]


def test_only_many_rows_can_be_searched():
    assert 'type="search"' in table(COLUMNS, rows(20), "rows")
    assert 'type="search"' not in table(COLUMNS, rows(3), "rows")


def test_columns_are_explained():
    assert "<dt>Name</dt><dd>What it is called.</dd>" in table(COLUMNS, rows(1), "rows")


def test_no_rows():
    assert table(COLUMNS, [], "moves") == '<p class="quiet">There are no moves.</p>'


def test_numbers_that_are_none():
    assert (number(None).shown, number(None).key) == ("–", None)
    assert (number(math.nan).shown, number(math.nan).key) == ("NaN", None)
    assert number(12345).shown == "12,345"
    assert number(0.5, "half").key == 0.5
