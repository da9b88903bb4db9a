"""AMD Quark's names, on Detent. Only the ONNX half exists: `quark.onnx`."""
