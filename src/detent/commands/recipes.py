"""The command `detent recipes`."""

from __future__ import annotations

from typing import Annotated

import typer

from detent.commands import options
from detent.commands.consoles import echo_json, stdout
from detent.commands.recipe_options import Settings, change_recipe
from detent.errors import UsageError


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this one, or that in a .toml file.", metavar="NAME")] = None,
    settings: Settings = [],  # noqa: B006
    toml: Annotated[bool, typer.Option("--toml", help="Print it as a file to edit.")] = False,
    json: options.Json = False,
) -> None:
    """List the recipes, or show one.

    Example: detent recipes A8W8 --toml > my.toml, then detent quantize MODEL OUTPUT --recipe my.toml
    """
    from detent.presets import PRESETS
    from detent.recipe_file import to_plain, to_toml
    from detent.report.documents import print_result
    from detent.report.listings import recipes_document
    from detent.report.terminal import print_document

    if name is None:
        if toml or settings:
            raise UsageError("Give the NAME of a recipe: `detent recipes XINT8 --toml`.")
        if json:
            echo_json({recipe.name: to_plain(recipe) for recipe in PRESETS.values()})
        else:
            print_document(recipes_document(list(PRESETS.values())), stdout())
        return
    recipe = change_recipe(name, settings)
    if toml:
        typer.echo(to_toml(recipe), nl=False)
    elif json:
        echo_json(to_plain(recipe))
    else:
        print_result(recipe, stdout())
