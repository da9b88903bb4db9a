"""Detent quantizes trained ONNX models for NPUs.

import detent
report = detent.quantize("model.onnx", "model_int8.onnx", calibration="images/", recipe="XINT8")
print(report)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from detent.errors import DataError, DetentError, ModelError, OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    import onnx

    from detent.observe.preprocess import PreprocessOptions
    from detent.progress import Progress
    from detent.recipe import Recipe
    from detent.report.report import Report

__version__ = "0.1.0"

__all__ = ["DataError", "DetentError", "ModelError", "OutputError", "UsageError", "__version__", "quantize"]


def quantize(
    model: str | PathLike[str] | onnx.ModelProto,
    output: str | PathLike[str] | None = None,
    calibration: Any = None,
    recipe: str | Recipe = "XINT8",
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    op_types: Sequence[str] = (),
    start: Sequence[str] = (),
    end: Sequence[str] = (),
    target: str | None = None,
    preprocess: PreprocessOptions | None = None,
    fix_shapes: Mapping[str, Sequence[int]] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Quantize `model` and write it to `output`; returns what was done and what it cost.

    Args:
        model: a path, or a ModelProto. Never modified.
        output: where to write; None: the quantized model is `report.model`.
        calibration: a folder of images, .npy or .npz; a file; an array; `{input: array}`; any iterable of these; a
            torch DataLoader; an onnxruntime CalibrationDataReader; None for random data (the accuracy is not real).
        recipe: a name, such as "XINT8", or a Recipe.
        include: quantize only nodes whose names match one of these patterns (`*` and `?` as in file names).
        exclude: leave the nodes that match float.
        op_types: quantize only these operator types.
        start: quantize only what depends on these nodes, themselves included.
        end: quantize only what these nodes depend on, themselves included.
        target: the device, if another than the recipe's: "npu-cnn" or "cpu".
        preprocess: how images become arrays; what is not said is guessed from the model's input, and reported.
        fix_shapes: input shapes to write into the model, such as {"input": (1, 3, 224, 224)}.
        limit: use at most this many samples.
        seed: choose them at random with this seed, instead of evenly spaced.
        batch: samples per inference.
        threads: worker threads; 0: one per core.
        dry_run: only decide; run and write nothing.
        progress: called as progress(stage, done, total).

    Raises:
        DetentError: UsageError, ModelError, DataError or OutputError; no output is left behind.
    """
    import onnx

    from detent.pipeline import Job, run
    from detent.plan.select import Selection
    from detent.presets import find_recipe
    from detent.progress import silent

    chosen = find_recipe(recipe)
    return run(
        Job(
            model=model if isinstance(model, onnx.ModelProto) else Path(model),
            output=None if output is None else Path(output),
            recipe=chosen if target is None else chosen.replace(target=target),
            calibration=calibration,
            preprocess=preprocess,
            selection=Selection(tuple(include), tuple(exclude), tuple(op_types), tuple(start), tuple(end)),
            fix_shapes=fix_shapes,
            limit=limit,
            seed=seed,
            batch=batch,
            threads=threads,
            dry_run=dry_run,
            progress=progress or silent,
        )
    )
