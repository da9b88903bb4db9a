"""Whichever onnxruntime is installed serves; a missing, broken or old one is a message that says what to install."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from detent.errors import UsageError
from detent.graph.runtime import import_runtime


def build(version):
    module = ModuleType("onnxruntime")
    if version is not None:
        module.__version__ = version
    return module


@pytest.mark.parametrize("version", ["1.20.0", "1.23.3.dev20260320", "2.0.1"])
def test_any_build_serves(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "onnxruntime", build(version))
    assert import_runtime().__version__ == version


@pytest.mark.parametrize(
    ("found", "named"), [(None, "none is installed"), (build("1.19.2"), "1.19.2"), (build(None), "incomplete")]
)
def test_what_does_not_serve_is_named(monkeypatch, found, named):
    monkeypatch.setitem(sys.modules, "onnxruntime", found)
    with pytest.raises(UsageError, match=named) as raised:
        import_runtime()
    assert "pip install onnxruntime" in str(raised.value)


def test_a_library_that_does_not_load(monkeypatch, tmp_path):
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('DLL load failed')")
    monkeypatch.delitem(sys.modules, "onnxruntime")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="DLL load failed"):
        import_runtime()


def test_a_package_that_it_needs(monkeypatch, tmp_path):
    (tmp_path / "onnxruntime.py").write_text("import flatbuffers_of_long_ago")
    monkeypatch.delitem(sys.modules, "onnxruntime")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="flatbuffers_of_long_ago"):
        import_runtime()
