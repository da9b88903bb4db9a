"""Arguments and options that several commands have: one spelling and one meaning for each, everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DATA = "Data"
CALIBRATION = "Calibration"

FloatModel = Annotated[Path, typer.Argument(help="The float ONNX model.", metavar="MODEL")]
AnyModel = Annotated[Path, typer.Argument(help="A float or quantized ONNX model.", metavar="MODEL")]
QuantizedModel = Annotated[Path, typer.Argument(help="A quantized ONNX model.", metavar="MODEL")]
Output = Annotated[Path, typer.Argument(help="Where to write the result.", metavar="OUTPUT")]
Calib = Annotated[Path | None, typer.Option("--calib", help="Folder of images, .npy or .npz; or one file.")]
DataOrRandom = Annotated[
    Path | None, typer.Option("--data", help="Folder of images, .npy or .npz; or one file. Without: random data.")
]
Metric = Annotated[
    Path | None,
    typer.Option("--metric", help="A Python file with score(outputs, sample) or metric(outputs, labels)."),
]
LabelOffset = Annotated[
    int, typer.Option("--label-offset", help="Add N to every label (1001 classes: 1).", rich_help_panel=DATA)
]
FixShape = Annotated[
    list[str], typer.Option(help="Make a dynamic shape fixed: input=1,3,224,224.", metavar="INPUT=DIMS")
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="Use at most N samples.", metavar="N", rich_help_panel=DATA)
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Choose them at random with this seed (else: evenly spaced).", rich_help_panel=DATA),
]
Batch = Annotated[int | None, typer.Option("--batch", min=1, help="Samples per inference.", rich_help_panel=DATA)]
Threads = Annotated[int, typer.Option(min=0, help="Worker threads; 0: one per core.")]
MeasuredSamples = Annotated[int, typer.Option(min=1, help="Measure on up to N samples.", metavar="N")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
