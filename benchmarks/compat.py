"""Scripts of others, as they are: how many run on Detent, by family.

    python -m benchmarks.compat FOLDER [--timeout 120]

A family is a folder of FOLDER. Beside a script NAME.py there may be NAME.args, a line of arguments for it. A script is
ok if it ends with exit code 0; it is not our fault if a module is missing that Detent has nothing to do with, or one
of its files; all else is counted as our failure, with the last line that it printed.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.common import print_table

OURS = ("quark", "vai_q_onnx", "onnxruntime.quantization", "detent")
HEADER = ("source", "run", "ok", "Detent fails", "not our fault")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--timeout", type=float, default=120.0)
    given = parser.parse_args()
    rows = []
    for family in sorted(each for each in given.folder.iterdir() if each.is_dir()):
        counted = Counter(outcome(script, given.timeout) for script in sorted(family.glob("**/*.py")))
        rows.append([family.name, sum(counted.values()), *(counted[kind] for kind in ("ok", "ours", "theirs"))])
    print_table(HEADER, rows)


def outcome(script: Path, timeout: float) -> str:
    """Run one script in a folder of its own: ok, ours or theirs."""
    arguments = script.with_suffix(".args")
    given = shlex.split(arguments.read_text(encoding="utf-8")) if arguments.exists() else []
    command = [sys.executable, "-m", "detent.cli", "run", str(script.resolve()), *given]
    with tempfile.TemporaryDirectory() as folder:
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
    return "theirs" if foreign or "FileNotFoundError" in last else "ours"


if __name__ == "__main__":
    main()
