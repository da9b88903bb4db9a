"""The commands `detent emulate` and `detent dump`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detent.commands import options
from detent.commands.consoles import echo_json, stderr, stdout
from detent.commands.images import ImageOptions
from detent.commands.samples import SampleOptions


def emulate(
    model: options.QuantizedModel,
    *,
    data: options.DataOrRandom = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write each answer as .npy; a new or empty folder.", metavar="DIR")
    ] = None,
    rounding: Annotated[
        str, typer.Option("--rounding", help="half-even, as the file says, or dpu: ties upwards.")
    ] = "half-even",
    samples: SampleOptions,
    json: options.Json = False,
) -> None:
    """Run an XINT8 MODEL in integers, as the NPU does, and compare its answers with onnxruntime's.

    Example: detent emulate mobilenetv2_int8.onnx --data images/ --out answers/ --rounding dpu
    """
    import detent
    from detent.commands.progress_bar import progress_bar
    from detent.report.documents import print_result

    with progress_bar(stderr()) as progress:
        done = detent.emulate(
            model,
            data,
            out,
            rounding=rounding,  # type: ignore[arg-type]  # any text; checked by the emulator
            **samples.given(),
            progress=progress,
        )
    if json:
        echo_json(done.to_dict())
    else:
        print_result(done, stdout())


def dump(
    model: options.QuantizedModel,
    *,
    out: Annotated[Path, typer.Option("--out", help="Where to write; a new or empty folder.", metavar="DIR")],
    data: options.DataOrRandom = None,
    floats: Annotated[bool, typer.Option("--float", help="Also write every float value.")] = False,
    rounding: Annotated[
        str | None,
        typer.Option("--rounding", help="Compute in integers, with this rounding: half-even or dpu."),
    ] = None,
    images: ImageOptions,
    json: options.Json = False,
) -> None:
    """Write the codes of every tensor of a quantized MODEL for the first sample, as .bin and .txt.

    Example: detent dump mobilenetv2_int8.onnx --data images/ --out codes/ --rounding dpu
    """
    from detent.comparison.dump import dump_codes
    from detent.graph.load import load
    from detent.observe.inputs import input_specs
    from detent.observe.sources import open_source
    from detent.report.documents import print_result

    source = open_source(data, input_specs(load(model)), preprocess=images.parsed())
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
        echo_json(done.to_dict())
    else:
        print_result(done, stdout())
