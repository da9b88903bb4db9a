"""Run the model of this folder on the NPU and compare its answers with the CPU's, and with those that were foreseen.

    python run_npu.py            run every sample, compare, and print where nodes were placed
    python run_npu.py --cpu      the same without the NPU

Needs numpy and onnxruntime; on the device the one that comes with Ryzen AI Software. Exit code 0: the answers agree, or
there is no NPU; 1: they do not, or nothing runs on the NPU although there is one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROVIDER = "VitisAIExecutionProvider"
REPORT = "vitisai_ep_report.json"


def cache_key(model: Path, runtime: str) -> str:
    """Return a key that differs for every model and runtime: under an old key the EP runs the old weights."""
    return hashlib.sha256(model.read_bytes() + runtime.encode()).hexdigest()[:24]


def provider_options(settings: dict[str, Any], model: Path, runtime: str) -> dict[str, str]:
    """Return the options of the session, with paths of this machine."""
    options = {name: str(value) for name, value in settings["provider_options"].items()}
    if "config_file" in options:
        options["config_file"] = str(HERE / options["config_file"])
    if settings["needs_overlay"]:
        installed = os.environ.get("RYZEN_AI_INSTALLATION_PATH", "")
        overlay = Path(installed) / "voe-4.0-win_amd64" / "xclbins" / "phoenix" / "4x4.xclbin"
        options["xclbin"] = os.environ.get("DETENT_XCLBIN", str(overlay))
    options |= {"cache_dir": str(HERE / "cache"), "cache_key": cache_key(model, runtime)}
    return options | {"enable_cache_file_io_in_mem": "0"}


def open_sessions(settings: dict[str, Any], only_cpu: bool) -> tuple[Any, Any, Path | None]:
    """Return the reference on the CPU, the session on the NPU (None without one), and where its report will be."""
    os.environ["XLNX_ONNX_EP_REPORT_FILE"] = REPORT  # read when the provider is loaded
    import onnxruntime

    plain = onnxruntime.SessionOptions()
    # Rewritten graphs round elsewhere: they cannot serve as the reference.
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = HERE / settings["model"]
    reference = onnxruntime.InferenceSession(str(model), plain, providers=["CPUExecutionProvider"])
    if only_cpu or PROVIDER not in onnxruntime.get_available_providers():
        return reference, None, None
    options = provider_options(settings, model, onnxruntime.__version__)
    session = onnxruntime.InferenceSession(str(model), providers=[PROVIDER], provider_options=[options])
    return reference, session, Path(options["cache_dir"]) / options["cache_key"] / REPORT


def placed(report: Path | None) -> tuple[int, int] | None:
    """Return the nodes on the NPU and all nodes, from the EP's report; None if it wrote none."""
    if report is None or not report.exists():
        return None
    stats = {each["name"]: each["nodeNum"] for each in json.loads(report.read_text())["deviceStat"]}
    return stats.get("NPU", 0), stats.get("all", 0)


def differences(names: list[str], found: list[Any], wanted: Any, sample: int) -> float:
    """Return the largest difference, in percent of the largest value that was expected."""
    import numpy as np

    worst = 0.0
    for name, answer in zip(names, found, strict=True):
        expected = wanted[f"{sample}/{name}"].astype(np.float64)
        span = float(np.abs(expected).max()) or 1.0
        worst = max(worst, 100 * float(np.abs(answer.astype(np.float64) - expected).max()) / span)
    return worst


def main() -> int:
    """Run the samples and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="do not use the NPU")
    asked = parser.parse_args()
    settings = json.loads((HERE / "settings.json").read_text())
    reference, session, report = open_sessions(settings, asked.cpu)
    import numpy as np

    if session is None:
        sys.stdout.write(f"No NPU is used: {PROVIDER} is not in this onnxruntime, so the model runs on the CPU.\n")
    used = session or reference
    names = [value.name for value in used.get_outputs()]
    inputs, foreseen = np.load(HERE / "samples.npz"), np.load(HERE / "expected.npz")
    count = settings["samples"]
    agree, seconds = True, []
    for sample in range(count):
        feeds = {value.name: inputs[f"{sample}/{value.name}"] for value in used.get_inputs()}
        start = time.perf_counter()
        answers = used.run(names, feeds)
        seconds.append(time.perf_counter() - start)
        by_cpu = {f"{sample}/{name}": each for name, each in zip(names, reference.run(names, feeds), strict=True)}
        from_cpu, from_expected = (differences(names, answers, each, sample) for each in (by_cpu, foreseen))
        agree = agree and from_expected <= settings["tolerance_percent"]
        sys.stdout.write(
            f"sample {sample}: {from_cpu:.2f} % from the CPU, {from_expected:.2f} % from what was foreseen\n"
        )
    sys.stdout.write(f"{1000 * min(seconds):.2f} ms per inference, the fastest of {count}\n")
    where = placed(report)
    if where is not None:
        sys.stdout.write(
            f"{where[0]} of {where[1]} nodes on the NPU; foreseen: {settings['foreseen_nodes']}. {report}\n"
        )
    elif session is not None:
        sys.stdout.write("The EP wrote no report, so where nodes run is not known.\n")
    if session is None:
        sys.stdout.write("On the CPU ties are rounded to even, so answers may differ from those of the NPU.\n")
        return 0
    if where is not None and where[0] == 0:
        sys.stdout.write("Nothing runs on the NPU: see README.md, 'Everything runs on the CPU'.\n")
        return 1
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
