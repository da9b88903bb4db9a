"""`detent.emulate`."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import onnx

from detent.emulator.emulator import emulate as run_emulation
from detent.numerics.rounding import DeviceRounding
from detent.observe.preprocess import PreprocessOptions, preprocess_options
from detent.progress import Progress, silent
from detent.results.compared import Emulation


def emulate(
    model: str | PathLike[str] | onnx.ModelProto,
    data: Any = None,
    output: str | PathLike[str] | None = None,
    *,
    rounding: DeviceRounding = "half-even",
    preprocess: PreprocessOptions | Mapping[str, Any] | str | PathLike[str] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
) -> Emulation:
    """Run an XINT8 model in integers, as the NPU does; returns how its answers differ from onnxruntime's.

    Args:
        model: a quantized model in QDQ form, 8 bits with power-of-two scales; a path, or a ModelProto.
        data: as the calibration data of `quantize`; None for random data.
        output: a folder to write each answer into, as .npy; None: none is written.
        rounding: "half-even", as the file says, or "dpu": ties upwards.
        preprocess: how images become arrays, as for `quantize`.
        limit: use at most this many samples.
        seed: choose them at random with this seed, instead of evenly spaced.
        batch: samples per run.
        progress: called as progress(stage, done, total).

    For single runs, and the codes of every tensor, there is `detent.Emulator`.

    Raises:
        DetentError: UsageError, ModelError, DataError or OutputError.
    """
    return run_emulation(
        model if isinstance(model, onnx.ModelProto) else Path(model),
        data,
        rounding=rounding,
        output=None if output is None else Path(output),
        preprocess=preprocess_options(preprocess),
        limit=limit,
        seed=seed,
        batch=batch,
        progress=progress or silent,
    )
