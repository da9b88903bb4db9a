from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner
from typing_extensions import TypedDict, Unpack

from detent.cli.console import flattened
from detent.options import Flag, OldName, PythonOnly


@dataclass(frozen=True)
class Inner:
    size: Annotated[int, typer.Option("--size")] = 3
    name: Annotated[str | None, typer.Option("--name")] = None


@dataclass(frozen=True)
class Outer:
    most: Annotated[int | None, typer.Option("--most")] = None
    inner: Inner = Inner()
    quick: Annotated[bool, typer.Option("--quick")] = False


@dataclass(frozen=True)
class Larger(Inner):
    """The same options, one with another default."""

    size: Annotated[int, typer.Option("--size")] = 5


def run(command, *arguments):
    app = typer.Typer()
    app.command()(flattened(command))
    outcome = CliRunner().invoke(app, [str(each) for each in arguments])
    assert outcome.exit_code == 0, outcome.output


def test_a_group_stands_behind_the_other_arguments():
    def command(model: str, *, outer: Outer, last: Annotated[int, typer.Option("--last")]) -> None:
        """Do it."""

    taken = flattened(command)
    assert list(taken.__annotations__) == ["model", "last", "most", "size", "name", "quick"]
    assert (taken.__name__, taken.__doc__) == ("command", "Do it.")


@pytest.mark.parametrize(
    ("arguments", "outer"),
    [
        ([], Outer()),
        (["--most", 4, "--quick"], Outer(most=4, quick=True)),
        (["--size", 1, "--name", "a"], Outer(inner=Inner(1, "a"))),
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


class Base(TypedDict, total=False):
    limit: Annotated[int | None, Flag("At most.", minimum=1)]
    executor: Annotated[object, PythonOnly("workers")]


class Options(Base, total=False):
    shape: Annotated[dict[str, int] | None, Flag("Shape.", reads=list[str])]
    shapes: Annotated[dict[str, int] | None, OldName("shape")]
    order: Annotated[str, Flag("Order.", "--in-order", default="up")]
    labels: Annotated[str, Flag("Labels.", default="find", hidden=True)]


def command(model: str, *, outer: Outer, **options: Unpack[Options]) -> None:
    command.seen = (model, outer, options)


def test_every_flag_of_a_class_of_options_is_a_parameter():
    assert list(flattened(command).__annotations__) == [
        "model", "limit", "shape", "order", "labels", "most", "size", "name", "quick"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ([], {"order": "up"}),
        (["--limit", 2, "--in-order", "down"], {"limit": 2, "order": "down"}),
        (
            ["--shape", "a=1", "--shape", "b=2", "--labels", "l"],
            {"shape": ["a=1", "b=2"], "labels": "l", "order": "up"},
        ),
    ],
)
def test_what_is_not_given_is_not_passed_on(arguments, given):
    run(command, "m", *arguments)
    assert command.seen[0] == "m"
    assert command.seen[2] == given


def test_a_command_without_groups_is_as_it_was():
    seen = []

    def command(model: str, times: int = 2) -> None:
        seen.append((model, times))

    run(command, "m", "--times", 3)
    assert seen == [("m", 3)]
