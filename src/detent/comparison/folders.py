"""Folders of a model's values: write them, and compare two of them file by file.

**Written** are a model's outputs for every sample, or for one sample the codes of every quantized value. Codes are for
a comparison with a device, bit by bit. A value becomes `NAME.bin`, its codes in row order, and `NAME.txt`, the same as
one number per line. Codes are what a QuantizeLinear (of any domain) writes and what a DequantizeLinear reads from a
constant; a FixNeuron does both at once, so its codes are its output divided by its scale. The device has int8 operands,
so uint8 codes around 128 are written as the int8 numbers that they stand for. With `floats`, every float value is
written too, into the folder `float`. onnxruntime computes the values, without integer kernels, which saturate on some
CPUs. With a rounding, the integer emulator does.

**Compared**, with x the baseline, y the other and n elements, all as float64:

    cosine = sum x*y / sqrt(sum x^2 * sum y^2)            1 if both are zero, 0 if one is
    L1     = mean |x - y|                                 L2 = mean (x - y)^2
    PSNR   = 10 log10(peak^2 / L2)                        peak: 255 for images, the largest |x| of an array
    SSIM   = mean over 7x7 windows of  (2 mx my + c1)(2 sxy + c2) / ((mx^2 + my^2 + c1)(sx^2 + sy^2 + c2))

with c1 = (0.01 peak)^2 and c2 = (0.03 peak)^2. SSIM is for images: arrays of two dimensions, or with 1, 3 or 4
channels before or after them, and at least 7 high and wide; other results have none. Files are paired by their path
below the folder, and each must have its partner and hold finite numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.emulator import Emulator
from detent.errors import DataError, ModelError, UsageError
from detent.evaluation.candidate import AnyModel, Candidate
from detent.evaluation.dataset import open_dataset
from detent.execute.inference import Batch, OutputFolder, file_stems, map_in_order, new_folder
from detent.graph.load import ModelLike, name_of, read
from detent.graph.session import DEFAULT_PROVIDERS, Feeds, Runner
from detent.numerics.codec import DeviceRounding
from detent.observe.preprocess import PreprocessOptions
from detent.observe.rows import ARRAY_ERRORS
from detent.observe.samples import Array
from detent.progress import Progress, silent
from detent.qdq.families import is_fix_neuron, quantize_family
from detent.qdq.reader import LinearParams, dequantized, params_of
from detent.results import Result, for_people
from detent.results.compared import Difference, FolderComparison
from detent.results.paired import Floats

INFER_STAGE = "infer"
FLOAT_FOLDER = "float"

# The codes that a run computes, the codes of constants, and float values.
Parts = tuple[Mapping[str, Array], Mapping[str, Array], Mapping[str, Array]]


@dataclass(frozen=True)
class Dump(Result):
    """What was written. `codes` and `floats` map the name of each file, without extension, to that of its value."""

    folder: str
    origin: str
    activations: int
    constants: int
    codes: Mapping[str, str]
    floats: Mapping[str, str]
    source: str = for_people("")


def dump_codes(
    model: ModelLike,
    feeds: Feeds,
    folder: Path,
    *,
    floats: bool = False,
    rounding: DeviceRounding | None = None,
    origin: str = "the dumped sample",
    overwrite: bool = False,
) -> Dump:
    """Run a quantized model on one sample and write its values into `folder`, all or none; see `new_folder`."""
    if floats and rounding is not None:
        raise UsageError("--float writes what onnxruntime computes, which has one rounding: leave --rounding out.")
    if rounding is None:
        codes, constants, numbers = _from_onnxruntime(model, feeds, floats, origin)
    else:
        codes, constants, numbers = _emulated(model, feeds, rounding, origin)
    with new_folder(folder, overwrite=overwrite) as results:
        written = _write_all(results, {**codes, **constants})
        numbered = _write_all(results / FLOAT_FOLDER, numbers) if floats else {}
    return Dump(str(folder), origin, len(codes), len(constants), written, numbered, name_of(model))


def _emulated(model: ModelLike, feeds: Feeds, rounding: DeviceRounding, origin: str) -> Parts:
    emulator = Emulator(model, rounding=rounding)
    constants = {name: _signed(array) for name, array in emulator.constants.items()}
    return {name: _signed(array) for name, array in emulator.codes(feeds, origin).items()}, constants, {}


def _from_onnxruntime(model: ModelLike, feeds: Feeds, floats: bool, origin: str) -> Parts:
    graph_model = read(model)
    found = _find_codes(graph_model)
    if not found.computed and not found.constants and not floats:
        raise ModelError(
            f"{name_of(model)} is not quantized: there are no codes to dump. Quantize it, or give --float"
            " for its float values."
        )
    wanted = _float_values(graph_model) if floats else []
    fetched = list(dict.fromkeys([*found.computed, *wanted]))
    runner = Runner(graph_model, fetched, exact=True) if fetched else None
    values = {} if runner is None else dict(zip(fetched, runner(feeds, origin), strict=True))
    codes = {
        name: values[name] if params is None else np.rint(values[name] / params.scale).astype(params.dtype)
        for name, params in found.computed.items()
    }
    codes, constants = (
        {name: _signed(array) if name in found.around_128 else array for name, array in each.items()}
        for each in (codes, found.constants)
    )
    return codes, constants, {name: values[name] for name in wanted}


def _signed(codes: Array) -> Array:
    """Return uint8 codes around 128 as the int8 numbers that they stand for; others as they are."""
    return (codes.astype(np.int16) - 128).astype(np.int8) if codes.dtype == np.uint8 else codes


@dataclass(frozen=True)
class _Codes:
    """The values of a model that hold codes; parameters where a value is code times scale, as after a FixNeuron."""

    computed: dict[str, LinearParams | None] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    around_128: set[str] = field(default_factory=set)


def _find_codes(model: ir.Model) -> _Codes:
    found = _Codes()
    for node in model.graph:
        if is_fix_neuron(node):
            found.computed[str(node.outputs[0].name)] = params_of(node)
            continue
        entry = dequantized(node)
        if entry is not None and entry.stored is not None:
            found.constants[str(entry.codes.name)] = entry.stored
        elif quantize_family(node) is not None:
            found.computed[str(node.outputs[0].name)] = None
        elif entry is None:
            continue
        codes = node.outputs[0] if entry is None else entry.codes
        params = params_of(node) if entry is None else entry.params
        if params is not None and params.dtype == np.uint8 and (params.zero_point == 128).all():
            found.around_128.add(str(codes.name))
    return found


def _float_values(model: ir.Model) -> list[str]:
    values = (value for node in model.graph for value in node.outputs)
    return [str(value.name) for value in values if value.name and value.dtype in (ir.DataType.FLOAT, None)]


def _write_all(folder: Path, arrays: Mapping[str, Array]) -> dict[str, str]:
    """Write two files for each value. Return the names of the files, without extension, and of the values."""
    folder.mkdir(exist_ok=True)
    stems = file_stems(list(arrays))
    for stem, array in zip(stems, arrays.values(), strict=True):
        (folder / f"{stem}.bin").write_bytes(array.tobytes())
        np.savetxt(folder / f"{stem}.txt", array.reshape(-1), fmt="%d" if array.dtype.kind in "iu" else "%.9g")
    return dict(zip(stems, arrays, strict=True))


def save_outputs(
    model: AnyModel,
    data: Any,
    out: Path,
    *,
    preprocess: PreprocessOptions | None = None,
    limit: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    providers: Sequence[str] = DEFAULT_PROVIDERS,
    progress: Progress = silent,
) -> list[Path]:
    """Run the model on all samples and write its outputs into the new folder `out`. Return the files."""
    candidate = Candidate(model, providers)
    if candidate.sequences:
        raise ModelError(
            f"Output '{candidate.sequences[0]}' of {candidate.name} is a sequence, and a .npy file holds one array. "
            "Export the model with tensors for outputs."
        )
    dataset = open_dataset(data, candidate.inputs, labels=None, preprocess=preprocess, limit=limit, batch=batch)

    def run(batch: Batch) -> dict[str, Array]:
        return candidate(batch.pending.load())

    files: list[str] = []
    with new_folder(out) as folder:
        writer = OutputFolder(folder)
        progress(INFER_STAGE, 0, dataset.batches)
        for done, (item, outputs) in enumerate(map_in_order(run, dataset, threads), 1):
            for name, each in zip(item.names, item.split(outputs), strict=True):
                files += writer.save(each, name)
            progress(INFER_STAGE, done, dataset.batches)
    return [out / file for file in files]


IMAGES = (".jpg", ".jpeg", ".png")
ARRAYS = (".npy",)
WINDOW = 7  # the usual window of SSIM
CHANNELS = (1, 3, 4)  # gray, RGB, RGBA


def difference(name: str, baseline: npt.ArrayLike, other: npt.ArrayLike, peak: float | None = None) -> Difference:
    """Compare two arrays of one shape. Without `peak`, it is the largest |baseline|."""
    x, y = np.asarray(baseline, np.float64), np.asarray(other, np.float64)
    if x.shape != y.shape:
        raise DataError(f"{name}: the baseline has the shape {list(x.shape)}, the other result {list(y.shape)}.")
    if x.size == 0:
        raise DataError(f"{name}: both results are empty, there is nothing to compare.")
    top = float(np.abs(x).max()) if peak is None else peak
    squared = float(np.mean((x - y) ** 2))
    images = [as_image(each) for each in (x, y)]
    similarity = None if images[0] is None or images[1] is None else ssim(images[0], images[1], top)
    return Difference(name, cosine(x, y), float(np.mean(np.abs(x - y))), squared, psnr(squared, top), similarity)


def as_image(x: Floats) -> Floats | None:
    """Return the array with its height and width last, or None if it is not an image that a window fits into."""
    if x.ndim > 2 and x.shape[-3] not in CHANNELS and x.shape[-1] in CHANNELS:
        x = np.moveaxis(x, -1, -3)
    channels = x.shape[-3] if x.ndim > 2 else 1
    return x if x.ndim >= 2 and channels in CHANNELS and min(x.shape[-2:]) >= WINDOW else None


def cosine(x: Floats, y: Floats) -> float:
    """Return the cosine of the angle between two arrays."""
    tops = float(np.abs(x).max()), float(np.abs(y).max())
    if not all(tops):
        return float(tops == (0.0, 0.0))
    x, y = x / tops[0], y / tops[1]  # squares of very small or large numbers would leave the range of floats
    return float(np.sum(x * y) / np.sqrt(np.sum(x * x) * np.sum(y * y)))


def psnr(squared: float, peak: float) -> float:
    """Return decibels of the squared peak over the mean squared error."""
    if squared == 0.0:
        return math.inf
    return 20 * math.log10(peak) - 10 * math.log10(squared) if peak > 0.0 else -math.inf


def ssim(x: Floats, y: Floats, peak: float) -> float:
    """Return the structural similarity of two images (see `as_image`): 1 if they are equal."""
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    mean_x, mean_y = _window_means(x), _window_means(y)
    variances = _window_means(x * x) - mean_x**2 + _window_means(y * y) - mean_y**2
    covariance = _window_means(x * y) - mean_x * mean_y
    above = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    below = (mean_x**2 + mean_y**2 + c1) * (variances + c2)
    # Both are zero only if both arrays are zero throughout the window, with a peak of zero: equal.
    return float(np.mean(np.divide(above, below, out=np.ones_like(above), where=below != 0.0)))


def _window_means(x: Floats) -> Floats:
    """Return the mean of each window from differences of running sums: the cost does not depend on its size."""
    padded = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(1, 0), (1, 0)])
    sums = padded.cumsum(-1).cumsum(-2)
    w = WINDOW
    windows: Floats = sums[..., w:, w:] - sums[..., :-w, w:] - sums[..., w:, :-w] + sums[..., :-w, :-w]
    return windows / (w * w)


def compare_folders(baseline: Path, other: Path) -> FolderComparison:
    """Compare every result of one folder with the result of the same name in the other.

    Raises DataError, naming the file, if one is missing, cannot be read, has another shape or is not finite.
    """
    expected, found = _results(baseline), _results(other)
    for folder, names, others in ((other, expected, found), (baseline, found, expected)):
        missing = sorted(set(names) - set(others))
        if missing:
            raise DataError(
                f"{folder} has no {missing[0]}{f' ({len(missing)} files are missing)' if len(missing) > 1 else ''}, "
                "which the other folder has. Both must hold the results of the same samples."
            )
    files = [_compare(name, expected[name], found[name]) for name in sorted(expected)]
    return FolderComparison(files, str(baseline), str(other))


def _results(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        what = f"{folder} is not a folder" if folder.exists() else f"There is no folder {folder}"
        raise DataError(f"{what}. Give two folders of results (`detent infer` saves them), or two models.")
    endings = (*IMAGES, *ARRAYS)
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.suffix.lower() in endings}
    if not files:
        raise DataError(f"{folder} has no results: no .npy, .png or .jpg file is in it.")
    return files


def _compare(name: str, baseline: Path, other: Path) -> Difference:
    if baseline.suffix.lower() in ARRAYS:
        return difference(name, _array(baseline), _array(other))
    return difference(name, _image(baseline), _image(other), peak=255.0)


def _array(path: Path) -> npt.NDArray[Any]:
    try:
        loaded: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except ARRAY_ERRORS as error:
        raise DataError(f"{path} cannot be read as an array: {error}") from error
    if loaded.dtype.kind not in "fiub":
        raise DataError(f"{path} holds {loaded.dtype}, which are not numbers.")
    broken = int(loaded.size - np.isfinite(loaded).sum())
    if broken:
        raise DataError(
            f"{path}: {broken} of {loaded.size} values are NaN or infinite, so they cannot be compared. "
            "Look at the model that gave them, or take the file out of both folders."
        )
    return loaded


def _image(path: Path) -> Floats:
    """Return the pixels with their channels first, so that windows lie in the image."""
    from PIL import Image

    try:
        with Image.open(path) as opened:
            pixels = np.asarray(opened.convert("L" if opened.mode in ("1", "L", "LA") else "RGB"), np.float64)
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path} cannot be read as an image: {error}") from error
    return np.moveaxis(np.atleast_3d(pixels), -1, 0)
