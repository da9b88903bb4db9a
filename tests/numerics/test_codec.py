"""The attributes and methods that every format has, and the one that encodes."""

from __future__ import annotations

import pytest

from detent.numerics.blocks import BlockParams, is_block
from detent.numerics.floats import FloatFormat, FloatParams, is_float
from detent.numerics.formats import IntegerFormat, QuantParams, has_power_of_two_scale, is_integer, is_product_bias
from detent.numerics.named import BLOCK_FORMATS, NAMED_FORMATS


@pytest.mark.parametrize("fmt", NAMED_FORMATS.values(), ids=str)
def test_every_format_is_of_one_kind(fmt):
    assert [is_integer(fmt), is_float(fmt), is_block(fmt)].count(True) == 1
    assert fmt.bits > 0 and fmt.label and fmt.description.startswith(fmt.label)
    assert fmt.replace() == fmt and fmt.along(1).format == fmt
    kind = QuantParams if is_integer(fmt) else BlockParams if fmt.in_blocks else FloatParams
    assert isinstance(fmt.fit(-1.0, 1.0), kind)


def test_no_format_is_of_no_kind():
    assert not (is_integer(None) or is_float(None) or is_block(None))
    assert not (has_power_of_two_scale(None) or is_product_bias(None))


@pytest.mark.parametrize(
    ("fmt", "opset", "twin"),
    [
        (IntegerFormat("int8"), 0, False),
        (IntegerFormat("int16"), 21, True),
        (IntegerFormat("uint4"), 21, True),
        (IntegerFormat("int4", granularity="per_group:32"), 21, False),
        (IntegerFormat("int8", granularity="per_group:32"), 21, False),
        (IntegerFormat("int32"), 0, False),
        (FloatFormat("float8_e5m2"), 19, False),
        (FloatFormat("bfloat16"), 0, False),
        (BLOCK_FORMATS["MX6"], 0, False),
    ],
)
def test_operator_sets(fmt, opset, twin):
    assert (fmt.least_opset, fmt.has_twin) == (opset, twin)


def test_what_needs_data():
    assert IntegerFormat("int8").needs_data and FloatFormat("float16", scaled=True).needs_data
    assert not FloatFormat("float16").needs_data and not BLOCK_FORMATS["BFP16"].needs_data
