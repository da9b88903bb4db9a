"""What exporters say about a model's images: in the file's metadata, or in a file beside it.

| who          | where                                               | what it says                              |
| ------------ | --------------------------------------------------- | ----------------------------------------- |
| Ultralytics  | metadata `task`, `imgsz`, `stride`, `names`         | 0..1; letterbox in grey, or a centre crop |
| YOLOv5       | metadata `stride`, `names`                          | the same; a classifier as ImageNet's      |
| ONNX         | metadata `Image.BitmapPixelFormat` and others       | order of channels, range of pixels        |
| Hugging Face | preprocessor_config.json beside the model           | size, crop, mean, std, filter             |
| timm         | config.json beside the model, with `pretrained_cfg` | size, crop, mean, std, filter             |
| you          | model.json beside model.onnx                        | whatever --preprocess takes               |
| the graph    | first nodes that normalise the input                | the range of pixels that it takes         |

torchvision says nothing. Your own file comes first, the graph last. The files are untrusted, and nobody named them on
the command line: what cannot be understood in them is passed over, and the guess that then takes its place is called a
guess.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import UsageError
from detent.graph.load import FILE
from detent.graph.values import constant, input_at, is_standard, made_by, rank
from detent.observe.images import GREY
from detent.observe.preprocess import IMAGENET_MEAN, IMAGENET_STD, DeclaredImages, checked_settings
from detent.settings import parse_json, read_text

_PILLOW_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
_PIXEL_FORMATS = {"gray8": "GRAY", "rgb8": "RGB", "bgr8": "BGR"}
_PIXEL_RANGES = {
    "nominalrange_0_255": (0.0, 1.0),
    "normalized_0_1": (0.0, 255.0),
    "normalized_1_1": (127.5, 127.5),
}
_UNIT: dict[str, Any] = {"mean": (0.0,), "std": (255.0,)}

# What first nodes may take away and divide by, if pixels reach them as 0..255 or as 0..1. A mean lies well inside.
_RAW_MEANS, _RAW_SPANS = (64.0, 192.0), (200.0, 260.0)
_UNIT_MEANS, _UNIT_SPANS = (0.25, 0.75), (1 / 260, 1 / 200)
_COLOURS = 3
_PASSING = ("Cast", "Identity", "Transpose", "QuantizeLinear", "DequantizeLinear")


def declared_images(model: ir.Model) -> DeclaredImages | None:
    """Return what the exporter recorded about the model's images; None if nothing."""
    metadata = {str(key): str(value) for key, value in model.metadata_props.items()}
    path = model.meta.get(FILE)
    found = _ultralytics(metadata, model) or _pixel_metadata(metadata)
    own = _own(path.with_suffix(".json")) if isinstance(path, Path) else None
    if own is not None:
        return own if found is None else replace(found, settings=own.settings, source=own.source)
    if found is not None or not isinstance(path, Path):
        return found or _own_normalisation(model.graph)
    folder = path.parent
    # Repositories of Hugging Face keep the models in a folder of their own.
    for each in [folder, *([folder.parent] if folder.name == "onnx" else [])]:
        found = _hugging_face(each / "preprocessor_config.json") or _timm(each / "config.json")
        if found is not None:
            return found
    return _own_normalisation(model.graph)


def _own_normalisation(graph: ir.Graph) -> DeclaredImages | None:
    """Return the pixels that a graph takes whose first nodes normalise them; None if they do not, or oddly."""
    for value in graph.inputs:
        found = _first_scaling(value) if rank(value) == 4 else None
        if found is None:
            continue
        mean, span = (float(each.mean()) for each in found)
        source = "the model itself: its first nodes normalise "
        if _is_within(mean, _RAW_MEANS) or (mean == 0.0 and _is_within(span, _RAW_SPANS)):
            return DeclaredImages({"mean": (0.0,), "std": (1.0,)}, f"{source}0..255")
        if _is_within(mean, _UNIT_MEANS) or (mean == 0.0 and _is_within(span, _UNIT_SPANS)):
            return DeclaredImages(dict(_UNIT), f"{source}0..1")
    return None


def _first_scaling(value: ir.Value) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
    """Return what first nodes take away from an input, and what they then divide it by; None if they do neither."""
    factor, offset, scaled = np.ones(1), np.zeros(1), False  # factor * input + offset
    while len(uses := value.uses()) == 1 and not value.is_graph_output():
        node, at = next(iter(uses))
        if not (at == 0 and is_standard(node, *_PASSING)):
            number = _numbers_of(input_at(node, 1 - at)) if len(node.inputs) == 2 else None
            if number is None or not (is_standard(node, "Add", "Mul") or (at == 0 and is_standard(node, "Sub", "Div"))):
                break
            scaled = True
            if node.op_type in ("Add", "Sub"):
                offset = offset + number if node.op_type == "Add" else offset - number
            else:
                with np.errstate(divide="ignore", invalid="ignore"):  # what is not finite is refused below
                    by = number if node.op_type == "Mul" else 1.0 / number
                    factor, offset = factor * by, offset * by
        value = node.outputs[0]
    sound = scaled and bool((factor > 0.0).all()) and bool(np.isfinite(factor).all() and np.isfinite(offset).all())
    return (0.0 - offset / factor, 1.0 / factor) if sound else None


def _numbers_of(value: ir.Value | None) -> npt.NDArray[np.float64] | None:
    """Return a constant of one number, or of one for each colour, be it quantized."""
    node = made_by(value, "DequantizeLinear")
    parts = [constant(each) for each in ([value] if node is None else node.inputs)]
    arrays = [np.asarray(part, np.float64).reshape(-1) for part in parts if part is not None]
    if len(arrays) != len(parts) or any(array.size not in (1, _COLOURS) for array in arrays):
        return None
    if node is None:
        return arrays[0]
    codes, scale, *zero = arrays
    return np.asarray((codes - (zero[0] if zero else 0.0)) * scale, np.float64)


def _is_within(number: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= number <= bounds[1]


def _ultralytics(metadata: Mapping[str, str], model: ir.Model) -> DeclaredImages | None:
    if "stride" not in metadata or "names" not in metadata:
        return None
    names = class_names(metadata["names"])
    task = metadata.get("task", "")
    output = model.graph.outputs[0].shape if model.graph.outputs else None
    settings: dict[str, Any] = dict(_UNIT)
    if task == "classify" or (not task and output is not None and len(output) == 2):
        if not task:  # YOLOv5 trains its classifiers on ImageNet's statistics
            settings = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
        settings["fit"] = "crop"
    else:
        settings |= {"fit": "letterbox", "pad": GREY}
    size = _pair(_literal(metadata.get("imgsz", "")))
    if size is not None:
        settings["size"] = size
    said = f"the model's metadata (Ultralytics{f', task {task}' if task else ''})"
    return DeclaredImages({"order": "RGB", **settings}, said, names, task)


def class_names(text: str) -> tuple[str, ...]:
    """Return the classes in a dict {0: 'person', ...} or a list, as Ultralytics writes them; empty if it is neither."""
    found = _literal(text)
    if isinstance(found, dict) and set(found) == set(range(len(found))):
        return tuple(str(found[at]) for at in range(len(found)))
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _pixel_metadata(metadata: Mapping[str, str]) -> DeclaredImages | None:
    """Read the metadata that ONNX defines for images. Keys and values have no case."""
    lowered = {key.lower(): value.lower() for key, value in metadata.items()}
    settings: dict[str, Any] = {}
    order = _PIXEL_FORMATS.get(lowered.get("image.bitmappixelformat", ""))
    if order is not None:
        settings["order"] = order
    values = _PIXEL_RANGES.get(lowered.get("image.nominalpixelrange", ""))
    if values is not None:
        settings |= {"mean": (values[0],), "std": (values[1],)}
    return DeclaredImages(settings, "the model's metadata (Image.*)") if settings else None


def _own(file: Path) -> DeclaredImages | None:
    """Read a file that has nothing but settings of `--preprocess`, mean or std among them; any other is not meant."""
    settings = _json(file)
    if not {"mean", "std"} & set(settings):
        return None
    try:
        return DeclaredImages(checked_settings(settings, lambda key: f"{file}: '{key}'"), str(file))
    except UsageError:
        return None


def _hugging_face(file: Path) -> DeclaredImages | None:
    config = _json(file)
    if not {"image_mean", "do_rescale", "do_normalize", "rescale_factor"} & set(config):
        return None
    factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    if not _is_number(factor) or factor <= 0:
        return None
    settings: dict[str, Any] = {"mean": (0.0,), "std": (_rounded(1 / factor),)}
    if config.get("do_normalize", "image_mean" in config):
        normalized = _mean_and_std(config.get("image_mean"), config.get("image_std"), 1 / factor)
        if normalized is None:
            return None
        settings |= normalized
    if config.get("do_flip_channel_order"):
        settings["order"] = "BGR"
    resample = config.get("resample")
    if isinstance(resample, int) and 0 <= resample < len(_PILLOW_FILTERS):
        settings["resample"] = _PILLOW_FILTERS[resample]
    settings |= _hugging_face_size(config)
    return DeclaredImages(settings, str(file))


def _hugging_face_size(config: Mapping[str, Any]) -> dict[str, Any]:
    resized, crop = config.get("size"), config.get("crop_size")
    if config.get("do_center_crop"):
        size = _pair(crop)
        short = _pair(resized)
        if isinstance(resized, Mapping) and isinstance(resized.get("shortest_edge"), int):
            short = (resized["shortest_edge"],) * 2
        found: dict[str, Any] = {"fit": "crop"}
        if size is not None:
            found["size"] = size
            if short is not None and min(short) >= min(size):
                found["resize"] = min(short)
        return found
    size = _pair(resized)
    return {} if size is None or not config.get("do_resize", True) else {"fit": "stretch", "size": size}


def _timm(file: Path) -> DeclaredImages | None:
    config = _json(file)
    trained = config.get("pretrained_cfg", config)
    if not isinstance(trained, Mapping) or "crop_pct" not in trained:
        return None
    settings = _mean_and_std(trained.get("mean"), trained.get("std"), 255)
    if settings is None:
        return None
    if trained.get("interpolation") in _PILLOW_FILTERS:
        settings["resample"] = trained["interpolation"]
    shape, share = trained.get("input_size"), trained["crop_pct"]
    size = _pair(list(shape[1:])) if isinstance(shape, list) and len(shape) == 3 else None
    if trained.get("crop_mode") == "squash":
        settings["fit"] = "stretch"
    if size is not None:
        settings["size"] = size
        if _is_number(share) and 0 < share <= 1 and settings.get("fit") != "stretch":
            settings["resize"] = math.floor(min(size) / share)
    return DeclaredImages(settings, str(file))


def _json(file: Path) -> Mapping[str, Any]:
    try:
        found = parse_json(read_text(file))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _pair(value: Any) -> tuple[int, int] | None:
    """Return height and width, from a number, two numbers, or an object with `height` and `width`."""
    if isinstance(value, Mapping):
        value = [value.get("height"), value.get("width")]
    if isinstance(value, int):
        value = [value, value]
    if not isinstance(value, Sequence) or len(value) != 2:
        return None
    sides = [side for side in value if isinstance(side, int) and not isinstance(side, bool) and side > 0]
    return (sides[0], sides[1]) if len(sides) == 2 else None


def _mean_and_std(mean: Any, std: Any, unit: float) -> dict[str, Any] | None:
    """Return both on the scale of pixels, `unit` for 1: one number each, or one per channel; None for anything else."""
    lists = {"mean": mean if isinstance(mean, list) else [mean], "std": std if isinstance(std, list) else [std]}
    if not all(len(each) in (1, 3) and all(map(_is_number, each)) for each in lists.values()) or min(lists["std"]) <= 0:
        return None
    return {key: tuple(_rounded(unit * value) for value in each) for key, each in lists.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _rounded(value: float) -> float:
    """Return the decimal number that was meant: 0.485 / (1 / 255) has a tail of rounding."""
    return float(f"{value:.9g}")
