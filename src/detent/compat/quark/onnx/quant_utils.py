"""The enumerations, where Quark's older versions have them."""

from detent.compat.quark.onnx.quantization.quant_utils import *  # noqa: F403 - the same names at two places
