"""sympy is not loaded before something is computed with symbolic dimensions, and then it is."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import detent
import onnx_ir as ir
dimension = ir.SymbolicDim("n")
print("sympy.core" in sys.modules, dimension + 2, "sympy.core" in sys.modules)
"""


def test_loaded_at_the_first_use():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "n", "+", "2", "True"]
