"""The integer emulator: what an NPU computes, to the bit, from a quantized file."""

from detent.emulator.arithmetic import ROUNDINGS, EmulatedRounding
from detent.emulator.emulator import Emulator
from detent.results.compared import EmulationReport, FloatStep

__all__ = ["ROUNDINGS", "EmulatedRounding", "EmulationReport", "Emulator", "FloatStep"]
