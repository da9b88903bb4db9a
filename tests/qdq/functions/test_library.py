"""Which functions a model is given, and which it is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from detent.errors import ModelError
from detent.numerics.blocks import BlockFloat
from detent.qdq.families import EXTENDED, QUARK, VITIS, VITIS_DOMAIN, OperatorName
from detent.qdq.functions import READERS, add_functions
from tests.qdq.functions.models import (
    FIX_NEURON,
    both_generations,
    initializer,
    model_of,
    run,
    same_bits,
    session,
    symbolic,
    value,
)

BFP, OLD_BFP = both_generations("BFPQuantizeDequantize")
MX, _ = both_generations("MXQuantizeDequantize")
QUANTIZE, _ = both_generations("ExtendedQuantizeLinear")
DEQUANTIZE, _ = both_generations("ExtendedDequantizeLinear")
ONE = np.array(1.0, np.float32)

VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
honours_overloads = pytest.mark.skipif(VERSION < (1, 31), reason="this onnxruntime mistakes overloads for each other")


def chain(*calls: tuple[OperatorName, dict[str, Any]], shape: ir.Shape | None = None) -> ir.Model:
    """A model of nodes of one input, one after the other, that has no functions yet."""
    shape = symbolic(2) if shape is None else shape
    values = [value("x", ir.DataType.FLOAT, shape)]
    nodes = []
    for index, (operator, attributes) in enumerate(calls):
        values.append(value("y" if index == len(calls) - 1 else f"v{index}", ir.DataType.FLOAT, shape))
        written = ir.convenience.convert_attributes(attributes)
        nodes.append(ir.Node(*operator, values[-2:-1], written, outputs=values[-1:], name=f"n{index}"))
    graph = ir.Graph(values[:1], values[-1:], nodes=nodes, opset_imports={"": 17}, name="g")
    return ir.Model(graph, ir_version=8)


def test_every_operator_of_the_tables_has_a_definition() -> None:
    names = {
        OperatorName(family.domain, name)
        for family in (EXTENDED, VITIS)
        for name in family.operators
        if name and name not in family.layers
    }
    assert set(READERS) == names | {FIX_NEURON} and len(names) == 8
    assert both_generations("ExtendedLSTM") == (
        OperatorName(QUARK, "ExtendedLSTM"),
        OperatorName(VITIS_DOMAIN, "VitisLSTM"),
    )


def test_one_function_serves_all_nodes_of_a_kind_and_is_added_once() -> None:
    model = chain((BFP, {"axis": 1}), (BFP, {"axis": 1}), (BFP, {"axis": -1}))
    add_functions(model)
    before = ir.to_proto(model).SerializeToString()
    add_functions(model)
    assert ir.to_proto(model).SerializeToString() == before
    assert list(model.functions) == [(*BFP, "")]
    assert model.graph.opset_imports == {"": 17, QUARK: 1}
    assert model.ir_version == 9


@honours_overloads
def test_two_kinds_under_one_name_are_overloads() -> None:
    model = chain(
        (BFP, {"rounding_mode": 2}), (BFP, {"rounding_mode": 2, "bit_width": 12}), (BFP, {"rounding_mode": 2})
    )
    with pytest.raises(ModelError, match=r"'n0' \(bfp16\) and 'n1' \(bfp12_block_8\)"):
        add_functions(model)
    add_functions(model, overloads=True)
    assert [node.overload for node in model.graph] == ["", "bfp12_block_8", ""]
    assert model.ir_version == 10
    x = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)
    assert same_bits(run(model, x), BlockFloat(12).snap(BlockFloat().snap(x, 1), 1))


def test_shapes_of_several_kinds_share_a_general_body() -> None:
    model = chain(
        (BFP, {"rounding_mode": 2, "axis": 0}), (BFP, {"rounding_mode": 2, "axis": 1}), shape=ir.Shape([3, 20])
    )
    add_functions(model)
    assert list(model.functions) == [(*BFP, "")] and model.ir_version == 9
    x = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)
    assert same_bits(run(model, x), BlockFloat().snap(BlockFloat().snap(x, 0), 1))


def test_a_new_kind_does_not_run_on_the_function_of_an_old_one() -> None:
    model = chain((BFP, {"rounding_mode": 2}))
    add_functions(model)
    model.graph[0].attributes.add(ir.AttrInt64("bit_width", 12))
    add_functions(model)
    x = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)
    assert same_bits(run(model, x), BlockFloat(12).snap(x, 1))


@honours_overloads
def test_types_in_one_model() -> None:
    shape = symbolic(1)
    x, y = value("x", ir.DataType.FLOAT, shape), value("y", ir.DataType.FLOAT, shape)
    scale = initializer("scale", np.array(0.5, np.float32))
    nodes, initializers, last = [], [scale], x
    for dtype in (np.dtype(np.int32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.int8)):
        zero = initializer(f"zero_{dtype}", np.array(0, dtype))
        codes = value(f"codes_{dtype}", ir.DataType.from_numpy(dtype), shape)
        back = y if dtype == np.int8 else value(f"back_{dtype}", ir.DataType.FLOAT, shape)
        nodes.append(ir.Node(*QUANTIZE, [last, scale, zero], outputs=[codes], name=f"q_{dtype}"))
        nodes.append(ir.Node(*DEQUANTIZE, [codes, scale, zero], outputs=[back], name=f"dq_{dtype}"))
        initializers.append(zero)
        last = back
    graph = ir.Graph([x], [y], nodes=nodes, initializers=initializers, opset_imports={"": 17}, name="g")
    model = ir.Model(graph, ir_version=8)
    with pytest.raises(ModelError, match="'q_int32' .int32_per_axis. and 'q_bfloat16'"):
        add_functions(model)
    add_functions(model, overloads=True)
    found = run(model, np.array([1000.2, 0.3, -0.74, 3.25], np.float32))
    assert found.tolist() == [63.5, 0.5, -0.5, 3.0]


def test_a_function_that_the_model_brings_along_stays() -> None:
    model = chain((BFP, {}))
    x, y = ir.Value(name="a"), ir.Value(name="b")
    graph = ir.Graph([x], [y], nodes=[ir.Node("", "Neg", [x], outputs=[y])], opset_imports={"": 17})
    model.functions[(*BFP, "")] = ir.Function(*BFP, graph=graph, attributes=[])
    model.graph.opset_imports[QUARK] = 1
    add_functions(model)
    assert run(model, np.ones((1, 1), np.float32)).tolist() == [[-1.0]]


def test_nodes_in_the_branch_of_an_if() -> None:
    x, out = value("x", ir.DataType.FLOAT, symbolic(2)), value("y", ir.DataType.FLOAT, symbolic(2))
    branches = []
    for name, attributes in (
        ("then_branch", {"rounding_mode": 2, "axis": 1}),
        ("else_branch", {"rounding_mode": 2, "axis": 0}),
    ):
        inner = value(f"inner_{name}", ir.DataType.FLOAT, symbolic(2))
        node = ir.Node(*BFP, [x], ir.convenience.convert_attributes(attributes), outputs=[inner], name=f"in_{name}")
        branches.append(ir.AttrGraph(name, ir.Graph([], [inner], nodes=[node], name=name)))
    condition = initializer("condition", np.array(True))
    choice = ir.Node("", "If", [condition], branches, outputs=[out], name="if")
    graph = ir.Graph([x], [out], nodes=[choice], initializers=[condition], opset_imports={"": 17}, name="g")
    model = ir.Model(graph, ir_version=8)
    add_functions(model)
    numbers = np.random.default_rng(0).standard_normal((2, 9)).astype(np.float32)
    assert same_bits(run(model, numbers), BlockFloat().snap(numbers, 1))


def test_types_are_inferred() -> None:
    model = model_of(BFP, symbolic(3), attributes={"axis": 2})
    proto = ir.to_proto(model)
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].ClearField("type")
    inferred = onnx.shape_inference.infer_shapes(proto)
    assert inferred.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_models_without_such_nodes_stay_as_they_are() -> None:
    model = chain((OperatorName("", "Abs"), {}))
    before = ir.to_proto(model).SerializeToString()
    add_functions(model)
    assert ir.to_proto(model).SerializeToString() == before
    assert session(model)


@pytest.mark.parametrize(
    ("operator", "attributes", "message"),
    [
        (OperatorName(QUARK, "BFPQuantize"), {}, r"'n0' \(com.amd.quark::BFPQuantize\).*Did you mean"),
        (OperatorName(VITIS_DOMAIN, "VitisLSTM"), {}, "no definition"),
        (OperatorName("ai.onnx.contrib", "StringUpper"), {}, "no definition"),
        (BFP, {"bfp_method": "to_bpf"}, "Did you mean 'to_bfp'"),
        (BFP, {"bit_width": 8}, "bit_width .*10 to 32"),
        (BFP, {"rounding_mode": 3}, r"rounding_mode 3.*2 \(half_even\)"),
        (BFP, {"blocksize": 3}, "'blocksize'.*block_size"),
        (BFP, {"axis": "1"}, "axis .*must be of type int"),
        (BFP, {"axis": 2}, "axis 2.*2 dimensions"),
        (BFP, {"use_compiler_version_cpu_kernel": 1}, "Set it to 0"),
        (OLD_BFP, {"bfp_method": "to_bfp_prime", "block_size": 5}, "cannot be cut into sub blocks"),
        (MX, {"element_dtype": "fp8"}, "element_dtype 'fp8'.*fp8_e4m3"),
        (MX, {"block_size": 0}, "at least 1"),
        (QUANTIZE, {}, "no zero point"),
        (FIX_NEURON, {"bit_width": "8"}, "no zero point"),
    ],
)
def test_what_has_no_definition_is_refused(operator: OperatorName, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        add_functions(chain((operator, attributes)))


def test_parameters_that_have_no_definition_are_refused() -> None:
    with pytest.raises(ModelError, match="'n' .* is float\\."):
        model_of(QUANTIZE, symbolic(1), [ONE, ONE])
    with pytest.raises(ModelError, match="bit_width '17'.*2 to 16"):
        model_of(FIX_NEURON, symbolic(1), [ONE, np.array(0, np.int8)], {"bit_width": "17"})
    with pytest.raises(ModelError, match="no attribute bit_width"):
        model_of(FIX_NEURON, symbolic(1), [ONE, np.array(0, np.int8)])
