"""Detent quantizes trained ONNX models for NPUs.

import detent
report = detent.quantize("model.onnx", "model_int8.onnx", calibration="images/", recipe="XINT8")
print(report)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from detent.errors import DataError, DetentError, ModelError, OutputError, UsageError
from detent.version import __version__

if TYPE_CHECKING:
    from detent.api import check, compare, emulate, evaluate, infer, mix, quantize, sensitivity, tune
    from detent.emulator.emulator import Emulator
    from detent.evaluation.evaluator import Evaluator
    from detent.evaluation.metric_file import Metric
    from detent.methods import MinMSE, NonOverflow
    from detent.observe.preprocess import PreprocessOptions
    from detent.recipe import Override, Recipe
    from detent.recipe_file import find_recipe
    from detent.report.page import write_page
    from detent.results.checked import DeviceCheck
    from detent.results.compared import Emulation
    from detent.results.evaluated import Evaluation, compare_scores
    from detent.results.quantized import Report
    from detent.results.searched import PrecisionReport, SensitivityReport, Tuning

_LAZY = {
    "DeviceCheck": "detent.results.checked",
    "Emulation": "detent.results.compared",
    "Emulator": "detent.emulator.emulator",
    "Evaluation": "detent.results.evaluated",
    "Evaluator": "detent.evaluation.evaluator",
    "Metric": "detent.evaluation.metric_file",
    "MinMSE": "detent.methods",
    "NonOverflow": "detent.methods",
    "Override": "detent.recipe",
    "PrecisionReport": "detent.results.searched",
    "PreprocessOptions": "detent.observe.preprocess",
    "Recipe": "detent.recipe",
    "Report": "detent.results.quantized",
    "SensitivityReport": "detent.results.searched",
    "Tuning": "detent.results.searched",
    "check": "detent.api",
    "compare": "detent.api",
    "compare_scores": "detent.results.evaluated",
    "emulate": "detent.api",
    "evaluate": "detent.api",
    "find_recipe": "detent.recipe_file",
    "infer": "detent.api",
    "mix": "detent.api",
    "quantize": "detent.api",
    "sensitivity": "detent.api",
    "tune": "detent.api",
    "write_page": "detent.report.page",
}
"""Public names whose modules are imported when they are first asked for, so that `import detent` stays quick."""

__all__ = [
    "DataError",
    "DetentError",
    "DeviceCheck",
    "Emulation",
    "Emulator",
    "Evaluation",
    "Evaluator",
    "Metric",
    "MinMSE",
    "ModelError",
    "NonOverflow",
    "OutputError",
    "Override",
    "PrecisionReport",
    "PreprocessOptions",
    "Recipe",
    "Report",
    "SensitivityReport",
    "Tuning",
    "UsageError",
    "__version__",
    "check",
    "compare",
    "compare_scores",
    "emulate",
    "evaluate",
    "find_recipe",
    "infer",
    "mix",
    "quantize",
    "sensitivity",
    "tune",
    "write_page",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'detent' has no attribute '{name}'")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
