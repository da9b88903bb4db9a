from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from detent.commands.groups import with_groups


@dataclass(frozen=True)
class Inner:
    size: Annotated[int, typer.Option("--size")] = 3
    names: Annotated[list[str], typer.Option("--name")] = field(default_factory=list)


@dataclass(frozen=True)
class Outer:
    limit: Annotated[int | None, typer.Option("--limit")] = None
    inner: Inner = field(default_factory=Inner)
    quick: Annotated[bool, typer.Option("--quick")] = False


@dataclass(frozen=True)
class Larger(Inner):
    """The same options, one with another default."""

    size: Annotated[int, typer.Option("--size")] = 5


def run(command, *arguments):
    app = typer.Typer()
    app.command()(with_groups(command))
    outcome = CliRunner().invoke(app, [str(each) for each in arguments])
    assert outcome.exit_code == 0, outcome.output


def test_a_group_stands_where_its_argument_does():
    def command(model: str, *, outer: Outer, last: Annotated[int, typer.Option("--last")]) -> None:
        """Do it."""

    taken = with_groups(command)
    assert list(taken.__annotations__) == ["model", "limit", "size", "names", "quick", "last"]
    assert (taken.__name__, taken.__doc__) == ("command", "Do it.")


@pytest.mark.parametrize(
    ("arguments", "outer"),
    [
        ([], Outer()),
        (["--limit", 4, "--quick"], Outer(limit=4, quick=True)),
        (["--size", 1, "--name", "a", "--name", "b"], Outer(inner=Inner(1, ["a", "b"]))),
    ],
)
def test_groups_within_groups_are_filled(arguments, outer):
    seen = []

    def command(model: str, *, outer: Outer, last: Annotated[int, typer.Option("--last")] = 7) -> None:
        seen.append((model, outer, last))

    run(command, "m", *arguments, "--last", 8)
    assert seen == [("m", outer, 8)]


def test_a_derived_group_has_its_own_default():
    seen = []

    def command(model: str, *, inner: Larger) -> None:
        seen.append(inner)

    run(command, "m")
    run(command, "m", "--size", 4)
    assert seen == [Larger(5), Larger(4)]


def test_a_list_of_one_call_is_not_that_of_the_next():
    seen = []

    def command(model: str, *, inner: Inner) -> None:
        inner.names.append(model)
        seen.append(inner.names)

    taken = with_groups(command)
    app = typer.Typer()
    app.command()(taken)
    for model in ("a", "b"):
        CliRunner().invoke(app, [model])
    assert seen == [["a"], ["b"]]


def test_a_command_without_groups_is_as_it_was():
    seen = []

    def command(model: str, times: int = 2) -> None:
        seen.append((model, times))

    run(command, "m", "--times", 3)
    assert seen == [("m", 3)]
