"""Options on Quark's own machinery."""

from __future__ import annotations

from typing import Any

from detent.compat.options.base import Option, boolean, honoured, met, names, refused
from detent.compat.request import Request

_ENCRYPTION = "temporary files are not encrypted. Point TMPDIR at an encrypted disk"


def _device(request: Request, value: Any) -> Request:
    """It was taken for enable_npu_cnn before anything else, because much depends on it; here it is only checked."""
    boolean("EnableNPUCnn", value)
    return request


OPTIONS: tuple[Option, ...] = (
    honoured(
        "ExecutionProviders",
        "onnxruntime's providers to calibrate on (`providers`)",
        lambda request, value: request.replace(providers=names("ExecutionProviders", value)),
    ),
    met("DefaultTensorType", "types are inferred; where they cannot be, the node stays float and the report says so"),
    met("TmpDir", "temporary files are deleted at once, and stand where the environment variable TMPDIR says"),
    refused(
        "UserCustomOpLibPath", "only operators that plain onnxruntime has can be run", "Replace them by functions."
    ),
    refused("CryptoMode", _ENCRYPTION, "Delete the option."),
    refused("EncryptionAlgorithm", _ENCRYPTION, "Delete the option."),
    refused("DebugMode", "intermediate models are not written", "`detent quantize --report FILE` says what was done."),
    honoured(
        "PrintSummary",
        "whether the report is printed",
        lambda request, value: request.replace(summary=boolean("PrintSummary", value)),
    ),
    met("IgnoreWarnings", "warnings of other libraries are left as the script has them; Detent's are in its report"),
    met("EvalMetrics", "what quantization cost is always measured and reported"),
    refused("EvalDataReader", "it is measured on calibration samples that are held out", "Use `detent run` evaluate."),
    met("FillAllValueInfo", "types and shapes are written as far as they are known"),
    honoured("EnableNPUCnn", "the same as enable_npu_cnn (`target`)", _device),
)
