from __future__ import annotations

import subprocess
import sys

import detent as package


def test_version(detent):
    assert detent("--version").out.strip() == package.__version__


def test_public_names_are_found_by_completion():
    assert {"quantize", "evaluate", "compare", "infer", "write_page"} <= set(dir(package))
    assert all(getattr(package, name) is not None for name in dir(package))


def test_no_arguments_is_help(detent):
    assert "quantize" in detent().out


def test_importing_is_light():
    """`import detent` and `detent --help` load none of the heavy libraries."""
    code = (
        "import sys, detent, detent.cli; "
        "print([name for name in ('numpy', 'onnx', 'onnxruntime', 'numba', 'PIL', 'torch') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_commands_are_listed_by_what_they_are_for(detent):
    listed = detent("--help").out
    places = [listed.index(f" {name} ") for name in ("quantize", "tune", "demo", "evaluate", "check", "stats", "run")]
    assert places == sorted(places)
