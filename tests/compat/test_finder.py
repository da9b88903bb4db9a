from __future__ import annotations

import importlib
import sys

import onnxruntime
import pytest

from detent.compat.finder import other_tools


def test_the_names_exist_only_while_it_is_open():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("quark.onnx")
    before = list(sys.meta_path)
    with other_tools():
        assert importlib.import_module("quark.onnx").ModelQuantizer
        assert importlib.import_module("vai_q_onnx").VitisQuantFormat.FixNeuron
    assert sys.meta_path == before
    assert not [name for name in sys.modules if name.split(".")[0] in ("quark", "vai_q_onnx")]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("quark.onnx")


def test_onnxruntime_stays_itself_but_for_its_quantizer():
    real = importlib.import_module("onnxruntime.quantization")
    calibrate = importlib.import_module("onnxruntime.quantization.calibrate")
    with other_tools():
        shadow = importlib.import_module("onnxruntime.quantization")
        assert shadow is not real
        assert importlib.import_module("onnxruntime") is onnxruntime
        assert onnxruntime.quantization is shadow
        assert importlib.import_module("onnxruntime.quantization.calibrate") is not calibrate
    assert onnxruntime.quantization is real
    assert importlib.import_module("onnxruntime.quantization") is real
    assert importlib.import_module("onnxruntime.quantization.calibrate") is calibrate


def test_an_installed_package_of_the_name_is_shadowed_and_put_back(tmp_path, monkeypatch):
    (tmp_path / "quark").mkdir()
    (tmp_path / "quark" / "__init__.py").write_text("installed = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed = importlib.import_module("quark")
    with other_tools():
        assert not hasattr(importlib.import_module("quark"), "installed")
    assert importlib.import_module("quark") is installed
    del sys.modules["quark"]


def test_everything_is_put_back_after_an_error():
    before = list(sys.meta_path)
    with pytest.raises(ZeroDivisionError), other_tools():
        importlib.import_module("quark.onnx")
        raise ZeroDivisionError
    assert sys.meta_path == before
    assert "quark" not in sys.modules


def test_our_modules_keep_their_own_identity():
    with other_tools():
        importlib.import_module("quark.onnx")
    ours = importlib.import_module("detent.compat.quark.onnx")
    assert ours.__spec__.name == "detent.compat.quark.onnx"
    importlib.reload(ours)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quark.onnx.quantisation", "no 'quantisation' in quark.onnx. Did you mean 'quantization'"),
        ("quark.onyx", "no 'onyx' in quark. Did you mean 'onnx'"),
        ("quark.onnx.tools.convert_fp23", "no 'convert_fp23' in quark.onnx.tools"),
        ("vai_q_onnx.nothing.at.all", "no 'nothing' in vai_q_onnx"),
        ("onnxruntime.quantization.matmul_nbit", "no 'matmul_nbit' in onnxruntime.quantization"),
        ("quark.onnx.calibration.method", "no 'method' in quark.onnx.calibration. Did you mean 'methods'"),
    ],
)
def test_an_unknown_module_is_told_what_exists(name, message):
    with other_tools(), pytest.raises(ModuleNotFoundError, match=message):
        importlib.import_module(name)


def test_an_unknown_name_is_an_error_of_the_script():
    with other_tools(), pytest.raises(ImportError, match="cannot import name 'ModelQuantiser'"):
        exec("from quark.onnx import ModelQuantiser")


def test_both_names_of_a_module_hold_the_same_objects():
    ours = importlib.import_module("detent.compat.quark.onnx")
    with other_tools():
        theirs = importlib.import_module("quark.onnx")
        assert theirs.__spec__.name == "quark.onnx"
        assert theirs.__all__ == ours.__all__
        assert all(getattr(theirs, name) is getattr(ours, name) for name in ("ModelQuantizer", "QuantType", "Int8Spec"))
        assert theirs.quantization.config.__name__ == "quark.onnx.quantization.config"
    assert ours.quantization.__name__ == "detent.compat.quark.onnx.quantization"
