from __future__ import annotations

import pytest

from detent.equalizations import CrossLayer, GlobalEqualization, parse_equalization
from detent.errors import UsageError
from detent.methods import LayerwisePercentile, MinMax, parse_method
from detent.settings import choice_text, parse_json, parse_memory, parse_toml, read_text, show_memory


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (None, "none"),
        (GlobalEqualization(), "GlobalEqualization"),
        (GlobalEqualization(absorb=True), "GlobalEqualization:absorb=true"),
        (
            CrossLayer(steps=-1, converged=1e-9, append_bias=False),
            "CrossLayer:steps=-1,converged=1e-09,append_bias=false",
        ),
    ],
)
def test_a_choice_as_the_text_that_it_is_read_from(choice, text):
    assert choice_text(choice) == text
    assert parse_equalization(text) == choice


@pytest.mark.parametrize("choice", [MinMax(), LayerwisePercentile(candidates=(99.0, 99.9))])
def test_settings_of_several_numbers_are_read_back(choice):
    assert parse_method(choice_text(choice)) == choice


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GB", 2 << 30), ("2 gb", 2 << 30), ("1.5G", 3 << 29), ("800MB", 800 << 20), ("64KiB", 65536), ("1TB", 1 << 40)],
)
def test_amounts_of_memory(text, count):
    assert parse_memory(text) == count


@pytest.mark.parametrize("text", ["2", "GB", "two GB", "-1GB", "2GBs", "", "1e9GB", "2 G B"])
def test_what_is_no_amount(text):
    with pytest.raises(UsageError, match="such as 2GB"):
        parse_memory(text)


@pytest.mark.parametrize("count", [0, 1, 2**20, 2**20 + 1, 12345678901])
def test_what_is_shown_is_enough(count):
    assert count <= parse_memory(show_memory(count)) < count + 2**20


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_as_powershell_and_notepad_write_it(tmp_path, encoding):
    file = tmp_path / "settings.json"
    file.write_bytes('{"größe": 224}\r\n'.encode(encoding))
    assert read_text(file) == '{"größe": 224}\n'


def test_text_of_an_unknown_encoding_is_not_guessed(tmp_path):
    file = tmp_path / "settings.json"
    file.write_bytes("größe".encode("cp1252"))
    with pytest.raises(UnicodeDecodeError):
        read_text(file)


@pytest.mark.parametrize("parse", [parse_json, lambda text: parse_toml(f"x = {text}")])
def test_text_that_is_nested_too_deeply_is_no_settings(parse):
    with pytest.raises(ValueError):
        parse("[" * 100_000)
