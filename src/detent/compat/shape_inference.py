"""onnxruntime's preparation of a float model, done by Detent's: what it folds and infers, and more.

detent run -m onnxruntime.quantization.preprocess --input MODEL --output MODEL
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

import onnx

from detent.errors import UsageError
from detent.graph.load import ModelLike, load
from detent.graph.save import check_output, complete_proto, save
from detent.prepare import InferShapes, Pass, default_passes, prepare

LOG = logging.getLogger(__name__)
_SWITCHES = ("skip_optimization", "skip_onnx_shape", "skip_symbolic_shape", "auto_merge", "guess_output_rank")


def quant_pre_process(
    input_model: ModelLike | None = None,
    output_model_path: str | Path | None = None,
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,  # noqa: ARG001 - a conflict leaves a dimension open, it is never an error
    int_max: int = 2**31 - 1,  # noqa: ARG001 - a bound for symbolic arithmetic, which is not done
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    *,
    input_model_path: ModelLike | None = None,
) -> None:
    """Fold and rewrite `input_model` without changing what it computes, infer its shapes, and write it.

    `skip_optimization` leaves out the rewrites; shapes are inferred unless both kinds of inference are skipped.
    `verbose` 1 logs what was declined, 3 what was done. `input_model_path` is the older name of `input_model`.
    """
    model_input = input_model if input_model is not None else input_model_path
    if model_input is None or output_model_path is None:
        raise UsageError("quant_pre_process needs input_model and output_model_path.")
    if guess_output_rank:
        raise UsageError("quant_pre_process: guess_output_rank=True. Detent does not guess shapes: delete it.")
    output = Path(output_model_path)
    check_output(output)
    model = load(model_input)
    passes = _passes(skip_optimization, skip_shapes=skip_onnx_shape and skip_symbolic_shape)
    changes = prepare(model, passes)
    if verbose >= 1:
        for note in (note for step in passes for note in step.declined):
            LOG.warning("%s: %s", note.node, note.what)
    if verbose >= 3:
        for change in changes:
            LOG.info("%s: %s", change.node, change.what)
    if not save_as_external_data:
        save(model, output)
        return
    named = external_data_location is not None and external_data_location not in ("", "./", ".")
    location = str(external_data_location) if named else f"{output.name}.data"
    proto = complete_proto(model)  # its tensors may be in the very file that is written
    if all_tensors_to_one_file:
        (output.parent / location).unlink(missing_ok=True)  # onnx would add to what an earlier run left
    onnx.save_model(
        proto,
        output,
        save_as_external_data=True,
        all_tensors_to_one_file=all_tensors_to_one_file,
        location=location,
        size_threshold=external_data_size_threshold,
    )


def _passes(skip_optimization: bool, skip_shapes: bool) -> list[Pass]:
    if skip_optimization:
        return [] if skip_shapes else [InferShapes()]
    return [step for step in default_passes(None, []) if not (skip_shapes and isinstance(step, InferShapes))]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `quant_pre_process` with its arguments as flags."""
    parser = argparse.ArgumentParser("onnxruntime.quantization.preprocess")
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    for name in (*_SWITCHES, "save_as_external_data", "all_tensors_to_one_file"):
        parser.add_argument(f"--{name}", type=_truth, default=False)
    parser.add_argument("--int_max", type=int, default=2**31 - 1)
    parser.add_argument("--verbose", type=int, default=0)
    parser.add_argument("--external_data_location")
    parser.add_argument("--external_data_size_threshold", type=int, default=1024)
    given = vars(parser.parse_args(arguments))
    quant_pre_process(given.pop("input"), given.pop("output"), **given)


def _truth(text: str) -> bool:
    """Read True and False as words: `bool` would take any of them for True."""
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"'{text}' is neither True nor False") from None
