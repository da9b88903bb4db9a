"""The commands `detent emulate` and `detent dump`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detent.commands import options
from detent.commands.images import takes_images

if TYPE_CHECKING:
    from rich.console import Console

Quantized = Annotated[Path, typer.Argument(help="A quantized ONNX model.", metavar="MODEL")]
Data = Annotated[
    Path | None, typer.Option("--data", help="Folder of images, .npy or .npz; or one file. Without: random data.")
]


def register(app: typer.Typer, stdout: Callable[[], Console], stderr: Callable[[], Console]) -> None:
    """Add the commands to the application; `stdout` and `stderr` make the consoles that they print to."""
    _register_emulate(app, stdout, stderr)
    _register_dump(app, stdout)


def _register_emulate(app: typer.Typer, stdout: Callable[[], Console], stderr: Callable[[], Console]) -> None:
    @app.command()
    @takes_images
    def emulate(
        model: Quantized,
        data: Data = None,
        out: Annotated[
            Path | None, typer.Option("--out", help="Write each answer into this folder, as .npy.", metavar="DIR")
        ] = None,
        rounding: Annotated[
            str, typer.Option("--rounding", help="half-even, as the file says, or dpu: ties upwards.")
        ] = "half-even",
        limit: options.Limit = None,
        seed: options.Seed = None,
        batch: options.Batch = None,
        images: Any = None,
        json: options.Json = False,
    ) -> None:
        """Run an XINT8 MODEL in integers, as the NPU does, and compare its answers with onnxruntime's.

        Example: detent emulate mobilenetv2_int8.onnx --data images/ --out answers/ --rounding dpu
        """
        import detent
        from detent.progress_bar import progress_bar
        from detent.report.emulation_view import print_emulation

        with progress_bar(stderr()) as progress:
            done = detent.emulate(
                model,
                data,
                out,
                rounding=rounding,  # type: ignore[arg-type]  # any text; checked by the emulator
                preprocess=images,
                limit=limit,
                seed=seed,
                batch=batch,
                progress=progress,
            )
        if json:
            _echo_json(done.to_dict())
            return
        print_emulation(done, stdout())


def _register_dump(app: typer.Typer, stdout: Callable[[], Console]) -> None:
    @app.command()
    @takes_images
    def dump(
        model: Quantized,
        out: Annotated[Path, typer.Option("--out", help="The folder to write into.", metavar="DIR")],
        data: Data = None,
        floats: Annotated[bool, typer.Option("--float", help="Also write every float value.")] = False,
        rounding: Annotated[
            str | None,
            typer.Option("--rounding", help="Compute in integers, with this rounding: half-even or dpu."),
        ] = None,
        images: Any = None,
        json: options.Json = False,
    ) -> None:
        """Write the codes of every tensor of a quantized MODEL for the first sample, as .bin and .txt.

        Example: detent dump mobilenetv2_int8.onnx --data images/ --out codes/ --rounding dpu
        """
        from detent.graph.load import load
        from detent.measure.dump import dump_codes
        from detent.observe.inputs import input_specs
        from detent.observe.sources import open_source
        from detent.report.emulation_view import print_dump

        source = open_source(data, input_specs(load(model)), preprocess=images)
        sample = next(iter(source)).load()
        done = dump_codes(
            model,
            sample.feeds,
            out,
            floats=floats,
            rounding=rounding,  # type: ignore[arg-type]  # any text; checked by the emulator
            origin=sample.origin,
        )
        if json:
            _echo_json(done.to_dict())
            return
        print_dump(done, stdout())


def _echo_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))
