"""Files and folders of other programs that are given as a model: each answer says what to type."""

from __future__ import annotations

import bz2
import json
import lzma
import struct
import zipfile

import numpy as np
import pytest

from detent.errors import ModelError
from detent.graph.load import read_proto


def archive(path, **entries):
    with zipfile.ZipFile(path, "w") as file:
        for name, data in entries.items():
            file.writestr(name.replace("__", "/"), data)


FILES = {
    "yolo.pt": (
        lambda path: archive(path, best__data=b"", **{"best/data.pkl": b"cultralytics.nn.tasks\n"}),
        "yolo export",
    ),
    "net.pt": (lambda path: archive(path, **{"net/data.pkl": b"\x80\x02ctorch\n"}), "torch.onnx.export"),
    "script.pt": (lambda path: archive(path, **{"s/data.pkl": b"", "s/code/__torch__.py": b""}), "TorchScript"),
    "m.pt2": (
        lambda path: archive(path, **{"m/data/x": bytes(9999), "m/models/model.json": b"{}"}),
        "detent.from_torch",
    ),
    "m.keras": (lambda path: archive(path, **{"metadata.json": b"{}", "config.json": b"{}"}), "--saved-model"),
    "x.npz": (lambda path: np.savez(path, x=np.ones(3)), "given by --calib"),
    "a.zip": (lambda path: archive(path, readme=b"hello"), "a zip archive"),
    "m.tflite": (lambda path: path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(40)), "--tflite"),
    "m.h5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(40)), "--saved-model"),
    "m.pb": (lambda path: path.write_bytes(b"\n\x10\n\x01x\x12\x0bPlaceholder"), "--graphdef"),
    "m.engine": (lambda path: path.write_bytes(b"ptrt" + bytes(range(60))), "TensorRT"),
    "m.gguf": (lambda path: path.write_bytes(b"GGUF\3\0\0\0" + bytes(40)), "GGUF"),
    "m.safetensors": (
        lambda path: path.write_bytes(struct.pack("<Q", 20) + json.dumps({"w": {"dtype": "F32"}}).encode()),
        "optimum-cli",
    ),
    "page.onnx": (lambda path: path.write_bytes(b"\xef\xbb\xbf\n\n <html><head>"), "a page or XML"),
    "m.onnx.xz": (lambda path: path.write_bytes(lzma.compress(b"model")), "unxz"),
    "m.onnx.bz2": (lambda path: path.write_bytes(bz2.compress(b"model")), "bunzip2"),
    "m.pdmodel": (lambda path: path.write_bytes(b"\n\x0c\x08\0\x10\xff"), "paddle2onnx"),
    "photo.jpg": (lambda path: path.write_bytes(b"\xff\xd8\xff\xe0"), "an image.* given by --calib"),
    "x.npy": (lambda path: np.save(path, np.ones(3)), "an array.* given by --calib"),
    "export.py": (lambda path: path.write_bytes(b"import torch\n"), "a Python script"),
    "m.xml": (lambda path: path.write_bytes(b'<?xml version="1.0"?><net name="m" version="11">'), "OpenVINO"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_program(tmp_path, name):
    write, words = FILES[name]
    write(tmp_path / name)
    with pytest.raises(ModelError, match=words) as raised:
        read_proto(tmp_path / name)
    assert "{path}" not in str(raised.value)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("saved_model.pb", "--saved-model"),
        ("Manifest.json", "Core ML"),
        ("config.json", "optimum-cli export onnx --model"),
        ("b.onnx", r"such as .*b\.onnx"),
        ("notes.txt", r"is a folder\. Give the \.onnx file"),
    ],
)
def test_a_folder(tmp_path, file, words):
    (tmp_path / file).write_bytes(b"x")
    with pytest.raises(ModelError, match=words):
        read_proto(tmp_path)
