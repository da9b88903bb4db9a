"""The options that say how images are read, as one group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detent.commands.options import DATA
from detent.commands.parsing import numbers, whole_numbers
from detent.errors import UsageError

if TYPE_CHECKING:
    from detent.observe.preprocess import PreprocessOptions


@dataclass(frozen=True)
class ImageOptions:
    """--preprocess, --size, --mean and the others, as they were written."""

    preprocess: Annotated[
        Path | None,
        typer.Option(
            "--preprocess", help="JSON with size, mean, std, order, ... instead of the flags.", rich_help_panel=DATA
        ),
    ] = None
    size: Annotated[
        str | None, typer.Option("--size", help="Image size: 224 or H,W.", metavar="SIZE", rich_help_panel=DATA)
    ] = None
    resize: Annotated[
        int | None, typer.Option("--resize", help="Short side before the centre crop.", rich_help_panel=DATA)
    ] = None
    mean: Annotated[
        str | None,
        typer.Option("--mean", help="One number or R,G,B, on 0..255.", metavar="NUMBERS", rich_help_panel=DATA),
    ] = None
    std: Annotated[
        str | None,
        typer.Option("--std", help="One number or R,G,B, on 0..255.", metavar="NUMBERS", rich_help_panel=DATA),
    ] = None
    order: Annotated[
        str | None, typer.Option("--order", help="RGB, BGR or GRAY.", metavar="ORDER", rich_help_panel=DATA)
    ] = None
    layout: Annotated[
        str | None, typer.Option("--layout", help="NCHW or NHWC.", metavar="LAYOUT", rich_help_panel=DATA)
    ] = None
    resample: Annotated[
        str | None,
        typer.Option("--resample", help="bilinear, bicubic, nearest, ...", metavar="FILTER", rich_help_panel=DATA),
    ] = None

    def parsed(self) -> PreprocessOptions:
        """The flags as one value. Spelling is checked here, meaning where the model's input is known."""
        from detent.observe.preprocess import PreprocessOptions

        sides = None if self.size is None else whole_numbers(self.size, "--size")
        if sides is not None and len(sides) > 2:
            raise UsageError(f"--size '{self.size}': expected one number or H,W.")
        return PreprocessOptions(
            size=None if sides is None else sides[0] if len(sides) == 1 else (sides[0], sides[1]),
            resize=self.resize,
            mean=None if self.mean is None else tuple(numbers(self.mean, "--mean")),
            std=None if self.std is None else tuple(numbers(self.std, "--std")),
            order=None if self.order is None else self.order.upper(),  # type: ignore[arg-type]
            layout=None if self.layout is None else self.layout.upper(),  # type: ignore[arg-type]
            resample=None if self.resample is None else self.resample.lower(),  # type: ignore[arg-type]
            file=self.preprocess,
        )
