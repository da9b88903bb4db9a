"""Quark's command-line tools: `detent run -m quark.onnx.tools.NAME ARGUMENTS`."""
