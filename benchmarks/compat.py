"""Scripts of others, as they are: how many run on Detent, by family.

    python -m benchmarks.compat FOLDER [--files FOLDER] [--timeout 120] [--only NAME]

A family is a folder of FOLDER, and a script is a file in it that no other one there imports. Beside a script NAME.py
there may be NAME.args, a line of arguments for it. Each script runs in a folder of its own, with the models and data
of `--files`, copied; {files} in its arguments is that folder. A script is ok if it ends with exit code 0; it is not our
fault if a module is missing that Detent has nothing to do with, or a file, a GPU or an NPU; all else is counted as our
failure, with the last line that it printed.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.common import print_table

OURS = ("quark", "vai_q_onnx", "onnxruntime.quantization", "detent")
HEADER = ("source", "run", "ok", "Detent fails", "not our fault")
# What a script asks for that this machine does not have.
ELSEWHERE = ("VitisAIExecutionProvider", "TensorrtExecutionProvider", "CUDAExecutionProvider", "FileNotFoundError")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=Path)
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    rows = []
    for family in sorted(each for each in given.folder.iterdir() if each.is_dir()):
        chosen = [each for each in scripts(family) if given.only in str(each)]
        counted = Counter(outcome(script, given.files, given.timeout) for script in chosen)
        rows.append([family.name, sum(counted.values()), *(counted[kind] for kind in ("ok", "ours", "theirs"))])
    print_table(HEADER, rows)


def scripts(family: Path) -> list[Path]:
    """Return the files of a family that are run: those which no other one beside them imports."""
    found = []
    for path in sorted(family.glob("**/*.py")):
        module = re.compile(rf"^\s*(from|import)\s+({path.parent.name}\.)?{re.escape(path.stem)}\b", re.MULTILINE)
        near = [*path.parent.glob("*.py"), *path.parent.parent.glob("*.py")]
        if not any(module.search(each.read_text(encoding="utf-8")) for each in near if each != path):
            found.append(path)
    return found


def outcome(script: Path, files: Path | None, timeout: float) -> str:
    """Run one script in a folder of its own: ok, ours or theirs."""
    arguments = script.with_suffix(".args")
    line = arguments.read_text(encoding="utf-8") if arguments.exists() else ""
    with tempfile.TemporaryDirectory() as folder:
        if files is not None:
            shutil.copytree(files, folder, dirs_exist_ok=True)
        given = shlex.split(line.replace("{files}", folder))
        command = [sys.executable, "-m", "detent.cli", "run", str(script.resolve()), *given]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            print(f"{script}: more than {timeout:g} s")
            return "ours"
    if done.returncode == 0:
        return "ok"
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    print(f"{script}: {last}")
    missing = re.search(r"No module named '([\w.]+)'", done.stderr)
    foreign = missing is not None and not missing[1].startswith(OURS)
    return "theirs" if foreign or any(each in last for each in ELSEWHERE) else "ours"


if __name__ == "__main__":
    main()
