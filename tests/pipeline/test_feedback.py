"""Models with state: y = state * 0.5 + x, and the next state is y. Known answers: a sum of halves."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import detent
from detent.errors import DataError, UsageError
from detent.observe.streams import states_of
from detent.pipeline.job import make_job
from detent.pipeline.prepared import Stopwatch, prepare_model
from detent.progress import silent
from tests.prepare.equivalence import info, make, node


def model():
    constants = {"half": np.full((1, 4), 0.5, np.float32), "w": np.eye(4, dtype=np.float32)}
    nodes = [node("Mul", "state half", "kept"), node("Gemm", "x w", "seen"), node("Add", "kept seen", "y")]
    nodes.append(node("Identity", "y", "next"))
    inputs, outputs = ([info(name, [1, 4]) for name in names] for names in (("x", "state"), ("y", "next")))
    return make(nodes, inputs, outputs, constants)


def samples(folder, count=16):
    for index in range(count):
        np.savez(folder / f"{index:02}.npz", x=np.full((1, 4), index + 1, np.float32))
    return folder


def test_each_step_starts_from_what_the_last_one_handed_on(tmp_path):
    job = make_job(model(), samples(tmp_path, 4), "A8W8", feedback="state=next", hold_out=0)
    source = prepare_model(job, Stopwatch(silent)).source
    states = [float(pending.load().feeds["state"][0, 0]) for pending in source]
    assert states == [0, 1, 2.5, 4.25]
    assert [float(pending.load().feeds["state"][0, 0]) for pending in source] == states, "a second pass starts anew"
    assert "state fed back" in source.describe


def test_a_model_with_state_is_quantized(tmp_path):
    report = detent.quantize(model(), calibration=samples(tmp_path), recipe="A8W8", feedback=["state=next"])
    assert report.fidelity is not None
    assert "fed back" in str(report)


def test_a_pattern_names_the_states_of_all_layers():
    nodes = [node("Add", f"past.{layer}.{kind} x", f"present.{layer}.{kind}") for layer in "01" for kind in "kv"]
    states = [info(each.input[0], [1, 4]) for each in nodes]
    proto = make(nodes, [info("x", [1, 4]), *states], [info(each.output[0], [1, 4]) for each in nodes])
    wanted = {each.input[0]: each.output[0] for each in nodes}
    assert states_of(["past.*=present.*"], ir.from_proto(proto)) == wanted
    assert states_of(["past.*.k=present.*.k"], ir.from_proto(proto)) == {
        state: result for state, result in wanted.items() if state.endswith("k")
    }


def test_keys_and_values_grow_from_nothing(tmp_path):
    nodes = [node("Concat", "past x", "present", axis=1), node("ReduceMean", "present", "y", axes=[1])]
    values = [info("x", [1, 1, 4]), info("past", [1, "past_length", 4])]
    growing = make(nodes, values, [info("present", [1, "length", 4]), info("y", [1, 1, 4])])
    for index in range(3):
        np.savez(tmp_path / f"{index}.npz", x=np.ones((1, 1, 4), np.float32))
    job = make_job(growing, tmp_path, "A8W8", feedback="past=present", hold_out=0)
    prepared = prepare_model(job, Stopwatch(silent))
    assert [pending.load().feeds["past"].shape[1] for pending in prepared.source] == [0, 1, 2]
    assert isinstance(prepared.model.graph.inputs[1].shape[1], ir.SymbolicDim)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, DataError, "--feedback state=OUTPUT"),
        ({"feedback": "state"}, UsageError, "expected INPUT=OUTPUT"),
        ({"feedback": "state.*=next"}, UsageError, "expected INPUT=OUTPUT"),
        ({"feedback": "pa*=nxt*"}, UsageError, "no input has such a name"),
        ({"feedback": "st*=nx*"}, UsageError, "no output 'nxate'"),
        ({"feedback": "stat=next"}, UsageError, "no input 'stat'. Did you mean 'state'"),
        ({"feedback": "state=nxt"}, UsageError, "no output 'nxt'"),
        ({"feedback": ["state=next", "state=y"]}, UsageError, "'state' comes from 'next' already"),
        ({"feedback": ["state=next", "x=y"]}, UsageError, "every input"),
        ({"feedback": "state=next", "batch": 2}, UsageError, "one step after the other"),
    ],
)
def test_what_cannot_be_fed_back(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        detent.quantize(model(), calibration=samples(tmp_path), recipe="A8W8", **options)


def test_a_state_is_fed_by_an_output_of_its_shape(tmp_path):
    nodes = [node("Gemm", "x w", "y"), node("Add", "y state", "next")]
    inputs, outputs = ([info("x", [1, 4]), info("state", [1, 3])], [info("y", [1, 3]), info("next", [1, 3])])
    proto = make([*nodes, node("Gemm", "next v", "wide")], inputs, [*outputs, info("wide", [1, 5])], {
        "w": np.ones((4, 3), np.float32), "v": np.ones((3, 5), np.float32)
    })  # fmt: skip
    with pytest.raises(UsageError, match=r"'state' has the shape \[1,3\] and 'wide' \[1,5\]"):
        detent.quantize(proto, calibration=samples(tmp_path), recipe="A8W8", feedback="state=wide")
