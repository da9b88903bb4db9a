"""From an image file to 8-bit pixels of a given size.

The steps, in this order, are those of the usual training pipelines: decode at full size, turn upright as the EXIF
orientation says, convert to RGB or grey, resize, cut out the centre. What is not obvious:

* Anything transparent is laid on white before it is converted.
* 16-bit grey is scaled to 0..255 with rounding. Pixels of unknown range (32-bit integers, floats) are refused.
* CMYK is converted without its colour profile. Of several frames or pages, the first is used.
* JPEG is always decoded in full: the decoder's reduced sizes ("draft mode") give other pixels.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from detent.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

Resample = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
Size = tuple[int, int]

# A strip a few pixels high would have to grow to gigabytes before its centre is cut out.
_MOST_PIXELS = 1 << 27

_ALPHA_MODES = frozenset({"RGBA", "RGBa", "LA", "La", "PA"})


def resized_shape(image: Size, size: Size, resize: int | None) -> Size:
    """Height and width to resample an image of `image` (height, width) to, before its centre is cut out.

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


def centre_box(image: Size, size: Size) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of the centre of `size` in an image of `image` (both height, width).

    An odd margin is rounded half to even, as torchvision's CenterCrop does it, so that pixels match those seen in
    training.
    """
    top = round((image[0] - size[0]) / 2)
    left = round((image[1] - size[1]) / 2)
    return left, top, left + size[1], top + size[0]


def read_pixels(path: Path, *, size: Size, resize: int | None, grey: bool, resample: Resample) -> np.ndarray[Any, Any]:
    """The image in `path` as uint8, [height, width, 3] in RGB order or [height, width, 1] if `grey`.

    Raises `DataError`, naming the file, when it cannot be read, is cut short or holds pixels without a known range.
    """
    from PIL import Image

    try:
        with Image.open(path) as opened:
            upright = _upright(opened)
            pixels = _convert(upright, "L" if grey else "RGB")
            array = np.asarray(_fit(pixels, size, resize, resample))
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such image file.") from error
    # What Pillow's decoders raise on damaged files; none of them is documented as the only one.
    except (
        OSError,
        SyntaxError,
        ValueError,
        TypeError,
        EOFError,
        LookupError,
        OverflowError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        raise DataError(
            f"{path}: this image cannot be read ({_reason(path, error)}). Repair it or take it out of the data."
        ) from error
    return array[:, :, np.newaxis] if grey else array


def _reason(path: Path, error: Exception) -> str:
    try:
        if path.stat().st_size == 0:
            return "the file is empty"
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


def _fit(image: Image.Image, size: Size, resize: int | None, resample: Resample) -> Image.Image:
    from PIL import Image

    shape = (image.height, image.width)
    wanted = resized_shape(shape, size, resize)
    if wanted[0] * wanted[1] > max(_MOST_PIXELS, shape[0] * shape[1]):
        raise ValueError(f"{shape[0]}x{shape[1]} pixels are too narrow to cut {size[0]}x{size[1]} out of")
    if wanted != shape:
        filters = Image.Resampling
        image = image.resize((wanted[1], wanted[0]), filters[resample.upper()])
    return image if wanted == size else image.crop(centre_box(wanted, size))
