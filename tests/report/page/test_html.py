from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.report.page.html import Markup, joined, name_of, tag, text


def test_texts_become_text_and_markup_stays():
    assert tag("td", "<b>", class_="name") == '<td class="name">&lt;b&gt;</td>'
    assert tag("p", tag("b", "&"), None, "x") == "<p><b>&amp;</b>x</p>"
    assert joined(["<", Markup("<br>")]) == "&lt;<br>"


@pytest.mark.parametrize(
    ("value", "written"), [(True, " hidden"), (False, ""), (None, ""), (3, ' hidden="3"'), ('"', ' hidden="&quot;"')]
)
def test_attributes(value, written):
    assert tag("p", hidden=value) == f"<p{written}></p>"


def test_elements_without_contents_are_not_closed():
    assert tag("meta", name="a", http_equiv="b") == '<meta name="a" http-equiv="b">'


def test_what_does_not_print_is_spelt_out():
    assert text("a\u202eb\x00\ud800\nc") == "a\\u202eb\\x00\\ud800\nc"


def test_names_break_behind_their_separators():
    assert name_of("a/b.c") == '<bdi class="name">a/<wbr>b.<wbr>c</bdi>'
    assert name_of("//a") == '<bdi class="name">//<wbr>a</bdi>'


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.data = [], [], ""

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.data += data


@given(st.text())
def test_any_text_is_read_back_as_the_same_text(content):
    reader = Reader()
    reader.feed(tag("p", content, title=content))
    reader.close()
    assert reader.tags == ["p"]
    shown = content.replace("\\", "").isprintable()
    if shown:
        assert reader.data == content
        assert dict(reader.attributes)["title"] == content
