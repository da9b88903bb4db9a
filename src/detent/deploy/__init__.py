"""Write a folder to copy to the laptop: model, program, samples with the expected answers, and a README.

    model.onnx  (tail.onnx)  run_npu.py  settings.json  samples.npz  expected.npz  README.md  (vaiml_config.json)

`settings.json` tells the program about the device; see `session_options`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detent.convert.splitting import tail_file
from detent.deploy import run_npu
from detent.device_check import check
from detent.devices.catalog import find_device
from detent.devices.device import GENERATIONS, Generation, check_software
from detent.emulator import Emulator
from detent.errors import ModelError, UsageError
from detent.execute.inference import new_folder
from detent.graph.load import files_of, load, read
from detent.graph.save import save
from detent.graph.session import Runner
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import Array, Sample
from detent.observe.sources import input_specs, open_source
from detent.results import Result
from detent.results.checked import MODEL, DeviceCheck

CRASHES = ("LSTM", "GRU", "If", "Loop")  # operators that ended the process when a session was made


@dataclass(frozen=True)
class Deployment(Result):
    """A folder that was written, and what the device is expected to do with it."""

    folder: str
    device: str
    software: str
    files: tuple[str, ...]
    samples: int
    emulated: bool
    check: DeviceCheck
    random: bool = False  # whether the samples are random numbers, because no data was given

    def __str__(self) -> str:
        kind = "samples of random numbers (--data DIR takes real ones)" if self.random else "samples"
        expected = "computed in integers, as the device does" if self.emulated else "computed by onnxruntime"
        whole = [finding for finding in self.check.warnings if finding.node == MODEL]
        warnings = "".join(f"Warning: {each.what}: {each.why}. Fix: {each.fix}\n" for each in whole)
        return (
            f"Wrote {self.folder}: {', '.join(self.files)}. {self.samples} {kind}, with answers {expected}.\n"
            f"{self.check}\n{warnings}Next: copy it to the {self.device} machine, and there: python run_npu.py"
        )


def deploy(
    model: Path,
    folder: Path,
    device: str,
    *,
    tail: Path | None = None,
    data: Any = None,
    samples: int = 4,
    software: str = "",
    force: bool = False,
    preprocess: PreprocessOptions | None = None,
) -> Deployment:
    """Write the folder. Without `tail`, the second part is the one that `quantize` wrote beside the model, if any.

    Raise UsageError for a device or version that is not known, ModelError for a model that would crash the execution
    provider or run on the CPU altogether, unless `force`.
    """
    tail = tail_file(model) if tail is None and tail_file(model).exists() else tail
    generation, software = _settle(device, software)
    checked = check(model, device, software)
    if not force and (harm := _harm(model, checked, generation)):
        raise ModelError(f"{harm} Or give --force.")
    source = open_source(
        data, input_specs(load(model)), preprocess=preprocess, limit=samples if data is not None else None
    )
    chosen = [pending.load() for pending, _ in zip(source, range(samples), strict=False)]
    answers, emulated = _answers(model, generation, checked, chosen)
    if tail is not None:
        answers = _with_tail(tail, chosen, answers)
    settings = {
        "model": "model.onnx",
        "tail": "" if tail is None else "tail.onnx",
        "device": device,
        "software": software,
        "provider_options": session_options(generation, checked, software),
        "needs_overlay": generation.needs_overlay,
        "samples": len(chosen),
        "foreseen_nodes": "" if checked.report_nodes is None else "{} of {}".format(*checked.report_nodes),
    }
    with new_folder(folder) as out:
        for name, path in (("model.onnx", model), ("tail.onnx", tail)):
            if path is not None:
                _copy_model(path, out / name)
        shutil.copyfile(str(run_npu.__file__), out / "run_npu.py")
        (out / "settings.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
        fed = [dict(sample.feeds) for sample in chosen]
        np.savez_compressed(out / "samples.npz", **_flat(fed))  # type: ignore[arg-type]  # names are not options
        np.savez_compressed(out / "expected.npz", **_flat(answers))  # type: ignore[arg-type]  # names are not options
        if "config_file" in settings["provider_options"]:  # type: ignore[operator]  # a dictionary
            (out / "vaiml_config.json").write_text(json.dumps(_VAIML, indent=2), encoding="utf-8")
        (out / "README.md").write_text(_readme(generation, checked, software, tail is not None), encoding="utf-8")
        files = tuple(sorted(path.name for path in out.iterdir()))
    return Deployment(str(folder), device, software, files, len(chosen), emulated, checked, random=data is None)


def _settle(device: str, software: str) -> tuple[Generation, str]:
    """Return the generation and the version of its software, the last that supports it if none is given."""
    if device not in GENERATIONS:
        find_device(device)  # an unknown name is an error of its own
        raise UsageError(f"'{device}' is not a machine to deploy to. Choose from {', '.join(GENERATIONS)}.")
    generation = GENERATIONS[device]
    software = software or generation.last_software
    check_software(software)
    if generation.needs_overlay and software > generation.last_software:
        raise UsageError(
            f"Software {software} brings no overlay for {device}: everything would run on the CPU. Install "
            f"{generation.last_software} there, and give --software {generation.last_software}."
        )
    return generation, software


def _harm(model: Path, checked: DeviceCheck, generation: Generation) -> str:
    """Say that the model is known to end the process, or to run on the CPU altogether; empty if it is not."""
    if not checked.quantized and "npu-bf16" not in generation.flows:
        return (
            f"{model} is a float model, and {generation.name} computes in integers alone: all of it would run on the "
            f"CPU. Quantize it first: detent quantize {model} OUTPUT --calib DATA --device {generation.name}."
        )
    crashing = next((place for place in checked.nodes if place.op_type in CRASHES), None)
    if crashing is not None:
        return (
            f"{model} has {crashing.op_type} '{crashing.node}', which was seen to end the process when a session is "
            "made. Cut the model before it (`detent split --at VALUE`)."
        )
    ending = next((finding for finding in checked.errors if finding.crashes and checked.quantized), None)
    if ending is not None:
        return f"{model}: {ending.op_type} '{ending.node}': {ending.what}; {ending.why}. Fix: {ending.fix}."
    if checked.verdict == "rejected":
        first = checked.errors[0]
        return f"{checked.target} would run nothing of {model}: {first.what}; {first.why}. Fix: {first.fix}."
    return ""


def session_options(generation: Generation, checked: DeviceCheck, software: str) -> dict[str, str]:
    """Return the options of the execution provider for a model: those that do not depend on the machine."""
    if not checked.quantized:
        return {"config_file": "vaiml_config.json"}
    options = {"target": generation.target}
    if generation.rounding == "dpu" and software >= "1.7":
        options["xlnx_enable_py3_round"] = "0"  # on since 1.7, and wrong for this generation
    return options


_VAIML = {
    "passes": [
        {"name": "init", "plugin": "vaip-pass_init"},
        {
            "name": "vaiml_partition",
            "plugin": "vaip-pass_vaiml_partition",
            "vaiml_config": {"optimize_level": 2, "preferred_data_storage": "auto"},
        },
    ],
    "target": "VAIML",
    "targets": [{"name": "VAIML", "pass": ["init", "vaiml_partition"]}],
}


def _answers(
    model: Path, generation: Generation, checked: DeviceCheck, samples: list[Sample]
) -> tuple[list[dict[str, Array]], bool]:
    """Return the expected answers of the device, and whether they were computed in its own arithmetic."""
    run: Any
    try:
        run, emulated = Emulator(model, rounding=generation.rounding), True
    except ModelError:  # float scales, 16 bits or no codes at all: then onnxruntime has to do
        loaded = load(model)
        run, emulated = Runner(loaded, exact=checked.quantized), False
    return [dict(zip(run.outputs, run(sample.feeds, sample.origin), strict=True)) for sample in samples], emulated


def _with_tail(tail: Path, samples: list[Sample], answers: list[dict[str, Array]]) -> list[dict[str, Array]]:
    """Add the outputs of the second part. Raise ModelError if it does not belong to the model."""
    model, complete = load(tail), []
    run, reads = Runner(model), [str(value.name) for value in model.graph.inputs]
    for sample, given in zip(samples, answers, strict=True):
        known = {**sample.feeds, **given}
        missing = [name for name in reads if name not in known]
        if missing:
            raise ModelError(f"{tail} is not the second part of the model: it reads '{missing[0]}', which that lacks.")
        found = run({name: known[name] for name in reads}, sample.origin)
        complete.append({**given, **dict(zip(run.outputs, found, strict=True))})
    return complete


def _flat(values: list[dict[str, Array]]) -> dict[str, Array]:
    return {f"{at}/{name}": array for at, each in enumerate(values) for name, array in each.items()}


def _copy_model(path: Path, place: Path) -> None:
    """Copy a model that is one file; write one with data beside it anew.

    The names of data files are for the model to choose. One may be in a folder, or that of another file here, or of a
    module that the program imports.
    """
    if files_of(path) == [path]:
        shutil.copyfile(path, place)
    else:
        save(read(path), place)


_LINUX = """
Linux (Ubuntu 24.04), with its virtual environment:

    source ryzen_ai/venv/bin/activate
    cd this/folder
    python run_npu.py
"""


def _readme(generation: Generation, checked: DeviceCheck, software: str, has_tail: bool) -> str:
    overlay = (
        "\nThe overlay is found through RYZEN_AI_INSTALLATION_PATH; else set DETENT_XCLBIN to the path of 4x4.xclbin.\n"
        if generation.needs_overlay
        else ""
    )
    tail = (
        "\n`tail.onnx` is the float post-processing: the program runs it on the CPU, and yours has to.\n"
        if has_tail
        else ""
    )
    linux = "" if generation.needs_overlay else _LINUX
    return f"""# {generation.chips}, Ryzen AI Software {software}

{checked}

Windows, in the environment of Ryzen AI Software:

    conda activate ryzen-ai-{software}
    cd this\\folder
    python run_npu.py
{linux}{overlay}{tail}
It runs the samples on the NPU, compares every output with the CPU's and with those in expected.npz (root mean square of
the difference, in percent), and prints how many nodes the NPU took. The first start compiles the model, which takes
seconds to minutes.

## Everything runs on the CPU

- "No NPU is used": the onnxruntime in this environment has no VitisAIExecutionProvider. Activate that environment.
- 0 nodes on the NPU: `detent check model.onnx --device {generation.name}` says what stands in the way. Delete `cache`
  after a change of driver, overlay or software.
- Other numbers than foreseen: `detent check model.onnx --device {generation.name} --ep-report REPORT` lays
  the EP's placement beside the expected one.
"""
