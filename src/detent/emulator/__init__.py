"""The integer emulator: what an NPU computes, to the bit, from a quantized file."""
