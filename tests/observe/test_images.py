"""Geometry and pixels: what comes out of an image file before any normalisation."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from detent.errors import DataError
from detent.observe.images import geometry, image_size, read_pixels, resized_shape, why_unreadable

sides = st.integers(1, 700)


def read(path, size=(2, 3), resize=None, grey=False, resample="bilinear"):
    return read_pixels(path, size=size, resize=resize, grey=grey, resample=resample)


@pytest.mark.parametrize(
    ("image", "size", "resize", "expected"),
    [
        ((375, 500), (224, 224), 256, (256, 341)),
        ((500, 375), (224, 224), 256, (341, 256)),
        ((375, 500), (224, 224), None, (224, 298)),
        ((500, 375), (224, 224), None, (298, 224)),
        ((100, 100), (50, 80), None, (80, 80)),
        ((480, 640), (480, 640), None, (480, 640)),
        ((10, 10), (20, 20), None, (20, 20)),
        ((100, 100), (50, 80), 60, (80, 80)),  # a short side of 60 would not cover a width of 80
        ((50, 100), (50, 80), 60, (60, 120)),
    ],
)
def test_resized_shape_by_hand(image, size, resize, expected):
    assert resized_shape(image, size, resize) == expected


@given(sides, sides, sides, sides, st.none() | sides)
def test_the_resized_image_always_covers_the_crop(height, width, crop_height, crop_width, resize):
    size = (crop_height, crop_width)
    shape = resized_shape((height, width), size, resize)
    assert shape[0] >= size[0] and shape[1] >= size[1]
    if resize is None:
        assert shape[0] == size[0] or shape[1] == size[1]
    elif min(shape) != resize:
        # The short side was raised only as far as needed to cover.
        assert shape == resized_shape((height, width), size, None)
    # The proportions stay those of the image, to within the rounding of one pixel.
    assert abs(shape[0] * width - shape[1] * height) < max(height, width)


@given(sides, sides, st.integers(0, 300), st.integers(0, 300))
def test_the_crop_is_inside_and_central(height, width, more_height, more_width):
    image = (height + more_height, width + more_width)
    placed = geometry(image, (height, width), resize=min(image))
    assert placed.resized == image
    for offset, more in zip(placed.offset, (more_height, more_width), strict=True):
        assert 0 <= -offset <= more
        assert abs(-offset - (more + offset)) <= 1


@pytest.mark.parametrize(("side", "start"), [(256, 16), (257, 16), (259, 18), (224, 0)])
def test_odd_margins_are_rounded_half_to_even(side, start):
    assert geometry((side, side), (224, 224), resize=side).offset == (-start, -start)


def test_an_image_of_the_right_size_is_not_resampled(tmp_path):
    pixels = np.arange(18, dtype=np.uint8).reshape(2, 3, 3) * 14
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for resample in ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"):
        np.testing.assert_array_equal(read(tmp_path / "a.png", resample=resample), pixels)


def test_box_resampling_and_crop_by_hand(tmp_path):
    pixels = np.zeros((2, 6), np.uint8)
    pixels[:] = [200, 200, 10, 30, 50, 90]
    Image.fromarray(pixels).save(tmp_path / "a.png")
    # To 1x3, each pixel the mean of 2x2, of which the middle one is kept.
    assert read(tmp_path / "a.png", size=(1, 1), grey=True, resample="box").tolist() == [[[20]]]


def test_resize_then_crop_is_what_pillow_does_in_two_steps(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "a.png")
    for resample, filter_ in (("bicubic", Image.Resampling.BICUBIC), ("nearest", Image.Resampling.NEAREST)):
        expected = image.resize((28, 20), filter_).crop((6, 2, 22, 18))
        found = read(tmp_path / "a.png", size=(16, 16), resize=20, resample=resample)
        np.testing.assert_array_equal(found, np.asarray(expected))


@pytest.mark.parametrize("ending", ["png", "webp", "tiff", "jpg"])
@pytest.mark.parametrize(
    ("orientation", "expected"),
    [
        (1, [[0, 1], [2, 3], [4, 5]]),
        (2, [[1, 0], [3, 2], [5, 4]]),
        (3, [[5, 4], [3, 2], [1, 0]]),
        (4, [[4, 5], [2, 3], [0, 1]]),
        (5, [[0, 2, 4], [1, 3, 5]]),
        (6, [[4, 2, 0], [5, 3, 1]]),
        (7, [[5, 3, 1], [4, 2, 0]]),
        (8, [[1, 3, 5], [0, 2, 4]]),
    ],
)
def test_exif_orientation(tmp_path, ending, orientation, expected):
    # Blocks of 16 pixels, so that JPEG's own loss does not reach the middle of one.
    image = Image.fromarray(np.kron(np.arange(6).reshape(3, 2) * 40, np.ones((16, 16))).astype(np.uint8)).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / f"a.{ending}", exif=exif, **({"lossless": True} if ending == "webp" else {}))
    shape = np.shape(expected)
    found = read(tmp_path / f"a.{ending}", size=(shape[0] * 16, shape[1] * 16), grey=True)[8::16, 8::16, 0]
    assert np.abs(found.astype(int) - np.array(expected) * 40).max() <= 2


def one_colour(mode, colour, path, **options):
    image = Image.new(mode, (3, 2), colour)
    image.save(path, **options)
    return path


@pytest.mark.parametrize(
    ("mode", "colour", "ending", "rgb"),
    [
        ("RGB", (10, 20, 30), "png", (10, 20, 30)),
        ("L", 77, "png", (77, 77, 77)),
        ("1", 1, "png", (255, 255, 255)),
        ("RGBA", (10, 20, 30, 255), "png", (10, 20, 30)),
        ("RGBA", (10, 20, 30, 0), "png", (255, 255, 255)),
        ("RGBA", (0, 100, 200, 51), "png", (204, 224, 244)),  # a fifth of the colour, four fifths white
        ("LA", (100, 0), "png", (255, 255, 255)),
        ("LA", (0, 51), "png", (204, 204, 204)),
        ("I;16", 65535, "png", (255, 255, 255)),
        ("I;16", 257 * 100, "png", (100, 100, 100)),
        ("I;16", 257 * 100 + 129, "png", (101, 101, 101)),
        ("I;16", 257 * 100, "tiff", (100, 100, 100)),
        ("CMYK", (0, 0, 0, 0), "tiff", (255, 255, 255)),
        ("CMYK", (255, 0, 0, 0), "tiff", (0, 255, 255)),
    ],
)
def test_modes(tmp_path, mode, colour, ending, rgb):
    path = one_colour(mode, colour, tmp_path / f"a.{ending}")
    assert read(path).shape == (2, 3, 3)
    assert tuple(read(path)[1, 2]) == rgb


def test_cmyk_jpeg_is_not_inverted(tmp_path):
    path = one_colour("CMYK", (0, 255, 255, 0), tmp_path / "a.jpg", quality=100)
    assert np.abs(read(path)[0, 0].astype(int) - (255, 0, 0)).max() <= 3


def test_palette_with_and_without_a_transparent_entry(tmp_path):
    image = Image.new("P", (3, 2), 1)
    image.putpalette([1, 2, 3, 40, 50, 60])
    image.save(tmp_path / "opaque.png")
    image.save(tmp_path / "clear.png", transparency=1)
    assert tuple(read(tmp_path / "opaque.png")[0, 0]) == (40, 50, 60)
    assert tuple(read(tmp_path / "clear.png")[0, 0]) == (255, 255, 255)


def test_a_transparent_colour_survives_being_turned(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 3
    path = one_colour("RGB", (10, 20, 30), tmp_path / "a.png", transparency=(10, 20, 30), exif=exif)
    assert tuple(read(path)[0, 0]) == (255, 255, 255)


def test_grey_is_the_usual_luma(tmp_path):
    path = one_colour("RGB", (100, 150, 200), tmp_path / "a.png")
    found = read(path, grey=True)
    assert found.shape == (2, 3, 1)
    assert found[0, 0, 0] == 141  # 0.299 * 100 + 0.587 * 150 + 0.114 * 200 = 140.75


@pytest.mark.parametrize(("mode", "kind"), [("F", "floating-point"), ("I", "32-bit integer")])
def test_pixels_without_a_known_range_are_refused(tmp_path, mode, kind):
    path = one_colour(mode, 1, tmp_path / "a.tiff")
    with pytest.raises(DataError, match=rf"a\.tiff: this image cannot be read \({kind} pixels have no known range"):
        read(path)


def test_jpeg_is_decoded_in_full(tmp_path):
    # In draft mode the decoder would return an eighth of the size, with other pixels.
    pixels = np.random.default_rng(1).integers(0, 256, (512, 512, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as image:
        expected = image.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(read(tmp_path / "a.jpg", size=(32, 32)), np.asarray(expected))


@pytest.mark.filterwarnings("ignore")  # Pillow warns about damaged EXIF blocks
@pytest.mark.parametrize("ending", ["jpg", "png", "bmp", "webp", "tiff"])
def test_damaged_files_name_themselves(tmp_path, ending):
    good = tmp_path / f"good.{ending}"
    noise = np.random.default_rng(2).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(good)
    raw = good.read_bytes()
    damaged = tmp_path / f"bad.{ending}"
    for content in (b"", b"\0" * 100, raw[: len(raw) // 2], raw[:12]):
        damaged.write_bytes(content)
        with pytest.raises(DataError, match=rf"bad\.{ending}: this image cannot be read \(") as caught:
            read(damaged)
        assert ("the file is empty" in str(caught.value)) == (content == b"")


@pytest.mark.filterwarnings("ignore")  # Pillow warns about damaged EXIF blocks
def test_flipped_bits_never_escape_as_another_error(tmp_path):
    generator = np.random.default_rng(3)
    noise = generator.integers(0, 256, (24, 24, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    for ending in ("jpg", "png", "bmp", "webp", "tiff"):
        Image.fromarray(noise).save(tmp_path / f"good.{ending}", exif=exif)
        raw = (tmp_path / f"good.{ending}").read_bytes()
        for _ in range(60):
            content = bytearray(raw)
            for at in generator.integers(0, min(len(raw), 300), 4):
                content[at] = generator.integers(0, 256)
            damaged = tmp_path / f"bad.{ending}"
            damaged.write_bytes(content)
            with contextlib.suppress(DataError):
                assert read(damaged, size=(4, 4)).shape == (4, 4, 3)


def png(side, *chunks):
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", header), *chunks, (b"IEND", b"")):
        content += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return content


def test_a_broken_chunk_amid_the_pixels(tmp_path):
    # Pillow raises SyntaxError for this one, which is no OSError.
    pixels = zlib.compress(bytes(2 * 7))
    (tmp_path / "good.png").write_bytes(png(2, (b"IDAT", pixels[:5]), (b"IDAT", pixels[5:])))
    (tmp_path / "bad.png").write_bytes(png(2, (b"IDAT", pixels[:5]), (b"I\0\0T", pixels[5:])))
    assert read(tmp_path / "good.png", size=(2, 2)).max() == 0
    with pytest.raises(DataError, match=r"bad\.png: this image cannot be read"):
        read(tmp_path / "bad.png", size=(2, 2))


def test_a_decompression_bomb_is_refused(tmp_path):
    (tmp_path / "bomb.png").write_bytes(png(60000, (b"IDAT", zlib.compress(b""))))
    with pytest.raises(DataError, match=r"bomb\.png"):
        read(tmp_path / "bomb.png")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(DataError, match=r"no\.png: there is no such image file"):
        read(tmp_path / "no.png")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path)


def test_a_strip_that_would_grow_to_gigabytes_is_refused(tmp_path):
    Image.new("L", (20000, 1)).save(tmp_path / "strip.png")
    with pytest.raises(DataError, match=r"strip\.png.*1x20000.*224x224"):
        read(tmp_path / "strip.png", size=(224, 224))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_among_images_is_named_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png: this is a pipe"):
        image_size(tmp_path / "a.png")


def test_an_image_that_is_a_pointer_says_how_to_fetch_it(tmp_path):
    (tmp_path / "a.png").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(DataError, match=r"a\.png: .*git lfs pull"):
        image_size(tmp_path / "a.png")


@pytest.mark.parametrize("reader", [image_size, why_unreadable, read])
def test_a_header_that_claims_more_than_the_file_can_hold_is_refused_before_memory_is_taken(
    tmp_path, reader, monkeypatch
):
    sizes = struct.pack("<IiiHHIIiiII", 40, 14_000, 12_000, 1, 24, 0, 0, 0, 0, 0, 0)
    (tmp_path / "a.bmp").write_bytes(b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + sizes)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("memory is taken"))
    with contextlib.ExitStack() as stack:
        if reader is not why_unreadable:
            stack.enter_context(pytest.raises(DataError, match="its 54 bytes cannot hold the 12000x14000 pixels"))
        assert "its 54 bytes cannot hold" in reader(tmp_path / "a.bmp")


def test_an_image_all_of_one_colour_is_as_small_as_an_image_can_be(tmp_path):
    Image.new("1", (8192, 8192)).save(tmp_path / "a.png", optimize=True)
    assert image_size(tmp_path / "a.png") == (8192, 8192)
    assert why_unreadable(tmp_path / "a.png") == ""
