from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import detent
from detent.convert import convert
from detent.errors import ModelError
from detent.graph import guard, trial
from detent.graph.guard import finish_trial, guarded
from detent.graph.load import load
from tests.conftest import tiny_model


@pytest.fixture
def untrusted(monkeypatch):
    monkeypatch.delenv(guard.ENVIRONMENT)


@pytest.fixture
def path(tmp_path):
    onnx.save(tiny_model(opset=12), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def acting(monkeypatch, tmp_path):
    """Let the child run other code than the trial."""

    def use(code):
        (tmp_path / "trial.py").write_text(f"import os, sys, time\nprint('thinking', flush=True)\n{code}\n")
        monkeypatch.setattr(guard, "__file__", str(tmp_path / "guard.py"))

    return use


def test_a_sound_model_passes_its_trial(untrusted, path):
    with guarded(path):
        assert load(path).graph is not None


@pytest.mark.parametrize(
    ("code", "said"),
    [("os.abort()", "crashed"), (f"sys.exit({trial.OUT_OF_MEMORY})", "memory"), ("time.sleep(60)", "seconds")],
)
def test_a_crash_a_hang_and_too_much_memory_are_model_errors(untrusted, path, acting, monkeypatch, code, said):
    acting(code)
    monkeypatch.setattr(guard, "SECONDS", 0.5 if said == "seconds" else 60.0)
    monkeypatch.setattr(guard, "PATIENCE", 1)
    with guarded(path), pytest.raises(ModelError, match=f"m.onnx.*thinking.*{said}"):
        load(path)


@pytest.mark.parametrize("trips", [3, 2**62])
def test_a_loop_without_end_is_a_model_error(untrusted, tmp_path, monkeypatch, trips):
    monkeypatch.setattr(guard, "SECONDS", 2.0)
    body = onnx.parser.parse_graph("body (int64 i, bool go, float[1] x) => (bool go, float[1] y) { y = Neg(x) }")
    graph = onnx.parser.parse_graph("g (float[1] a) => (float[1] b) { b = Identity(a) }")
    constants = [
        onnx.numpy_helper.from_array(np.array(trips), "trips"),
        onnx.numpy_helper.from_array(np.array(True), "go"),
    ]
    graph.node[0].CopyFrom(onnx.helper.make_node("Loop", ["trips", "go", "a"], ["b"], body=body))
    graph.initializer.extend(constants)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    with guarded(tmp_path / "m.onnx"):
        if trips == 3:
            finish_trial(tmp_path / "m.onnx")
        else:
            with pytest.raises(ModelError, match="Loop.*seconds"):
                finish_trial(tmp_path / "m.onnx")


def test_verbs_try_their_models(untrusted, path, acting):
    acting("os.abort()")
    with pytest.raises(ModelError, match="crashed"):
        detent.quantize(path, recipe="BF16")
    with pytest.raises(ModelError, match="crashed"):
        detent.evaluate([path], {"x": np.zeros((1, 3, 8, 8), np.float32)})


MODEL_VERBS = {  # each with its arguments; M stands for a model, X for one that is sound
    "quantize": "M o.onnx",
    "tune": "M o.onnx --calib x.npy --max-drop 1",
    "mix": "M --calib x.npy --max-error -30dB",
    "evaluate": "M --data x.npy",
    "evaluate the second of two": "X M --data x.npy",
    "evaluate --tail": "X --tail M --data x.npy",
    "compare": "X M --data x.npy",
    "compare several": "X X2 M --data x.npy",
    "compare --tail": "X X2 --tail M --data x.npy",
    "sensitivity": "M --calib x.npy",
    "infer": "M --data x.npy --out o",
    "infer --tail": "X --tail M --data x.npy --out o",
    "emulate": "M",
    "dump": "M --out o",
    "check": "M",
    "deploy": "M o --device stx --force",
    "deploy --tail": "X o --device stx --force --tail M",
    "inspect": "M",
    "convert": "M o.onnx --to float16",
    "split": "M o.onnx o2.onnx --at r1",
}


def test_every_verb_that_takes_a_model_is_among_those_that_are_tested():
    from detent.cli import PANELS

    verbs = {verb for verbs in PANELS.values() for verb in verbs}
    assert {each.split()[0] for each in MODEL_VERBS} == verbs - {"recipes", "devices", "demo", "stats"}


@pytest.mark.parametrize("verb", MODEL_VERBS)
def test_each_verb_tries_its_models_unless_it_is_told_to_trust_them(
    untrusted, tmp_path, acting, monkeypatch, detent, verb
):
    for name in ("X", "X2", "M"):
        onnx.save(tiny_model(opset=12), tmp_path / f"{name}.onnx")
    np.save(tmp_path / "x.npy", np.zeros((4, 3, 8, 8), np.float32))
    monkeypatch.chdir(tmp_path)
    acting("if 'M.onnx' in sys.argv[1]: os.abort()")
    arguments = [f"{word}.onnx" if word in ("M", "X", "X2") else word for word in MODEL_VERBS[verb].split()]
    done = detent(verb.split()[0], *arguments)
    assert done.code == 3
    assert "M.onnx is not safe to work with" in " ".join(done.err.split())
    assert not list(tmp_path.glob("o*"))
    assert "not safe" not in detent(verb.split()[0], *arguments, "--trust").err


def test_both_parts_of_a_pipeline_are_tried(untrusted, path, acting):
    acting("os.abort()")
    with pytest.raises(ModelError, match="crashed"):
        detent.Pipeline(path, path)


def test_what_is_trusted_is_not_tried(untrusted, path, acting, detent, monkeypatch):
    acting("os.abort()")
    assert detent("inspect", path).code == 3
    assert detent("inspect", path, "--trust").code == 0
    monkeypatch.setenv(guard.ENVIRONMENT, "1")
    assert detent("inspect", path).code == 0


def test_a_trial_that_nobody_asked_after_ends_with_its_block(untrusted, path, acting):
    acting("time.sleep(60)")
    with guarded(path):
        (process,) = guard._begun.values()
    assert process.poll() is not None
    finish_trial(path)  # there is none any more


def test_a_trial_ends_where_waiting_for_it_is_interrupted(untrusted, path, acting, monkeypatch):
    """Ctrl-C, or the end of a process by SIGTERM: whoever asked for the trial does not ask again."""
    acting("time.sleep(60)")

    def interrupted(process, timeout=None):
        monkeypatch.undo()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), guarded(path):
        (process,) = guard._begun.values()
        monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
        finish_trial(path)
    assert process.poll() is not None


def test_a_trial_that_somebody_else_killed_says_nothing_of_the_model(untrusted, path, acting):
    acting("os.kill(os.getpid(), 9)")
    with guarded(path), pytest.raises(ModelError, match="m.onnx.*thinking.*was killed.*memory") as caught:
        load(path)
    assert "damaged" not in str(caught.value)


LONELY = """
import os, subprocess, sys
code = "import os, trial; trial.end_with(os.getppid()); print('begun', flush=True); sum(iter(int, 1))"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells a process that its parent has ended")
def test_a_trial_ends_with_the_process_that_asked_for_it_though_that_is_killed():
    """While it is in native code, where Python cannot look up."""
    environment = {**os.environ, "PYTHONPATH": trial.__file__.rpartition("trial")[0]}
    parent = subprocess.run([sys.executable, "-c", LONELY], stdout=subprocess.PIPE, check=False, env=environment)
    assert parent.returncode == -9
    status, end = Path(f"/proc/{int(parent.stdout)}/stat"), time.monotonic() + 20
    while status.exists() and ") Z " not in status.read_text() and time.monotonic() < end:
        time.sleep(0.02)
    assert time.monotonic() < end
    late = "import trial; trial.end_with(1); print('goes on')"  # its parent is another one by now
    child = subprocess.run([sys.executable, "-c", late], stdout=subprocess.PIPE, check=False, env=environment)
    assert (child.returncode, child.stdout) == (0, b"")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited on Linux")
def test_memory_is_limited():
    code = "import trial; trial.limit(300 << 20, 60); trial.attempt('growing', lambda: bytearray(400 << 20))"
    folder = trial.__file__.rpartition("trial")[0]
    child = subprocess.run([sys.executable, "-c", code], check=False, env={**os.environ, "PYTHONPATH": folder})
    assert child.returncode == trial.OUT_OF_MEMORY


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processor time is limited on Linux")
def test_processor_time_is_limited():
    code = "import trial; trial.limit(1 << 30, 1); sum(iter(int, 1))"
    folder = trial.__file__.rpartition("trial")[0]
    child = subprocess.run(
        [sys.executable, "-c", code], check=False, env={**os.environ, "PYTHONPATH": folder}, timeout=60
    )
    assert child.returncode == -signal.SIGXCPU


def tried(path, **given):
    """Run the trial as it is, and return its exit code and the steps that it named."""
    settings = {"path": sys.path, "parent": os.getpid(), "model": str(path), "opset": 17}
    settings |= {"memory": 4 << 30, "seconds": 60.0, **given}
    done = subprocess.run([sys.executable, trial.__file__, json.dumps(settings)], stdout=subprocess.PIPE, check=False)
    return done.returncode, done.stdout.decode().splitlines()


def test_what_a_trial_does(path):
    converting, inferring, loading = "converting it to opset 17", "inferring its shapes", "loading it in onnxruntime"
    assert tried(path) == (0, [converting, inferring, loading])
    assert tried(path, opset=12) == (0, [inferring, loading])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited on Linux, and parents are known")
def test_a_trial_has_the_limits_that_it_is_given(path):
    assert tried(path, memory=0)[0] == trial.OUT_OF_MEMORY
    assert tried(path, parent=1) == (0, [])  # who asked is not there any more


def test_a_tensor_that_declares_more_than_it_holds_is_left_to_the_reader(tmp_path):
    model = tiny_model()
    assert not trial.is_refused(model, tmp_path)
    constant = onnx.helper.make_node("Constant", [], ["k"], value=onnx.numpy_helper.from_array(np.ones(3, np.uint8)))
    model.graph.node.insert(0, constant)
    assert not trial.is_refused(model, tmp_path)
    model.graph.node[0].attribute[0].t.dims[0] = 2**31
    assert trial.is_refused(model, tmp_path)


@pytest.mark.parametrize("location", ["w", "a/w", "a/../w", "pipe", "../w", "a", "", "/dev/null", "missing"])
def test_native_code_opens_no_external_data_but_files_below_the_model(tmp_path, location):
    folder = tmp_path / "model"
    (folder / "a").mkdir(parents=True)
    for file in (tmp_path / "w", folder / "w", folder / "a" / "w"):
        file.write_bytes(bytes(4096))
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe")
    model = tiny_model()
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    assert trial.is_refused(model, folder) == (location not in ("w", "a/w", "a/../w"))


def test_what_was_made_here_is_tried_too(untrusted, path, acting):
    guard.try_message(tiny_model().SerializeToString(), "The converted model")
    acting("os.abort()")
    with pytest.raises(ModelError, match="The converted model is not safe"):
        convert(path, path.with_name("half.onnx"), "float16")
    with guarded(path, trust=True):
        convert(path, path.with_name("half.onnx"), "float16")
    assert path.with_name("half.onnx").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processor time is limited on Linux")
def test_seconds_are_those_of_the_processor(untrusted, path, acting, monkeypatch):
    acting("import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 9))\nwhile True: pass")
    with guarded(path), pytest.raises(ModelError, match="m.onnx.*thinking.*seconds"):
        load(path)
    monkeypatch.setattr(guard, "SECONDS", 0.5)
    acting("time.sleep(1)")  # as a busy machine does
    with guarded(path):
        load(path)
