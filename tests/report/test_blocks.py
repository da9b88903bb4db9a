from __future__ import annotations

import math
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from detent.report.charts import tag
from detent.report.document import Column, Document, Note, NoteList, Paragraph, Row, Section, Table, name, number, words
from detent.report.documents import page_of

COLUMNS = [Column("Name", "What it is called."), Column("Size", numeric=True, minor=True)]


def rows(count):
    return [Row([words(f"row <{at}>"), number(at)], f"r{at}", [Paragraph(f"of {at}")]) for at in range(count)]


def drawn(*blocks):
    return page_of(Document("test", "t", (), sections=[Section("S", blocks=blocks)]))


def test_cells_have_what_is_shown_and_what_is_sorted_by():
    markup = drawn(Table(COLUMNS, rows(2), "rows", order=(1, False)))
    assert '<td data-key="row &lt;0&gt;">row &lt;0&gt;</td><td class="number minor" data-key="0">0</td>' in markup
    assert '<th class="number minor" scope="col" aria-sort="descending">' in markup


def test_what_a_row_opens_into_is_in_a_template_and_not_in_the_table():
    markup = drawn(Table(COLUMNS, rows(2), "rows"))
    assert '<tr data-name="r1" data-opens="r1">' in markup
    opened = markup[markup.index("</table>") :]
    assert '<template id="of-r1">' in opened
    assert "<p>of 1</p>" in opened


def test_only_many_rows_can_be_searched():
    assert 'type="search"' in drawn(Table(COLUMNS, rows(20), "rows"))
    assert 'type="search"' not in drawn(Table(COLUMNS, rows(3), "rows"))


def test_columns_are_explained():
    assert "<dt>Name</dt><dd>What it is called.</dd>" in drawn(Table(COLUMNS, rows(1), "rows"))


def test_no_rows():
    assert '<p class="quiet">There are no moves.</p>' in drawn(Table(COLUMNS, [], "moves"))


def test_numbers_that_are_none():
    assert (number(None).text, number(None).key) == ("–", None)
    assert (number(math.nan).text, number(math.nan).key) == ("NaN", None)
    assert number(12345).text == "12,345"
    assert number(0.5, "half").key == 0.5


def test_what_is_for_a_terminal_is_not_on_a_page():
    markup = drawn(
        Paragraph("here"), Paragraph("there", on="terminal"), NoteList([Note("Note", "warn", "<mind>", "it")])
    )
    assert "here" in markup
    assert "there" not in markup
    assert '<span class="badge warn">Note</span><strong>it</strong>: &lt;mind&gt;' in markup


def test_names_break_behind_their_separators():
    table = Table([Column("Name")], [Row([name("a/b.c")]), Row([name("//a")])], "names")
    assert '<bdi class="name">a/<wbr>b.<wbr>c</bdi>' in drawn(table)
    assert '<bdi class="name">//<wbr>a</bdi>' in drawn(table)


def test_what_does_not_print_is_spelled_out():
    markup = drawn(Paragraph("a\u202eb\x00\ud800\nc"))
    assert "a\\u202eb\\x00\\ud800\nc" in markup


class Reader(HTMLParser):
    def __init__(self, markup):
        super().__init__()
        self.tags, self.attributes, self.data = [], [], ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.data += data


@given(st.text())
def test_any_text_is_read_back_as_the_same_text(content):
    reader, page = Reader(tag("p", content, title=content)), Reader(drawn(Paragraph(content)))
    assert reader.tags == ["p"]
    assert page.tags == Reader(drawn(Paragraph("x"))).tags
    if content.replace("\\", "").isprintable():
        assert reader.data == content
        assert dict(reader.attributes)["title"] == content
        assert content in page.data
