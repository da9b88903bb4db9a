from __future__ import annotations

import os

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from detent.errors import DataError, ModelError, UsageError
from detent.graph import session
from detent.graph.load import load
from detent.graph.session import Runner, check_operators, first_line, open_session, session_options, usable_cores
from tests.conftest import tiny_model
from tests.models import as_ir, build, info, node, normal


def test_fetches_outputs_and_inner_values(samples):
    model = load(tiny_model())
    before = [value.name for value in model.graph.outputs]
    inner, output = Runner(model, ["r1", "y"])({"x": samples})
    assert inner.shape == (12, 4, 8, 8)
    assert inner.min() >= 0
    np.testing.assert_array_equal(
        output, onnxruntime.InferenceSession(tiny_model().SerializeToString()).run(None, {"x": samples})[0]
    )
    assert [value.name for value in model.graph.outputs] == before


def test_past_two_gigabytes_it_goes_through_a_file(samples, monkeypatch):
    expected = Runner(load(tiny_model()))({"x": samples})[0]
    monkeypatch.setattr(session, "PROTOBUF_LIMIT", 10)
    np.testing.assert_array_equal(Runner(load(tiny_model()))({"x": samples})[0], expected)


def test_a_run_that_fails_names_the_sample():
    with pytest.raises(DataError, match="could not run the model on cat.jpg"):
        Runner(load(tiny_model()))({"x": np.zeros((1, 2, 8, 8), np.float32)}, "cat.jpg")


def test_a_model_that_does_not_load():
    model = tiny_model()
    model.graph.node[0].attribute[0].ints.append(1)
    with pytest.raises(ModelError, match="onnxruntime cannot load the model"):
        Runner(ir.from_proto(model))


def test_check_operators_accepts_what_runs():
    check_operators(load(tiny_model()))


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("imported", [False, True])
def test_operators_that_nobody_knows_are_named_whatever_the_opset(opset, imported):
    """The converter to opset 17 fails at them, and has nothing to say that a user could act on."""
    nodes = [
        node("Relu", "x", "r"),
        node("TFL_FlexErf", "r", "t"),
        node("Wobble", "t", "w", domain="my.ops"),
        node("TFL_FlexErf", "w", "y"),
    ]
    graph = onnx.helper.make_graph(nodes, "foreign", [info("x", (1, 4))], [info("y", (1, 4))])
    imports = [onnx.helper.make_opsetid("", opset), *([onnx.helper.make_opsetid("my.ops", 1)] if imported else [])]
    model = load(onnx.helper.make_model(graph, opset_imports=imports, ir_version=8))
    said = r"'tfl_flexerf_t' uses the operator TFL_FlexErf, .* nor my.ops::Wobble\. .*SavedModel.*split .*--at 'r'"
    with pytest.raises(ModelError, match=said):
        check_operators(model)


def test_first_line():
    assert first_line("[ONNXRuntimeError] : 1 : FAIL : bad\nstack\n") == "bad."
    old = "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Relu(1) node with name 'r'"
    assert "'r' (Relu of opset 1)" in first_line(old) and "opset 17" in first_line(old)
    long = (
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Tile node. Name:'t' "
        "Status Message: /src/core/bfc_arena.cc:360 void* ort::Arena::Allocate(size_t, bool) Failed to allocate 8."
    )
    assert first_line(long) == "node 't' (Tile): Failed to allocate 8."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: setattr(model.opset_import[0], "version", 99), "it has opset 99, .* up to"),
        (lambda model: setattr(model, "ir_version", 99), "it has IR version 99, .* up to"),
        (lambda model: setattr(model.graph.node[0], "op_type", "Convv"), "does not know the operator Convv"),
    ],
)
def test_what_onnxruntime_says_of_a_model_it_cannot_load_says_what_to_do(change, said):
    model = tiny_model()
    change(model)
    with pytest.raises(ModelError, match=said):
        open_session(model.SerializeToString(), session_options())


def test_usable_cores():
    assert usable_cores() >= 1


def test_providers_are_checked_by_name(samples):
    available = onnxruntime.get_available_providers()
    chosen = Runner(load(tiny_model()), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(chosen({"x": samples})[0], Runner(load(tiny_model()))({"x": samples})[0])
    with pytest.raises(UsageError, match=f"no provider 'TPU'. It has: {', '.join(available)}"):
        Runner(load(tiny_model()), providers=["TPU"])
    with pytest.raises(UsageError, match="No execution provider is given"):
        Runner(load(tiny_model()), providers=[])


def test_a_provider_that_does_not_start_is_an_error(monkeypatch):
    class Session:
        def __init__(self, *_, **__):
            pass

        def get_providers(self):
            return ["CPUExecutionProvider"]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["GPU", "CPUExecutionProvider"])
    with pytest.raises(UsageError, match="could not start the provider GPU"):
        Runner(load(tiny_model()), providers=["GPU", "CPUExecutionProvider"])


def test_the_optimized_model_is_written(samples, tmp_path):
    path = tmp_path / "optimized.onnx"
    runner = Runner(load(tiny_model()), optimized=path)
    again = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(again.run(None, {"x": samples})[0], runner({"x": samples})[0])


class Failing:
    """A session whose runs fail, as after an optimization that broke the model."""

    def run(self, *_):
        raise RuntimeError("Input channels C is not equal to kernel channels * group")


def test_a_first_run_that_fails_is_repeated_without_optimization(samples):
    expected = Runner(load(tiny_model()))({"x": samples})[0]
    runner = Runner(load(tiny_model()), exact=True)
    runner._session = Failing()
    np.testing.assert_allclose(runner({"x": samples})[0], expected, rtol=1e-5, atol=1e-6)
    runner._session = Failing()
    with pytest.raises(DataError, match="Input channels"):
        runner({"x": samples})


def test_large_weights_are_read_where_they_are(samples, monkeypatch):
    expected = Runner(load(tiny_model()))({"x": samples})[0]
    model = load(tiny_model())
    for value in model.graph.initializers.values():
        value.const_value = ir.Tensor(value.const_value.numpy(), name=value.name)
    before = {name: value.const_value for name, value in model.graph.initializers.items()}
    monkeypatch.setattr(session, "BY_REFERENCE", 1)
    messages = []
    monkeypatch.setattr(
        session, "open_session", lambda source, *rest: messages.append(source) or open_session(source, *rest)
    )
    runner = Runner(model)
    np.testing.assert_array_equal(runner({"x": samples})[0], expected)
    assert {name: value.const_value for name, value in model.graph.initializers.items()} == before
    largest = max(before.values(), key=lambda tensor: tensor.nbytes)
    assert largest.tobytes() not in messages[0]


@pytest.mark.parametrize(("text", "cores"), [("max 100000", 64), ("150000 100000", 2), ("50000 100000", 1), ("", 64)])
def test_the_time_of_a_container(text, cores, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(session, "CONTAINER", tmp_path)
    monkeypatch.setattr(session.os, "sched_getaffinity", lambda _: range(64), raising=False)
    assert usable_cores() == cores


def test_the_memory_of_a_container(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "CONTAINER", tmp_path)
    assert session.memory_limit() is None
    (tmp_path / "memory.max").write_text("max\n")
    assert session.memory_limit() is None
    (tmp_path / "memory.max").write_text("536870912\n")
    assert session.memory_limit() == 1 << 29


def test_a_message_of_onnxruntime_that_is_no_text_is_an_error_like_others(monkeypatch):
    """It quotes names of the model, in whatever bytes they are."""

    def fail(*_args, **_options):
        b"the name \xb2".decode()

    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    with pytest.raises(ModelError, match="not UTF-8"):
        open_session(b"", session_options())


class FailsOnce(onnxruntime.InferenceSession):
    """Fails while the model is optimized."""

    def run(self, *given):
        if self.get_session_options().graph_optimization_level != onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL:
            raise RuntimeError("a kernel reads the other layout")
        return super().run(*given)


def test_a_model_that_only_runs_unoptimized_is_told(monkeypatch):
    x = {"x": np.ones((1, 3, 8, 8), np.float32)}
    expected = Runner(load(tiny_model()))(x)[0]
    monkeypatch.setattr(onnxruntime, "InferenceSession", FailsOnce)
    session.take_fallbacks()
    runner = Runner(load(tiny_model()))
    np.testing.assert_allclose(runner(x)[0], expected, rtol=1e-5)
    (told,) = session.take_fallbacks()
    assert "optimized form" in told and "reads the other layout" in told and "in another order" in told
    runner(x)
    assert not session.take_fallbacks()


def test_data_that_no_form_of_the_model_takes_is_not_told_as_a_fallback():
    session.take_fallbacks()
    with pytest.raises(DataError):
        Runner(load(tiny_model()))({"x": np.ones((1, 3, 8), np.float32)})
    assert not session.take_fallbacks()


def transposed_constants():
    """Return layers with a constant between two Transposes, which onnxruntime moves away by transposing it in place."""
    nodes = [
        node("Gather", "table index", "g"),
        node("Add", "x g", "h"),
        node("MatMul", "h w", "m"),
        *(node("Transpose", "m", "t", perm=[0, 2, 1]), node("Add", "t square", "a"), node("Relu", "a", "r")),
        node("Transpose", "r", "u", perm=[0, 2, 1]),
        node("MatMul", "u w", "y"),
    ]
    constants = {
        "table": normal(4, 160, 160),
        "index": np.array([2], np.int64),
        "w": normal(160, 160, seed=1) / 12,
        "square": normal(1, 160, 160, seed=2),
    }
    return build(nodes, "y", constants, [info("x", (1, 160, 160))])


def test_huge_models_share_their_weights_with_the_session_and_answer_the_same(monkeypatch):
    model, feeds = as_ir(transposed_constants()), {"x": normal(1, 160, 160, seed=3)}
    copied = session.Runner(model)
    monkeypatch.setattr(session, "HUGE_MODEL", 0)
    shared = session.Runner(model)
    assert shared._shared == {"table", "w"} and not copied._shared
    np.testing.assert_allclose(shared(feeds)[0], copied(feeds)[0], rtol=1e-4, atol=1e-4)


def test_only_weights_that_no_other_operator_reads_are_shared():
    nodes = [("Gemm", ["x", "w", "b"]), ("MatMul", ["h", "w"]), ("MatMul", ["v", "h"]), ("Mul", ["h", "u"])]
    assert session.read_as_they_are(nodes) == {"w"}
    assert session.read_as_they_are([*nodes, ("Add", ["w", "h"])]) == set()
    assert session.read_as_they_are([("Gather", ["w", "i"]), ("MatMul", ["w", "w"])]) == set()


def test_a_file_that_stays_mapped_does_not_hide_the_answer(samples, tmp_path, monkeypatch):
    """On Windows a session maps weights that lie beside the model, and nobody may remove them."""
    expected = Runner(load(tiny_model()))({"x": samples})[0]
    monkeypatch.setattr(session, "PROTOBUF_LIMIT", 10)

    def held(path, *_, **__):
        raise PermissionError(13, "The process cannot access the file", str(path))

    monkeypatch.setattr(session.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "unlink", held)
    found = Runner(load(tiny_model()))({"x": samples})[0]
    monkeypatch.undo()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("outside", [20, -21])
def test_ids_outside_a_table_are_told_of_vocabulary_and_length(outside):
    ids = onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [1, 3])
    runner = Runner(as_ir(build([node("Gather", "table ids", "y")], "y", {"table": normal(20, 4)}, [ids])))
    with pytest.raises(DataError, match=r"has 20 entries.*tokenizer of this model.*positions") as caught:
        runner({"ids": np.array([[0, 1, outside]])}, "the second text")
    assert "the second text" in str(caught.value)
    assert "--size" not in str(caught.value)
