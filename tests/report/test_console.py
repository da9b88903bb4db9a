from __future__ import annotations

import io

from rich.table import Table
from rich.text import Text

from detent.report.console import PlainConsole
from detent.report.names import inert

HOSTILE = "\x1b[31mred \u202ereversed"
SPELT = r"\x1b[31mred \u202ereversed"


def printed(renderable, **settings):
    stream = io.StringIO()
    PlainConsole(file=stream, width=120, **settings).print(renderable)
    return stream.getvalue()


def test_names_do_nothing_wherever_they_stand():
    table = Table("name")
    table.add_row(inert(HOSTILE))
    table.add_row(Text(HOSTILE))
    for renderable, times in ((inert(HOSTILE), 1), (Text(HOSTILE), 1), (table, 2)):
        text = printed(renderable)
        assert text.count(SPELT) == times
        assert not set("\x1b\u202e") & set(text)


def test_our_own_colours_are_still_there():
    text = printed(f"[bold]{inert('[red]' + HOSTILE)}[/]", force_terminal=True, color_system="standard")
    assert text.startswith("\x1b[1m")
    assert "[red]" + SPELT in text


def test_lines_of_a_message_are_lines_and_those_of_a_name_are_not():
    assert printed("one\ntwo") == "one\ntwo\n"
    assert printed(inert("one\ntwo")) == "one\\ntwo\n"


def test_no_emoji():
    assert printed("node :bomb:") == "node :bomb:\n"
