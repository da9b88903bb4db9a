"""Say what a file is that was given as a model, as weights or as an image, and is none of them."""

from __future__ import annotations

from pathlib import Path

_DATA = "Data is given by --calib or --data; the model comes first."
_OPTIMUM = "Export their model with `optimum-cli export onnx --model FOLDER exported/`."
_KERAS = (
    "Load it in TensorFlow, save it with `model.export('saved')`, and convert that with "
    "`python -m tf2onnx.convert --saved-model saved --output model.onnx`."
)
_TORCH = (
    "`detent quantize` alone reads such a file. For other commands write it as ONNX, in Python: "
    "onnx.save(detent.from_torch('{path}'), 'model.onnx'), with example_inputs for TorchScript."
)

# What is in zip archives, of which only names and first bytes are looked at: a pickle in them is never opened.
_ARCHIVES: tuple[tuple[bytes, str, str], ...] = (
    (b"ultralytics", "an Ultralytics checkpoint", "Export it with `yolo export model={path} format=onnx`."),
    (b"/code/", "a TorchScript model", _TORCH),
    (b"/models/model.json", "a program of torch.export", _TORCH),
    (
        b"/data.pkl",
        "what torch.save writes, a pickle that could run code and is not opened",
        "Load it in PyTorch and give the module to detent.quantize, or export it with torch.onnx.export.",
    ),
    (b"model.weights.h5", "a Keras model", _KERAS),
    (b"config.json", "a Keras model", _KERAS),
)

# What else is given as a model: how such a file begins, from which byte on; what it is; what to do.
_OTHER_FILES: tuple[tuple[bytes, int, str, str], ...] = (
    (b"version https://git-lfs", 0, "a Git LFS pointer, not the file itself", "Run `git lfs pull` to fetch it."),
    (b"PK\x03\x04", 0, "a zip archive", "Unpack it, or export the model to ONNX."),
    (b"\x1f\x8b", 0, "compressed (gzip)", "Unpack it with gunzip."),
    (b"\x28\xb5\x2f\xfd", 0, "compressed (zstd)", "Unpack it with unzstd."),
    (b"\xfd7zXZ", 0, "compressed (xz)", "Unpack it with unxz."),
    (b"BZh", 0, "compressed (bzip2)", "Unpack it with bunzip2."),
    (b"7z\xbc\xaf", 0, "a 7-zip archive", "Unpack it."),
    (b"Rar!", 0, "a RAR archive", "Unpack it."),
    (
        *(b"TFL3", 4, "a TensorFlow Lite model"),
        "Convert it with `python -m tf2onnx.convert --tflite {path} --output model.onnx`.",
    ),
    (b"ORTM", 4, "a model in onnxruntime's own format", "Give the .onnx file that it was made from."),
    (
        b"GGUF",
        0,
        "a GGUF file",
        "Export the original model to ONNX; Detent does not read language models of this kind.",
    ),
    (b"\x89HDF", 0, "an HDF5 file, as Keras saves them", _KERAS),
    (b"\x80", 0, "a pickle, which could run code and is not opened", "Export the model to ONNX."),
    (b'{"', 8, "a safetensors file: weights without a graph", _OPTIMUM),
    (b"<", 0, "a page or XML, as a failed download leaves it", "Download the model again, or give its .onnx file."),
    (b"{", 0, "JSON, as a failed download leaves it", "Download the model again."),
)

# Images that are read, and those of phones, of the web and of cameras that are not.
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
OTHER_IMAGES = (".heic", ".heif", ".avif", ".gif", ".jp2", ".jxl", ".svg", ".dng", ".cr2", ".nef", ".arw")

# What is data and no model; no output of a command takes the place of such a file.
DATA_KINDS = {
    **dict.fromkeys((*IMAGES, *OTHER_IMAGES), ("an image", _DATA)),
    **dict.fromkeys((".npy", ".npz"), ("an array", _DATA)),
    ".csv": ("a table", _DATA),
}

# What has no bytes of its own, by the end of its name: it is looked at where those are not ONNX.
_SUFFIXES = {
    ".pb": (
        "a frozen TensorFlow graph",
        "Convert it with `python -m tf2onnx.convert --graphdef {path} --inputs NAME:0 --outputs NAME:0`.",
    ),
    ".engine": ("an engine of TensorRT, made for one GPU", "Give the .onnx file that it was built from."),
    ".plan": ("an engine of TensorRT, made for one GPU", "Give the .onnx file that it was built from."),
    ".mlmodel": ("a Core ML model", "Export the original model to ONNX."),
    ".xml": ("the graph of an OpenVINO model", "Give the .onnx file that it was converted from."),
    ".param": ("the graph of an ncnn model", "Give the .onnx file that it was converted from."),
    ".prototxt": ("the graph of a Caffe model", "Look for the same network as an .onnx file."),
    ".caffemodel": ("the weights of a Caffe model", "Look for the same network as an .onnx file."),
    ".pdmodel": (
        "a model of PaddlePaddle",
        "Convert it with `paddle2onnx --model_dir FOLDER --model_filename NAME.pdmodel --params_filename "
        "NAME.pdiparams --save_file model.onnx`.",
    ),
    ".py": ("a Python script", "Give the model that it makes; a script for another quantizer is run by `detent run`."),
    **DATA_KINDS,
}

# Folders that are one model: a file in them.
_FOLDERS = (
    (
        *("saved_model.pb", "a TensorFlow SavedModel"),
        "Convert it with `python -m tf2onnx.convert --saved-model {path} --output model.onnx`.",
    ),
    ("Manifest.json", "a Core ML package", "Export the original model to ONNX."),
    ("config.json", "a model of Hugging Face", "Export it with `optimum-cli export onnx --model {path} exported/`."),
)


def kind_of_folder(path: Path) -> str:
    """Say what a folder is that was given as a model, and what to do."""
    for name, kind, remedy in _FOLDERS:
        if (path / name).is_file():
            return f"is a folder: {kind}. {remedy.replace('{path}', str(path))}"
    inside = sorted(path.glob("*.onnx"))
    return f"is a folder. Give the .onnx file in it{f', such as {inside[0]}' if inside else ''}."


def kind_of_file(data: bytes, path: Path | None = None) -> str:
    """Say what a file that is not a model is, and what to do; the empty text if that is not known.

    It is recognized by its first bytes and, if the `path` is given, by its suffix.
    """
    if not data.strip(b"\0"):
        what = "full of zeros" if data else "empty"
        return f"it is {what}. Export or download it again."
    kind, remedy = _SUFFIXES.get("" if path is None else path.suffix.lower(), ("", ""))
    if not kind:
        text = data.removeprefix(b"\xef\xbb\xbf").lstrip()  # a page may begin with empty lines
        found = [
            (kind, remedy) for start, at, kind, remedy in _OTHER_FILES if (data[at:] if at else text).startswith(start)
        ]
        if data.startswith(b"PK\x03\x04"):
            found = [*((kind, remedy) for word, kind, remedy in _ARCHIVES if word in data), *found]
        kind, remedy = found[0] if found else ("", "")
    return f"it is {kind}. {remedy.replace('{path}', str(path or 'FILE'))}" if kind else ""
