"""The integer emulator: what an NPU computes, to the bit, from a quantized file."""

from detent.emulator.arithmetic import ROUNDINGS, EmulatedRounding
from detent.emulator.emulator import EmulationReport, Emulator
from detent.emulator.program import FloatStep

__all__ = ["ROUNDINGS", "EmulatedRounding", "EmulationReport", "Emulator", "FloatStep"]
