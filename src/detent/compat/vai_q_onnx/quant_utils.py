"""The enumerations, where scripts also look for them."""

from detent.compat.quark.onnx.quantization.quant_utils import *  # noqa: F403 - the same names
