"""Products of rows with a matrix, the same to the last bit for any number of threads.

BLAS sums in an order that depends on its threads. onnxruntime with one thread does not, and the caller's threads each
run products of their own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from detent.graph.save import serialize
from detent.graph.session import open_session, session_options

Floats = npt.NDArray[np.float32]


class RowProduct:
    """A matrix (groups, channels, inputs), ready to be multiplied with rows in any number of threads."""

    def __init__(self, matrix: Floats) -> None:
        groups, self._channels, inputs = matrix.shape
        # One channel to a group is a depthwise convolution: hundreds of tiny products are slower than one loop.
        self._weights = matrix if self._channels == 1 else None
        if self._weights is not None:
            return
        turned = numpy_helper.from_array(np.ascontiguousarray(matrix.transpose(0, 2, 1)), "matrix")
        given = helper.make_tensor_value_info("rows", TensorProto.FLOAT, [groups, None, inputs])
        answer = helper.make_tensor_value_info("answers", TensorProto.FLOAT, None)
        node = helper.make_node("MatMul", ["rows", "matrix"], ["answers"])
        graph = helper.make_graph([node], "rows", [given], [answer], [turned])
        proto = onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        self._session = open_session(serialize(proto), session_options())

    def __call__(self, rows: Floats) -> Floats:
        """Return the products of rows (groups, rows, inputs) as (rows, groups * channels)."""
        if self._weights is not None:
            return np.asarray(np.einsum("gpk,gk->pg", rows, self._weights[:, 0]), np.float32)
        (answers,) = self._session.run(None, {"rows": rows})
        return np.asarray(np.moveaxis(answers, 0, 1).reshape(rows.shape[1], -1), np.float32)
