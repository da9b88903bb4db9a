"""Every code block of a folder of documents, run on Detent as it is printed.

DETENT_SEEDS=folder python -m benchmarks.seeds [--model mobilenetv2.onnx --calib images/]

Only paths and placeholders are replaced, and names that a block takes for granted are defined before it: both tables
are below. Without --model, the demo model is used.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from benchmarks.seed_blocks import Block, blocks_of
from detent.compat.script_runner import run_script
from detent.demo import CALIBRATION, MODEL
from detent.errors import DetentError

TUTORIAL = Path(__file__).with_name("advanced_quark_quantize.py")

SUBSTITUTIONS = {
    '"path/to/float_model.onnx"': '"models/mobilenetv2.onnx"',
    '"path/to/quantized_model.onnx"': '"out.onnx"',
    '"path/to/calibration_data"': '"calib_data"',
    "'model_input_name'": "INPUT_NAME",
    "processed_data = []": "processed_data = images(data_folder)",
    '"float32_model.onnx"': '"models/mobilenetv2.onnx"',
    "$BASELINE_RESULTS_FOLDER_PATH": "baseline_results",
    "$QUANTIZED_RESULTS_FOLDER_PATH": "quantized_results",
}
"""Placeholders of the documents, and what stands in their place."""

PREAMBLE = """
import itertools
import onnxruntime
from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod
from onnxruntime.quantization.quant_utils import QuantType
from quark.onnx import ModelQuantizer
from quark.onnx.quant_utils import PowerOfTwoMethod
from quark.onnx.quantization.config.config import Config, QuantizationConfig
from quark.onnx.quantization.config.custom_config import DEFAULT_ADAROUND_PARAMS, get_default_config
import vai_q_onnx
from advanced_quark_quantize import ImageDataReader

model_input = input_model_path = "models/mobilenetv2.onnx"
model_output = output_model_path = "out.onnx"
INPUT_NAME = onnxruntime.InferenceSession(model_input).get_inputs()[0].name

def images(folder):
    return [feeds[INPUT_NAME] for feeds in ImageDataReader(model_input, folder, 100)]

data_reader = calibration_data_reader = ImageDataReader(model_input, "calib_data", 100)
input_data_loader = itertools.islice(images("calib_data"), 8)
"""
"""Names that blocks take for granted, in the documents' own terms."""

POSTLUDE = """
if "config" in globals() and "quantizer" not in globals():
    ModelQuantizer(config).quantize_model(model_input, model_output, data_reader)
"""
"""Blocks that end with a configuration are followed by its use."""

NOT_OURS = ("pip ", "sh ", "cd ", "python prepare.py", "python resnet_ptq_example")
"""Commands that install or prepare something else."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--calib", type=Path, default=CALIBRATION)
    parser.add_argument("--skip", default="^$", metavar="REGEX", help="leave out blocks in which this is found")
    options = parser.parse_args()
    seeds = Path(os.environ["DETENT_SEEDS"])
    failed = 0
    for document in sorted(path for path in seeds.iterdir() if path.is_file()):
        for block in blocks_of(document):
            if re.search(options.skip, block.text):
                continue
            start = time.perf_counter()
            with workplace(options.model, options.calib):
                outcome = run_block(block)
            failed += outcome.startswith("FAILED")
            first = block.text.splitlines()[0][:60]
            print(
                f"{block.document}:{block.line:<4} {time.perf_counter() - start:6.1f} s  {outcome:8} {first}",
                flush=True,
            )
    sys.exit(failed > 0)


@contextlib.contextmanager
def workplace(model: Path, calibration: Path) -> Iterator[None]:
    """A folder as the tutorials have it: models/, calib_data/ and the results of two models."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("models").mkdir()
            for name in ("mobilenetv2", "resnet50"):
                shutil.copy(model, f"models/{name}.onnx")
            Path("calib_data").symlink_to(calibration)
            shutil.copy(TUTORIAL, TUTORIAL.name)
            yield
        finally:
            os.chdir(here)


def run_block(block: Block) -> str:
    text = block.text
    for placeholder, value in SUBSTITUTIONS.items():
        text = text.replace(placeholder, value)
    if block.kind == "command":
        return run_command(text)
    script = Path("block.py")
    script.write_text(PREAMBLE + text + POSTLUDE, encoding="utf-8")
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            run_script(script, [])
    except (DetentError, SystemExit, ValueError, TypeError, NameError, ImportError, AttributeError, OSError):
        print(said.getvalue() + traceback.format_exc())
        return "FAILED"
    return "ok"


def run_command(text: str) -> str:
    if text.startswith(NOT_OURS):
        return "not ours"
    if not text.startswith("python "):
        return "FAILED: no command that is known"
    if "evaluate" in text:
        saved_results()
    arguments = shlex.split(text.removeprefix("python "))
    done = subprocess.run(
        [sys.executable, "-m", "detent.cli", "run", *arguments], check=False, capture_output=True, text=True
    )
    if done.returncode:
        print(done.stdout + done.stderr)
        return "FAILED"
    return "ok"


def saved_results() -> None:
    """Two folders to compare: answers, and the same a little off."""
    import numpy as np

    for folder, error in (("baseline_results", 0.0), ("quantized_results", 0.01)):
        Path(folder).mkdir()
        for index in range(3):
            answers = np.random.default_rng(index).standard_normal((1, 10))
            np.save(f"{folder}/{index}.npy", answers + error)


if __name__ == "__main__":
    main()
