"""The options that choose a recipe and change it, as groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from detent.errors import UsageError

if TYPE_CHECKING:
    from detent.recipe import Recipe

ACCURACY = "Accuracy"

Settings = Annotated[
    list[str],
    typer.Option("--set", help="Change the recipe: weights.granularity=per_channel.", metavar="FIELD=VALUE"),
]


Rounding = Annotated[
    str | None,
    typer.Option(
        "--rounding",
        help="The device's: half-even, as the file says, or dpu, ties upwards.",
        metavar="NAME",
        rich_help_panel=ACCURACY,
    ),
]


@dataclass(frozen=True)
class RecipeOptions:
    """A recipe by its name or file, with settings. A command with another default, or another use, derives from it."""

    recipe: Annotated[str, typer.Option("--recipe", help="A name that `detent recipes` lists, or a .toml file.")] = (
        "XINT8"
    )
    settings: Settings = field(default_factory=list)

    def chosen(self) -> Recipe:
        """The recipe."""
        return change_recipe(self.recipe, self.settings)


@dataclass(frozen=True)
class AccuracyOptions:
    """What is done for accuracy, where it is not as the recipe says."""

    equalize: Annotated[
        bool | None,
        typer.Option(
            "--equalize/--no-equalize", help="Rescale channels first, all layers at once.", rich_help_panel=ACCURACY
        ),
    ] = None
    equalize_with: Annotated[
        str | None,
        typer.Option(
            "--equalize-with",
            help="Or in this way: GlobalEqualization, CrossLayer (with settings: CrossLayer:steps=3), or none.",
            metavar="NAME",
            rich_help_panel=ACCURACY,
        ),
    ] = None
    smooth: Annotated[
        float | None,
        typer.Option(
            "--smooth",
            help="SmoothQuant, with this alpha; for transformers.",
            metavar="ALPHA",
            rich_help_panel=ACCURACY,
        ),
    ] = None
    search_ranges: Annotated[
        bool | None,
        typer.Option(
            "--search-ranges/--no-search-ranges",
            help="Choose activations' scales by the error at the output.",
            rich_help_panel=ACCURACY,
        ),
    ] = None
    refine: Annotated[
        str | None,
        typer.Option(
            "--refine",
            help="BiasCorrection, Rounding, Gptq, AdaRound, AdaQuant (with settings: Rounding:rows=128), or none.",
            metavar="NAME",
            rich_help_panel=ACCURACY,
        ),
    ] = None
    no_bias_correction: Annotated[
        bool,
        typer.Option("--no-bias-correction", help="Keep biases: --refine none.", rich_help_panel=ACCURACY),
    ] = False

    def equalization(self) -> str | bool | None:
        """What --equalize, --no-equalize and --equalize-with say together; None where none of them was given."""
        from detent.equalizations import parse_equalization

        switch, name = self.equalize, self.equalize_with
        if name is None:
            return switch
        if switch is not None and switch != (parse_equalization(name) is not None):
            flag = "--equalize" if switch else "--no-equalize"
            raise UsageError(f"{flag} and --equalize-with {name} contradict each other: give one of them.")
        return name


@dataclass(frozen=True)
class RecipeFlags:
    """A recipe, and each of its fields that has a flag of its own."""

    base: RecipeOptions = field(default_factory=RecipeOptions)
    target: Annotated[
        str | None, typer.Option("--target", help="npu-xint8, npu-a8w8, npu-a16w8, npu-vaiml, npu-bf16 or cpu.")
    ] = None
    method: Annotated[str | None, typer.Option("--method", help="MinMSE, Percentile:percentile=99.99, ...")] = None
    activations: Annotated[
        str | None, typer.Option("--activations", help="int8, uint16, bfloat16, ..., if not the recipe's.")
    ] = None
    form: Annotated[
        str | None, typer.Option("--format", help="qdq, qoperator, extended-qdq, vitis-qdq, fix-neuron, ...")
    ] = None
    opset: Annotated[int | None, typer.Option("--opset", help="The least operator set of the result.")] = None
    accuracy: AccuracyOptions = field(default_factory=AccuracyOptions)
    rounding: Rounding = None

    def chosen(self) -> Recipe:
        """The recipe with all that was changed."""
        recipe = change_recipe(
            self.base.recipe,
            self.base.settings,
            target=self.target,
            method=self.method,
            activations=self.activations,
            format=self.form,
            opset=self.opset,
            equalize=self.accuracy.equalization(),
            smooth=self.accuracy.smooth,
            search_ranges=self.accuracy.search_ranges,
            refinement=self.accuracy.refine,
            rounding=self.rounding,
        )
        return _without_bias_correction(recipe) if self.accuracy.no_bias_correction else recipe


def change_recipe(name: str, settings: Sequence[str], **flags: object) -> Recipe:
    """The recipe of a name or file, with the fields that --set and the flags (where given) change."""
    from detent.recipe_file import change, find_recipe, with_settings

    given = {field: value for field, value in flags.items() if value is not None}
    return change(with_settings(find_recipe(name), settings), given)


def _without_bias_correction(recipe: Recipe) -> Recipe:
    """The recipe of --no-bias-correction. Other refinements set biases along with the weights: they need them."""

    if recipe.refinement is None or not recipe.refinement.learns_weights:
        return recipe.replace(refinement=None)
    raise UsageError(
        f"{type(recipe.refinement).__name__} corrects biases along with the weights, so --no-bias-correction cannot be "
        "had with it. Give --refine none, or leave --no-bias-correction out."
    )
