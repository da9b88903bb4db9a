"""The pictures of docs/formats.md: `python -m tools.draw_formats docs/pictures` writes them.

Nothing is drawn from memory: every tick is a number that the format itself returns, for data from -1 to 2.5.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from tools.number_line import Field, Line, Numbers, Picture, draw

from detent.numerics import BLOCK_FORMATS
from detent.numerics.blocks import FLOAT_ELEMENTS, BlockFloat, BlockFormat
from detent.numerics.floats import FLOAT_NAMES, FloatFormat
from detent.numerics.formats import IntegerFormat, QuantParams

DATA = (-1.0, 2.5)
STRETCHES = ((-4.0, 4.0), (0.0, 0.25), (1.0, 1.25))
FINEST = 2.0**-12
"""The step of the numbers that are tried on block formats; nearer to zero, that of a float with 12 digits."""


def integer_picture(name: str, fmt: IntegerFormat, title: str) -> Picture:
    """Codes with a scale and a zero point, fitted to the data."""
    params = fmt.fit(*DATA)
    bits = fmt.bits
    scale = float(params.scale)
    step = f"2^{int(np.log2(scale))}" if fmt.power_of_two else f"{scale:.4g}"
    zero = int(params.zero_point)
    note = f"number = {'code' if zero == 0 else f'(code - {zero})'} * {step}"
    return _picture(name, title, (Field("c" * bits, "code"),), note, _decoded(params))


def group_picture() -> Picture:
    """Eight 4-bit weights in two groups, each with a scale of its own."""
    fmt = IntegerFormat("int4")
    lines = []
    for label, largest in (("large weights", 1.4), ("small weights", 0.05)):
        params = fmt.fit(-largest, largest)
        numbers = _decoded(params)
        lines += [Line(-1.5, 1.5, numbers, label=label), Line(-0.1, 0.1, numbers, label="  near zero")]
    fields = (Field("scale", "shared"), Field("cccc", "code", "N times"))
    title = "int4 per group: each group has a scale"
    return Picture("int4_per_group", title, fields, "number = code * scale", tuple(lines))


def float_picture(name: str) -> Picture:
    """A small float: all its finite codes."""
    fmt = FloatFormat(name)
    encoded = fmt.encode(np.zeros(1, np.float32))
    with np.errstate(invalid="ignore"):  # some of the codes are no numbers
        every = np.arange(1 << fmt.bits, dtype=f"uint{fmt.bits}").view(encoded.dtype).astype(np.float64)
    exponent, mantissa = _float_fields(fmt)
    fields = (Field("s", "sign"), Field("e" * exponent, "exponent"), Field("m" * mantissa, "fraction"))
    step = f"a step is 1/{1 << mantissa} of the power of two below; largest {fmt.largest:.4g}"
    return _picture(name, name, fields, step, np.unique(every[np.isfinite(every)]))


def block_picture(name: str, fmt: BlockFormat) -> Picture:
    """The numbers beside a largest one of 2.5 in the same block, and those of a pair that has only small ones."""
    beside, apart = _block_numbers(fmt, 1), _block_numbers(fmt, 2)
    two_level = isinstance(fmt, BlockFloat) and fmt.sub_block_size is not None
    fields = [Field("eeeeeeee", "shared"), *_element_fields(fmt)]
    title = f"{name}: {fmt.block_size} numbers share an exponent"
    note = "orange: pairs below 2 only" if two_level else "in a block whose largest is 2.5"
    return _picture(name, title, tuple(fields), note, beside, apart if two_level else None)


def pictures() -> list[Picture]:
    """All of them, in the order of the page."""
    integers = [
        integer_picture("int8_power_of_two", IntegerFormat("int8", scale="power_of_two"), "int8, power-of-two scale"),
        integer_picture("int8", IntegerFormat("int8"), "int8, symmetric, float scale"),
        integer_picture("uint8_asymmetric", IntegerFormat("uint8", symmetric=False), "uint8, asymmetric"),
        integer_picture("int16", IntegerFormat("int16"), "int16, symmetric, float scale"),
        group_picture(),
    ]
    floats = [float_picture(name) for name in FLOAT_NAMES]
    return integers + floats + [block_picture(name, fmt) for name, fmt in BLOCK_FORMATS.items()]


def _picture(
    name: str, title: str, fields: tuple[Field, ...], note: str, numbers: Numbers, fine: Numbers | None = None
) -> Picture:
    lines = tuple(Line(low, high, numbers, fine) for low, high in STRETCHES)
    return Picture(name, title, fields, note, lines, DATA)


def _decoded(params: QuantParams) -> Numbers:
    """Every number that a code stands for: what is snapped from the middle of each step and from both ends."""
    scale = float(params.scale)
    codes = np.arange(-(1 << 16), 1 << 16, dtype=np.float64)
    return np.unique(params.snap(codes * scale).astype(np.float64))


def _float_fields(fmt: FloatFormat) -> tuple[int, int]:
    """How many bits the exponent and the mantissa have: between 1 and 2 lie as many numbers as mantissas."""
    near_one = np.unique(fmt.snap(np.linspace(1, 2, 1 << 13, endpoint=False, dtype=np.float32)))
    mantissa = int(np.log2(np.count_nonzero(near_one < 2)))
    return fmt.bits - 1 - mantissa, mantissa


def _block_numbers(fmt: BlockFormat, place: int) -> Numbers:
    """What the element at `place` of a block may be; the first is the largest of the data, the others are zero."""
    evenly = np.arange(-4 + FINEST, 4, FINEST)
    tried = np.concatenate([evenly, evenly * FINEST, evenly * FINEST**2]).astype(np.float32)
    blocks = np.zeros((len(tried), fmt.block_size), np.float32)
    blocks[:, 0], blocks[:, place] = DATA[1], tried
    return np.unique(fmt.snap(blocks, axis=1)[:, place].astype(np.float64))


def _element_fields(fmt: BlockFormat) -> list[Field]:
    """The bits that each element of a block has for itself."""
    if isinstance(fmt, BlockFloat):
        own = [Field("s", "sign"), Field("m" * fmt.mantissa_bits, "fraction")]
        if fmt.sub_block_size is None:
            return [Field("s", "sign", f"{fmt.block_size} times"), own[1]]
        return [Field("t", "shared", f"{fmt.block_size // fmt.sub_block_size} times"), *own, *own]
    before = f"{fmt.block_size} times"
    if fmt.element == "int8":
        return [Field("s", "sign", before), Field("iffffff", "fraction")]
    mantissa = FLOAT_ELEMENTS[fmt.element].mantissa_bits
    exponent = int(fmt.element[2]) - 1 - mantissa
    return [Field("s", "sign", before), Field("e" * exponent, "exponent"), Field("m" * mantissa, "fraction")]


def main(arguments: list[str]) -> None:
    """Write every picture into the folder that is named."""
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures():
        (folder / f"{picture.name}.svg").write_text(draw(picture), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
