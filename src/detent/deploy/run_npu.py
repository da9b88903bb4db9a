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
ALIKE = 1.0  # in percent, a difference that does not matter, however close the CPU is
ROUNDING = 2.0  # times as far as the CPU, which rounds ties to even: more than rounding explains

Answers = dict[str, Any]


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
        if not Path(options["xclbin"]).is_file():  # the EP would compile for another chip, and hang
            sys.exit(f"There is no overlay {options['xclbin']}: set DETENT_XCLBIN to the path of 4x4.xclbin.")
    options |= {"cache_dir": str(HERE / "cache"), "cache_key": cache_key(model, runtime)}
    return options | {"enable_cache_file_io_in_mem": "0"}


def open_sessions(settings: dict[str, Any], only_cpu: bool) -> tuple[Any, Any, Any, Path | None]:
    """Return the model on the CPU, its second part (None if it has one part), the model on the NPU, and its report."""
    os.environ["XLNX_ONNX_EP_REPORT_FILE"] = REPORT  # read when the provider is loaded
    import onnxruntime

    plain = onnxruntime.SessionOptions()
    # Rewritten graphs round elsewhere: they cannot serve as the reference.
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL

    def on_cpu(name: str) -> Any:
        return onnxruntime.InferenceSession(str(HERE / name), plain, providers=["CPUExecutionProvider"])

    model = HERE / settings["model"]
    tail = on_cpu(settings["tail"]) if settings["tail"] else None
    if only_cpu or PROVIDER not in onnxruntime.get_available_providers():
        return on_cpu(settings["model"]), tail, None, None
    options = provider_options(settings, model, onnxruntime.__version__)
    session = onnxruntime.InferenceSession(str(model), providers=[PROVIDER], provider_options=[options])
    return on_cpu(settings["model"]), tail, session, Path(options["cache_dir"]) / options["cache_key"] / REPORT


def answers(session: Any, tail: Any, feeds: Answers) -> tuple[Answers, float]:
    """Return every output of the model and of its second part, by name, and the seconds of the first."""
    names = [value.name for value in session.get_outputs()]
    start = time.perf_counter()
    found: Answers = dict(zip(names, session.run(names, feeds), strict=True))
    seconds = time.perf_counter() - start
    if tail is not None:
        known = {**feeds, **found}
        last = [value.name for value in tail.get_outputs()]
        found |= zip(last, tail.run(last, {value.name: known[value.name] for value in tail.get_inputs()}), strict=True)
    return found, seconds


def distance(found: Any, wanted: Any) -> float:
    """Return the root of the mean square of the difference, in percent of that of what was wanted."""
    import numpy as np

    found, wanted = (np.asarray(each, np.float64) for each in (found, wanted))
    if not np.isfinite(found).all():
        return float("inf")
    return float(100 * np.sqrt(np.mean((found - wanted) ** 2)) / (np.sqrt(np.mean(wanted**2)) or 1.0))


def compare(sessions: tuple[Any, Any, Any], count: int, expected: Any, inputs: Any) -> bool:
    """Run every sample, print how far each output is at worst, and return whether that is what was foreseen."""
    reference, tail, session = sessions
    worst: dict[str, list[float]] = {}
    fastest = float("inf")
    for sample in range(count):
        feeds = {value.name: inputs[f"{sample}/{value.name}"] for value in reference.get_inputs()}
        by_cpu, seconds = answers(reference, tail, feeds)
        used, seconds = (by_cpu, seconds) if session is None else answers(session, tail, feeds)
        fastest = min(fastest, seconds)
        for name, answer in used.items():
            foreseen = expected[f"{sample}/{name}"]
            far = (distance(answer, by_cpu[name]), distance(answer, foreseen), distance(by_cpu[name], foreseen))
            worst[name] = [max(pair) for pair in zip(far, worst.get(name, far), strict=True)]
    agree = True
    for name, (from_cpu, from_foreseen, allowed) in worst.items():
        alike = from_foreseen <= max(ALIKE, ROUNDING * allowed)
        agree = agree and alike
        note = "" if alike else f"; no more than {max(ALIKE, ROUNDING * allowed):.1f} % can be rounding"
        sys.stdout.write(f"{name}: {from_cpu:.2f} % from the CPU, {from_foreseen:.2f} % from what was foreseen{note}\n")
    sys.stdout.write(f"{1000 * fastest:.2f} ms per inference, the fastest of {count}\n")
    return agree


def placed(report: Path | None) -> tuple[int, int] | None:
    """Return the nodes on the NPU and all nodes, from the EP's report; None if it wrote none."""
    if report is None or not report.exists():
        return None
    stats = {each["name"]: each["nodeNum"] for each in json.loads(report.read_text(encoding="utf-8"))["deviceStat"]}
    return stats.get("NPU", 0), stats.get("all", 0)


def main() -> int:
    """Run the samples and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="do not use the NPU")
    asked = parser.parse_args()
    import numpy as np

    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names that a console cannot show
    settings = json.loads((HERE / "settings.json").read_text(encoding="utf-8"))
    *sessions, report = open_sessions(settings, asked.cpu)
    if sessions[2] is None:
        missing = "" if asked.cpu else f": {PROVIDER} is not in this onnxruntime, so the model runs on the CPU"
        sys.stdout.write(f"No NPU is used{missing}.\n")
    agree = compare(tuple(sessions), settings["samples"], np.load(HERE / "expected.npz"), np.load(HERE / "samples.npz"))
    if sessions[2] is None:
        sys.stdout.write("The CPU rounds ties to even, so its answers may differ from those that are foreseen.\n")
        return 0
    where = placed(report)
    if where is not None:
        sys.stdout.write(
            f"{where[0]} of {where[1]} nodes on the NPU; foreseen: {settings['foreseen_nodes']}. {report}\n"
        )
    if settings["foreseen_nodes"] and not (where and where[0]):
        told = "Nothing runs on the NPU" if where else f"The EP wrote no report {report}, so it may have taken nothing"
        sys.stdout.write(f"{told}: see README.md, 'Everything runs on the CPU'.\n")
        return 1
    sys.stdout.write("The answers are those of the NPU as it was foreseen.\n" if agree else "The answers are wrong.\n")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
