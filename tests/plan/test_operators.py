from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from detent.plan.operators import OPERATORS, channel_axis, is_fused_edge, summed_axis
from detent.recipe.recipe import FUSED_ACTIVATIONS
from tests.models import as_ir, build, find, info, node, normal

# The operators that the reference tool quantizes for an NPU.
REFERENCE = [
    "ArgMax",
    "Conv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Min",
    "Max",
    "Relu",
    "Clip",
    "LeakyRelu",
    "PRelu",
    "Sigmoid",
    "HardSigmoid",
    "Tanh",
    "Erf",
    "Gelu",
    "Softmax",
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "ReduceMean",
    "Split",
    "Slice",
    "Concat",
    "Pad",
    "Resize",
    "Reshape",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "DepthToSpace",
    "SpaceToDepth",
    "Gather",
    "Where",
    "InstanceNormalization",
    "LayerNormalization",
    "LpNormalization",
]


MORE = [
    "HardSwish",
    "Expand",
    "Pow",
    "Sqrt",
    "ReduceSum",
    "ReduceMax",
    "Neg",
    "Reciprocal",
    "LogSoftmax",
    "LSTM",
    "GRU",
]


@pytest.mark.parametrize("op_type", [*REFERENCE, *MORE])
def test_what_the_reference_quantizes_is_in_the_table(op_type):
    assert op_type in OPERATORS


@pytest.mark.parametrize("op_type", ["Exp", "Log", "If", "Loop", "QuantizeLinear", "Cast", "Shape"])
def test_what_stays_float_is_not(op_type):
    assert op_type not in OPERATORS


@pytest.mark.parametrize("op_type", OPERATORS)
def test_the_table_fits_the_operators(op_type):
    if not onnx.defs.has(op_type):
        pytest.skip("this onnx does not know the operator yet")
    schema = onnx.defs.get_schema(op_type)
    operator = OPERATORS[op_type]
    names = [formal.name for formal in schema.inputs]
    for index in (*(operator.data or ()), *(() if operator.bias is None else (operator.bias,))):
        assert index < len(names)
        assert "float" in " ".join(schema.inputs[index].types)
    if operator.bias is not None and op_type != "Gemm":
        assert names[operator.bias] == "B"
    if operator.moves_data:
        assert operator.data == (0,)


def edge(producer, consumer, constants=None):
    proto = build([producer, consumer], "y", {"w": normal(3, 3, 3, 3), "m": normal(8, 8), **(constants or {})})
    model = as_ir(proto)
    return is_fused_edge(find(model, "producer"), find(model, "consumer"), FUSED_ACTIVATIONS)


PRODUCERS = {
    "Conv": node("Conv", "x w", "v", "producer"),
    "ConvTranspose": node("ConvTranspose", "x w", "v", "producer"),
    "MatMul": node("MatMul", "x m", "v", "producer"),
    "Add": node("Add", "x m", "v", "producer"),
    "MaxPool": node("MaxPool", "x", "v", "producer", kernel_shape=[2, 2]),
    "AveragePool": node("AveragePool", "x", "v", "producer", kernel_shape=[2, 2]),
    "GlobalAveragePool": node("GlobalAveragePool", "x", "v", "producer"),
}
OTHERS = {
    "Mul": node("Mul", "x m", "v", "producer"),
    "Sub": node("Sub", "x m", "v", "producer"),
    "Relu": node("Relu", "x", "v", "producer"),
    "Transpose": node("Transpose", "x", "v", "producer"),
    "Sigmoid": node("Sigmoid", "x", "v", "producer"),
}
SLOPE = {"slope": np.array([0.25], np.float32)}
CONSUMERS = {
    "Relu": node("Relu", "v", "y", "consumer"),
    "LeakyRelu": node("LeakyRelu", "v", "y", "consumer"),
    "PRelu": node("PRelu", "v slope", "y", "consumer"),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_fused_pairs(producer, consumer):
    assert edge(PRODUCERS[producer], CONSUMERS[consumer], SLOPE)


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("producer", OTHERS)
def test_other_producers_do_not_fuse(producer, consumer):
    assert not edge(OTHERS[producer], CONSUMERS[consumer], SLOPE)


@pytest.mark.parametrize("consumer", ["Sigmoid", "Tanh", "HardSwish", "Softmax", "Erf", "Neg"])
def test_other_consumers_do_not_fuse(consumer):
    assert not edge(PRODUCERS["Conv"], node(consumer, "v", "y", "consumer"))


def test_gemm_relu():
    proto = build(
        [node("Flatten", "x", "f"), node("Gemm", "f g", "v", "producer"), node("Relu", "v", "y", "consumer")],
        "y",
        {"g": normal(192, 2)},
    )
    model = as_ir(proto)
    assert is_fused_edge(find(model, "producer"), find(model, "consumer"), FUSED_ACTIVATIONS)


@pytest.mark.parametrize(
    ("low", "high", "fused"),
    [
        (0.0, 6.0, True),
        (0.0, 1.0, True),
        (0.0, 5.0, False),
        (-1.0, 1.0, False),
        (0.0, 255.0, False),
        (1.0, 6.0, False),
        (None, 6.0, False),
        (0.0, None, False),
        (-0.0, 6.0, True),
    ],
)
def test_clip_fuses_by_its_bounds(low, high, fused):
    bounds = {"low": low, "high": high}
    given = {name: np.array(value, np.float32) for name, value in bounds.items() if value is not None}
    names = " ".join(name if name in given else "_" for name in bounds)
    assert edge(PRODUCERS["Conv"], node("Clip", f"v {names}", "y", "consumer"), given) is fused


def test_clip_with_computed_bounds_does_not_fuse():
    proto = build(
        [
            PRODUCERS["Conv"],
            node("ReduceMin", "x", "low", keepdims=0),
            node("ReduceMax", "x", "high", keepdims=0),
            node("Clip", "v low high", "y", "consumer"),
        ],
        "y",
        {"w": normal(3, 3, 3, 3)},
    )
    model = as_ir(proto)
    assert not is_fused_edge(find(model, "producer"), find(model, "consumer"), FUSED_ACTIVATIONS)


@pytest.mark.parametrize(
    ("consumer", "fused"),
    [
        (node("AveragePool", "v", "y", "consumer", kernel_shape=[2, 2]), True),
        (node("GlobalAveragePool", "v", "y", "consumer"), True),
        (node("MaxPool", "v", "y", "consumer", kernel_shape=[2, 2]), False),
        (node("Conv", "v w", "y", "consumer"), False),
        (node("Relu", "v", "y", "consumer"), False),
    ],
)
def test_pad_fuses_with_averages_only(consumer, fused):
    pads = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)}
    assert edge(node("Pad", "x pads", "v", "producer"), consumer, pads) is fused


@pytest.mark.parametrize(
    ("attributes", "declined"),
    [
        ({"alpha": 1 / 6, "beta": 0.5}, False),
        ({"alpha": 0.16666667}, False),
        ({}, True),
        ({"alpha": 0.2, "beta": 0.5}, True),
        ({"alpha": 1 / 6, "beta": 0.25}, True),
        ({"alpha": 0.1667, "beta": 0.5}, True),
    ],
)
def test_hard_sigmoid_of_other_slopes_is_declined(attributes, declined):
    model = as_ir(build([node("HardSigmoid", "x", "y", "h", **attributes)], "y"))
    reason = OPERATORS["HardSigmoid"].declines(find(model, "h"))
    assert (reason is not None) is declined
    if declined:
        assert "1/6" in reason


CASES = {
    # node, input, weight, bias: channels of w; summed axis of x, w, y
    "Conv": (node("Conv", "x w b", "y"), (1, 3, 8, 8), (4, 3, 3, 3), (4,), 0, (1, 1, 1)),
    "depthwise Conv": (node("Conv", "x w b", "y", group=3), (1, 3, 8, 8), (3, 1, 3, 3), (3,), 0, (1, 1, 1)),
    "Conv of one dimension": (node("Conv", "x w", "y"), (1, 3, 8), (4, 3, 3), None, 0, (1, 1, 1)),
    "ConvTranspose": (node("ConvTranspose", "x w", "y"), (1, 3, 8, 8), (3, 4, 2, 2), None, 1, (1, 0, 1)),
    "ConvTranspose in groups": (
        node("ConvTranspose", "x w", "y", group=3),
        (1, 3, 8, 8),
        (3, 4, 2, 2),
        None,
        None,
        (1, 0, 1),
    ),
    "Gemm": (node("Gemm", "x w b", "y"), (5, 8), (8, 6), (6,), 1, (1, 0, 1)),
    "Gemm transB": (node("Gemm", "x w b", "y", transB=1), (5, 8), (6, 8), (6,), 0, (1, 1, 1)),
    "Gemm transA": (node("Gemm", "x w", "y", transA=1), (8, 5), (8, 6), None, 1, (0, 0, 1)),
    "Gemm and a number": (node("Gemm", "x w b", "y"), (5, 8), (8, 6), (), None, (1, 0, 1)),
    "Gemm and a column": (node("Gemm", "x w b", "y"), (5, 8), (8, 6), (5, 1), None, (1, 0, 1)),
    "MatMul": (node("MatMul", "x w", "y"), (2, 5, 8), (8, 6), None, 1, (2, 0, 2)),
    "MatMul of batches": (node("MatMul", "x w", "y"), (2, 5, 8), (2, 8, 6), None, 2, (2, 1, 2)),
    "MatMul by a vector": (node("MatMul", "x w", "y"), (5, 8), (8,), None, None, (1, 0, 0)),
    "Mul": (node("Mul", "x w", "y"), (1, 3, 8, 8), (3, 1, 1), None, None, (1, 1, 1)),
    "Mul of vectors": (node("Mul", "x w", "y"), (8,), (8,), None, None, (0, 0, 0)),
}


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
@pytest.mark.parametrize("shape", [(), (8,)])
def test_a_weight_of_too_few_dimensions_has_no_channels(op_type, shape):
    """A file may declare one: onnxruntime refuses it, and a check must not fail on it."""
    weight, bias = (ir.tensor(normal(*each)) for each in (shape, (8,)))
    w, b = (ir.Value(shape=ir.Shape(each.shape), const_value=each) for each in (weight, bias))
    assert channel_axis(ir.node(op_type, [ir.Value(), w, b]), w, b) is None


@pytest.mark.parametrize("kind", CASES)
def test_axes(kind):
    one, size, shape, bias, channels, summed = CASES[kind]
    constants = {"w": normal(*shape)} | ({} if bias is None else {"b": normal(*bias)})
    model = as_ir(build([one], "y", constants, inputs=[info("x", size)]))
    layer = next(iter(model.graph))
    x, w = layer.inputs[:2]
    assert channel_axis(layer, w, layer.inputs[2] if bias is not None else None) == channels
    assert channel_axis(layer, x, None) is None
    assert (summed_axis(x), summed_axis(w), summed_axis(layer.outputs[0])) == summed
    if bias is not None:
        assert summed_axis(layer.inputs[2]) == (1 if len(bias) == 2 else 0)


@pytest.mark.parametrize(("axis", "expected"), [(-1, 3), (1, 1), (2, 2), (None, 3)])
def test_a_softmax_sums_along_its_axis(axis, expected):
    attributes = {} if axis is None else {"axis": axis}
    model = as_ir(build([node("Relu", "x", "r"), node("Softmax", "r", "y", **attributes)], "y"))
    assert summed_axis(next(iter(model.graph)).outputs[0]) == expected


def test_the_first_reader_that_settles_it_decides():
    nodes = [node("Relu", "x", "r"), node("Sigmoid", "r", "s"), node("MatMul", "w r", "a"), node("MatMul", "r v", "b")]
    constants = {"w": normal(5, 4), "v": normal(6, 3)}
    model = as_ir(build(nodes, "s a b", constants, inputs=[info("x", (4, 6))]))
    assert summed_axis(next(iter(model.graph)).outputs[0]) == 0
