"""Compare answers that have a place for each pixel: classes, masks, key points, images.

segment    pixels of the same class, and the overlap of regions but for a background. In maps of few peaks, such as
           those of key points, most pixels have no class: there the peaks count that stay in place, by their height
image      the PSNR, against the span of the float image
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.evaluation.row_answers import compare_classes
from detent.evaluation.sample_answers import (
    AnswerReader,
    Floats,
    Row,
    Rows,
    SampleAnswer,
    Summary,
    bootstrap,
    rankable,
    threshold,
    without_common_infinities,
)
from detent.tasks import channels_and_sides
from detent.tasks.purpose import Outputs, Purpose

# Maps of peaks: at most this share of pixels is above half of the highest, and the median below this share of it. A
# peak counts from this share of the highest on, and may move by this share of the larger side.
MOST_PEAKED, BACKGROUND, LEAST_PEAK, NEAR = 0.1, 0.1, 0.25, 0.02
SMALLEST_REGION = 0.005  # the share of the pixels below which a region is no object
# How far the regions of trained networks are from labelled ones, as 1 - overlap: that of good ones. What rounding adds
# knows nothing of that, so the squares of both add up. ISNet with weights of 7 and 8 bits, on images that were blurred
# or turned, lost 0.01 of its overlap with what it saw in the images themselves; this said 0.03, and half of what
# regions do not share 0.03 too, but 0.014 instead of 0.005 where they share more than 0.9 (and nothing was lost).
OWN_ERROR = 0.15


def _compare_maps(_: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    name = next(name for name, array in expected.items() if array.ndim >= 3 and array.shape[0] == samples)
    first, second = expected[name], found[name]
    if first.dtype.kind != "f":
        same = (first == second).reshape(samples, -1).mean(1).tolist()
        regions = [_overlaps(*pair) for pair in zip(first, second, strict=True)]
        return [
            SampleAnswer(_of_pixels(*each)) for each in zip(same, [1.0 - each for each in same], regions, strict=True)
        ]
    axis = 1 if first.ndim == 3 else class_axis(first.shape)
    one, other = (np.moveaxis(each[:, None] if first.ndim == 3 else each, axis, -1) for each in (first, second))
    answers = []
    for at in range(samples):
        x, y = rankable(one[at]), rankable(other[at])
        same, cost = compare_classes(x, y)
        numbers = _of_pixels(float(same.mean()), float(cost.mean()), _region_overlaps(x, y))
        answers.append(SampleAnswer(numbers | (_of_peaks(x, y) if _has_peaks(x) else {})))
    return answers


def _of_pixels(same: float, loss: float, overlaps: Sequence[float]) -> Row:
    # Regions are judged by their overlap: a class of few pixels may be lost with hardly any pixel changed.
    cost = sum(math.hypot(OWN_ERROR, 1.0 - each) - OWN_ERROR for each in overlaps)
    peaks = dict.fromkeys(("peaks", "kept", "rise", "lost_height", "height"), 0.0)
    count, shared = float(len(overlaps)), float(sum(overlaps))
    return {"same": same, "loss": loss, "regions": count, "shared": shared, "cost": cost, **peaks}


def _has_peaks(maps: Floats) -> bool:
    """Tell whether maps are nothing but for a few places, as those of key points are: [height, width, maps]."""
    top = maps.max(-1)
    peak = float(top.max())
    few = peak > 0.0 and float((top > peak / 2).mean()) < MOST_PEAKED  # logarithms of shares have no peaks
    return maps.shape[-1] > 1 and few and float(np.median(top)) < BACKGROUND * peak


def _of_peaks(first: Floats, second: Floats) -> Row:
    """Compare the highest places of maps: a peak stays if it moves little and keeps half of its height."""
    reach = max(2.0, NEAR * max(first.shape[:2]))
    heights, places = _highest(first)
    others, moved = _highest(second)
    shown = heights >= LEAST_PEAK * heights.max()
    near = np.hypot(*(places - moved)) <= reach
    kept = shown & near & (others >= heights / 2)
    return {
        "peaks": float(shown.sum()),
        "kept": float(kept.sum()),
        "rise": float((others[kept] / heights[kept] - 1.0).sum()),
        "lost_height": float(heights[shown & ~kept].sum()),
        "height": float(heights[shown].sum()),
    }


def _highest(maps: Floats) -> tuple[Floats, Floats]:
    """Return the largest value of each map, and its row and column."""
    flat = maps.reshape(-1, maps.shape[-1])
    at = flat.argmax(0)
    return flat.max(0), np.array(np.divmod(at, maps.shape[1]), np.float64)


def class_axis(shape: Sequence[int]) -> int:
    """Return which axis of [samples, ...] has a score for each class."""
    channels, sides = channels_and_sides(shape)
    return 3 if (channels, sides) == (shape[3], (shape[1], shape[2])) and shape[3] != shape[1] else 1


def _region_overlaps(first: Floats, second: Floats) -> list[float]:
    """Return intersection over union of each region that float sees; of a mask, that of what it marks."""
    if first.shape[-1] > 1:
        return _overlaps(first.argmax(-1), second.argmax(-1))
    half = threshold(first)
    one, other = first[..., 0] > half, second[..., 0] > half
    marked = one | other
    return [float((one & other).sum() / marked.sum())] if marked.mean() >= SMALLEST_REGION else []


def _overlaps(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> list[float]:
    """Return intersection over union of the regions of each class that float sees, but of a background.

    What takes more than half of an image overlaps well whatever becomes of the rest. An image of nothing else says
    nothing, unless it changes.
    """
    kinds, counts = np.unique(one, return_counts=True)
    sizes = zip(kinds.tolist(), counts.tolist(), strict=True)
    seen = {kind: count for kind, count in sizes if count >= SMALLEST_REGION * one.size}
    regions = [kind for kind, count in seen.items() if 2 * count <= one.size] or list(seen)
    shares = [
        float(((one == kind) & (other == kind)).sum() / ((one == kind) | (other == kind)).sum()) for kind in regions
    ]
    return [] if len(seen) == 1 and shares[0] > 1.0 - SMALLEST_REGION else shares


def _are_of_peaks(rows: Rows) -> bool:
    """Tell whether most samples have maps of peaks; in some there may be nothing to see."""
    return float((rows["peaks"] > 0).mean()) > 0.5


def _region_costs(rows: Rows) -> tuple[Floats, Floats]:
    """Return what samples cost and weigh: as much as they have regions, so that empty ones dilute nothing."""
    return rows["cost"], rows["regions"] if rows["regions"].any() else np.ones_like(rows["cost"])


def _summarize_maps(rows: Rows, _: Sequence[SampleAnswer]) -> Summary:
    if _are_of_peaks(rows):
        loss, interval = bootstrap(rows["lost_height"], rows["height"])
        peaks, kept, risen = (float(rows[name].sum()) for name in ("peaks", "kept", "rise"))
        rise = risen / kept if kept else 0.0
        text = f"{kept:.0f} of {peaks:.0f} peaks of the maps stay in place, heights move by {100 * rise:+.0f} %"
        return loss, interval, {"kept_peaks": kept / peaks, "peaks": peaks, "height_shift": rise}, text
    regions = float(rows["regions"].sum())
    loss, interval = bootstrap(*_region_costs(rows))
    iou = float(rows["shared"].sum()) / regions if regions else 1.0
    same, cost = float(rows["same"].mean()), float(rows["loss"].mean())
    text = f"{100 * same:.1f} % of the pixels keep their class; regions overlap by {100 * iou:.1f} %"
    figures = {"same_pixels": same, "overlap": iou, "expected_pixel_loss": cost}
    return loss, interval, figures, text


def _map_costs(rows: Rows) -> tuple[Floats, Floats]:
    return (rows["lost_height"], rows["height"]) if _are_of_peaks(rows) else _region_costs(rows)


def _compare_images(_: Purpose, expected: Outputs, found: Outputs, samples: int) -> list[SampleAnswer]:
    name = next(name for name, array in expected.items() if array.ndim == 4 and array.shape[0] == samples)
    expected, found = without_common_infinities(expected, found)
    answers = []
    for at in range(samples):
        x, y = expected[name][at].astype(np.float64), found[name][at].astype(np.float64)
        error, span = float(np.square(x - y).mean()), float(np.ptp(x))
        psnr = 100.0 if error == 0.0 else 10 * math.log10(span**2 / error) if span and math.isfinite(error) else 0.0
        answers.append(SampleAnswer({"psnr": min(psnr, 100.0)}))
    return answers


def _summarize_images(rows: Rows, _: Sequence[SampleAnswer]) -> Summary:
    mean, least = float(rows["psnr"].mean()), float(rows["psnr"].min())
    text = f"PSNR {mean:.1f} dB on average, {least:.1f} dB at worst"
    return None, None, {"psnr_db": mean, "worst_psnr_db": least}, text


MAPS = AnswerReader(_compare_maps, _summarize_maps, _map_costs)
IMAGES = AnswerReader(_compare_images, _summarize_images)
