"""Detent quantizes trained ONNX models for NPUs.

import detent
report = detent.quantize("model.onnx", "model_int8.onnx", calibration="images/", recipe="XINT8")
print(report)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from detent import import_hooks
from detent.errors import DataError, DetentError, ModelError, OutputError, UsageError
from detent.version import __version__

if TYPE_CHECKING:
    # isort: off
    # `as` tells type checkers that a name is public.
    from detent.api import (
        check as check,
        compare as compare,
        compare_candidates as compare_candidates,
        emulate as emulate,
        evaluate as evaluate,
        infer as infer,
        mix as mix,
        quantize as quantize,
        sensitivity as sensitivity,
        split as split,
        tune as tune,
    )
    from detent.convert.splitting import Pipeline as Pipeline
    from detent.emulator import Emulator as Emulator
    from detent.evaluation.evaluator import Evaluator as Evaluator
    from detent.evaluation.metric_file import Metric as Metric
    from detent.graph.pytorch import from_torch as from_torch
    from detent.methods import (
        Distribution as Distribution,
        Entropy as Entropy,
        LayerwisePercentile as LayerwisePercentile,
        MinMSE as MinMSE,
        MinMax as MinMax,
        NonOverflow as NonOverflow,
        Percentile as Percentile,
    )
    from detent.numerics.floats import FloatFormat as FloatFormat
    from detent.numerics.formats import IntegerFormat as IntegerFormat
    from detent.numerics import BLOCK_FORMATS as BLOCK_FORMATS
    from detent.observe.preprocess import PreprocessOptions as PreprocessOptions
    from detent.prepare.base import Pass as Pass
    from detent.recipe import Override as Override, Recipe as Recipe
    from detent.recipe.file import find_recipe as find_recipe
    from detent.recipe.recipe import find_preset as find_preset
    from detent.refinements import (
        AdaQuant as AdaQuant,
        AdaRound as AdaRound,
        BiasCorrection as BiasCorrection,
        QuickRounding as QuickRounding,
        Rounding as Rounding,
    )
    from detent.report.page import write_page as write_page
    from detent.results.checked import DeviceCheck as DeviceCheck
    from detent.results.compared import Emulation as Emulation
    from detent.results.evaluated import Evaluation as Evaluation, compare_scores as compare_scores
    from detent.results.quantized import Report as Report
    from detent.results.searched import (
        PrecisionReport as PrecisionReport,
        SensitivityReport as SensitivityReport,
        Tuning as Tuning,
    )
    # isort: on

# Public names whose modules are imported when they are first asked for, so that `import detent` stays quick.
_LAZY = {
    "AdaQuant": "detent.refinements",
    "AdaRound": "detent.refinements",
    "BLOCK_FORMATS": "detent.numerics",
    "BiasCorrection": "detent.refinements",
    "DeviceCheck": "detent.results.checked",
    "Distribution": "detent.methods",
    "Emulation": "detent.results.compared",
    "Emulator": "detent.emulator",
    "Entropy": "detent.methods",
    "Evaluation": "detent.results.evaluated",
    "Evaluator": "detent.evaluation.evaluator",
    "FloatFormat": "detent.numerics.floats",
    "IntegerFormat": "detent.numerics.formats",
    "LayerwisePercentile": "detent.methods",
    "Metric": "detent.evaluation.metric_file",
    "MinMSE": "detent.methods",
    "MinMax": "detent.methods",
    "NonOverflow": "detent.methods",
    "Override": "detent.recipe",
    "Pass": "detent.prepare.base",
    "Percentile": "detent.methods",
    "Pipeline": "detent.convert.splitting",
    "PrecisionReport": "detent.results.searched",
    "PreprocessOptions": "detent.observe.preprocess",
    "QuickRounding": "detent.refinements",
    "Recipe": "detent.recipe",
    "Report": "detent.results.quantized",
    "Rounding": "detent.refinements",
    "SensitivityReport": "detent.results.searched",
    "Tuning": "detent.results.searched",
    "check": "detent.api",
    "compare": "detent.api",
    "compare_candidates": "detent.api",
    "compare_scores": "detent.results.evaluated",
    "emulate": "detent.api",
    "evaluate": "detent.api",
    "find_preset": "detent.recipe.recipe",
    "find_recipe": "detent.recipe.file",
    "from_torch": "detent.graph.pytorch",
    "infer": "detent.api",
    "mix": "detent.api",
    "quantize": "detent.api",
    "sensitivity": "detent.api",
    "split": "detent.api",
    "tune": "detent.api",
    "write_page": "detent.report.page",
}

__all__ = ["DataError", "DetentError", "ModelError", "OutputError", "UsageError", "__version__", *_LAZY]  # noqa: PLE0604

import_hooks.install()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'detent' has no attribute '{name}'")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
