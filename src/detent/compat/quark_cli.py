"""`detent run quark-cli onnx-ptq ...`: Quark's command line, as the configurations that its commands stand for.

onnx-ptq        quantizes with a preset; images or arrays calibrate
onnx-validate   compares the answers of two folders
others          are refused, with what to do instead
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from detent.compat.configs import get_default_config
from detent.compat.entry_points import ModelQuantizer
from detent.compat.enums import CalibrationMethod, PowerOfTwoMethod
from detent.compat.option_rows import note
from detent.compat.tools import evaluate, parse_subgraphs
from detent.errors import UsageError, nearest

_INSTEAD = {
    "export-onnx": "Export the model with its own framework: torch.onnx.export.",
    "export-oga": "Export the model with its own framework.",
    "onnx-autosearch": "`detent tune MODEL OUTPUT --calib DATA` searches; AutoSearchPro in a script does, too.",
    "onnx-prepare-data": "`--calib_data_path` takes a folder of images or arrays as it is.",
    "torch-llm-ptq": "Detent quantizes ONNX models.",
    "shapeshifter": "`detent convert MODEL OUTPUT --to STEP` has its passes.",
}
_METHODS = {
    "minmse": PowerOfTwoMethod.MinMSE,
    "nonoverflow": PowerOfTwoMethod.NonOverflow,
    **{member.name.lower(): member for member in CalibrationMethod},
}


def main(arguments: Sequence[str]) -> None:
    """Run one of the commands."""
    commands = {"onnx-ptq": onnx_ptq, "onnx-validate": evaluate}
    name = arguments[0] if arguments else ""
    if name in commands:
        commands[name](arguments[1:])
        return
    known = (*commands, *_INSTEAD)
    raise UsageError(
        f"quark-cli {name}: {_INSTEAD[name]}"
        if name in _INSTEAD
        else f"quark-cli has no command '{name}'.{nearest(name, known)} There are {', '.join(known)}."
    )


def onnx_ptq(arguments: Sequence[str]) -> None:
    """Quantize with a preset, as `quark-cli onnx-ptq` does."""
    parser = argparse.ArgumentParser("quark-cli onnx-ptq")
    parser.add_argument("--input_model_path", required=True)
    parser.add_argument("--output_model_path", default="quantized.onnx")
    parser.add_argument("--config", default="XINT8")
    parser.add_argument("--calib_data_path", "--calibration_dataset_path")
    parser.add_argument("--calib_method", default="")
    parser.add_argument("--num_calib_data", type=int, default=1000)
    parser.add_argument("--exclude_nodes", default="")
    parser.add_argument("--exclude_subgraphs", default="")
    parser.add_argument("--learning_rate", type=float)
    parser.add_argument("--num_iters", type=int)
    parser.add_argument("--sq_alpha", type=float, default=0.5)
    parser.add_argument("--cle", "--include_cle", action="store_true")
    for flag in ("adaround", "adaquant", "use_moving_average", "include_sq", "use_gptq", "save_as_external_data"):
        parser.add_argument(f"--{flag}", action="store_true")
    given, others = parser.parse_known_args(list(arguments))
    if others:
        note(f"quark-cli onnx-ptq: {' '.join(others)} is passed over.")
    config = get_default_config(given.config)
    config.nodes_to_exclude = [name.strip() for name in given.exclude_nodes.split(";") if name.strip()]
    config.subgraphs_to_exclude = parse_subgraphs(given.exclude_subgraphs)
    config.include_cle, config.include_sq = given.cle, given.include_sq
    config.use_external_data_format = given.save_as_external_data
    if given.calib_method:
        if given.calib_method.lower() not in _METHODS:
            raise UsageError(f"--calib_method {given.calib_method}: choose from {', '.join(_METHODS)}.")
        config.calibrate_method = _METHODS[given.calib_method.lower()]
    options = {
        "CalibDataSize": given.num_calib_data,
        "CalibMovingAverage": given.use_moving_average or None,
        "SmoothAlpha": given.sq_alpha if given.include_sq else None,
        "UseGPTQ": given.use_gptq or None,
    }
    config.extra_options |= {name: value for name, value in options.items() if value is not None}
    if given.adaround or given.adaquant:
        config.include_fast_ft = True
        tuning = {
            "OptimAlgorithm": "adaquant" if given.adaquant else "adaround",
            "NumIterations": given.num_iters,
            "LearningRate": given.learning_rate,
        }
        config.extra_options["FastFinetune"] = {name: value for name, value in tuning.items() if value is not None}
    ModelQuantizer(config).quantize_model(
        given.input_model_path, given.output_model_path, calibration_data_path=given.calib_data_path
    )
