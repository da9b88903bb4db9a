"""From an image file to 8-bit pixels of a given size.

The steps, in this order, are those of the usual training pipelines: decode at full size, turn upright as the EXIF
orientation says, convert to RGB or grey, fit into the size. What is not obvious:

* An image is fitted in one of three ways. `crop` resizes it to cover the size and cuts out the centre. `letterbox`
  resizes it to lie within the size, in the middle, and pads the rest. `stretch` resizes each side by itself.
* Anything transparent is laid on white before it is converted.
* 16-bit grey is scaled to 0..255 with rounding. Pixels of unknown range (32-bit integers, floats) are refused.
* CMYK is converted without its colour profile. Of several frames or pages, the first is used.
* JPEG is always decoded in full: the decoder's reduced sizes ("draft mode") give other pixels.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from detent.errors import DataError
from detent.graph.file_kinds import kind_of_file

if TYPE_CHECKING:
    from PIL import Image

Resample = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
Fit = Literal["crop", "letterbox", "stretch"]
Size = tuple[int, int]

GREY = 114  # what detectors of the YOLO family are trained to see around a letterboxed image

# A strip a few pixels high would have to grow to gigabytes before its centre is cut out.
_MOST_PIXELS = 1 << 27

# Pixels that a byte of a file can stand for: of the usual formats, PNG comes to 8,256 where all are alike.
_MOST_PER_BYTE = 1 << 14

_ALPHA_MODES = frozenset({"RGBA", "RGBa", "LA", "La", "PA"})


def resized_shape(image: Size, size: Size, resize: int | None) -> Size:
    """Return height and width to resample an image of `image` to, before its centre is cut out.

    The short side becomes `resize` and the long side follows, rounded down. Where that would not cover `size`, and
    where `resize` is None, the image becomes just large enough to cover it: one side equals that of `size`.
    """
    height, width = image
    if resize is not None:
        short = min(image)
        scaled = (resize * height // short, resize * width // short)
        if scaled[0] >= size[0] and scaled[1] >= size[1]:
            return scaled
    # Compared as products, so that no rounding decides which side is the tight one.
    if size[0] * width >= size[1] * height:
        return size[0], size[0] * width // height
    return size[1] * height // width, size[1]


@dataclass(frozen=True)
class Geometry:
    """Where an image lies in a model's input, so that boxes can be mapped back. Sizes are height and width.

    An image of size `image` is resized to `resized`, whose corner comes to lie at `offset` (top, left): below 0 where
    it is cropped, above 0 where it is padded.
    """

    image: Size
    resized: Size
    offset: Size

    @property
    def scale(self) -> tuple[float, float]:
        """Return the pixels of the input per pixel of the image, down and across."""
        return self.resized[0] / self.image[0], self.resized[1] / self.image[1]

    def to_image(self, boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return boxes (x1, y1, x2, y2) of the input in pixels of the image, clipped to it."""
        down, across = self.scale
        top, left = self.offset
        moved = (boxes.astype(np.float64) - [left, top, left, top]) / [across, down, across, down]
        height, width = self.image
        clipped: npt.NDArray[np.float32] = np.clip(moved, 0.0, [width, height, width, height]).astype(np.float32)
        return clipped

    def pixels_at(self, axis: int, positions: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return which row (axis 0) or column (axis 1) of the image is at these places of the input; -1 outside."""
        at = np.floor((positions - self.offset[axis]) / self.scale[axis]).astype(np.int64)
        inside = (positions >= self.offset[axis]) & (at >= 0) & (at < self.image[axis])
        found: npt.NDArray[np.int64] = np.where(inside, at, -1)
        return found


def geometry(image: Size, size: Size, *, fit: Fit = "crop", resize: int | None = None) -> Geometry:
    """Return where an image of `image` (height, width) lies in an input of `size`."""
    if fit == "stretch":
        return Geometry(image, size, (0, 0))
    if fit == "crop":
        resized = resized_shape(image, size, resize)
        # An odd margin is rounded half to even, as torchvision's CenterCrop does it: the pixels are those of training.
        return Geometry(image, resized, (-round((resized[0] - size[0]) / 2), -round((resized[1] - size[1]) / 2)))
    height, width = image
    # Compared as products, so that no rounding decides which side is the tight one.
    if size[0] * width <= size[1] * height:
        resized = size[0], max(1, round(width * size[0] / height))
    else:
        resized = max(1, round(height * size[1] / width)), size[1]
    return Geometry(image, resized, ((size[0] - resized[0]) // 2, (size[1] - resized[1]) // 2))


def image_size(path: Path) -> Size:
    """Return height and width of the image in `path`, turned upright."""
    with _named_errors(path), _opened(path) as opened:
        if opened.format in ("PNG", "TIFF"):  # these may carry their EXIF block behind the pixels
            opened.load()
        turned = opened.getexif().get(0x0112, 1) in (5, 6, 7, 8)
        return (opened.width, opened.height) if turned and opened.format != "TIFF" else (opened.height, opened.width)


def read_pixels(
    path: Path,
    *,
    size: Size,
    resize: int | None,
    grey: bool,
    resample: Resample,
    fit: Fit = "crop",
    pad: int = GREY,
) -> np.ndarray[Any, Any]:
    """Return the image in `path` as uint8, [height, width, 3] in RGB order or [height, width, 1] if `grey`.

    Raise `DataError`, naming the file, when it cannot be read, is cut short or holds pixels without a known range.
    """
    with _named_errors(path), _opened(path) as opened:
        upright = _upright(opened)
        pixels = _convert(upright, "L" if grey else "RGB")
        placed = geometry((pixels.height, pixels.width), size, fit=fit, resize=resize)
        array = np.asarray(_place(pixels, size, placed, resample, pad))
    return array[:, :, np.newaxis] if grey else array


# How files of these kinds end, if they are whole. Some writers leave the end out, and some add to it.
_ENDS = {b"\xff\xd8": b"\xff\xd9", b"\x89P": b"IEND\xaeB`\x82"}


def why_unreadable(path: Path) -> str:
    """Return why an image cannot be read, or nothing: by its header and its end, and in doubt by decoding it."""
    try:
        with _named_errors(path), path.open("rb") as file:
            start = file.read(2)
            file.seek(max(0, path.stat().st_size - 12))
            whole = start in _ENDS and file.read().endswith(_ENDS[start])
            with _opened(path) as opened:
                if not whole:
                    opened.load()
    except DataError as error:
        cause = error.__cause__
        return (_reason(path, cause) if isinstance(cause, Exception) else str(error)).rstrip(".")
    return ""


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open an image. Raise ValueError for a header that claims what the file cannot hold: memory is taken for it."""
    from PIL import Image

    with Image.open(path) as opened:
        if opened.width * opened.height > _MOST_PER_BYTE * (held := path.stat().st_size):
            raise ValueError(f"its {held} bytes cannot hold the {opened.height}x{opened.width} pixels that it claims")
        yield opened


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Turn whatever Pillow raises into a DataError that names the file."""
    from PIL import Image

    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise DataError(f"{path}: this is a pipe or a device, not an image file. Take it out of the data.")
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such image file.") from error
    # What Pillow's decoders raise on damaged files; none of them is documented as the only one.
    except (
        *(OSError, SyntaxError, ValueError, TypeError, EOFError, LookupError, OverflowError),
        *(struct.error, zlib.error, Image.DecompressionBombError),
    ) as error:
        raise DataError(
            f"{path}: this image cannot be read ({_reason(path, error)}). Repair it or take it out of the data."
        ) from error


def _reason(path: Path, error: Exception) -> str:
    try:
        with path.open("rb") as file:
            head = file.read(64)
        if not head:
            return "the file is empty"
        if known := kind_of_file(head):
            return known.removesuffix(".")
    except OSError:
        pass
    text = str(error).replace(str(path), path.name)
    return text or type(error).__name__


def _upright(image: Image.Image) -> Image.Image:
    from PIL import Image

    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    image.load()
    # Read after load(): a PNG may carry its EXIF block behind the pixels, and a TIFF turns itself while it loads.
    turn = turns.get(image.getexif().get(0x0112, 1))
    if turn is None:
        return image
    turned = image.transpose(turn)
    # transpose() takes the transparent colour along but forgets the format, by which 16-bit grey is known below.
    turned.format = image.format
    return turned


def _convert(image: Image.Image, mode: Literal["L", "RGB"]) -> Image.Image:
    from PIL import Image

    # Older versions of Pillow open a 16-bit PNG in the mode of 32-bit integers.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        # Pillow's own conversion clips at 255 or cuts the low byte, depending on its version.
        wide = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((wide + 128) // 257).astype(np.uint8)).convert(mode)
    if image.mode in ("I", "F"):
        kind = "32-bit integer" if image.mode == "I" else "floating-point"
        raise ValueError(f"{kind} pixels have no known range; save it as .npy, already preprocessed")
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        if image.mode == "La":
            image = image.convert("LA")
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, rgba).convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def _place(image: Image.Image, size: Size, placed: Geometry, resample: Resample, pad: int) -> Image.Image:
    from PIL import Image

    shape, wanted = placed.image, placed.resized
    if wanted[0] * wanted[1] > max(_MOST_PIXELS, shape[0] * shape[1]):
        raise ValueError(f"{shape[0]}x{shape[1]} pixels are too narrow to cut {size[0]}x{size[1]} out of")
    if wanted != shape:
        filters = Image.Resampling
        image = image.resize((wanted[1], wanted[0]), filters[resample.upper()])
    if wanted == size:
        return image
    top, left = placed.offset
    if top <= 0 and left <= 0 and wanted[0] >= size[0] and wanted[1] >= size[1]:
        return image.crop((-left, -top, size[1] - left, size[0] - top))
    canvas = Image.new(image.mode, (size[1], size[0]), pad if image.mode == "L" else (pad, pad, pad))
    canvas.paste(image, (left, top))
    return canvas
