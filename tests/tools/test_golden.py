"""A cross-section of what Detent writes is what it wrote when the golden files were recorded, byte by byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tools.golden import ELSEWHERE, QUICK, cases

import detent

TOP = Path(__file__).parents[2]


def test_the_bytes_are_those_on_record():
    # In a process of its own: the number of threads of a product of matrices is set before numpy is imported.
    source = Path(detent.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "tools.golden", "compare", "--quick"],
        cwd=TOP,
        env={"PATH": "", "HOME": str(Path.home()), "PYTHONPATH": f"{source}:{TOP}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == ELSEWHERE:
        pytest.skip(f"The golden files were recorded elsewhere. {done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_cases_have_different_names():
    names = [case.name for case in cases()]
    assert len(names) == len(set(names))


def test_the_cross_section_has_all_kinds_of_cases():
    assert {name.partition("/")[0] for name in QUICK} == {case.name.partition("/")[0] for case in cases()}
