"""Manners of the command line: short flags, pipes that close, encodings that lack a character, signals."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
import types

import onnx
import pytest
import typer

from detent import cli
from tests.conftest import tiny_model

DETENT = [sys.executable, "-m", "detent"]


def test_help_has_a_short_flag_and_says_what_to_do_first():
    for words in (["-h"], []):
        shown = subprocess.run([*DETENT, *words], capture_output=True, text=True, encoding="utf-8", check=False)
        assert "detent demo" in shown.stdout + shown.stderr


def test_a_reader_that_has_seen_enough_is_no_error():
    process = subprocess.Popen([*DETENT, "recipes", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert said == b""


@pytest.mark.parametrize("encoding", ["cp1252", "cp437"])  # of Windows: a pipe's, and an old console's
def test_a_name_that_the_terminal_cannot_show_is_spelled_out(tmp_path, encoding):
    proto = tiny_model()
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "卷积"
    onnx.save(proto, tmp_path / "m.onnx")
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    shown = subprocess.run(
        [*DETENT, "inspect", str(tmp_path / "m.onnx"), "--verbose"], capture_output=True, env=environment, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert rb"\u5377" in shown.stdout


def test_termination_leaves_nothing_behind(tmp_path):
    onnx.save(tiny_model(), tmp_path / "m.onnx")
    before = sorted(tmp_path.iterdir())
    words = ["quantize", str(tmp_path / "m.onnx"), str(tmp_path / "out.onnx")]
    process = subprocess.Popen([*DETENT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode in (130, -signal.SIGTERM, 0)
    left = sorted(tmp_path.iterdir())
    assert left == before or left == sorted([*before, tmp_path / "out.onnx"])


def test_recipes_are_offered_at_the_tab_key():
    from detent.cli.console import complete_recipe

    assert complete_recipe("xint8")[0] == "XINT8"
    assert complete_recipe("nothing") == []


def test_devices_and_nodes_are_offered_at_the_tab_key(tmp_path, monkeypatch):
    from detent.cli.console import complete_device, complete_node

    assert complete_device("p") == ["phx"] and "npu-a8w8" in complete_device("NPU")
    proto = tiny_model()
    proto.graph.node[0].name = "/stem/Conv"
    onnx.save(proto, tmp_path / "m.onnx")
    monkeypatch.setenv("COMP_WORDS", f"detent quantize {tmp_path / 'm.onnx'} --exclude /st")
    assert complete_node("/st") == ["/stem/Conv"] and complete_node("/other") == []
    for line in (f"detent quantize {tmp_path / 'none.onnx'} --exclude x", "detent quantize --exclude x"):
        monkeypatch.setenv("COMP_WORDS", line)
        assert complete_node("") == []


_DELETES = """
import os, signal, time
import detent.cli

class Deleted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass

def command(**_):
    Deleted()
    time.sleep(20)

detent.cli.app = command
detent.cli.main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_while_an_object_is_deleted_is_not_lost():
    """Python would print it and go on."""
    done = subprocess.run([sys.executable, "-c", _DELETES], capture_output=True, text=True, timeout=15, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_a_model_without_a_command(detent, tiny):
    said = detent(tiny, "out.onnx")
    assert said.code == 2
    assert f"detent quantize {tiny} OUTPUT" in said.err.replace("\n", "")


@pytest.mark.parametrize("command", ["quantize", "tune"])
def test_model_and_output_in_the_other_order(detent, tiny, tmp_path, command):
    before = tiny.read_bytes()
    said = detent(command, tmp_path / "out.onnx", tiny, "--calib", tmp_path)
    assert said.code == 2
    assert "The MODEL comes first" in said.err
    assert tiny.read_bytes() == before


@pytest.mark.parametrize(("name", "words"), [("labels.csv", "the folder of the images"), ("a.onnx", "It is a model")])
def test_what_is_given_as_data_and_is_something_else(detent, tiny, tmp_path, name, words):
    (tmp_path / name).write_text("a.png,1\n")
    said = detent("quantize", tiny, tmp_path / "out.onnx", "--calib", tmp_path / name)
    assert said.code == 4
    assert words in said.err


def test_data_without_its_option_is_told_the_option(detent, tmp_path):
    (tmp_path / "images").mkdir()
    for command in ("quantize", "tune"):
        outcome = detent(command, "m.onnx", "o.onnx", tmp_path / "images")
        assert outcome.code == 2 and f"--calib {tmp_path / 'images'}" in outcome.err.replace("\n", "")
    assert "Data is given" not in detent("quantize", "m.onnx", "o.onnx", tmp_path / "nowhere").err
    assert "Data is given" not in detent("quantize", "m.onnx", "o.onnx", "x", "--calib", tmp_path / "images").err


def test_every_device_option_completes_devices():
    from detent.cli import app

    commands = typer.main.get_command(app).commands
    options = {name: {each.name: each for each in command.params} for name, command in commands.items()}
    with_device = {
        name: found["device"]
        for name, found in options.items()
        if "device" in found and "--device" in found["device"].opts
    }
    assert {"quantize", "check", "deploy", "compare"} <= set(with_device)
    for name, option in with_device.items():
        command = commands[name]
        completed = option.shell_complete(command.make_context(name, [], resilient_parsing=True), "st")
        assert [each.value for each in completed] == ["stx", "strix-halo"], name


@pytest.mark.parametrize("encoding", ["cp1252", "cp437", "utf-8"])
def test_json_is_json_whatever_the_code_of_the_stream(tmp_path, encoding):
    """An "é" of cp1252 is no UTF-8, and "\\xe9" or "\\U0001f600" no JSON."""
    proto = tiny_model()
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "é卷😀"
    onnx.save(proto, tmp_path / "m.onnx")
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    shown = subprocess.run(
        [*DETENT, "inspect", str(tmp_path / "m.onnx"), "--json"], capture_output=True, env=environment, check=False
    )
    assert "é卷😀" in json.dumps(json.loads(shown.stdout.decode("utf-8")), ensure_ascii=False)


@pytest.mark.skipif(sys.platform == "win32", reason="another signal stands for SIGBREAK")
def test_the_window_that_is_closed_stops_the_work_as_ctrl_c_does():
    """Windows sends SIGBREAK then; here another signal stands for it."""
    script = """
import os, signal
signal.SIGBREAK = signal.SIGUSR1
from detent import cli

def work():
    os.kill(os.getpid(), signal.SIGBREAK)

cli._run = work
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == cli.INTERRUPTED, done.stderr
    assert cli.NOTHING_WRITTEN in done.stderr


@pytest.mark.parametrize(
    ("system", "number", "quiet"),
    [
        ("linux", errno.EPIPE, True),
        ("linux", errno.EINVAL, False),
        ("win32", errno.EINVAL, True),  # what Windows says of a pipe without a reader
        ("win32", errno.ENOSPC, False),
    ],
)
def test_a_closed_pipe_by_the_words_of_each_system(monkeypatch, capsys, system, number, quiet):
    def fail():
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(cli, "_code_of_app", fail)
    monkeypatch.setattr(cli, "_discard_output", lambda: None)
    monkeypatch.setattr(cli.sys, "platform", system)
    code = cli._run()
    monkeypatch.undo()
    assert (code, capsys.readouterr().err == "") == ((1, True) if quiet else (5, False))


def test_patterns_of_names_are_not_taken_for_files(tmp_path, monkeypatch):
    """On Windows the command-line library expands patterns as a shell would."""
    (tmp_path / "block1").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["detent", "inspect", "m.onnx", "block*"])
    seen = []
    monkeypatch.setattr(typer.core, "os", types.SimpleNamespace(name="nt", environ=os.environ, path=os.path))
    monkeypatch.setattr(typer.core.TyperGroup, "make_context", lambda self, name, words, **more: seen.extend(words))
    with pytest.raises((SystemExit, AttributeError, TypeError)):
        cli.app(windows_expand_args=True)
    assert seen == ["inspect", "m.onnx", "block1"]
    seen.clear()
    with contextlib.suppress(AttributeError, TypeError):
        cli._code_of_app()
    assert seen == ["inspect", "m.onnx", "block*"]


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("cp437", b"a~b x \\u5377\\u79ef\xf1"),
        ("cp1252", b"a\x85b \xd7 \\u5377\\u79ef\xb1"),
        ("utf-8", "a…b × 卷积±".encode()),
    ],
)
def test_what_a_console_cannot_show_has_something_similar(encoding, shown):
    script = "from detent import cli; cli._run = lambda: print('a…b × 卷积±', end=''); cli.main()"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment, check=False)
    assert done.stdout == shown
