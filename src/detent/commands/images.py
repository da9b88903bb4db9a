"""The options that say how images are read, as one argument of a command.

    @app.command()
    @takes_images
    def evaluate(..., images: Any = None): ...

gets --preprocess, --size, --mean and the others, and finds them in `images` as PreprocessOptions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from detent.commands.options import DATA, numbers, whole_numbers
from detent.errors import UsageError

if TYPE_CHECKING:
    from detent.observe.preprocess import PreprocessOptions

ARGUMENT = "images"

PreprocessFile = Annotated[
    Path | None,
    typer.Option(
        "--preprocess", help="JSON with size, mean, std, order, ... instead of the flags.", rich_help_panel=DATA
    ),
]
Size = Annotated[
    str | None, typer.Option("--size", help="Image size: 224 or H,W.", metavar="SIZE", rich_help_panel=DATA)
]
Resize = Annotated[
    int | None, typer.Option("--resize", help="Short side before the centre crop.", rich_help_panel=DATA)
]
Mean = Annotated[
    str | None, typer.Option("--mean", help="One number or R,G,B, on 0..255.", metavar="NUMBERS", rich_help_panel=DATA)
]
Std = Annotated[
    str | None, typer.Option("--std", help="One number or R,G,B, on 0..255.", metavar="NUMBERS", rich_help_panel=DATA)
]
Order = Annotated[str | None, typer.Option("--order", help="RGB, BGR or GRAY.", metavar="ORDER", rich_help_panel=DATA)]
Layout = Annotated[str | None, typer.Option("--layout", help="NCHW or NHWC.", metavar="LAYOUT", rich_help_panel=DATA)]
Resample = Annotated[
    str | None,
    typer.Option("--resample", help="bilinear, bicubic, nearest, ...", metavar="FILTER", rich_help_panel=DATA),
]

OPTIONS = {
    "preprocess": PreprocessFile,
    "size": Size,
    "resize": Resize,
    "mean": Mean,
    "std": Std,
    "order": Order,
    "layout": Layout,
    "resample": Resample,
}


def takes_images(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the image options in the place of its argument `images`."""

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in OPTIONS}
        command(**arguments, images=preprocess_options(given.pop("preprocess"), **given))

    hints = get_type_hints(command, include_extras=True)
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name == ARGUMENT:
            parameters += [parameter.replace(name=name, annotation=hint) for name, hint in OPTIONS.items()]
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what the library reads
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def preprocess_options(
    file: Path | None,
    size: str | None,
    resize: int | None,
    mean: str | None,
    std: str | None,
    order: str | None,
    layout: str | None,
    resample: str | None,
) -> PreprocessOptions:
    """The image flags as one value. Spelling is checked here, meaning where the model's input is known."""
    from detent.observe.preprocess import PreprocessOptions

    sides = None if size is None else whole_numbers(size, "--size")
    if sides is not None and len(sides) > 2:
        raise UsageError(f"--size '{size}': expected one number or H,W.")
    return PreprocessOptions(
        size=None if sides is None else sides[0] if len(sides) == 1 else (sides[0], sides[1]),
        resize=resize,
        mean=None if mean is None else tuple(numbers(mean, "--mean")),
        std=None if std is None else tuple(numbers(std, "--std")),
        order=None if order is None else order.upper(),  # type: ignore[arg-type]
        layout=None if layout is None else layout.upper(),  # type: ignore[arg-type]
        resample=None if resample is None else resample.lower(),  # type: ignore[arg-type]
        file=file,
    )
