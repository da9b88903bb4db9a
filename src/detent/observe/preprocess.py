"""How an image file becomes the array that a model's input expects.

`Preprocess` is the complete recipe, `PreprocessOptions` what the user said about it, and `guess_preprocess` fills in
the rest: from what the model's file declares (see exporters.py), then from the model's input. An explicit option wins
over the JSON file, the file over the model's declaration, and that over the guess.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeGuard, get_args

import numpy as np

from detent.errors import UsageError, nearest
from detent.observe.images import GREY, Fit, Geometry, Resample, Size, geometry, read_pixels
from detent.settings import parse_json, read_text

Order = Literal["RGB", "BGR", "GRAY"]
Layout = Literal["NCHW", "NHWC"]
PixelType = Literal["float32", "float16", "float64", "uint8", "int32"]

RAW_TYPES = ("uint8", "int32")  # whole numbers: the pixels as they are

IMAGENET_MEAN = (123.675, 116.28, 103.53)  # of the training images, on 0..255
IMAGENET_STD = (58.395, 57.12, 57.375)

_CHOICES: dict[str, tuple[str, ...]] = {
    "order": get_args(Order),
    "layout": get_args(Layout),
    "resample": get_args(Resample),
    "fit": get_args(Fit),
    "dtype": get_args(PixelType),
}
_FLAGS = "--size, --resize, --mean, --std, --order, --layout, --resample, --fit, --pad, or --preprocess FILE.json"

# Names where a setting came from, so that a message can point at it: "--mean", or "prep.json: 'mean'".
_Label = Callable[[str], str]


@dataclass(frozen=True)
class DeclaredImages:
    """What a model's file, or one beside it, says about the images that the model was trained on.

    `settings` are fields of `Preprocess`; `source` says whose words they are. `names` are the model's classes, and
    `task` is what it is for, as its exporter calls it; both are empty if it does not say.
    """

    settings: Mapping[str, Any]
    source: str
    names: tuple[str, ...] = ()
    task: str = ""


# What a model answers with, by the shapes of its outputs: an image, or boxes on grids in one of YOLO's two traditions.
Answer = Literal["", "image", "yolo", "yolox", "nanodet"]


@dataclass(frozen=True)
class InputSpec:
    """One graph input of the model. None in `shape` is a dynamic dimension. `answer` is what the model answers with."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    declared: DeclaredImages | None = field(default=None, compare=False, repr=False)
    answer: Answer = field(default="", compare=False, repr=False)

    @property
    def type_text(self) -> str:
        """The type as messages name it: float32, text."""
        return "text" if self.dtype.kind == "U" else self.dtype.name

    @property
    def shape_text(self) -> str:
        """The shape as messages show it: [1, 3, ?, ?]."""
        return "[" + ", ".join("?" if dim is None else str(dim) for dim in self.shape) + "]"


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """A complete recipe from image file to array; `guess_preprocess` makes it, and checks that it is sound.

    `size` is height and width of the result, and `fit` how an image of other proportions gets there: its centre is cut
    out (`crop`), all of it is kept and padded with `pad` (`letterbox`), or it is distorted (`stretch`). `resize` is the
    short side before the crop (None: just enough to cover `size`). `mean` and `std` are on the 0..255 scale, one for
    all channels or one for each, in the order the model sees the channels: with BGR, blue first. With a `dtype` of
    whole numbers the pixels are passed on as they are.
    """

    size: Size
    resize: int | None = None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    order: Order = "RGB"
    layout: Layout = "NCHW"
    resample: Resample = "bilinear"
    dtype: PixelType = "float32"
    fit: Fit = "crop"
    pad: int = GREY

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, as in a file of options. What a crop does not need is left out."""
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        if self.fit != "letterbox":
            del values["pad"]
        if self.fit == "crop":
            del values["fit"]
        return values

    def describe(self) -> str:
        """Return the recipe in one line, for the terminal."""
        side = f"short side to {self.resize}" if self.resize is not None else "resized to cover"
        shape = f"{self.size[0]}x{self.size[1]}"
        placed = {
            "crop": f"{side} ({self.resample}), centre {shape}",
            "letterbox": f"whole image within {shape} ({self.resample}), padded with {self.pad}",
            "stretch": f"stretched to {shape} ({self.resample})",
        }[self.fit]
        values = "raw 0..255" if self.dtype in RAW_TYPES else f"mean {_numbers(self.mean)}, std {_numbers(self.std)}"
        return f"{placed}, {self.order} {self.layout} {self.dtype}, {values}"

    def geometry(self, image: Size) -> Geometry:
        """Return where an image of this height and width lies in the array."""
        return geometry(image, self.size, fit=self.fit, resize=self.resize)

    def load(self, path: Path | str) -> np.ndarray[Any, Any]:
        """Return the image as an array without a batch axis: CHW or HWC, as `layout` says."""
        return self.normalise(self.pixels(path))

    def pixels(self, path: Path | str) -> np.ndarray[Any, Any]:
        """Return the pixels of the image in their place, as bytes: what takes most of the time of loading it."""
        return read_pixels(
            Path(path),
            size=self.size,
            resize=self.resize,
            grey=self.order == "GRAY",
            resample=self.resample,
            fit=self.fit,
            pad=self.pad,
        )

    def normalise(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return pixels as the model takes them."""
        if self.order == "BGR":
            pixels = pixels[:, :, ::-1]
        planes = pixels.transpose(2, 0, 1)
        values = planes.astype(self.dtype) if self.dtype in RAW_TYPES else self._normalise(planes)
        return np.ascontiguousarray(values if self.layout == "NCHW" else values.transpose(1, 2, 0))

    def _normalise(self, planes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        # A pixel has 256 values, so (x - mean) / std is looked up: as fast as a multiply-add, and correctly rounded
        # where x is close to mean and a float32 multiply-add would lose digits.
        values = np.empty(planes.shape, self.dtype)
        # take() widens its indices to 64 bits: in blocks of some 100 kB, that memory is reused and not mapped anew.
        rows = max(1, 12_544 // planes.shape[2])
        for channel, plane in enumerate(planes):
            mean = self.mean[channel % len(self.mean)]
            std = self.std[channel % len(self.std)]
            table = ((np.arange(256) - mean) / std).astype(self.dtype)
            for start in range(0, len(plane), rows):
                block = slice(start, start + rows)
                # Without a mode, take() would copy the output first; no index is ever out of range.
                np.take(table, plane[block], out=values[channel, block], mode="clip")
        return values


@dataclass(frozen=True)
class PreprocessOptions:
    """What the user said about preprocessing: one field per command-line flag, and `file` for a JSON file of them.

    None means not given. Flags win over the file.
    """

    size: int | Size | None = None
    resize: int | None = None
    mean: float | tuple[float, ...] | None = None
    std: float | tuple[float, ...] | None = None
    order: Order | None = None
    layout: Layout | None = None
    resample: Resample | None = None
    fit: Fit | None = None
    pad: int | None = None
    file: Path | str | None = None

    def given(self) -> dict[str, Any]:
        """Return the fields that are not None, by name."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}

    @property
    def flags(self) -> list[str]:
        """The options of a command that say the same."""
        words = []
        for name, value in self.given().items():
            numbers = value if isinstance(value, (tuple, list)) else [value]
            words += ["--preprocess" if name == "file" else f"--{name}", ",".join(str(each) for each in numbers)]
        return words


def preprocess_options(
    given: PreprocessOptions | Mapping[str, Any] | str | os.PathLike[str] | None,
) -> PreprocessOptions:
    """Return the user's options, given as such, as a dict of their fields, or as the path of a JSON file."""
    if isinstance(given, PreprocessOptions):
        return given
    if given is None or isinstance(given, (str, os.PathLike)):
        return PreprocessOptions(file=None if given is None else Path(given))
    known = [field.name for field in fields(PreprocessOptions)]
    for key in given:
        if key not in known:
            raise UsageError(f"preprocess: '{key}' is not a setting.{nearest(key, known)} Known: {', '.join(known)}.")
    return PreprocessOptions(**given)


def guess_preprocess(spec: InputSpec, overrides: PreprocessOptions | None = None) -> tuple[Preprocess, str]:
    """Return the recipe for one image input, and a sentence that says what was guessed and how to change it.

    Raise `UsageError`, with the flag to give, for what cannot be settled and for settings the input contradicts.
    """
    flags = (overrides or PreprocessOptions()).given()
    path = flags.pop("file", None)
    flags = checked_settings(flags, lambda key: f"--{key}")
    from_file = {} if path is None else checked_settings(_read_json(Path(path)), lambda key: f"{path}: '{key}'")
    given = from_file | flags

    def label(key: str) -> str:
        return f"{path}: '{key}'" if key in from_file and key not in flags else f"--{key}"

    dtype = _pixel_type(spec)
    if given.setdefault("dtype", dtype) != dtype:
        raise UsageError(f"{label('dtype')} is {given['dtype']}, but {_named(spec)} takes {dtype}.")
    layout = _find_layout(spec, given, label)
    declared = _usable(spec, given, layout)
    order = _find_order(spec, declared | given, layout, label)
    size = _find_size(spec, declared | given, layout, label)
    if declared.get("size") != size:  # a declared side to resize to belongs to the declared size
        declared.pop("resize", None)
    usual = _usual(spec, dtype, order, layout, given)
    settings = {"size": size, "order": order, "layout": layout, **usual, **declared, **given}
    settings["size"] = size
    _check_together(settings, given, label)
    recipe = Preprocess(**checked_settings(settings, label))  # what was declared is as good as its author
    return recipe, _sentence(spec, recipe, given, declared, usual)


def _usable(spec: InputSpec, given: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Return what the model's file declares, without what the input or the user contradicts."""
    if spec.declared is None:
        return {}
    settings = dict(spec.declared.settings)

    def leave_out(*keys: str) -> None:
        for key in keys:
            settings.pop(key, None)

    leave_out("layout", "dtype")  # the input itself says these
    if given["dtype"] in RAW_TYPES:
        leave_out("mean", "std")
    channels = spec.shape[_channel_axis(layout)]
    order = given.get("order") or settings.get("order")
    if order is not None and (channels not in (None, _channels(order)) or order != settings.get("order", order)):
        leave_out("order")
    if order == "BGR" != spec.declared.settings.get("order"):
        settings |= {key: settings[key][::-1] for key in ("mean", "std") if key in settings}
    if channels == 1 or order == "GRAY":
        leave_out(*(key for key in ("mean", "std") if len(settings.get(key, ())) > 1))
    height, width = spec.shape[2:4] if layout == "NCHW" else spec.shape[1:3]
    size = settings.get("size")
    if size is not None and ("size" in given or height not in (None, size[0]) or width not in (None, size[1])):
        leave_out("size", "resize")
    if given.get("fit", settings.get("fit")) != settings.get("fit") or given.get("resize") is not None:
        # What was declared is another way to fit the image in: only the rest of it holds.
        leave_out("fit", "pad", "resize")
    return settings


def _sentence(
    spec: InputSpec,
    recipe: Preprocess,
    given: Mapping[str, object],
    declared: Mapping[str, object],
    usual: Mapping[str, Any],
) -> str:
    """Say what is done to images and who says so; where that is only a guess, how to change it.

    Layout, order and size that the input's shape settles are not guesses.
    """
    done = f"Images for {_named(spec)}: {recipe.describe()}."
    used = {"fit", "mean", "std", "order", "resample", "resize"} & set(declared) - set(given)
    if used and spec.declared is not None:
        done = f"{done} So says {spec.declared.source}."
    guessed = [key for key in usual if key not in given and key not in declared]
    if not {"mean", "std"} & set(guessed) or recipe.dtype in RAW_TYPES:
        return done
    names = {UNIT: "the usual 0..1", SIGNED: "TensorFlow's usual -1..1", RAW: "the usual 0..255"}
    whose = names.get((usual["mean"], usual["std"]), "ImageNet's")
    whose += f", as {_DETECTORS[spec.answer]} has it" if spec.answer in _DETECTORS else ""
    listed = " and ".join(filter(None, (", ".join(guessed[:-1]), guessed[-1])))
    return f"Guessed {listed} ({whose}). To change them, give {_FLAGS}. {done}"


def _named(spec: InputSpec) -> str:
    return f"input '{spec.name}' of shape {spec.shape_text}"


def _pixel_type(spec: InputSpec) -> PixelType:
    name = spec.type_text
    if name not in _CHOICES["dtype"]:
        raise UsageError(
            f"{_named(spec)} takes {name}, which images cannot be read as. Pass .npy or .npz files instead."
        )
    return name  # type: ignore[return-value]  # narrowed by the check above


def _find_layout(spec: InputSpec, given: Mapping[str, Any], label: _Label) -> Layout:
    shape = spec.shape
    not_image = f"{_named(spec)} does not look like an image of 1 or 3 channels. Pass .npy or .npz files instead."
    if len(shape) != 4:
        raise UsageError(not_image)
    layout: Layout | None = given.get("layout")
    if layout is not None:
        if shape[_channel_axis(layout)] not in (1, 3, None):
            raise UsageError(f"{label('layout')} is {layout}, but {_named(spec)} has no 1 or 3 channels there.")
        return layout
    if shape[1] in (1, 3):
        return "NCHW"
    if shape[3] in (1, 3):
        return "NHWC"
    if shape[1] is None or shape[3] is None:
        raise UsageError(f"{_named(spec)} does not say which axis holds the channels. Give --layout NCHW or NHWC.")
    raise UsageError(not_image)


def _find_order(spec: InputSpec, given: Mapping[str, Any], layout: Layout, label: _Label) -> Order:
    channels = spec.shape[_channel_axis(layout)]
    order: Order | None = given.get("order")
    if order is None:
        if channels is None:
            raise UsageError(f"{_named(spec)} does not say how many channels it has. Give --order RGB, BGR or GRAY.")
        return "GRAY" if channels == 1 else "RGB"
    if channels not in (None, _channels(order)):
        raise UsageError(f"{label('order')} is {order}, but {_named(spec)} has {channels} channel(s).")
    return order


def _find_size(spec: InputSpec, given: Mapping[str, Any], layout: Layout, label: _Label) -> Size:
    height, width = spec.shape[2:4] if layout == "NCHW" else spec.shape[1:3]
    size: Size | None = given.get("size")
    if size is None:
        if height is None or width is None:
            raise UsageError(f"{_named(spec)} has no fixed height and width. Give --size H,W.")
        return height, width
    if height not in (None, size[0]) or width not in (None, size[1]):
        raise UsageError(f"{label('size')} is {size[0]},{size[1]}, which does not fit {_named(spec)} ({layout}).")
    return size


Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation
UNIT: Statistics = ((0.0,), (255.0,))
SIGNED: Statistics = ((127.5,), (127.5,))


RAW: Statistics = ((0.0,), (1.0,))
_DETECTORS = {"yolo": "YOLO", "yolox": "YOLO", "nanodet": "NanoDet"}  # what a detector on grids is guessed to be


def _usual(
    spec: InputSpec, dtype: PixelType, order: Order, layout: Layout, given: Mapping[str, object]
) -> dict[str, Any]:
    """Return what most models of such an input were trained with.

    YOLO sees the whole image, on grey: as 0..1, and YOLOX as 0..255 with blue first. NanoDet sees it distorted, blue
    first too, with ImageNet's statistics.
    """
    if spec.answer in ("yolox", "nanodet") and order == "RGB" and "order" not in given:
        order = "BGR"
    mean, std = _usual_statistics(spec, dtype, order, layout)
    usual: dict[str, Any] = {"mean": mean, "std": std}
    if spec.answer in _DETECTORS and given.get("resize") is None:
        usual["fit"] = "stretch" if spec.answer == "nanodet" else "letterbox"
    if spec.answer in ("yolox", "nanodet") and order == "BGR":
        usual["order"] = order
    return usual


def _usual_statistics(spec: InputSpec, dtype: PixelType, order: Order, layout: Layout) -> Statistics:
    """Return the usual mean and deviation. Channels come last in TensorFlow's.

    Who answers with an image (super-resolution, denoising) answers in the units of the input, and these are shown.
    """
    if dtype in RAW_TYPES or spec.answer == "yolox":
        return RAW
    if order == "GRAY" or spec.answer in ("image", "yolo"):
        return UNIT
    if layout == "NHWC":
        return SIGNED
    step = -1 if order == "BGR" else 1
    return IMAGENET_MEAN[::step], IMAGENET_STD[::step]


def _channels(order: Order) -> int:
    return 1 if order == "GRAY" else 3


def _channel_axis(layout: Layout) -> int:
    return 1 if layout == "NCHW" else 3


def _numbers(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        raw = parse_json(read_text(path))
    except OSError as error:
        raise UsageError(f"{path}: the preprocess file cannot be read ({error.strerror or error}).") from error
    except ValueError as error:
        raise UsageError(f"{path}: the preprocess file is not valid JSON ({error}).") from error
    if not isinstance(raw, dict):
        raise UsageError(f'{path}: expected one JSON object like {{"size": 224, ...}}, found a {type(raw).__name__}.')
    return raw


def checked_settings(raw: Mapping[str, object], label: _Label) -> dict[str, Any]:
    """Return every setting in its final type. Nothing is filled in; a null is the same as not given."""
    settings: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in _CONVERTERS:
            known = ", ".join(_CONVERTERS)
            raise UsageError(f"{label(key)} is not a preprocess setting.{nearest(key, _CONVERTERS)} Known: {known}.")
        if value is not None:
            settings[key] = _CONVERTERS[key](value, label(key))
    std = settings.get("std", ())
    if any(value <= 0 for value in std):
        raise UsageError(f"{label('std')} must be greater than zero, not {_numbers(std)}.")
    if std and max(std) < 1:
        raise UsageError(
            f"{label('std')} is {_numbers(std)}, but mean and std are on the 0..255 scale of the pixels. "
            f"Multiply both by 255: std {_numbers(tuple(255 * value for value in std))}."
        )
    return settings


def _as_choice(key: str, value: object, name: str) -> str:
    choices = _CHOICES[key]
    if value not in choices:
        hint = nearest(str(value), choices)
        raise UsageError(f"{name} must be one of {', '.join(choices)}, not {value!r}.{hint}")
    return str(value)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _as_pixels(value: object, name: str) -> int:
    if not _is_whole(value) or value < 1:
        raise UsageError(f"{name} must be a whole number of pixels, at least 1, not {value!r}.")
    return int(value)


def _as_level(value: object, name: str) -> int:
    if not _is_whole(value) or not 0 <= value <= 255:
        raise UsageError(f"{name} must be a whole number from 0 to 255, not {value!r}.")
    return int(value)


def _as_size(value: object, name: str) -> Size:
    sides = value if isinstance(value, (list, tuple)) else (value, value)
    if len(sides) != 2:
        raise UsageError(f"{name} must be one number or height and width, not {value!r}.")
    return _as_pixels(sides[0], name), _as_pixels(sides[1], name)


def _as_numbers(value: object, name: str) -> tuple[float, ...]:
    values: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value]
    numeric = (int, float, np.integer, np.floating)
    if not all(isinstance(x, numeric) and not isinstance(x, bool) and math.isfinite(x) for x in values):
        raise UsageError(f"{name} must be a number, or a list with one number per channel, not {value!r}.")
    if len(values) not in (1, 3):
        raise UsageError(f"{name} must have one value, or one per channel, not {len(values)}.")
    return tuple(float(x) for x in values)


_CONVERTERS: Mapping[str, Callable[[object, str], Any]] = {
    "size": _as_size,
    "resize": _as_pixels,
    "mean": _as_numbers,
    "std": _as_numbers,
    "pad": _as_level,
    **{key: partial(_as_choice, key) for key in _CHOICES},
}


def _check_together(settings: Mapping[str, Any], given: Mapping[str, Any], label: _Label) -> None:
    channels = _channels(settings["order"])
    for key, neutral in (("mean", 0.0), ("std", 1.0)):
        values = settings[key]
        if len(values) not in (1, channels):
            raise UsageError(f"{label(key)} has {len(values)} values, but the image has {channels} channel(s).")
        if settings["dtype"] in RAW_TYPES and set(values) != {neutral}:
            raise UsageError(
                f"{label(key)} is {_numbers(values)}, but a {settings['dtype']} input takes the raw pixels, without "
                "mean and std."
            )
    resize = settings.get("resize")
    if resize is not None and resize < min(settings["size"]):
        height, width = settings["size"]
        raise UsageError(f"{label('resize')} is {resize}, too small to cut {height}x{width} out of.")
    fit = settings.get("fit", "crop")
    if fit != "crop" and given.get("resize") is not None:
        raise UsageError(f"{label('resize')} is the short side before a crop, but {label('fit')} is {fit}.")
    if fit != "letterbox" and given.get("pad") is not None:
        raise UsageError(f"{label('pad')} is what a letterbox is filled with, but {label('fit')} is {fit}.")
