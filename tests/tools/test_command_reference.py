"""The page of commands says what the commands say of themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.command_reference import exit_codes, page

from detent.cli import app
from detent.errors import DataError, ModelError, OutputError, UsageError

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def section(command):
    return re.search(rf"^## {command}\n(.*?)(?=^## |\Z)", page(), re.DOTALL | re.MULTILINE)[1]


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tools.command_reference docs/commands.md writes it"


def test_every_command_has_a_section():
    for info in app.registered_commands:
        assert section(info.name or info.callback.__name__)


@pytest.mark.parametrize(
    ("command", "row"),
    [
        ("quantize", r"\| `--from NODE` \|"),
        ("quantize", r"\| `--equalize, --no-equalize` \|"),
        ("sensitivity", r"\| `--recipe TEXT` \| .* Default: XINT8; with attention or SiLU A8W8; .*\. \|"),
        ("quantize", r"\| `\[OUTPUT\]` \|"),
        ("tune", r"\| `--calib PATH` \| .* Required\. \|"),
        ("stats", r"\| `--sort graph, outliers` \|"),
        ("run", r"`detent run SCRIPT \[ARGUMENTS\]`"),
    ],
)
def test_names_values_and_defaults(command, row):
    assert re.search(row, section(command))


def test_exit_codes_are_those_of_the_errors():
    codes = [code for code, _ in exit_codes()]
    assert {each.exit_code for each in (UsageError, ModelError, DataError, OutputError)} < set(codes)
    assert codes == sorted(codes) == [0, 1, 2, 3, 4, 5, 6, 130]


def test_the_help_of_each_command_has_the_options_of_the_page(detent, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for info in app.registered_commands:
        name = info.name or info.callback.__name__
        options = set(re.findall(r"^\| `(--[a-z-]+)", section(name), re.MULTILINE))
        printed = detent(name, "--help").out
        assert not [option for option in options if option not in printed], name


def test_exit_code_6_names_every_command_that_gives_it():
    refused = dict(exit_codes())[6]
    for command in ("check", "mix", "tune"):
        assert f"`{command}`: " in refused
