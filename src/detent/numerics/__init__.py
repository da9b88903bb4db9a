"""Number formats: pure arithmetic on arrays. No graph, no files, nothing of the rest of the package.

Here is every format that has a name, with its usual settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from detent.numerics.blocks import BlockFloat, BlockFormat, Microscaling
from detent.numerics.floats import FLOAT_NAMES, FloatFormat
from detent.numerics.formats import INTEGER_TYPES, IntegerFormat
from detent.numerics.interface import NumberFormat

BLOCK_FORMATS: Mapping[str, BlockFormat] = {
    "BFP16": BlockFloat(),
    "MX4": BlockFloat(11, 16, 2),
    "MX6": BlockFloat(13, 16, 2),
    "MX9": BlockFloat(16, 16, 2),
    "MXINT8": Microscaling("int8"),
    "MXFP8E5M2": Microscaling("fp8_e5m2"),
    "MXFP8E4M3": Microscaling("fp8_e4m3"),
    "MXFP6E3M2": Microscaling("fp6_e3m2"),
    "MXFP6E2M3": Microscaling("fp6_e2m3"),
    "MXFP4E2M1": Microscaling("fp4_e2m1"),
}

NAMED_FORMATS: Mapping[str, NumberFormat] = {
    **{name: IntegerFormat(name) for name in INTEGER_TYPES},
    **{name: FloatFormat(name) for name in FLOAT_NAMES},
    **BLOCK_FORMATS,
}
