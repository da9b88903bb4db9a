"""Small transformers with seeded weights, written as the exporters write them, and data for them.

Real transformers have a few channels that are many times as large as the others: where `outliers` is set, so do these,
in the scale of every LayerNormalization; where `stream` is set, so do the sums around the blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TOKENS, VOCABULARY, HIDDEN, HEADS = 8, 32, 32, 4
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Style:
    """How an exporter wrote the model.

    `layer_norm` and `gelu`: "operator", or "subgraph" ("tanh": the approximation of Gelu as a subgraph). `mask`: the
    number that is added where a token is to be ignored; 0: there is no mask. `causal`: a constant mask as well.
    """

    opset: int = 17
    layer_norm: str = "operator"
    gelu: str = "subgraph"
    mask: float = -1e4
    causal: bool = False
    outliers: float = 1.0
    stream: float = 0.0
    seed: int = 7


PLAIN = Style()
UNMASKED = Style(mask=0.0)
OUTLYING = (3, 17)  # the channels that are larger than the others: in real models, too, the same ones everywhere


@dataclass
class Writer:
    """Collects nodes and constants; every method returns the name of the value that it computes."""

    style: Style
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.style.seed)

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

    def unsqueeze(self, value: str, *axes: int) -> str:
        return self.add("Unsqueeze", value, self.constant(axes, np.int64))

    def mean(self, value: str) -> str:
        if self.style.opset < 18:
            return self.add("ReduceMean", value, axes=[-1])
        return self.add("ReduceMean", value, self.constant([-1], np.int64))

    def linear(self, value: str, inputs: int, outputs: int, normalized: bool = False) -> str:
        """MatMul and Add. Of a normalized value, the outlying channels count less, or nothing else would count."""
        weight = self.rng.standard_normal((inputs, outputs)) / math.sqrt(inputs)
        if normalized:
            weight[list(OUTLYING)] /= math.sqrt(self.style.outliers)
        return self.add("Add", self.random(outputs, size=0.1), self.add("MatMul", value, self.constant(weight)))

    def layer_norm(self, value: str, name: str = "", behind_stream: bool = False) -> str:
        scale = 1 + 0.2 * self.rng.standard_normal(HIDDEN)
        scale[list(OUTLYING)] *= self.style.outliers
        if behind_stream and self.style.stream:  # what training makes of it: the others are what counts behind it
            size = self.style.stream / math.sqrt(HIDDEN / len(OUTLYING))
            scale *= np.where(np.isin(np.arange(HIDDEN), OUTLYING), 1 / math.sqrt(HIDDEN / len(OUTLYING)), size)
        scale, shift = self.constant(scale), self.random(HIDDEN, size=0.1)
        if self.style.layer_norm == "operator":
            return self.add("LayerNormalization", value, scale, shift, name=name, axis=-1, epsilon=1e-5)
        centred = self.add("Sub", value, self.mean(value))
        variance = self.mean(self.add("Pow", centred, self.constant(2.0)))
        deviation = self.add("Sqrt", self.add("Add", variance, self.constant(1e-5)))
        scaled = self.add("Mul", self.add("Div", centred, deviation), scale)
        return self.add("Add", scaled, shift, name=name)

    def gelu(self, value: str) -> str:
        if self.style.gelu == "operator":
            return self.add("Gelu", value)
        if self.style.gelu == "tanh":
            cube = self.add("Mul", self.add("Pow", value, self.constant(3.0)), self.constant(0.044715))
            inner = self.add("Mul", self.add("Add", value, cube), self.constant(math.sqrt(2 / math.pi)))
            gate = self.add("Add", self.add("Tanh", inner), self.constant(1.0))
        else:
            erf = self.add("Erf", self.add("Div", value, self.constant(math.sqrt(2))))
            gate = self.add("Add", erf, self.constant(1.0))
        return self.add("Mul", self.add("Mul", value, gate), self.constant(0.5))

    def heads(self, value: str, order: tuple[int, ...]) -> str:
        split = self.reshape(value, 0, -1, HEADS, HIDDEN // HEADS)
        return self.add("Transpose", split, perm=order)

    def attention(self, value: str, mask: str | None) -> str:
        query = self.heads(self.linear(value, HIDDEN, HIDDEN, normalized=True), (0, 2, 1, 3))
        key = self.heads(self.linear(value, HIDDEN, HIDDEN, normalized=True), (0, 2, 3, 1))
        content = self.heads(self.linear(value, HIDDEN, HIDDEN, normalized=True), (0, 2, 1, 3))
        scores = self.add("MatMul", query, key)
        scores = self.add("Div", scores, self.constant(math.sqrt(HIDDEN // HEADS)))
        if mask is not None:
            scores = self.add("Add", scores, mask)
        if self.style.causal:
            upper = np.triu(np.full((TOKENS, TOKENS), self.style.mask), 1) if self.style.mask else 0.0
            upper = np.where(np.tri(TOKENS, dtype=bool), 0.0, upper)
            scores = self.add("Add", scores, self.constant(upper))
        weights = self.add("Softmax", scores, axis=-1)
        mixed = self.add("Transpose", self.add("MatMul", weights, content), perm=(0, 2, 1, 3))
        return self.linear(self.reshape(mixed, 0, -1, HIDDEN), HIDDEN, HIDDEN)

    def mlp(self, value: str) -> str:
        wide = self.gelu(self.linear(value, HIDDEN, 2 * HIDDEN, normalized=True))
        result = self.linear(wide, 2 * HIDDEN, HIDDEN)
        if not self.style.stream:
            return result
        large = np.zeros(HIDDEN)
        large[list(OUTLYING)] = self.style.stream
        return self.add("Add", result, self.constant(large))

    def mask(self, tokens: str) -> str:
        """1 where a token counts and 0 where not -> 0 and the number of the style."""
        number = self.style.mask
        spread = self.unsqueeze(tokens, 1, 2)
        if math.isinf(number):
            counts = self.add("Cast", spread, to=TensorProto.BOOL)
            return self.add("Where", counts, self.constant(0.0), self.constant(number))
        ignored = self.add("Sub", self.constant(1.0), self.add("Cast", spread, to=TensorProto.FLOAT))
        return self.add("Mul", ignored, self.constant(number))

    def model(self, inputs: list[onnx.ValueInfoProto], result: str, shape: list[Any]) -> onnx.ModelProto:
        output = helper.make_tensor_value_info(result, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "transformer", inputs, [output], self.constants)
        opsets = [helper.make_opsetid("", self.style.opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        return model


def bert(style: Style = PLAIN, layers: int = 2) -> onnx.ModelProto:
    """Token ids -> embeddings -> encoder with normalization after each residual -> pooler -> classifier."""
    write = Writer(style)
    words = write.add("Gather", write.random(VOCABULARY, HIDDEN), "ids")
    value = write.layer_norm(write.add("Add", words, write.random(1, TOKENS, HIDDEN)))
    mask = write.mask("mask") if style.mask else None
    for _ in range(layers):
        value = write.layer_norm(write.add("Add", value, write.attention(value, mask)))
        value = write.layer_norm(write.add("Add", value, write.mlp(value)), behind_stream=True)
    first = write.add("Gather", value, write.constant(0, np.int64), axis=1)
    weight, bias = write.random(HIDDEN, HIDDEN, size=0.2), write.random(HIDDEN, size=0.1)
    pooled = write.add("Tanh", write.add("Gemm", first, weight, bias, transB=1))
    logits = write.add("Gemm", pooled, write.random(HIDDEN, 3, size=0.3), write.random(3, size=0.1), name="logits")
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["N", TOKENS])]
    if style.mask:
        inputs.append(helper.make_tensor_value_info("mask", TensorProto.INT64, ["N", TOKENS]))
    return write.model(inputs, logits, ["N", 3])


def bert_data(samples: int = 12, masked: bool = True, seed: int = 1) -> list[dict[str, np.ndarray]]:
    """Sentences of 3 to 8 tokens."""
    rng, data = np.random.default_rng(seed), []
    for _ in range(samples):
        ids = rng.integers(0, VOCABULARY, (1, TOKENS))
        counts = np.arange(TOKENS)[None] < rng.integers(3, TOKENS + 1)
        data.append({"ids": ids, "mask": counts.astype(np.int64)} if masked else {"ids": ids})
    return data


def vit(style: Style = UNMASKED, layers: int = 2) -> onnx.ModelProto:
    """An image in patches of 4 x 4, a class token, blocks with normalization before each part, and a classifier."""
    write = Writer(style)
    kernel = write.random(HIDDEN, 3, 4, 4, size=0.15)
    patches = write.add("Conv", "image", kernel, write.random(HIDDEN, size=0.1), strides=[4, 4], kernel_shape=[4, 4])
    patches = write.add("Transpose", write.reshape(patches, 1, HIDDEN, 16), perm=(0, 2, 1))
    value = write.add("Concat", write.random(1, 1, HIDDEN), patches, axis=1)
    value = write.add("Add", value, write.random(1, 17, HIDDEN, size=0.3))
    for _ in range(layers):
        value = write.add("Add", value, write.attention(write.layer_norm(value), None))
        value = write.add("Add", value, write.mlp(write.layer_norm(value)))
    first = write.add("Gather", write.layer_norm(value), write.constant(0, np.int64), axis=1)
    weight = write.rng.standard_normal((HIDDEN, 5)) * 0.3
    weight[list(OUTLYING)] /= math.sqrt(style.outliers)
    logits = write.add("Gemm", first, write.constant(weight), write.random(5, size=0.1), name="logits")
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 16, 16])
    return write.model([image], logits, [1, 5])


def vit_data(samples: int = 12, seed: int = 1) -> list[dict[str, np.ndarray]]:
    """Images of noise."""
    rng = np.random.default_rng(seed)
    return [{"image": rng.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(samples)]
