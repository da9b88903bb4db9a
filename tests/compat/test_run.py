from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import detent as package
from tests.compat import scripts


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def to_file(text, name="script.py"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return to_file


def _operators(path):
    return {node.op_type for node in onnx.load(path).graph.node}


@pytest.mark.parametrize("name", scripts.ALL)
def test_a_script_runs_as_it_is(detent, write, tiny, tmp_path, name, samples):
    outcome = detent("run", write(scripts.READER + scripts.ALL[name]), tiny, tmp_path / "out.onnx")
    assert outcome.code == 0, outcome.err
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    found = session.run(None, {"x": samples[:1]})[0]
    expected = onnxruntime.InferenceSession(tiny).run(None, {"x": samples[:1]})[0]
    assert np.abs(found - expected).max() < 0.1 * np.abs(expected).max()
    assert _operators(tmp_path / "out.onnx") & {"QuantizeLinear", "FixNeuron"}


def test_the_script_prints_its_configuration_and_the_report(detent, write, tiny, tmp_path):
    out = detent("run", write(scripts.READER + scripts.CUSTOM), tiny, tmp_path / "out.onnx").out
    assert "The configuration of the quantization is Recipe XINT8" in out
    assert "XINT8 for npu-xint8" in out


@pytest.mark.parametrize("preset", ["XINT8", "A8W8_CONFIG", "BF16", "INT8_TRANSFORMER_DEFAULT", "UINT8_DYNAMIC_QUANT"])
def test_presets_end_to_end(detent, write, tiny, tmp_path, preset):
    outcome = detent("run", write(scripts.READER + scripts.PRESET), tiny, tmp_path / "out.onnx", preset)
    if preset == "INT8_TRANSFORMER_DEFAULT":  # there is no MatMul in it
        assert outcome.code == 3
        return
    assert outcome.code == 0, outcome.err
    onnxruntime.InferenceSession(tmp_path / "out.onnx")


def test_in_a_process_of_its_own(write, tiny, tmp_path):
    script = write(scripts.READER + scripts.PRESET)
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "detent.cli", "run", script.name, tiny, "out.onnx", "XINT8"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.onnx").is_file()


def test_the_script_is_main_and_sees_its_own_arguments(detent, write):
    write("HELPER = 'found beside it'\n", "helper.py")
    script = write("import sys, helper\nprint(__name__, __file__, sys.argv, helper.HELPER)\n")
    before = sys.argv, list(sys.path)
    outcome = detent("run", script, "--limit", "3", "-x", "--help")
    assert outcome.out == f"__main__ {script} {[str(script), '--limit', '3', '-x', '--help']} found beside it\n"
    assert sys.path == before[1]


@pytest.mark.parametrize(
    ("text", "code"), [("import sys; sys.exit(7)", 7), ("raise SystemExit", 0), ("import sys; sys.exit()", 0)]
)
def test_exit_codes_are_the_scripts(detent, write, text, code):
    assert detent("run", write(text)).code == code


def test_exceptions_are_the_scripts(detent, write):
    with pytest.raises(ZeroDivisionError):
        detent("run", write("1 / 0"))
    outcome = detent("run", write("open('no such file')"))
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    assert "FileNotFoundError" in outcome.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f():\n    raise ValueError('mine')\nf()", "ValueError: mine"),
        ("open('none')", "No such file"),
        ("f(:", "invalid"),
    ],
)
def test_tracebacks_begin_with_the_script(detent, write, monkeypatch, capsys, text, told):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which `run` replaces
    try:
        said = detent("run", write(text)).err
    except (ValueError, SyntaxError) as error:
        sys.excepthook(type(error), error, error.__traceback__)  # as Python does at the end of a process
        said = capsys.readouterr().err
    assert told in said
    assert "script.py" in said
    assert "typer" not in said
    assert "runpy" not in said


def test_errors_of_detent_are_told_as_always(detent, write, tiny):
    outcome = detent("run", write(scripts.READER + scripts.PRESET), tiny, "out.onnx", "XINT9")
    assert outcome.code == 2
    assert outcome.err.startswith("Error: There is no preset 'XINT9'")
    assert "Traceback" not in outcome.err
    missing = detent("run", write(scripts.READER + scripts.PRESET), "none.onnx", "out.onnx", "XINT8")
    assert missing.code == 3
    assert "none.onnx" in missing.err


def test_a_script_that_is_not_there(detent, tmp_path):
    outcome = detent("run", tmp_path / "none.py")
    assert outcome.code == 2
    assert "There is no script" in outcome.err


def test_help_and_nothing(detent):
    for arguments in (["--help"], []):
        outcome = detent("run", *arguments)
        assert outcome.code == 0
        assert "Run a script" in outcome.out


@pytest.fixture
def results(tmp_path):
    for folder, error in (("float", 0.0), ("int8", 0.5)):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "0.npy", np.array([3.0, 4.0]) + error)
    return tmp_path / "float", tmp_path / "int8"


@pytest.mark.parametrize("module", ["quark.onnx.tools.evaluate", "quark.onnx.tools.evaluate.py"])
def test_evaluate(detent, results, module):
    one, other = results
    by_order = detent("run", "-m", module, one, other)
    by_flag = detent("run", "-m", module, "--quantized_results_folder", other, "--baseline_results_folder", one)
    assert by_order.code == 0, by_order.err
    assert by_order.out == by_flag.out
    rows = {line.split()[0]: line.split()[-3:-1] for line in by_order.out.splitlines()[2:]}
    assert rows["L2"] == ["0.25", "0.25"]
    assert rows["L1"] == ["0.5", "0.5"]
    assert float(rows["Cosine"][0]) == pytest.approx(28.5 / (5 * np.hypot(3.5, 4.5)), abs=1e-5)


def test_evaluate_complains_by_name(detent, results, tmp_path):
    one, other = results
    np.save(one / "1.npy", np.zeros(2))
    missing = detent("run", "-m", "quark.onnx.tools.evaluate", one, other)
    assert (missing.code, "1.npy" in missing.err) == (4, True)
    for folders in ([one], [one, other, one], ["--baseline_results_folder", one, other, one]):
        wrong = detent("run", "-m", "quark.onnx.tools.evaluate", *folders)
        assert (wrong.code, "two folders" in wrong.err) == (2, True)


def test_modules_of_others_and_none(detent, monkeypatch, write):
    write("import sys\nprint(__name__, sys.argv[1:])\n", "other_module.py")
    assert detent("run", "-m", "other_module", "a", "-b").out == "__main__ ['a', '-b']\n"
    assert detent("run", "-m").code == 2
    unknown = detent("run", "-m", "quark.onnx.tools.nothing")
    assert (unknown.code, "evaluate" in unknown.err) == (2, True)
    assert "not a tool" in detent("run", "-m", "quark.onnx").err


def test_preprocess_by_flags(detent, tiny, tmp_path):
    arguments = ["--input", tiny, "--output", tmp_path / "p.onnx", "--skip_symbolic_shape", "True"]
    assert detent("run", "-m", "onnxruntime.quantization.preprocess", *arguments).code == 0
    onnx.checker.check_model(tmp_path / "p.onnx", full_check=True)
    assert detent("run", "-m", "onnxruntime.quantization.preprocess", *arguments[:4], "--auto_merge", "x").code == 2
