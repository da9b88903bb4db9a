"""Every command has the same arguments and options in every Python that is admitted, as far as this machine has them.

The command line needs packages without machine code only, so another interpreter can borrow those of this one.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

DESCRIBE = """
import ast, json, pathlib, sys
import typer.main
from detent.cli import app
for file in pathlib.Path(sys.argv[1]).rglob("*.py"):
    ast.parse(file.read_text(encoding="utf-8"), str(file))
commands = typer.main.get_command(app).commands
def facts(parameter):
    return [*parameter.opts, parameter.nargs, parameter.required, getattr(parameter, "help", None)]
print(json.dumps({name: [facts(each) for each in command.params] for name, command in commands.items()}))
"""


@functools.cache
def interpreters():
    """Return the other interpreters on the path and of pyenv, one of each version."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = {}
    for version in VERSIONS:
        inside = sorted(pyenv.glob(f"{version}.*/bin/python"))
        executable = str(inside[-1]) if inside else shutil.which(f"python{version}")
        if executable and version != "{}.{}".format(*sys.version_info) and _answers(executable):
            found[version] = executable
    return found


def _answers(executable):
    """Tell whether this is an interpreter: pyenv puts a script for each on the path, also for those not chosen."""
    return subprocess.run([executable, "-c", ""], capture_output=True, check=False).returncode == 0


@functools.cache
def described(executable):
    search = os.pathsep.join([str(SOURCE), sysconfig.get_path("purelib")])
    command = [executable, "-c", DESCRIBE, str(SOURCE)]
    environment = {**os.environ, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", VERSIONS)
def test_commands_are_the_same_in_every_python(version):
    executable = interpreters().get(version)
    if executable is None:
        pytest.skip(f"there is no other Python {version} here")
    here = described(sys.executable)
    assert "quantize" in here
    assert described(executable) == here
