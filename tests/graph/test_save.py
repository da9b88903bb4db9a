from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from detent.errors import OutputError
from detent.graph import save as saving
from detent.graph.load import load, stored_bytes
from detent.graph.save import save, scratch_folder, write_text
from tests.conftest import tiny_model


def test_same_model_same_bytes(tmp_path):
    first, second = tmp_path / "a.onnx", tmp_path / "b.onnx"
    saving.save(load(tiny_model()), first)
    saving.save(load(tiny_model()), second)
    assert first.read_bytes() == second.read_bytes()


def test_returns_the_bytes_written_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "a.onnx"
    size = saving.save(load(tiny_model()), path)
    assert size == path.stat().st_size
    assert [file.name for file in tmp_path.iterdir()] == ["a.onnx"]


def test_past_the_limit_the_weights_go_beside_it(tmp_path, monkeypatch, samples):
    monkeypatch.setattr(saving, "PROTOBUF_LIMIT", 100)
    path = tmp_path / "a.onnx"
    size = saving.save(load(tiny_model()), path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.onnx", "a.onnx.data"]
    assert size == stored_bytes(path) == sum(file.stat().st_size for file in tmp_path.iterdir())
    expected = onnxruntime.InferenceSession(tiny_model().SerializeToString()).run(None, {"x": samples})[0]
    found = onnxruntime.InferenceSession(path).run(None, {"x": samples})[0]
    np.testing.assert_array_equal(found, expected)
    # and it can be read back, moved with its data, and saved again over itself
    saving.save(load(path), tmp_path / "b.onnx")
    np.testing.assert_array_equal(
        onnxruntime.InferenceSession(tmp_path / "b.onnx").run(None, {"x": samples})[0], expected
    )


def test_no_model_refers_to_the_data_of_another(tmp_path, monkeypatch):
    """Where the process is killed between the two files, the old model is gone, and does not read the new weights."""
    monkeypatch.setattr(saving, "PROTOBUF_LIMIT", 100)
    path, other = tmp_path / "a.onnx", tiny_model(w1=np.zeros((4, 3, 3, 3), np.float32))
    saving.save(load(tiny_model()), path)
    old = path.with_name("a.onnx.data").read_bytes()
    real, found = saving.replace_file, []

    def watch(source, place):
        real(source, place)
        found.append((path.exists(), path.with_name("a.onnx.data").read_bytes() == old))

    monkeypatch.setattr(saving, "replace_file", watch)
    saving.save(load(other), path)
    assert found == [(False, False), (True, False)]


def test_failure_at_the_last_moment_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.onnx"
    path.write_text("old")

    def fail(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(saving.os, "fsync", fail)
    with pytest.raises(OutputError, match="Input/output error"):
        saving.save(load(tiny_model()), path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(saving, "_flush", interrupt)
    with pytest.raises(KeyboardInterrupt):
        saving.save(load(tiny_model()), tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_text_is_complete_or_absent(tmp_path, monkeypatch):
    saving.write_text("{}", tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text() == "{}"
    monkeypatch.setattr(saving, "_flush", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OutputError, match="disk is full"):
        saving.write_text("{...}", tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text() == "{}"


@pytest.mark.large
def test_a_model_past_two_gigabytes(tmp_path):
    """Float weights of 2.3 GB in a file of holes: read, prepared, quantized, and the float model written again."""
    import detent

    rows, columns, layers = 24_000, 8_000, 3
    with (tmp_path / "big.data").open("wb") as file:
        file.truncate(4 * rows * columns * layers)
    nodes, tensors, source = [], [], "x"
    for layer in range(layers):
        tensor = TensorProto(
            name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[columns, rows] if layer % 2 else [rows, columns]
        )
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", "big.data"),
            ("offset", 4 * rows * columns * layer),
            ("length", 4 * rows * columns),
        ):
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
        nodes.append(helper.make_node("MatMul", [source, f"w{layer}"], [f"h{layer}"], name=f"layer{layer}"))
        source = f"h{layer}"
    graph = helper.make_graph(
        nodes,
        "big",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, rows])],
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, [1, columns])],
        tensors,
    )
    path = tmp_path / "big.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert stored_bytes(path) > 2**31
    model = load(path)
    assert saving.tensor_bytes(model) > saving.PROTOBUF_LIMIT
    saving.save(model, tmp_path / "copy.onnx")
    assert (tmp_path / "copy.onnx.data").stat().st_size > 2**31
    (tmp_path / "copy.onnx.data").unlink()
    del model
    # Without the accuracy steps, which are no different for large models, and take minutes.
    plain = detent.find_recipe("XINT8").replace(equalize=False, refinement=None)
    report = detent.quantize(path, tmp_path / "int8.onnx", np.ones((2, rows), np.float32), plain)
    assert report.bytes_after == (tmp_path / "int8.onnx").stat().st_size
    assert 0.25 * 4 * rows * columns * layers < report.bytes_after < 2**31
    assert ir.load(tmp_path / "int8.onnx").graph.initializers["w0_quantized"].dtype == ir.DataType.INT8


def test_a_result_needs_no_file_of_its_input(tmp_path, samples):
    """Float tensors that stay (an excluded layer's) come along, though the input had them in another file."""
    import detent

    onnx.save(tiny_model(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    detent.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", samples, exclude=["second"], keep_batch=True)
    (tmp_path / "m.data").unlink()
    assert onnxruntime.InferenceSession(tmp_path / "q.onnx").run(None, {"x": samples})[0].shape == (12, 2, 8, 8)


def test_a_file_is_flushed_through_a_handle_that_may_write(tmp_path, monkeypatch):
    """Windows flushes no file that is open for reading only."""
    modes = []
    flush = os.fsync

    def watched(handle):
        os.write(handle, b"")  # fails with EBADF on a handle that only reads
        modes.append(handle)
        flush(handle)

    monkeypatch.setattr(os, "fsync", watched)
    save(load(tiny_model()), tmp_path / "m.onnx")
    write_text("text", tmp_path / "t.txt")
    assert len(modes) == 2


def test_a_name_that_is_held_for_a_moment_is_taken_in_the_end(tmp_path, monkeypatch):
    """On Windows a scanner or viewer may hold the old file open."""
    replace, tries = Path.replace, []

    def held(self, target):
        tries.append(target)
        if len(tries) < 3:
            raise PermissionError(13, "The process cannot access the file")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", held)
    with pytest.raises(OutputError, match="t.txt"):
        write_text("text", tmp_path / "t.txt")
    assert list(tmp_path.iterdir()) == []
    tries.clear()
    monkeypatch.setattr("detent.graph.save.WAITS", (0.0, 0.0))
    write_text("text", tmp_path / "t.txt")
    assert (tmp_path / "t.txt").read_text() == "text"


@pytest.mark.skipif(os.name == "nt", reason="processes are not asked after there")
def test_what_a_killed_process_left_is_removed_by_the_next_and_what_is_in_use_is_not(tmp_path):
    path = tmp_path / "out.onnx"
    code = (
        "import os, sys; from pathlib import Path; from detent.graph.save import scratch_folder\n"
        "with scratch_folder(Path(sys.argv[1])) as folder: (folder / 'half').write_bytes(b'x'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert len(list(tmp_path.glob(".out.onnx.*"))) == 1
    strange = tmp_path / f".out.onnx.{'0' * 8}-1-abcdef"  # of another machine
    strange.mkdir()
    with scratch_folder(path) as mine:
        write_text("new", path)  # of this very process, at the same time
        assert mine.is_dir()
    assert {file.name for file in tmp_path.iterdir()} == {"out.onnx", strange.name}


def test_a_file_that_another_process_moves_at_the_same_time(tmp_path, monkeypatch):
    model, real, calls = load(tiny_model()), saving.replace_file, []
    places = [tmp_path / "body.onnx", tmp_path / "tail.onnx"]
    saving.save_together([(model, place) for place in places])
    wanted = [place.read_bytes() for place in places]

    def replace(source, place):
        calls.append(source)
        if len(calls) == 1:
            places[0].unlink()
        real(source, place)

    monkeypatch.setattr(saving, "replace_file", replace)
    saving.save_together([(model, place) for place in places])
    assert [place.read_bytes() for place in places] == wanted
    assert sorted(tmp_path.iterdir()) == places


@pytest.mark.parametrize("name", ["cat.jpg", "dog.PNG", "x.npy", "x.npz", "labels.csv"])
def test_a_model_does_not_take_the_place_of_data(tmp_path, name):
    saving.check_output(tmp_path / name)  # a new file may have any name
    (tmp_path / name).write_bytes(b"precious")
    with pytest.raises(OutputError, match="would overwrite"):
        saving.check_output(tmp_path / name)


def test_a_file_is_no_folder_to_create(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"")
    with pytest.raises(OutputError, match="is a file"):
        saving.check_output(tmp_path / "m.onnx" / "out.onnx")


@pytest.mark.parametrize(("handle", "error", "removed"), [(0, 87, True), (0, 5, False), (44, 0, False)])
def test_what_a_killed_process_left_is_removed_on_windows(tmp_path, monkeypatch, handle, error, removed):
    """There os.kill would end the process that is asked after; 87 says that there is none, 5 that it is another's."""
    closed = []
    kernel = SimpleNamespace(OpenProcess=lambda right, inherit, number: handle, CloseHandle=closed.append)
    monkeypatch.setattr(saving.ctypes, "WinDLL", lambda name, use_last_error: kernel, raising=False)
    monkeypatch.setattr(saving.ctypes, "get_last_error", lambda: error, raising=False)
    monkeypatch.setattr(saving.os, "kill", None)
    left = tmp_path / f".m.onnx.{saving._HOST}-4242-abcdef"
    left.mkdir()
    monkeypatch.setattr(saving.sys, "platform", "win32")
    saving._remove_orphans(tmp_path / "m.onnx")
    monkeypatch.undo()
    assert left.exists() != removed
    assert closed == ([handle] if handle else [])
