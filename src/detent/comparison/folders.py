"""Compare two folders of results file by file: how far a quantized model's outputs are from those of the float one.

With x the baseline, y the other and n elements, all as float64:

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
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DataError
from detent.results.compared import Difference, FolderComparison

Array = npt.NDArray[np.float64]

IMAGES = (".jpg", ".jpeg", ".png")
ARRAYS = (".npy",)
WINDOW = 7
CHANNELS = (1, 3, 4)


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


def as_image(x: Array) -> Array | None:
    """Return the array with its height and width last, or None if it is not an image that a window fits into."""
    if x.ndim > 2 and x.shape[-3] not in CHANNELS and x.shape[-1] in CHANNELS:
        x = np.moveaxis(x, -1, -3)
    channels = x.shape[-3] if x.ndim > 2 else 1
    return x if x.ndim >= 2 and channels in CHANNELS and min(x.shape[-2:]) >= WINDOW else None


def cosine(x: Array, y: Array) -> float:
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


def ssim(x: Array, y: Array, peak: float) -> float:
    """Return the structural similarity of two images (see `as_image`): 1 if they are equal."""
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    mean_x, mean_y = _window_means(x), _window_means(y)
    variances = _window_means(x * x) - mean_x**2 + _window_means(y * y) - mean_y**2
    covariance = _window_means(x * y) - mean_x * mean_y
    above = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    below = (mean_x**2 + mean_y**2 + c1) * (variances + c2)
    # Both are zero only if both arrays are zero throughout the window, with a peak of zero: equal.
    return float(np.mean(np.divide(above, below, out=np.ones_like(above), where=below != 0.0)))


def _window_means(x: Array) -> Array:
    """Return the mean of each window from differences of running sums: the cost does not depend on its size."""
    padded = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(1, 0), (1, 0)])
    sums = padded.cumsum(-1).cumsum(-2)
    w = WINDOW
    windows: Array = sums[..., w:, w:] - sums[..., :-w, w:] - sums[..., w:, :-w] + sums[..., :-w, :-w]
    return windows / (w * w)


def compare_folders(baseline: Path, other: Path) -> FolderComparison:
    """Compare every result of one folder with that of the same name in the other.

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
    except (OSError, ValueError, EOFError) as error:
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


def _image(path: Path) -> Array:
    """Return the pixels with their channels first, so that windows lie in the image."""
    from PIL import Image

    try:
        with Image.open(path) as opened:
            pixels = np.asarray(opened.convert("L" if opened.mode in ("1", "L", "LA") else "RGB"), np.float64)
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path} cannot be read as an image: {error}") from error
    return np.moveaxis(np.atleast_3d(pixels), -1, 0)
