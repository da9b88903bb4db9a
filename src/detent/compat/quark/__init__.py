"""AMD Quark's names, on Detent. Only the ONNX half exists: `quark.onnx`."""

from detent.version import __version__

__all__ = ["__version__"]
