"""The corpora: small valid files of every kind, generated."""

from __future__ import annotations

import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

SHAPE = (1, 3, 8, 8)


def models() -> list[bytes]:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "b": rng.standard_normal(4).astype(np.float32),
        "m": rng.standard_normal((4, 5)).astype(np.float32),
        "shape": np.array([1, 4], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Reshape", ["p", "shape"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "m"], ["y"], name="fc"),
    ]
    return [_model(nodes, weights, opset) for opset in (11, 17, 21)] + [_with_branches()]


def _model(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], opset: int) -> bytes:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])]
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    opsets = [helper.make_opsetid("", opset)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def _with_branches() -> bytes:
    value = helper.make_tensor_value_info("t", TensorProto.FLOAT, [1, 5])
    constant = numpy_helper.from_array(np.ones((1, 5), np.float32))
    branch = helper.make_graph([helper.make_node("Constant", [], ["t"], value=constant)], "branch", [], [value])
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["t"], then_branch=branch, else_branch=branch),
        helper.make_node("MatMul", ["t", "m"], ["y"]),
    ]
    return _model(nodes, {"zero": np.array(0, np.float32), "m": np.eye(5, dtype=np.float32)}, 17)


def statistics() -> list[bytes]:
    """The body of a file of statistics, without its seal."""
    import detent
    from detent.observe.statistics_file import STATISTICS
    from detent.observe.store import read_sealed

    with TemporaryDirectory() as folder:
        file, model = Path(folder) / "stats", Path(folder) / "m.onnx"
        model.write_bytes(models()[1])
        detent.quantize(model, None, np.ones((2, *SHAPE[1:]), np.float32), save_stats=file, trust=True)
        return [read_sealed(file, STATISTICS)]


def recipes() -> list[bytes]:
    from detent.recipe.file import find_recipe, to_toml

    return [to_toml(find_recipe(name)).encode() for name in ("XINT8", "A16W8", "BF16", "MX4")]


def preprocess() -> list[bytes]:
    settings = {"size": 8, "mean": [0.5] * 3, "std": [0.2] * 3, "order": "RGB", "layout": "NCHW", "scale": 0.00392}
    return [json.dumps(settings).encode(), b'{"size": [8, 8]}']


def labels() -> list[bytes]:
    coco = {
        "images": [{"id": 1, "file_name": "a.png", "width": 8, "height": 8}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 2, 2], "iscrowd": 0, "area": 4}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    tables = [b"file,label\na.png,1\nb.png,2\n", b"a.png\t1\nb.png\t0\n", b"0 0.5 0.5 0.1 0.1\n"]
    return [*tables, json.dumps(coco).encode()]


def arrays() -> list[bytes]:
    found = []
    for array in (np.ones(SHAPE, np.float32), np.ones((2, 3, 8, 8), np.float16), np.array([1, 2])):
        file = io.BytesIO()
        np.save(file, array)
        found.append(file.getvalue())
    return found


def archives() -> list[bytes]:
    found = []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, x=np.ones(SHAPE, np.float32))
        found.append(file.getvalue())
    return found


def images() -> list[bytes]:
    found = []
    for mode, kind in (("RGB", "png"), ("L", "png"), ("RGB", "jpeg"), ("CMYK", "jpeg"), ("P", "gif"), ("I;16", "png")):
        file = io.BytesIO()
        Image.new(mode, (8, 8)).save(file, kind)
        found.append(file.getvalue())
    return found
