"""Products of rows with a matrix, the same to the last bit for any number of threads.

BLAS sums in an order that depends on its threads. onnxruntime with one thread does not, and the caller's threads each
run products of their own.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from detent.errors import ModelError
from detent.graph.runtime import runtime_errors
from detent.graph.save import serialize
from detent.graph.session import first_line, open_session, session_options

Floats = npt.NDArray[np.float32]


class RowProduct:
    """A matrix (groups, channels, inputs), ready to be multiplied with rows in any number of threads."""

    def __init__(self, matrix: Floats) -> None:
        # One channel to a group is a depthwise convolution: hundreds of tiny products are slower than one loop.
        self._depthwise = matrix.shape[1] == 1
        self._matrix = matrix if self._depthwise else np.ascontiguousarray(matrix.transpose(0, 2, 1))

    def __call__(self, rows: Floats) -> Floats:
        """Return the products of rows (groups, rows, inputs) as (rows, groups * channels)."""
        if self._depthwise:
            return np.asarray(np.einsum("gpk,gk->pg", rows, self._matrix[:, 0]), np.float32)
        try:
            (answers,) = _session().run(None, {"rows": rows, "matrix": self._matrix})
        except runtime_errors() as error:
            raise ModelError(
                f"onnxruntime could not multiply rows of shape {list(rows.shape)} with weights of shape "
                f"{list(self._matrix.shape)}: {first_line(str(error))} Is there enough memory? "
                "Give --threads 1, or less --memory."
            ) from error
        return np.asarray(np.moveaxis(answers, 0, 1).reshape(rows.shape[1], -1), np.float32)


@cache
def _session() -> Any:
    """Return a session that multiplies; one for all matrices, as making it takes longer than most products."""
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 3) for name in ("rows", "matrix")]
    answer = helper.make_tensor_value_info("answers", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("MatMul", ["rows", "matrix"], ["answers"])], "rows", given, [answer])
    proto = onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return open_session(serialize(proto), session_options())
