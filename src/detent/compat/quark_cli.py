"""`detent run quark-cli onnx-ptq ...`: Quark's command line, as the calls that its commands stand for.

onnx-ptq            quantizes with a preset; images or arrays calibrate
onnx-autosearch     tries calibrations and fine-tunings, and keeps the best
onnx-validate       the accuracy of a model on a folder of images by class
onnx-prepare-data   sorts ImageNet's validation images into folders, and takes one of each to calibrate with
export-onnx         writes a model of timm as ONNX, where torch and timm are installed
shapeshifter        runs the passes of a file; `onnx-adapter` is its older name
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import detent
from detent.compat.auto_search import AutoSearch, AutoSearchConfig
from detent.compat.configs import Config, get_default_config
from detent.compat.entry_points import ModelQuantizer
from detent.compat.enums import CalibrationMethod, LayerWiseMethod, PowerOfTwoMethod
from detent.compat.option_rows import note
from detent.compat.readers import CachedDataReader, PathDataReader
from detent.compat.shapeshifter import run_passes
from detent.compat.tools import parse_subgraphs
from detent.errors import UsageError, check_known

_INSTEAD = {
    "export-oga": "Export the model with its own framework, or with onnxruntime-genai's builder.",
    "torch-llm-ptq": "Detent quantizes ONNX models.",
    "torch-mixed-precision": "Detent quantizes ONNX models: `detent mix`.",
}
_METHODS: dict[str, Any] = {
    "minmse": PowerOfTwoMethod.MinMSE,
    "nonoverflow": PowerOfTwoMethod.NonOverflow,
    "layerwise_percentile": LayerWiseMethod.LayerWisePercentile,
    **{member.name.lower(): member for member in CalibrationMethod},
}


def main(arguments: Sequence[str]) -> None:
    """Run one of the commands."""
    name = arguments[0] if arguments else ""
    check_known("command of quark-cli", name, (*_COMMANDS, *_INSTEAD))
    if name in _INSTEAD:
        raise UsageError(f"quark-cli {name}: {_INSTEAD[name]}")
    _COMMANDS[name](arguments[1:])


def _given(name: str, arguments: Sequence[str], required: str = "", **flags: Any) -> argparse.Namespace:
    """Read flags with these defaults, and those that have to be given; a default of False makes a switch."""
    parser = argparse.ArgumentParser(f"quark-cli {name}")
    for flag in required.split():
        parser.add_argument(*_spellings(flag), dest=flag, required=True)
    for flag, default in flags.items():
        if default is False:
            parser.add_argument(*_spellings(flag), dest=flag, action="store_true")
        else:
            kind = str if default is None else type(default)
            parser.add_argument(*_spellings(flag), dest=flag, type=kind, default=default)
    given, others = parser.parse_known_args(list(arguments))
    if others:
        note(f"quark-cli {name}: {' '.join(others)} is ignored.")
    return given


_OTHER_SPELLINGS = {"cle": "include_cle", "calib_data_path": "calibration_dataset_path"}


def _spellings(flag: str) -> list[str]:
    """Return the flag with underscores, with hyphens, and under its other name."""
    names = dict.fromkeys((flag, flag.replace("_", "-"), _OTHER_SPELLINGS.get(flag, flag)))
    return [f"--{name}" for name in names]


def onnx_ptq(arguments: Sequence[str]) -> None:
    """Quantize with a preset, as `quark-cli onnx-ptq` does."""
    switches = "adaround adaquant cle use_moving_average include_sq use_gptq include_rotation use_random_had use_crypto"
    given = _given(
        "onnx-ptq",
        arguments,
        "input_model_path",
        **{"output_model_path": "quantized.onnx", "config": "XINT8", "calib_data_path": None, "calib_method": ""},
        **{"num_calib_data": 1000, "exclude_nodes": "", "exclude_subgraphs": "", "learning_rate": 0.0, "num_iters": 0},
        **{"sq_alpha": 0.5, "hidden_size": 4096, "r_config_path": "", "save_as_external_data": False},
        **dict.fromkeys(switches.split(), False),
    )
    config = get_default_config(given.config)
    config.nodes_to_exclude = [name.strip() for name in given.exclude_nodes.split(";") if name.strip()]
    config.subgraphs_to_exclude = parse_subgraphs(given.exclude_subgraphs)
    config.include_cle, config.include_sq = given.cle and not given.include_rotation, given.include_sq
    config.include_rotation, config.crypto_mode = given.include_rotation, given.use_crypto
    config.use_external_data_format = given.save_as_external_data
    method, _, ratio = given.calib_method.lower().partition("+")  # such as percentile+99.99
    if method:
        check_known("--calib_method", method, _METHODS)
        config.calibrate_method = _METHODS[method]
    options = {
        "CalibDataSize": given.num_calib_data,
        "CalibMovingAverage": given.use_moving_average or None,
        "Percentile": float(ratio) if re.fullmatch(r"\d+(\.\d+)?", ratio) else None,
        "SmoothAlpha": given.sq_alpha if given.include_sq else None,
        "UseGPTQ": given.use_gptq or None,
        "RMatrixDim": given.hidden_size if given.include_rotation else None,
        "RConfigPath": given.r_config_path or None,
        "UseRandomHad": given.use_random_had or None,
        "MatMulConstBOnly": True,
    }
    config.extra_options |= {name: value for name, value in options.items() if value is not None}
    if given.adaround or given.adaquant:
        config.include_fast_ft = True
        tuning = {
            "OptimAlgorithm": "adaquant" if given.adaquant else "adaround",
            "NumIterations": given.num_iters or None,
            "LearningRate": given.learning_rate or None,
        }
        config.extra_options["FastFinetune"] = {name: value for name, value in tuning.items() if value is not None}
    ModelQuantizer(config).quantize_model(
        given.input_model_path, given.output_model_path, calibration_data_path=given.calib_data_path
    )


class _Search(AutoSearchConfig):
    """What `quark-cli onnx-autosearch` tries."""

    search_space = {  # noqa: RUF012 - a ClassVar of the base
        "calibrate_method": [CalibrationMethod.Entropy, CalibrationMethod.MinMax],
        "include_cle": [False],
        "include_fast_ft": [True],
        "extra_options": {
            "FastFinetune": {"NumIterations": [10, 50], "OptimAlgorithm": ["adaround"], "LearningRate": [0.1, 0.01]}
        },
    }


def onnx_autosearch(arguments: Sequence[str]) -> None:
    """Search for the best configuration, and write its model."""
    given = _given(
        "onnx-autosearch",
        arguments,
        "input_model_path calibration_dataset_path",
        **{"output_model_path": "", "num_calib_data": 10, "config": "S8S8_AAWS_ADAROUND", "model_name": ""},
    )
    data = PathDataReader(given.input_model_path, given.calibration_dataset_path)
    search = AutoSearch(
        given.input_model_path,
        Config(get_default_config(given.config)),
        _Search(),
        calibration_data_reader=CachedDataReader(data, given.num_calib_data),
    )
    search.search_model()
    if search.best_candidate is not None:
        written = search.best_candidate["model_path"]
        if given.output_model_path:
            shutil.copyfile(written, given.output_model_path)
        difference = search.best_candidate["difference"]
        sys.stdout.write(f"Best: {given.output_model_path or written}, {difference:.6g} from the float model (L2).\n")


def onnx_validate(arguments: Sequence[str]) -> None:
    """Print the accuracy of a model on labelled images."""
    given = _given("onnx-validate", arguments, "model_path val_data", model_name="", no_cuda=False)
    sys.stdout.write(f"{detent.evaluate(given.model_path, given.val_data)}\n")


def onnx_prepare_data(arguments: Sequence[str]) -> None:
    """Give each of ImageNet's validation images a folder by its number, and copy one image of each folder."""
    given = _given("onnx-prepare-data", arguments, "val_path cal_path")
    source, chosen = Path(given.val_path), Path(given.cal_path)
    if not source.is_dir():
        raise UsageError(f"--val_path {source} is not a folder.")
    for image in sorted(source.glob("ILSVRC2012_val_*.JPEG")):
        folder = source / image.stem.rpartition("_")[2]
        folder.mkdir(exist_ok=True)
        image.rename(folder / image.name)
    for folder in sorted(each for each in source.iterdir() if each.is_dir()):
        (chosen / folder.name).mkdir(parents=True, exist_ok=True)
        for image in sorted(folder.iterdir())[:1]:
            shutil.copyfile(image, chosen / folder.name / image.name)


def export_onnx(arguments: Sequence[str]) -> None:
    """Write a pretrained model of timm as ONNX, with an open batch."""
    given = _given("export-onnx", arguments, "model_name output_dir")
    try:
        import timm  # type: ignore[import-not-found]
        import torch
    except ImportError as error:
        raise UsageError(f"quark-cli export-onnx needs {error.name}: pip install torch timm onnxscript.") from None
    model = timm.create_model(given.model_name, pretrained=True).eval()
    size = timm.data.resolve_model_data_config(model=model, use_test_size=True)["input_size"]
    output = Path(given.output_dir) / f"{given.model_name}.onnx"
    names: dict[str, Any] = {"input_names": ["input"], "output_names": ["output"]}
    dynamic = {name: {0: "batch_size"} for name in ("input", "output")}
    torch.onnx.export(model, torch.zeros(1, *size), output, dynamic_axes=dynamic, dynamo=False, **names)
    sys.stdout.write(f"Wrote {output}.\n")


def shapeshifter(arguments: Sequence[str]) -> None:
    """Run the passes of a file on the model that it names."""
    if len(arguments) != 1:
        raise UsageError("quark-cli shapeshifter takes one file: quark-cli shapeshifter passes.yaml.")
    run_passes(Path(arguments[0]))


_COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "onnx-ptq": onnx_ptq,
    "onnx-autosearch": onnx_autosearch,
    "onnx-validate": onnx_validate,
    "onnx-prepare-data": onnx_prepare_data,
    "export-onnx": export_onnx,
    **dict.fromkeys(("shapeshifter", "onnx-adapter"), shapeshifter),
}
