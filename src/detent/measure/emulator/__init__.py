"""The integer emulator: what an NPU computes, to the bit, from a quantized file."""

from detent.measure.emulator.emulator import EmulationReport, Emulator
from detent.measure.emulator.program import FloatStep
from detent.measure.emulator.rounding import ROUNDINGS, EmulatedRounding

__all__ = ["ROUNDINGS", "EmulatedRounding", "EmulationReport", "Emulator", "FloatStep"]
