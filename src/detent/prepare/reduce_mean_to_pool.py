"""ReduceMean over height and width becomes GlobalAveragePool.

Both compute the mean over the two spatial dimensions of (batch, channel, height, width). GlobalAveragePool keeps these
dimensions with size 1, as ReduceMean does with keepdims=1.

With keepdims=0 the ReduceMean stays as it is. It would need a pool and a Squeeze, and a pool is one of the operators
whose output shares the scale of its input; a mean is much smaller than what it is taken over and wants its own.
"""

from __future__ import annotations

import onnx_ir as ir

from detent.graph.values import constant_ints, cut_inputs, input_at, is_standard, rank
from detent.prepare.base import Pass, int_attribute, ints_attribute


class ReduceMeanToPool(Pass):
    """Replace ReduceMean by GlobalAveragePool.

    Cases:
    - axes are exactly 2 and 3, in any order, negative or not, from the attribute or the input of opset 18;
    - the input is float32 and has rank 4;
    - declined: keepdims=0 (see above), other axes, another or an unknown rank or type, axes that are computed.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every ReduceMean of the main graph."""
        for node in model.graph:
            if not is_standard(node, "ReduceMean"):
                continue
            reason = _why_not(node)
            if reason is not None:
                self.decline(node, reason)
                continue
            node.op_type = "GlobalAveragePool"
            node.attributes.clear()
            cut_inputs(node, 1)
            self.changed(node, "ReduceMean over height and width became GlobalAveragePool")


def _why_not(node: ir.Node) -> str | None:
    """Why a ReduceMean is not a GlobalAveragePool, or None where it is."""
    source, axes_value = node.inputs[0], input_at(node, 1)
    axes = ints_attribute(node, "axes") if axes_value is None else constant_ints(axes_value)
    if axes_value is not None and axes is None:
        return "its axes are not constant"
    if rank(source) != 4:
        return "its input is not known to have rank 4"
    if axes is None or {axis % 4 for axis in axes} != {2, 3}:
        return f"it reduces over {axes or 'all axes'}, not over height and width"
    if int_attribute(node, "keepdims", 1) == 0:
        return "keepdims is 0: a pool would tie the scale of its output to that of its input"
    if source is None or source.dtype != ir.DataType.FLOAT:
        return "its input is not known to be float32"
    return None
