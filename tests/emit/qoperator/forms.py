"""One model in both forms, and the comparison of all codes that they have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto

from detent.emit import emit
from detent.emit.qoperator_form import to_qoperator
from detent.methods import MinMax
from detent.numerics.formats import IntegerFormat
from detent.prepare.base import Change
from detent.recipe import Recipe
from tests.models import IMAGE, XINT8, normal, planned, run

FEEDS = {"x": normal(*IMAGE, seed=9)}


def recipe(activations: IntegerFormat, weights: IntegerFormat) -> Recipe:
    return Recipe(
        "test",
        "",
        activations=activations,
        weights=weights,
        biases=IntegerFormat("int32"),
        method=MinMax(),
        target="cpu",
        equalize=False,
        refinement=None,
    )


U8 = recipe(IntegerFormat("uint8", symmetric=False), IntegerFormat("int8"))
S8 = recipe(IntegerFormat("int8"), IntegerFormat("int8"))
RECIPES = {
    "u8": U8,
    "u8-channels": recipe(U8.activations, IntegerFormat("int8", granularity="per_channel")),
    "u8-unsigned-weights": recipe(U8.activations, IntegerFormat("uint8", symmetric=False)),
    "u8-symmetric": recipe(IntegerFormat("uint8"), IntegerFormat("int8")),
    "s8": S8,
    "s8-asymmetric-channels": recipe(
        IntegerFormat("int8", symmetric=False), IntegerFormat("int8", granularity="per_channel")
    ),
    "s8-unsigned-weights": recipe(S8.activations, IntegerFormat("uint8", symmetric=False)),
    "power-of-two": XINT8,
}


@dataclass(frozen=True)
class Forms:
    qdq: onnx.ModelProto
    integer: onnx.ModelProto
    declined: list[Change]

    @property
    def operators(self) -> list[str]:
        return [one.op_type for one in self.integer.graph.node]

    @property
    def between(self) -> list[str]:
        """The operators without those that stand at the ends of the model."""
        return [name for name in self.operators if name not in ("QuantizeLinear", "DequantizeLinear")]


def forms(proto: onnx.ModelProto, scheme: Recipe = U8, feeds=FEEDS) -> Forms:
    model, plan = planned(proto, feeds, scheme)
    emit(model, plan)
    return forms_of(ir.to_proto(model))


def forms_of(qdq: onnx.ModelProto) -> Forms:
    model = ir.from_proto(qdq)
    declined = to_qoperator(model)
    integer = ir.to_proto(model)
    onnx.checker.check_model(integer, full_check=True)
    for ours, theirs in ((integer.graph.input, qdq.graph.input), (integer.graph.output, qdq.graph.output)):
        assert [value.name for value in ours] == [value.name for value in theirs]
    names = [one.name for one in integer.graph.node]
    assert len(set(names)) == len(names)
    read = {name for one in integer.graph.node for name in one.input}
    assert read >= {tensor.name for tensor in integer.graph.initializer}, "an initializer is left over"
    return Forms(qdq, integer, declined)


def exact_run(proto: onnx.ModelProto, feeds) -> dict[str, np.ndarray]:
    """All graph outputs, from integer kernels that do not saturate on the way."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if not any(tensor.data_type == TensorProto.UINT8 for tensor in proto.graph.initializer):
        # The option makes weights unsigned, and for signed activations onnxruntime has no such kernel.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        options.add_session_config_entry("session.x64quantprecision", "1")
    live = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in live.get_outputs()]
    return dict(zip(names, live.run(names, dict(feeds)), strict=True))


def differences(both: Forms, feeds=FEEDS, gone=()) -> dict[str, np.ndarray]:
    """How many codes apart the two forms are, for all codes but those that are the same as others and so are `gone`."""
    written = {name for one in both.integer.graph.node for name in one.output}
    names = [one.output[0] for one in both.qdq.graph.node if one.op_type == "QuantizeLinear"]
    assert set(names) <= {*written, *gone}, "codes have lost their name"
    names = [name for name in names if name in written]
    results = []
    for proto, runner in ((both.qdq, run), (both.integer, exact_run)):
        fetched = onnx.ModelProto()
        fetched.CopyFrom(proto)
        present = {value.name for value in proto.graph.output}
        fetched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
        results.append(runner(fetched, feeds))
    before, after = results
    for name in names:
        assert before[name].dtype == after[name].dtype and before[name].shape == after[name].shape, name
        assert np.ptp(before[name].astype(int)) > 16, f"'{name}' is too dull to test with"
    return {name: np.abs(before[name].astype(int) - after[name].astype(int)) for name in names}


def assert_same(both: Forms, feeds=FEEDS, ties: float = 0.0, gone=()) -> None:
    """Equal codes; up to `ties` of them may be one apart, where float32 falls on the other side of a half."""
    for name, apart in differences(both, feeds, gone).items():
        assert apart.max() <= (1 if ties else 0), f"'{name}' is {apart.max()} codes apart"
        assert (apart != 0).mean() <= ties, f"{(apart != 0).mean():.2%} of '{name}' differ"
