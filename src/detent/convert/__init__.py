"""From one form of a model to another: number types, operator generations, layouts, shapes and opsets.

One converter is one module. `convert` runs a list of them, checks the result and writes it.
"""

from __future__ import annotations

from detent.convert.run import Conversion, Summary, convert
from detent.convert.steps import STEPS, parse_step

__all__ = ["STEPS", "Conversion", "Summary", "convert", "parse_step"]
