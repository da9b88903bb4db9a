from __future__ import annotations

import numpy as np
import onnx
import pytest

from detent.plan.operators import OPERATORS, is_fused_edge
from detent.recipe.recipe import FUSED_ACTIVATIONS
from tests.models import as_ir, build, find, node, normal

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


@pytest.mark.parametrize("op_type", REFERENCE)
def test_what_the_reference_quantizes_is_in_the_table(op_type):
    assert op_type in OPERATORS


@pytest.mark.parametrize("op_type", ["Exp", "Log", "Sqrt", "Pow", "If", "Loop", "QuantizeLinear", "Cast", "Shape"])
def test_what_stays_float_is_not(op_type):
    assert op_type not in OPERATORS


@pytest.mark.parametrize("op_type", OPERATORS)
def test_the_table_fits_the_operators(op_type):
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
