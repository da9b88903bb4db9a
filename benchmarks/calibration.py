"""What calibration costs: time as a multiple of plain inference over the same images, memory, and each method's search.

python -m benchmarks.calibration [--parts speed others memory methods] [--quark quark/bin/python]
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod, create_calibrator

import detent
from benchmarks.common import CALIBRATION, CASES, arguments, calibration_array, prepared, print_table
from benchmarks.quark_parity import run_quark
from detent.errors import UsageError
from detent.methods import METHODS, Method
from detent.observe.sources import input_specs, open_source
from detent.observe.sweep import sweep
from detent.plan.plan import choose_params
from detent.recipe import Recipe
from detent.recipe.file import find_recipe
from detent.recipe.recipe import PRESETS

CASE = CASES[0]
XINT8 = find_recipe("XINT8")
PLAIN = XINT8.replace(equalize=False, refinement=None)
SCRIPT = Path(sys.executable).with_name("detent")
PARTS = ("speed", "others", "memory", "methods")
OTHER_SAMPLES = 32  # onnxruntime's calibrators keep every activation of every image: 27 MB each
MEMORY_SAMPLES = (64, 1024)


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock, and processor seconds of all threads; for so many images."""

    seconds: float
    cpu: float
    images: int

    @property
    def per_image(self) -> float:
        return 1000 * self.seconds / self.images


def main() -> None:
    parser = arguments("What calibration costs on mobilenetv2.", samples=256)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--quark", type=Path, help="the Python of a venv with amd-quark in it")
    options = parser.parse_args()
    if "memory" in options.parts:  # first: a child's peak counts from its parent's size
        print_memory()
    images = calibration_array(CASE, options.samples)
    plain = partial(plain_inference, images)
    if "speed" in options.parts:
        print_speed(interleaved({"plain onnxruntime inference": plain, **ours(images)}, options.repeat))
    if "others" in options.parts:
        few = images[:OTHER_SAMPLES]
        with tempfile.TemporaryDirectory() as folder:
            works = others(few, options.quark, Path(folder))
            print_speed(interleaved({"plain onnxruntime inference": plain, **works}, min(options.repeat, 3)))
        print(f"All but plain inference with {len(few)} images, and scaled: they keep what they saw of each.")
    if "methods" in options.parts:
        print_methods(images)


def cost(work: Callable[[], int]) -> Cost:
    """What `work` costs; it returns how many images it went through."""
    start, cpu = time.perf_counter(), _processor_seconds()
    images = work()
    return Cost(time.perf_counter() - start, _processor_seconds() - cpu, images)


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def interleaved(works: dict[str, Callable[[], int]], repeat: int) -> dict[str, list[Cost]]:
    """Every work in turn, so often; each once before, for compiled loops, files and caches."""
    for work in works.values():
        work()
    runs: dict[str, list[Cost]] = {name: [] for name in works}
    for _ in range(repeat):
        for name, work in works.items():
            runs[name].append(cost(work))
    return runs


def print_speed(runs: dict[str, list[Cost]]) -> None:
    """Medians. A ratio is that of each round's own plain inference, and the median of these."""
    plain = next(iter(runs.values()))
    rows = []
    for name, costs in runs.items():
        ratios = [one.per_image / base.per_image for one, base in zip(costs, plain, strict=True)]
        rows.append(
            (
                name,
                f"{statistics.median(one.per_image for one in costs):.2f}",
                f"{statistics.median(1000 * one.cpu / one.images for one in costs):.2f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            )
        )
    print(f"mobilenetv2, {plain[0].images} images, {os.cpu_count()} cores, medians of {len(plain)} interleaved rounds")
    print_table(("what", "ms per image", "processor ms per image", "times plain inference", "range"), rows)
    print()


def plain_inference(images: np.ndarray[Any, Any]) -> int:
    """All images through the float model, as anyone would: one default session, one image at a time."""
    session = plain_session()
    name = session.get_inputs()[0].name
    for image in images:
        session.run(None, {name: image[None]})
    return len(images)


@cache
def plain_session() -> onnxruntime.InferenceSession:
    """Loaded once: plain inference is timed without it."""
    return onnxruntime.InferenceSession(CASE.path, providers=["CPUExecutionProvider"])


def ours(images: np.ndarray[Any, Any]) -> dict[str, Callable[[], int]]:
    """The sweep over all XINT8 sites, its sessions' loading included; and all of quantize()."""
    model, sites = prepared(CASE)
    specs = input_specs(model)
    count = len(images)

    def from_memory() -> int:
        return sweep(model, sites, open_source(images, specs, limit=count)).samples

    def from_files() -> int:
        source = open_source(CALIBRATION, specs, preprocess=CASE.options, limit=count)
        return sweep(model, sites, source).samples

    def everything(recipe: Recipe) -> int:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "out.onnx"
            detent.quantize(CASE.path, output, CALIBRATION, recipe, limit=count, preprocess=CASE.options)
        return count

    return {
        f"sweep over {len(sites)} sites, arrays in memory": from_memory,
        f"sweep over {len(sites)} sites, JPEG files": from_files,
        "detent.quantize(), JPEG files, plain": partial(everything, PLAIN),
        "the same, equalized and bias-corrected": partial(everything, XINT8),
    }


class _Reader(CalibrationDataReader):
    def __init__(self, images: np.ndarray[Any, Any]) -> None:
        name = plain_session().get_inputs()[0].name
        self._items = iter([{name: image[None]} for image in images])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._items, None)


def others(images: np.ndarray[Any, Any], quark: Path | None, folder: Path) -> dict[str, Callable[[], int]]:
    """onnxruntime's calibrators, and Quark's whole XINT8 with its start-up, on few images."""
    data = folder / "samples.npy"
    np.save(data, images)

    def calibrate(method: CalibrationMethod) -> int:
        augmented = str(folder / f"{method.name}.onnx")
        calibrator = create_calibrator(str(CASE.path), augmented_model_path=augmented, calibrate_method=method)
        calibrator.collect_data(_Reader(images))
        calibrator.compute_data()
        return len(images)

    def quantize_with_quark() -> int:
        output = folder / "quark.onnx"
        output.unlink(missing_ok=True)
        _, failure, _ = run_quark(Path(quark or ""), CASE.path, output, data)
        if failure:
            raise SystemExit(f"Quark: {failure}")
        return len(images)

    wanted = (CalibrationMethod.MinMax, CalibrationMethod.Percentile, CalibrationMethod.Entropy)
    works: dict[str, Callable[[], int]] = {
        f"onnxruntime's {method.name} calibrator": partial(calibrate, method) for method in wanted
    }
    return works | ({} if quark is None else {"Quark XINT8, everything": quantize_with_quark})


@contextmanager
def many_images(count: int) -> Iterator[Path]:
    """A folder of that many links to the calibration images, as often as it takes."""
    files = sorted(file for file in CALIBRATION.rglob("*") if file.suffix.lower() in (".jpg", ".jpeg", ".png"))
    with tempfile.TemporaryDirectory() as folder:
        for number, file in zip(range(count), itertools.cycle(files), strict=False):
            (Path(folder) / f"{number:05d}{file.suffix}").symlink_to(file)
        yield Path(folder)


def recipe_for(method: Method) -> str | None:
    """The first preset whose formats the method can serve; None for none."""
    for name, recipe in PRESETS.items():
        try:
            method.check(recipe.activations)
        except UsageError:
            continue
        return name
    return None


def print_memory() -> None:
    """The peak of the command for each method, over few images and over many."""
    rows = []
    with many_images(max(MEMORY_SAMPLES)) as folder:
        for name, method in METHODS.items():
            recipe = recipe_for(method)
            if recipe is None:
                continue
            peaks = [peak_memory(folder, count, name, recipe) for count in MEMORY_SAMPLES]
            rows.append((name, recipe, *(f"{peak:.0f}" for peak in peaks), f"{100 * (peaks[1] / peaks[0] - 1):+.1f} %"))
    print("Peak memory of `detent quantize` on mobilenetv2, in MB")
    print_table(("method", "recipe", *(f"{count} images" for count in MEMORY_SAMPLES), "growth"), rows)
    print()


def peak_memory(folder: Path, samples: int, method: str, recipe: str) -> float:
    """The largest resident size of the command, in MB."""
    settings = ["--preprocess", str(CASE.path.with_suffix(".json")), "--method", method, "--recipe", recipe]
    with tempfile.TemporaryDirectory() as scratch:
        output = str(Path(scratch) / "out.onnx")
        command = [str(SCRIPT), "quantize", str(CASE.path), output, "--calib", str(folder), "--limit", str(samples)]
        process = subprocess.Popen(
            [*command, *settings, "--json", "--no-equalize", "--refine", "none"], stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return usage.ru_maxrss / 1024


def print_methods(images: np.ndarray[Any, Any]) -> None:
    """Seconds that each method takes to choose the parameters of a hundred tensors from their statistics."""
    model, sites = prepared(CASE)
    seen = sweep(model, sites, open_source(images, input_specs(model), limit=len(images))).statistics
    rows = []
    for name, method in METHODS.items():
        recipe = recipe_for(method)
        if recipe is None:
            continue
        fmt = find_recipe(recipe).activations
        times = []
        for _ in range(3):
            start = time.perf_counter()
            for site in sites:
                choose_params(seen[site], fmt, method, site)
            times.append(time.perf_counter() - start)
        rows.append((name, recipe, f"{100 * statistics.median(times) / len(sites):.2f}"))
    print(f"Choosing parameters from the statistics of {len(sites)} tensors over {len(images)} images")
    print_table(("method", "recipe", "seconds for 100 tensors"), rows)


if __name__ == "__main__":
    main()
