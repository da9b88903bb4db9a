"""From one form of a model to another: number types, operator generations, layouts, shapes and opsets.

A conversion is a step in the table `STEPS`. `convert` runs a list of them, checks the result and writes it.
"""

from __future__ import annotations

from detent.convert.conversion import STEPS, Conversion, ModelSummary, convert, parse_step

__all__ = ["STEPS", "Conversion", "ModelSummary", "convert", "parse_step"]
