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
    from detent.api.check import check
    from detent.api.compare import compare
    from detent.api.emulate import emulate
    from detent.api.evaluate import evaluate
    from detent.api.infer import infer
    from detent.api.mix import mix
    from detent.api.quantize import quantize
    from detent.api.sensitivity import sensitivity
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
    from detent.results.evaluated import Evaluation
    from detent.results.quantized import Report
    from detent.results.searched import PrecisionReport, SensitivityReport, Tuning
    from detent.tuning.tune import tune

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
    "check": "detent.api.check",
    "compare": "detent.api.compare",
    "emulate": "detent.api.emulate",
    "evaluate": "detent.api.evaluate",
    "find_recipe": "detent.recipe_file",
    "infer": "detent.api.infer",
    "mix": "detent.api.mix",
    "quantize": "detent.api.quantize",
    "sensitivity": "detent.api.sensitivity",
    "tune": "detent.tuning.tune",
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
