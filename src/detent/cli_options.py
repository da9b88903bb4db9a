"""Options that several commands share: one spelling and one meaning for each, everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detent.errors import UsageError

if TYPE_CHECKING:
    from detent.recipe import Recipe
    from detent.report.page.page import Result

DATA = "Data"
NODES = "Which nodes"
CALIBRATION = "Calibration"
ACCURACY = "Accuracy"

Equalize = Annotated[
    bool | None,
    typer.Option(
        "--equalize/--no-equalize", help="Rescale channels first, all layers at once.", rich_help_panel=ACCURACY
    ),
]
EqualizeWith = Annotated[
    str | None,
    typer.Option(
        "--equalize-with",
        help="Or in this way: GlobalEqualization, CrossLayer (with settings: CrossLayer:steps=3), or none.",
        metavar="NAME",
        rich_help_panel=ACCURACY,
    ),
]
Refine = Annotated[
    str | None,
    typer.Option(
        "--refine",
        help="BiasCorrection, Rounding, Gptq, AdaRound, AdaQuant (with settings: Rounding:rows=128), or none.",
        metavar="NAME",
        rich_help_panel=ACCURACY,
    ),
]
NoBiasCorrection = Annotated[
    bool,
    typer.Option("--no-bias-correction", help="Keep biases: --refine none.", rich_help_panel=ACCURACY),
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", help="What --refine may use; default 2GB.", metavar="AMOUNT", rich_help_panel=ACCURACY),
]
Smooth = Annotated[
    float | None,
    typer.Option(
        "--smooth", help="SmoothQuant, with this alpha; for transformers.", metavar="ALPHA", rich_help_panel=ACCURACY
    ),
]
SearchRanges = Annotated[
    bool | None,
    typer.Option(
        "--search-ranges/--no-search-ranges",
        help="Choose activations' scales by the error at the output.",
        rich_help_panel=ACCURACY,
    ),
]
Settings = Annotated[
    list[str],
    typer.Option("--set", help="Change the recipe: weights.granularity=per_channel.", metavar="FIELD=VALUE"),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="Use at most N samples.", metavar="N", rich_help_panel=DATA)
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Choose them at random with this seed (else: evenly spaced).", rich_help_panel=DATA),
]
Batch = Annotated[int | None, typer.Option("--batch", min=1, help="Samples per inference.", rich_help_panel=DATA)]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Count in N processes.", metavar="N", rich_help_panel=CALIBRATION),
]
Dask = Annotated[
    str | None,
    typer.Option("--dask", help="Count on a Dask cluster.", metavar="ADDRESS", rich_help_panel=CALIBRATION),
]
Providers = Annotated[
    list[str],
    typer.Option("--providers", help="onnxruntime's.", metavar="PROVIDER", rich_help_panel=CALIBRATION),
]
RuntimeProviders = Annotated[list[str], typer.Option("--providers", help="onnxruntime's.", metavar="PROVIDER")]
Stats = Annotated[
    Path | None,
    typer.Option("--stats", help="Use these statistics instead of counting.", rich_help_panel=CALIBRATION),
]
SaveStats = Annotated[
    Path | None, typer.Option("--save-stats", help="Keep the statistics in this file.", rich_help_panel=CALIBRATION)
]
ContinueCounting = Annotated[
    bool,
    typer.Option("--resume/--no-resume", help="Continue an interrupted run.", rich_help_panel=CALIBRATION),
]
Html = Annotated[
    Path | None,
    typer.Option("--html", help="Also write a page for a browser: one file, with pictures.", metavar="FILE"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def check_page(html: Path | None, *others: Path | None) -> None:
    """Refuse, before any work is done, a page that could not be written or that would destroy another file."""
    from detent.graph.save import check_output

    if html is not None:
        check_output(html, *others)


def write_html(result: Result, html: Path | None) -> None:
    """Write the page of a result, where one was asked for."""
    from detent.report.page import write_page

    if html is not None:
        write_page(result, html)


def change_recipe(name: str, settings: Sequence[str], **flags: object) -> Recipe:
    """The recipe of a name or file, with the fields that --set and the flags (where given) change."""
    from detent.recipe_file import change, find_recipe, with_settings

    given = {field: value for field, value in flags.items() if value is not None}
    return change(with_settings(find_recipe(name), settings), given)


def equalization(switch: bool | None, name: str | None) -> str | bool | None:
    """What --equalize, --no-equalize and --equalize-with say together; None where none of them was given."""
    from detent.equalizations import parse_equalization

    if name is None:
        return switch
    if switch is not None and switch != (parse_equalization(name) is not None):
        flag = "--equalize" if switch else "--no-equalize"
        raise UsageError(f"{flag} and --equalize-with {name} contradict each other: give one of them.")
    return name


def without_bias_correction(recipe: Recipe) -> Recipe:
    """The recipe of --no-bias-correction. Other refinements set biases along with the weights: they need them."""
    from detent.refinements import BiasCorrection

    if recipe.refinement is None or isinstance(recipe.refinement, BiasCorrection):
        return recipe.replace(refinement=None)
    raise UsageError(
        f"{type(recipe.refinement).__name__} corrects biases along with the weights, so --no-bias-correction cannot be "
        "had with it. Give --refine none, or leave --no-bias-correction out."
    )


def numbers(text: str, option: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} '{text}': expected numbers separated by commas, such as 0.5,0.5,0.5.") from None


def whole_numbers(text: str, option: str) -> list[int]:
    """Whole numbers separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} '{text}': expected whole numbers separated by commas, such as 224,224.") from None


def shapes(assignments: Sequence[str]) -> dict[str, list[int]] | None:
    """`input=1,3,224,224` for each input."""
    found: dict[str, list[int]] = {}
    for assignment in assignments:
        name, separator, dims = assignment.rpartition("=")
        if not separator or not name:
            raise UsageError(f"--fix-shape '{assignment}': expected INPUT=D,D,..., such as input=1,3,224,224.")
        found[name] = whole_numbers(dims, "--fix-shape")
    return found or None


def error_of(text: str) -> float:
    """An error as noise power over signal power, from that or from decibels: -20dB is 0.01."""
    number, is_decibels = text.strip().lower(), False
    if number.endswith("db"):
        number, is_decibels = number[:-2], True
    try:
        value = float(number)
    except ValueError:
        raise UsageError(f"--max-error '{text}': expected decibels such as -25dB, or a number such as 0.003.") from None
    if is_decibels and not value < 0:
        raise UsageError(f"--max-error {text}: the error would be as large as the signal. Decibels are below 0: -25dB.")
    if not is_decibels and not value > 0:
        raise UsageError(f"--max-error {text}: a power above 0, such as 0.003. Decibels are written -25dB.")
    return 10 ** (value / 10) if is_decibels else value
