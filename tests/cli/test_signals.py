"""Signals at both ends of a command, threads that do not start, and streams that cannot be written to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


def run_code(code, **options):
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def test_ctrl_c_while_the_command_line_is_imported_leaves_no_traceback():
    done = run_code("""
        import os, signal, sys
        from detent.__main__ import main

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "detent.cli.commands":
                    os.kill(os.getpid(), signal.SIGINT)

        sys.meta_path.insert(0, Finder())
        main()
    """)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


@pytest.mark.parametrize("ending", ["SIGINT", "SIGTERM"])
def test_a_signal_while_python_ends_changes_nothing(ending):
    done = run_code(f"""
        import atexit, os, signal, sys
        from detent.cli import main

        atexit.register(lambda: os.kill(os.getpid(), signal.{ending}))
        sys.argv = ["detent", "--version"]
        main()
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


STARTS_NO_THREAD = """
import os, signal, sys, threading
import detent.cli

def start(self):
    raise RuntimeError("can't start new thread")

threading.Thread.start = start
"""


def test_an_interrupted_import_needs_no_thread(tmp_path):
    (tmp_path / "slowly.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nwhole = 1\n")
    code = """
def command(**_):
    import time, slowly
    assert slowly.whole
    time.sleep(20)

detent.cli.app = command
detent.cli.main()
"""
    done = run_code(STARTS_NO_THREAD + code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_threads_that_do_not_start_are_one_message(tiny, tmp_path):
    code = f"sys.argv = ['detent', 'quantize', {str(tiny)!r}, 'out.onnx']\ndetent.cli.main()\n"
    done = run_code(STARTS_NO_THREAD + code, cwd=tmp_path, env={**os.environ, "DETENT_TRUST": "1"})
    assert done.returncode == 3
    assert done.stderr.startswith("Error: The system starts no more threads. Give --threads 1")
    assert list(tmp_path.iterdir()) in ([], [tiny])


def test_loops_that_nobody_compiles_elsewhere_are_not_waited_for(monkeypatch):
    import threading

    from detent.numerics import compiled

    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="start new thread"):
        compiled.another_compiles(["a:b"], [])
    assert "a:b" not in compiled._elsewhere


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")  # noqa: PTH110
def test_a_full_disk_behind_standard_output_is_one_message():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        command = [sys.executable, "-m", "detent", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 5
    assert done.stderr.startswith("Error: Cannot print the result")
    assert "ignored" not in done.stderr


@pytest.mark.parametrize("how", ["2>&-", "2>/dev/full", ">&- 2>&-"])
def test_an_error_that_cannot_be_told_has_its_exit_code(how):
    done = subprocess.run(f"{sys.executable} -m detent inspect missing.onnx {how}", shell=True, check=False)
    assert done.returncode == 3
