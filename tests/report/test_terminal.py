from __future__ import annotations

import io
import shlex

import pytest
from rich.text import Text

from detent.recipe.file import find_recipe
from detent.report import figures
from detent.report.document import Cell, Column, Document, Paragraph, Row, Section, Table, name
from detent.report.documents import document_of, text_of
from detent.report.figures import command, printable, recipe_words
from detent.report.terminal import PlainConsole, print_document
from tests.report.results import RESULTS

HOSTILE = "\x1b[31mred \u202ereversed"
SPELT = r"\x1b[31mred \u202ereversed"


def printed(renderable, **settings):
    stream = io.StringIO()
    PlainConsole(file=stream, width=120, **settings).print(renderable)
    return stream.getvalue()


def shown(*blocks, **settings):
    stream = io.StringIO()
    console = PlainConsole(file=stream, width=120, **settings)
    print_document(Document("test", "t", [HOSTILE], [HOSTILE], sections=[Section("S", blocks=blocks)]), console)
    return stream.getvalue()


def test_names_do_nothing_wherever_they_stand():
    table = Table([Column(HOSTILE)], [Row([name(HOSTILE)])], "rows")
    text = shown(table, Paragraph(HOSTILE))
    assert text.count(SPELT) == 5
    assert not set("\x1b\u202e") & set(text)
    assert printed(Text(HOSTILE)).count(SPELT) == 1


def test_our_own_colors_are_still_there_and_names_are_no_markup():
    text = shown(Paragraph("[red]loud", "bad"), force_terminal=True, color_system="standard")
    assert text.startswith("\x1b[1m")
    assert "\x1b[31m[red]loud" in text


def test_lines_of_a_paragraph_are_lines_and_those_of_a_name_are_not():
    table = Table([Column("Name")], [Row([name("one\ntwo")])], "rows")
    assert shown(Paragraph("one\ntwo")).endswith("\none\ntwo\n")
    assert "one\\ntwo" in shown(table)


def test_no_emoji():
    assert printed("node :bomb:") == "node :bomb:\n"


@pytest.mark.parametrize("kind", list(RESULTS))
def test_an_answer_is_short_and_ends_with_what_to_do_next(kind):
    document = document_of(RESULTS[kind]())
    assert 1 <= len(document.closing) <= 3
    assert "Next: " in document.closing[-1]
    text, everything = (text_of(RESULTS[kind](), 200, verbose=verbose) for verbose in (False, True))
    assert len(text.splitlines()) <= 40
    assert text.splitlines()[-1] == everything.splitlines()[-1] == printable(document.closing[-1])
    assert len(everything) >= len(text)


@pytest.mark.parametrize("kind", list(RESULTS))
def test_what_to_do_next_is_not_what_was_done(kind):
    verb = {"folders": "compare", "compare": "compare"}.get(kind, kind)
    following = document_of(RESULTS[kind]()).closing[-1].partition("Next: ")[2]
    # A search for the worst layers may go on to search for a recipe.
    assert not following.startswith(f"detent {verb} ") or "--max-error" in following


def test_a_command_can_be_typed():
    words = ("evaluate", "my model.onnx", "it's.onnx", "$(touch x)")
    assert shlex.split(command(*words)) == ["detent", *words]
    assert command("check", "the given model") == "detent check MODEL"


def test_a_command_repeats_recipe_and_device():
    """Also the default's name: of a transformer, the command without it would choose another."""
    named = find_recipe("XINT8")
    assert recipe_words(named) == ["--recipe", "XINT8"]
    assert recipe_words(named.replace(target="stx")) == ["--recipe", "XINT8", "--device", "stx"]
    assert recipe_words(named.replace(name="mine")) == ["--recipe", "RECIPE"]
    stepped = named.replace(also=("clip_to_relu",), without=("shift_cut", "scale_pools"))
    assert recipe_words(stepped)[2:] == ["--set", "also=clip_to_relu", "--set", "without=shift_cut,scale_pools"]


def test_on_a_narrow_terminal_names_are_shortened_in_the_middle_and_figures_are_not():
    rows = [Row([name(f"backbone/stage{at}/block/conv/very/long/name{at}"), Cell("123.45", 123.45)]) for at in range(3)]
    table = Table([Column("Layer"), Column("SQNR dB", numeric=True)], rows, "layers")
    stream = io.StringIO()
    document = Document("test", "t", [], [], sections=[Section("S", blocks=[table])])
    print_document(document, PlainConsole(file=stream, width=40))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4 and all(len(line.rstrip()) <= 40 for line in lines)
    assert all("123.45" in line and "…" in line and line.startswith("backbone") for line in lines[1:])
    assert "name2" in lines[3]
    assert "…" not in shown(table)


def test_commands_are_quoted_as_windows_reads_them(monkeypatch):
    monkeypatch.setattr(figures.sys, "platform", "win32")
    words = ("check", "C:\\my models\\a.onnx", "--exclude", "head/*", "the given ResNet", 'a"%PATH%$(x)&y', "b\\c.onnx")
    assert command(*words) == (
        'detent check "C:\\my models\\a.onnx" --exclude "head/*" MODEL "a??PATH??(x)&y" b\\c.onnx'
    )
