"""Where nodes run: what `detent check` foresees beside what real devices were observed to do.

python benchmarks/placement_export.py FOLDER                      in a venv with torch: writes the networks, once
python -m benchmarks.placement FOLDER [NAMES ...] [--quark PYTHON]

The observed files were made by AMD Quark from trained weights. Here the same architectures have untrained weights, and
are quantized by Detent, and with --quark by AMD Quark too (`zoo_quark.py`), whose layout is the one that was counted.
Nodes are those of the execution provider's report, `parts` its subgraphs. A row is met if nodes on the device, in
percent of all nodes, and all nodes are within 5 %, and subgraphs within one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import detent
from benchmarks.common import print_table
from benchmarks.zoo import samples_of

SAMPLES = 2
NODES, PARTS = 0.05, 1


@dataclass(frozen=True)
class Observation:
    """What a device did with a network: nodes on it, all nodes, subgraphs (None: not told)."""

    network: str
    device: str
    recipe: str
    taken: int
    total: int
    parts: int | None = 1
    whole: bool = False
    """Whether a detector was compiled with its decoding."""


def _phoenix(network: str, taken: int, total: int, parts: int | None = 1, whole: bool = False) -> Observation:
    return Observation(network, "phx", "XINT8", taken, total, parts, whole)


def _strix(network: str, xint8: tuple[int, int, int], a8w8: tuple[int, int, int]) -> list[Observation]:
    return [Observation(network, "stx", name, *seen) for name, seen in (("XINT8", xint8), ("A8W8", a8w8)) if seen[1]]


OBSERVED = [
    _phoenix("resnet50", 393, 395),
    _phoenix("resnet101", 767, 769),
    _phoenix("mobilenet_v2", 347, 349),
    _phoenix("regnetx_002", 324, 326),
    _phoenix("resnext50_32x4d", 393, 395),
    _phoenix("densenet121", 1703, 1705),
    _phoenix("yolov8n", 0, 965, 0, whole=True),
    _phoenix("yolov8n", 922, 929),
    _phoenix("yolov8m", 1216, 1223),
    _phoenix("yolov8l", 1510, 1517),
    _phoenix("yolov8n_pose", 1015, 1025),
    _phoenix("yolov6n", 518, 525),
    _phoenix("yolo11n", 6, 1300, None),
    _phoenix("yolo11n_ablated", 1173, 1180),
    _phoenix("yolov8s_world", 48, 1081, 4),
    _phoenix("mobilevit_xxs", 1037, 1585, 49),
    _phoenix("mobilevit_cnn", 407, 409),
    _phoenix("modnet", 0, 872, 0),
    _phoenix("modnet_folded", 502, 507, None),
    _phoenix("bit_50x3", 1010, 1271, None),
    _phoenix("midas_aligned", 670, 684, 5),
    _phoenix("midas_nearest", 682, 684),
    _phoenix("bisenet_nearest", 402, 404),
    _phoenix("bisenet_linear", 399, 404),
    _phoenix("fastdepth", 255, 257),
    _phoenix("sesr_m7", 50, 52),
    _phoenix("rrdb", 1773, 1775),
    *_strix("resnet18", (164, 166, 1), (163, 165, 1)),
    *_strix("resnet50", (393, 395, 1), (392, 394, 1)),
    *_strix("squeezenet1_1", (201, 204, 1), (200, 203, 1)),
    *_strix("shufflenet_v2_x1_0", (467, 617, 18), (470, 616, 17)),
    *_strix("mobilenet_v2", (239, 349, 18), (238, 348, 18)),
    *_strix("mobilenet_v3_small", (448, 580, 32), (540, 542, 1)),
    *_strix("efficientnet_b0", (792, 1054, 66), (970, 972, 1)),
    *_strix("efficientnet_b1", (1135, 1505, 93), (1387, 1389, 1)),
    *_strix("densenet121", (42, 1705, 63), (0, 0, 0)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Placement foreseen and observed.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--quark", help="the Python of a venv that has AMD Quark")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    makers = ("Detent", "Quark") if options.quark else ("Detent",)
    rows = []
    for seen in OBSERVED:
        if (options.names and seen.network not in options.names) or not _path(options.folder, seen.network).exists():
            continue
        for maker in makers:
            rows.append(_row(options.folder, seen, maker, options.quark))
            print(*rows[-1], flush=True)
    print_table(("network", "device", "recipe", "file by", "foreseen", "parts", "observed", "parts", "met"), rows)


def _path(folder: Path, network: str) -> Path:
    return folder / f"{network}.onnx"


def _row(folder: Path, seen: Observation, maker: str, quark: str) -> tuple[object, ...]:
    name = f"{seen.network}, whole" if seen.whole else seen.network
    told = (f"{seen.taken} of {seen.total}", "" if seen.parts is None else seen.parts)
    try:
        file = _by_detent(folder, seen) if maker == "Detent" else _by_quark(folder, seen, quark)
        found = detent.check(file, seen.device)
    except (detent.DetentError, subprocess.CalledProcessError):
        reason = traceback.format_exc().strip().splitlines()[-1][:120]
        return (name, seen.device, seen.recipe, maker, reason, "", *told, "")
    taken, total = found.report_nodes or (0, 0)
    parts = 0 if found.verdict == "rejected" else found.subgraphs
    near = abs(taken / total - seen.taken / seen.total) <= NODES and abs(total - seen.total) <= NODES * seen.total
    met = near and (seen.parts is None or abs(parts - seen.parts) <= PARTS)
    return (name, seen.device, seen.recipe, maker, f"{taken} of {total}", parts, *told, "yes" if met else "no")


def _by_detent(folder: Path, seen: Observation) -> Path:
    """Quantize as a user would for the device, without what refines numbers: it moves no node."""
    output = folder / f"{seen.network}_{seen.device}_{seen.recipe}{'_whole' * seen.whole}.onnx"
    if not output.exists():
        recipe = detent.find_recipe(seen.recipe).replace(refinement=None, equalize=False, target=seen.device)
        how = {"postprocessing": "float" if seen.whole else "auto"}
        detent.quantize(
            _path(folder, seen.network), output, samples_of(folder, seen.network)[:SAMPLES], recipe, hold_out=0, **how
        )
    return output


def _by_quark(folder: Path, seen: Observation, quark: str) -> Path:
    """Quantize with AMD Quark; of a detector that is cut, the same part that Detent quantizes."""
    kind = "_cut" if (folder / f"{seen.network}_phx_XINT8_tail.onnx").exists() and not seen.whole else ""
    output = folder / f"{seen.network}{kind}_quark_{seen.recipe}.onnx"
    source, samples = folder / f"{seen.network}{kind}.onnx", folder / f"{seen.network}_few.npz"
    if not output.exists():
        few = samples_of(folder, seen.network)[:SAMPLES]
        np.savez(samples, **{key: np.concatenate([each[key] for each in few]) for key in few[0]})
        if kind:
            _cut(folder, seen, source)
        script = str(Path(__file__).with_name("zoo_quark.py"))
        command = [quark, script, str(source), str(output), str(samples), seen.recipe]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)  # it writes a table to where it runs
    return output


def _cut(folder: Path, seen: Observation, source: Path) -> None:
    """Write the float detector without its decoding."""
    import onnx

    ends = [value.name for value in onnx.load(folder / f"{seen.network}_phx_XINT8.onnx").graph.output]
    onnx.utils.extract_model(str(_path(folder, seen.network)), str(source), ["image"], ends)


if __name__ == "__main__":
    sys.exit(main())
