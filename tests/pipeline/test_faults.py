"""The n-th session cannot be made, for every n, and memory ends: an error of ours, and no output. The same command runs
twice at once, names change slowly, the clock jumps: the output is that of one alone."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time

import numpy as np
import onnxruntime
import pytest

import detent as package
from detent.graph import session
from detent.observe import sweep
from tests.conftest import tiny_model


@pytest.mark.parametrize("recipe", ["XINT8", "BF16"])
def test_whatever_session_fails_the_output_is_whole_or_absent(tmp_path, monkeypatch, samples, recipe):
    real, output, model = onnxruntime.InferenceSession, tmp_path / "out.onnx", tiny_model(batch=1)
    package.quantize(model, output, samples, recipe)
    wanted = output.read_bytes()
    for fail_at in range(1, 60):
        output.unlink(missing_ok=True)
        made = []

        def make(*args, made=made, fail_at=fail_at, **options):
            made.append(args)
            if len(made) == fail_at:
                raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : injected")
            return real(*args, **options)

        monkeypatch.setattr(session.onnxruntime, "InferenceSession", make)
        try:
            package.quantize(model, output, samples, recipe)
        except package.DetentError:
            assert not any(tmp_path.iterdir())
        else:
            assert output.read_bytes() == wanted  # what failed was a trial of something better
        if len(made) < fail_at:
            break
    else:
        pytest.fail("there is no end of sessions")


def test_memory_that_ends_is_a_message(detent, tiny, monkeypatch):
    def exhaust(*_, **__):
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr("detent.comparison.inspection.inspect_model", exhaust)
    answer = detent("inspect", tiny)
    assert answer.code == 3
    assert "9 TiB" in answer.err and "Traceback" not in answer.err


def test_what_is_kept_when_memory_ends_is_told_and_taken_up(detent, tiny, samples, tmp_path, monkeypatch):
    data, output = tmp_path / "x.npy", tmp_path / "out.onnx"
    np.save(data, samples)
    arguments = ("quantize", tiny, output, "--calib", data, "--threads", "1", "--no-equalize")
    finished, real = [], sweep._Stream.finished_one

    def exhaust(self):
        finished.append(self)
        if len(finished) == 3:
            raise MemoryError("Unable to allocate 9 TiB")
        real(self)

    monkeypatch.setattr(sweep._Stream, "finished_one", exhaust)
    answer = detent(*arguments)
    kept = tmp_path / "out.onnx.checkpoint"
    assert answer.code == 3 and kept.exists()
    assert f"kept in {kept}" in " ".join(answer.err.split()).replace("\n", "")
    again = detent(*arguments)
    assert again.code == 0 and "Continued from the checkpoint" in again.out
    assert not kept.exists()


SLOWLY = """
import os, sys, time
from pathlib import Path
real, meeting = os.replace, Path(sys.argv.pop(1))

def replace(*paths, **options):
    (meeting / str(os.getpid())).touch()
    end = time.monotonic() + 60
    while len(list(meeting.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.01)  # until both are about to write
    time.sleep(0.1)  # as over a network
    real(*paths, **options)
    time.sleep(0.1)

os.replace = replace
from detent.cli import main
main()
"""


def test_the_same_command_twice_at_once_with_names_that_change_slowly(tiny, samples, tmp_path):
    data, folder, meeting = tmp_path / "x.npy", tmp_path / "out", tmp_path / "meeting"
    np.save(data, samples)
    folder.mkdir()
    meeting.mkdir()
    package.quantize(tiny, tmp_path / "wanted.onnx", data)
    words = ["quantize", tiny, folder / "out.onnx", "--calib", data, "--report", folder / "r.json"]
    command = [sys.executable, "-c", SLOWLY, str(meeting), *map(str, words)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    said = [each.communicate(timeout=120)[0] for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    assert len(list(meeting.iterdir())) == 2
    assert (folder / "out.onnx").read_bytes() == (tmp_path / "wanted.onnx").read_bytes()
    assert {file.name for file in folder.iterdir()} == {"out.onnx", "r.json"}


def test_a_clock_that_jumps_changes_nothing(detent, tiny, samples, tmp_path, monkeypatch):
    data, wanted = tmp_path / "x.npy", tmp_path / "wanted.onnx"
    np.save(data, samples)
    assert detent("quantize", tiny, wanted, "--calib", data).code == 0
    times = itertools.cycle((2.0**32, 0.0, 1e9))
    monkeypatch.setattr(time, "time", lambda: next(times))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(times)) * 10**9)
    output = tmp_path / "out.onnx"
    assert detent("quantize", tiny, output, "--calib", data, "--save-stats", tmp_path / "s").code == 0
    assert output.read_bytes() == wanted.read_bytes()
    folder = ("--data", data, "--out", tmp_path / "answers")
    assert detent("infer", output, *folder).code == 0
    assert detent("deploy", output, tmp_path / "d", "--device", "stx", "--force", "--data", data).code == 0
