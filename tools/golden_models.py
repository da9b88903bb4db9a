"""Small models with seeded weights, and samples for them, that stay as they are: golden files are made of them.

They depend on numpy and onnx alone. Do not edit a model; add another one instead, or record anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SAMPLES = 12
TOKENS, VOCABULARY, HIDDEN, HEADS = 8, 24, 16, 2


@dataclass
class Writer:
    """Collect nodes and constants; every method returns the name of the value that it computes."""

    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def random(self, *shape: int, size: float = 1.0) -> str:
        return self.constant(self.rng.standard_normal(shape) * size)

    def add(self, op: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        result = name or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [result], name=f"node_{result}", **attributes))
        return result

    def reshape(self, value: str, *shape: int) -> str:
        return self.add("Reshape", value, self.constant(shape, np.int64))

    def conv(self, value: str, inputs: int, outputs: int, kernel: int = 3, group: int = 1, **attributes: Any) -> str:
        """Add a convolution whose channels differ in size by up to a factor of twenty."""
        fan_in = inputs // group * kernel * kernel
        spread = np.geomspace(0.25, 5.0, outputs)[self.rng.permutation(outputs), None, None, None]
        weight = self.rng.standard_normal((outputs, inputs // group, kernel, kernel)) * spread / math.sqrt(fan_in)
        bias = self.random(outputs, size=0.3)
        attributes = {"pads": [kernel // 2] * 4, **attributes}
        return self.add("Conv", value, self.constant(weight), bias, group=group, **attributes)

    def linear(self, value: str, inputs: int, outputs: int) -> str:
        product = self.add("MatMul", value, self.random(inputs, outputs, size=1 / math.sqrt(inputs)))
        return self.add("Add", product, self.random(outputs, size=0.1))

    def gemm(self, value: str, inputs: int, outputs: int, name: str) -> str:
        weight = self.random(outputs, inputs, size=1 / math.sqrt(inputs))
        return self.add("Gemm", value, weight, self.random(outputs, size=0.2), name=name, transB=1)

    def relu6(self, value: str) -> str:
        return self.add("Clip", value, self.constant(0.0), self.constant(6.0))

    def model(self, inputs: dict[str, list[Any]], outputs: dict[str, list[Any]], kind: int = 1) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "golden",
            [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        return model


def cnn() -> onnx.ModelProto:
    """A classifier: BatchNormalization, ReLU6, a depthwise layer, a residual Add, a Concat, pooling."""
    write = Writer(1)
    value = write.conv("image", 3, 8, strides=[2, 2])
    scale, shift, mean = (write.random(8, size=0.3) for _ in range(3))
    variance = write.constant(write.rng.uniform(0.5, 2.0, 8))
    value = write.relu6(write.add("BatchNormalization", value, scale, shift, mean, variance))
    deep = write.relu6(write.conv(value, 8, 8, group=8))
    value = write.add("Add", value, write.conv(deep, 8, 8, kernel=1))
    sides = write.add("Relu", write.conv(value, 8, 4, kernel=1)), write.relu6(write.conv(value, 8, 4))
    value = write.add("MaxPool", write.add("Concat", *sides, axis=1), kernel_shape=[2, 2], strides=[2, 2])
    value = write.add("Flatten", write.add("GlobalAveragePool", value))
    return write.model({"image": ["N", 3, 16, 16]}, {write.gemm(value, 8, 5, "logits"): ["N", 5]})


def detector() -> onnx.ModelProto:
    """A head with boxes and scores: LeakyRelu, Swish, Resize, Softmax, Sigmoid, Slice, two Concats."""
    write = Writer(2)
    fine = write.add("LeakyRelu", write.conv("image", 3, 8, strides=[2, 2]), alpha=0.1)
    coarse = write.conv(fine, 8, 8, strides=[2, 2])
    coarse = write.add("Mul", coarse, write.add("Sigmoid", coarse))
    scales = write.constant([1.0, 1.0, 2.0, 2.0])
    larger = write.add("Resize", coarse, "", scales, mode="nearest")
    merged = write.add("Concat", larger, fine, axis=1)
    raw = write.reshape(write.conv(merged, 16, 10, kernel=1), 1, 10, 64)
    ends = [(0, 2), (2, 6), (6, 10)]
    axes = write.constant([1], np.int64)
    parts = [
        write.add("Slice", raw, write.constant([start], np.int64), write.constant([end], np.int64), axes)
        for start, end in ends
    ]
    centers = write.add("Mul", write.add("Sigmoid", parts[0]), write.constant(16.0))
    boxes = write.add("Add", write.add("Mul", parts[1], write.constant(4.0)), write.constant(0.5))
    scores = write.add("Softmax", parts[2], axis=1)
    result = write.add("Concat", centers, boxes, scores, axis=1, name="detections")
    return write.model({"image": [1, 3, 16, 16]}, {result: [1, 10, 64]})


def convolutions() -> onnx.ModelProto:
    """Grouped, dilated and transposed convolutions, PRelu, hard swish, average pooling, a Pad and a Split."""
    write = Writer(3)
    value = write.add("PRelu", write.conv("image", 3, 8), write.constant(write.rng.uniform(0.05, 0.4, (8, 1, 1))))
    value = write.conv(value, 8, 8, group=2, dilations=[2, 2], pads=[2] * 4)
    gate = write.add("HardSigmoid", value, alpha=1 / 6, beta=0.5)
    value = write.add("AveragePool", write.add("Mul", value, gate), kernel_shape=[2, 2], strides=[2, 2])
    first = "split_first", "split_second"
    write.nodes.append(helper.make_node("Split", [value], list(first), name="node_split", axis=1))
    padded = write.add("Pad", first[0], write.constant([0, 0, 1, 1, 0, 0, 1, 1], np.int64), mode="constant")
    left = write.add("Relu", write.conv(padded, 4, 4, pads=[0] * 4))
    right = write.add("Tanh", first[1])
    value = write.add("Sub", left, right)
    weight, bias = write.random(4, 3, 2, 2, size=0.4), write.random(6, size=0.2)
    result = write.add("ConvTranspose", value, weight, bias, strides=[2, 2], group=2, name="upscaled")
    return write.model({"image": [1, 3, 16, 16]}, {result: [1, 6, 16, 16]})


def bert() -> onnx.ModelProto:
    """Token ids, embeddings, one encoder block with a mask, LayerNormalization and Gelu, a classifier."""
    write = Writer(4)

    def normalized(value: str) -> str:
        scale = 1 + 0.2 * write.rng.standard_normal(HIDDEN)
        scale[[3, 11]] *= 8.0  # as in real transformers, a few channels are much larger than the others
        return write.add("LayerNormalization", value, write.constant(scale), write.random(HIDDEN, size=0.1), axis=-1)

    def heads(value: str, *order: int) -> str:
        split = write.reshape(write.linear(value, HIDDEN, HIDDEN), 0, -1, HEADS, HIDDEN // HEADS)
        return write.add("Transpose", split, perm=order)

    words = write.add("Gather", write.random(VOCABULARY, HIDDEN), "ids")
    value = normalized(write.add("Add", words, write.random(1, TOKENS, HIDDEN)))
    spread = write.add("Unsqueeze", "mask", write.constant([1, 2], np.int64))
    ignored = write.add("Sub", write.constant(1.0), write.add("Cast", spread, to=TensorProto.FLOAT))
    scores = write.add("MatMul", heads(value, 0, 2, 1, 3), heads(value, 0, 2, 3, 1))
    scores = write.add("Div", scores, write.constant(math.sqrt(HIDDEN // HEADS)))
    scores = write.add("Add", scores, write.add("Mul", ignored, write.constant(-1e4)))
    mixed = write.add("MatMul", write.add("Softmax", scores, axis=-1), heads(value, 0, 2, 1, 3))
    mixed = write.reshape(write.add("Transpose", mixed, perm=(0, 2, 1, 3)), 0, -1, HIDDEN)
    value = normalized(write.add("Add", value, write.linear(mixed, HIDDEN, HIDDEN)))
    wide = write.linear(value, HIDDEN, 2 * HIDDEN)
    erf = write.add("Erf", write.add("Div", wide, write.constant(math.sqrt(2))))
    gelu = write.add("Mul", wide, write.add("Add", erf, write.constant(1.0)))
    gelu = write.add("Mul", gelu, write.constant(0.5))
    value = normalized(write.add("Add", value, write.linear(gelu, 2 * HIDDEN, HIDDEN)))
    first = write.add("Gather", value, write.constant(0, np.int64), axis=1)
    inputs = {"ids": ["N", TOKENS], "mask": ["N", TOKENS]}
    return write.model(inputs, {write.gemm(first, HIDDEN, 3, "logits"): ["N", 3]}, TensorProto.INT64)


def images(seed: int = 11) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(seed).standard_normal((SAMPLES, 3, 16, 16)).astype(np.float32)}


def sentences(seed: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = np.arange(TOKENS)[None] < rng.integers(3, TOKENS + 1, (SAMPLES, 1))
    return {"ids": rng.integers(0, VOCABULARY, (SAMPLES, TOKENS)), "mask": mask.astype(np.int64)}


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], Callable[[], dict[str, np.ndarray]]]] = {
    "cnn": (cnn, images),
    "detector": (detector, images),
    "convolutions": (convolutions, images),
    "bert": (bert, sentences),
}
