"""Say what a file is that was given as a model, as weights or as an image, and is none of them."""

from __future__ import annotations

# What else is given as a model: how such a file begins, from which byte on; what it is; what to do.
_OTHER_FILES: tuple[tuple[bytes, int, str, str], ...] = (
    (b"version https://git-lfs", 0, "a Git LFS pointer, not the file itself", "Run `git lfs pull` to fetch it."),
    (b"PK\x03\x04", 0, "a zip archive, or what PyTorch saves", "Unpack it, or export the model to ONNX."),
    (b"\x1f\x8b", 0, "compressed (gzip)", "Unpack it with gunzip."),
    (b"TFL3", 4, "a TensorFlow Lite model", "Convert it with `python -m tf2onnx.convert --tflite`."),
    (b"ORTM", 4, "a model in onnxruntime's own format", "Give the .onnx file that it was made from."),
    (b"GGUF", 0, "a GGUF file", "Export the original model to ONNX."),
    (b"\x89HDF", 0, "an HDF5 file, as Keras saves them", "Convert the model with tf2onnx."),
    (b"\x80", 0, "a pickle, which could run code and is not opened", "Export the model to ONNX."),
    (b'{"', 8, "a safetensors file: weights without a graph", "Export their model to ONNX."),
    (b"<", 0, "a page or XML, as a failed download leaves it", "Download the model again, or give its .onnx file."),
    (b"{", 0, "JSON, as a failed download leaves it", "Download the model again."),
)


def kind_of_file(data: bytes) -> str:
    """Say what a file is that is no model, and what to do, from how it begins; the empty text if that is not known."""
    if not data.strip(b"\0"):
        what = "full of zeros" if data else "empty"
        return f"it is {what}. Export or download it again."
    for beginning, start, kind, remedy in _OTHER_FILES:
        if data[start:].startswith(beginning):
            return f"it is {kind}. {remedy}"
    return ""
