"""The loops that are compiled ahead are those that a run calls, for the types that it calls them with."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

from detent.numerics.compiled import compiled
from detent.pipeline import first_run

WATCH = """
import json, sys
from detent.numerics import compiled

made = {}
original = compiled._compile


def watched(function, liberties):
    made[f"{function.__module__}:{function.__qualname__}"] = loop = original(function, liberties)
    return loop


compiled._compile = watched
import detent

detent.quantize(*sys.argv[1:4], try_advice=False)
print(json.dumps({name: [str(types) for types in loop.signatures] for name, loop in made.items()}))
"""


def test_the_default_run_calls_what_is_compiled_ahead(demo_arguments, tmp_path):
    model, calibration = demo_arguments[1], demo_arguments[demo_arguments.index("--calib") + 1]
    command = [sys.executable, "-c", WATCH, model, tmp_path / "out.onnx", calibration]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    called = json.loads(done.stdout.splitlines()[-1])
    from numba.core.sigutils import normalize_signature

    for half in first_run.LOOPS:
        for name, kinds in half.items():
            declared = {str(normalize_signature(f"({types},)")[0]) for types in kinds}
            assert name in called, f"{name} is not called any more: take it out of LOOPS"
            more = set(called[name]) - declared
            assert not more, f"{name} is called with {more} too: add them to LOOPS"


def test_a_user_without_a_home_gets_no_folder_of_that_name(monkeypatch, tmp_path):
    for name in ("HOME", "USERPROFILE", "LOCALAPPDATA", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as where the user is in no list
    monkeypatch.chdir(tmp_path)
    assert first_run._folders(tmp_path / "detent") == [tmp_path / "detent" / "numerics" / "__pycache__"]
    monkeypatch.setattr("os.access", lambda *_: False)
    assert compiled(lambda numbers: numbers.sum())(np.ones(3)) == 3.0
    assert not list(tmp_path.iterdir())


def test_a_folder_that_only_seems_to_be_writable_is_passed_over(monkeypatch, tmp_path):
    """Windows says of a folder of the system that it may be written to, and refuses when that is done."""
    system, own = tmp_path / "system", tmp_path / "own"
    monkeypatch.setattr(first_run, "_folders", lambda root: [system, own])
    make = first_run.tempfile.TemporaryFile

    def refused(**given):
        if given["dir"] == system:
            raise PermissionError(13, "Access is denied", str(system))
        return make(**given)

    monkeypatch.setattr(first_run.tempfile, "TemporaryFile", refused)
    note = first_run._note()
    assert note is not None and note.parent == own
    assert not list(own.iterdir())
