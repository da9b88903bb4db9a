"""`detent.check`."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import onnx

from detent.device_check.check import check as run
from detent.results.checked import DeviceCheck


def check(model: str | PathLike[str] | onnx.ModelProto, target: str = "npu-xint8") -> DeviceCheck:
    """Whether a device takes a float or quantized `model`, node by node, and why not. Nothing is run or changed.

    Args:
        model: a path, or a ModelProto.
        target: "npu-xint8", "npu-a8w8", "npu-a16w8", "npu-bf16" or "cpu".

    Raises:
        DetentError: UsageError for an unknown target, ModelError for what is no model.
    """
    return run(model if isinstance(model, onnx.ModelProto) else Path(model), target)
