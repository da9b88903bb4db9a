"""Small models with seeded weights, and the few steps that bring them to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from detent.graph.load import load
from detent.methods.method import Vote
from detent.numerics.formats import QuantParams
from detent.observe.statistics import HistogramBank, TensorStatistics
from detent.plan.layout import Layout, Role, lay_out
from detent.plan.plan import Plan, make_plan
from detent.plan.select import Selection
from detent.prepare import prepare
from detent.prepare.shapes import InferShapes
from detent.recipe import Recipe
from detent.recipe.file import find_recipe

XINT8 = find_recipe("XINT8").replace(clip_outputs=True)  # so that outputs are chosen as any other value
IMAGE = (1, 3, 8, 8)
RUNTIME = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


def since_runtime(minor: int, what: str) -> pytest.MarkDecorator:
    """Skip a test of what onnxruntime has, or does right, since version 1.`minor`."""
    return pytest.mark.skipif((1, minor) > RUNTIME, reason=f"{what} came with onnxruntime 1.{minor}")


def needs_opset(version: int) -> pytest.MarkDecorator:
    """Skip a test of operators that the installed onnx does not know yet."""
    known = onnx.defs.onnx_opset_version()
    return pytest.mark.skipif(version > known, reason=f"this onnx knows operators up to opset {known}")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def node(op: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> onnx.NodeProto:
    """`node("Conv", "x w", "y")`: names are separated by spaces, `_` is a missing input; it is called `conv_y`."""
    names = ["" if part == "_" else part for part in inputs.split()]
    results = outputs.split()
    return helper.make_node(op, names, results, name=name or f"{op.lower()}_{results[0]}", **attributes)


def info(name: str, shape: Sequence[int] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def build(
    nodes: Sequence[onnx.NodeProto],
    outputs: str | Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, Any] | None = None,
    inputs: Sequence[onnx.ValueInfoProto] = (info("x", IMAGE),),
    opset: int = 17,
) -> onnx.ModelProto:
    """A checked model. `outputs` are names, whose types and shapes are inferred, or value infos."""
    infos = [onnx.ValueInfoProto(name=name) for name in outputs.split()] if isinstance(outputs, str) else list(outputs)
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "small", list(inputs), infos, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    for declared, known in zip(model.graph.output, inferred.graph.output, strict=True):
        if not declared.type.tensor_type.HasField("shape"):
            declared.type.CopyFrom(known.type)
    onnx.checker.check_model(model, full_check=True)
    return model


def conv_relu_conv() -> onnx.ModelProto:
    return build(
        [node("Conv", "x w1 b1", "c1"), node("Relu", "c1", "r1"), node("Conv", "r1 w2 b2", "y")],
        "y",
        {"w1": normal(4, 3, 3, 3), "b1": normal(4, seed=1), "w2": normal(2, 4, 1, 1, seed=2), "b2": normal(2, seed=3)},
    )


def with_maps(classes: Sequence[str | int]) -> onnx.ModelProto:
    """A classifier that answers with a map from its classes to their scores, as scikit-learn's exporters write it."""
    numbers = isinstance(classes[0], int)
    names = {"classlabels_int64s" if numbers else "classlabels_strings": classes}
    nodes = [node("Conv", "x w", "c"), node("GlobalAveragePool", "c", "g"), node("Flatten", "g", "f")]
    proto = build([*nodes, node("Softmax", "f", "scores")], "scores", {"w": normal(len(classes), 3, 3, 3)})
    proto.graph.node.append(node("ZipMap", "scores", "y", domain="ai.onnx.ml", **names))
    proto.graph.output[0].name = "y"
    kind = TensorProto.INT64 if numbers else TensorProto.STRING
    scores = helper.make_map_type_proto(kind, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    proto.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(scores))
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    return proto


def residual() -> onnx.ModelProto:
    return build(
        [
            node("Conv", "x w1 b1", "c1", pads=[1, 1, 1, 1]),
            node("Relu", "c1", "r1"),
            node("Conv", "r1 w2 b2", "c2", pads=[1, 1, 1, 1]),
            node("Add", "c2 r1", "s"),
            node("Relu", "s", "y"),
        ],
        "y",
        {
            "w1": normal(4, 3, 3, 3) / 4,
            "b1": normal(4, seed=1) / 8,
            "w2": normal(4, 4, 3, 3, seed=2) / 8,
            "b2": normal(4, seed=3) / 8,
        },
    )


def concat() -> onnx.ModelProto:
    return build(
        [
            node("Conv", "x w1 b1", "c1"),
            node("Conv", "x w2 b2", "c2"),
            node("Concat", "c1 c2 extra", "cat", axis=1),
            node("MaxPool", "cat", "y", kernel_shape=[2, 2], strides=[2, 2]),
        ],
        "y",
        {
            "w1": normal(2, 3, 3, 3) * 4,
            "b1": normal(2, seed=1),
            "w2": normal(2, 3, 3, 3, seed=2) / 16,
            "b2": normal(2, seed=3) / 16,
            "extra": normal(1, 1, 6, 6, seed=4) / 64,
        },
    )


def hard_swish() -> onnx.ModelProto:
    return build(
        [
            node("Conv", "x w b", "c"),
            node("HardSigmoid", "c", "h", alpha=1 / 6, beta=0.5),
            node("Mul", "c h", "y"),
        ],
        "y",
        {"w": normal(4, 3, 3, 3), "b": normal(4, seed=1)},
    )


def leaky(alpha: float = 0.1) -> onnx.ModelProto:
    return build(
        [node("Conv", "x w b", "c"), node("LeakyRelu", "c", "y", alpha=alpha)],
        "y",
        {"w": normal(4, 3, 3, 3), "b": normal(4, seed=1)},
    )


def pools() -> onnx.ModelProto:
    return build(
        [
            node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
            node("AveragePool", "c", "a", kernel_shape=[3, 3]),
            node("GlobalAveragePool", "a", "y"),
        ],
        "y",
        {"w": normal(4, 3, 3, 3), "b": normal(4, seed=1)},
    )


def chain_with_unequal_channels() -> onnx.ModelProto:
    """A classifier of ten classes whose channels differ by factors of up to a hundred: rounding hurts it."""
    spread = np.geomspace(0.1, 10.0, 8).astype(np.float32)[:, None, None, None]
    return build(
        [
            node("Conv", "x w1 b1", "c1", pads=[1, 1, 1, 1]),
            node("Relu", "c1", "r1"),
            node("Conv", "r1 w2 b2", "c2", pads=[1, 1, 1, 1]),
            node("Relu", "c2", "r2"),
            node("GlobalAveragePool", "r2", "g"),
            node("Flatten", "g", "f"),
            node("Gemm", "f w3 b3", "y"),
        ],
        "y",
        {
            "w1": normal(8, 3, 3, 3) * spread,
            "b1": normal(8, seed=1),
            "w2": normal(8, 8, 3, 3, seed=2) / spread.reshape(1, 8, 1, 1),
            "b2": normal(8, seed=3),
            "w3": normal(8, 10, seed=4) / 8,
            "b3": normal(10, seed=5) / 8,
        },
    )


SMALL_MODELS = {maker.__name__: maker for maker in (conv_relu_conv, residual, concat, hard_swish, leaky, pools)}


def as_ir(proto: onnx.ModelProto) -> ir.Model:
    """The model as the planner gets it: unique names, types and shapes on every value."""
    model = load(proto)
    prepare(model, [InferShapes()])
    return model


def laid_out(proto: onnx.ModelProto, selection: Selection | None = None) -> tuple[ir.Model, Layout]:
    model = as_ir(proto)
    return model, lay_out(model, selection or Selection(), Recipe("XINT8", ""))


def find(model: ir.Model, name: str) -> ir.Node:
    return next(node for node in model.graph if node.name == name)


def plan_at(
    proto: onnx.ModelProto, positions: Mapping[str, int] | None = None, default: int = 4
) -> tuple[ir.Model, Plan]:
    """A plan with positions given by hand, `default` for the others."""
    model, layout = laid_out(proto)
    leaders = {layout.leader(name) for name in layout.sites}
    given = {layout.leader(name): position for name, position in (positions or {}).items()}
    assert set(given) <= leaders
    formats = {Role.ACTIVATION: XINT8.activations, Role.WEIGHT: XINT8.weights, Role.BIAS: XINT8.biases}
    params = {
        name: QuantParams.at(formats[layout.sites[name].role], given.get(name, default))
        for name in layout.sites
        if name in leaders
    }
    return model, Plan(layout, params)


def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """As written: no fusion, no integer kernels."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto | ir.Model, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All graph outputs by name."""
    return run_all(model, [feeds])[0]


def run_all(
    model: onnx.ModelProto | ir.Model, samples: Sequence[Mapping[str, np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    """All graph outputs by name, for each sample. The model is loaded once."""
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    live = session(proto)
    names = [value.name for value in live.get_outputs()]
    return [dict(zip(names, live.run(names, dict(feeds)), strict=True)) for feeds in samples]


def values_of(proto: onnx.ModelProto, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Any values of the model: graph inputs and outputs, and everything between."""
    fetched = onnx.ModelProto()
    fetched.CopyFrom(proto)
    present = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    fetched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    results = run(fetched, feeds)
    return {name: feeds[name] if name in feeds else results[name] for name in names}


def count_sample(statistics: TensorStatistics, values: np.ndarray, vote: Vote | None = None) -> None:
    """Count one sample of a tensor, as the sweep does."""
    bank = HistogramBank(1)
    bank.add({0: values}, vote)
    statistics.merge(bank.statistics[0])


def statistics(layout: Layout, proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, TensorStatistics]:
    """A histogram for each activation that leads, from one sample."""
    names = [site.value for site in layout.of_role(Role.ACTIVATION) if layout.leader(site.value) == site.value]
    histograms = {name: TensorStatistics() for name in names}
    for name, array in values_of(proto, names, feeds).items():
        count_sample(histograms[name], array)
    return histograms


def planned(
    proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray] | None = None, recipe: Recipe = XINT8
) -> tuple[ir.Model, Plan]:
    """A plan from one sample, before any rule of a target."""
    model, layout = laid_out(proto)
    found = statistics(layout, proto, feeds or {"x": normal(*IMAGE, seed=9)})
    return model, make_plan(model, layout, found, recipe)
