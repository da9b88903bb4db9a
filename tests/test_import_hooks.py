"""Import paths of old scripts lead to the modules of today, and every public name is there."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import detent
from detent.import_hooks import ALIASES, RENAMED


@pytest.mark.parametrize("old", sorted(ALIASES))
def test_an_old_path_is_the_module_of_today(old):
    module = importlib.import_module(old)
    for name, new in RENAMED.get(old, {}).items():
        assert getattr(module, name) is getattr(importlib.import_module(ALIASES[old]), new)
    if old not in RENAMED and module.__name__ != old:
        assert module is importlib.import_module(ALIASES[old])
        assert module.__spec__.name == ALIASES[old]


def test_documented_paths():
    from detent.numerics import BLOCK_FORMATS
    from detent.recipe.recipe import find_preset
    from detent.results.evaluated import compare_scores

    assert find_preset("XINT8") == detent.find_preset("XINT8")
    assert BLOCK_FORMATS is detent.BLOCK_FORMATS and compare_scores is detent.compare_scores


def test_every_public_name_is_there():
    assert len(detent.__all__) == len(set(detent.__all__))
    for name in detent.__all__:
        assert getattr(detent, name) is not None, name
    assert set(dir(detent)) == set(detent.__all__)


def test_the_graph_library_brings_no_computer_algebra():
    """Releases of onnx-ir from 0.2 on import sympy: half a second and 86 MB for shapes that Detent never computes."""
    code = "import sys, onnx_ir; print('sympy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_importing_detent_imports_next_to_nothing():
    code = "import sys, detent; print({'numpy', 'onnx', 'numba', 'onnxruntime'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
