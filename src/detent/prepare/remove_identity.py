"""Nodes that pass their input through are removed.

Identity copies its input. Dropout does the same at inference: only in training does it drop anything. Whoever read the
copy reads the original.
"""

from __future__ import annotations

import onnx_ir as ir

from detent.graph.values import bypass, constant, input_at, is_standard, is_unused
from detent.prepare.base import Pass, int_attribute, main_opset


class RemoveIdentity(Pass):
    """Remove Identity, and Dropout in inference mode.

    Cases:
    - the result is an inner value: its readers read the input;
    - the result is a graph output: the input's producer takes over the output's name;
    - the input is a graph input, an initializer or itself a graph output, and the result is a graph output: both names
      are fixed, so the node stays;
    - Dropout stays when its mask is used, or when `training_mode` is true or not constant (before opset 7: when
      `is_test` is 0).
    """

    def run(self, model: ir.Model) -> None:
        """Look at every Identity and Dropout of the main graph."""
        for node in model.graph:
            if not is_standard(node, "Identity", "Dropout"):
                continue
            reason = _why_trains(node, main_opset(model)) if node.op_type == "Dropout" else None
            if reason is None:
                reason = bypass(model.graph, node)
            if reason is None:
                self.changed(node, f"{node.op_type} removed")
            else:
                self.decline(node, reason)


def _why_trains(node: ir.Node, opset: int) -> str | None:
    """Why a Dropout does more than pass its input on, or None."""
    if any(not is_unused(value) for value in node.outputs[1:]):
        return "the mask of Dropout is used"
    if opset < 7 and int_attribute(node, "is_test", 0) == 0:
        return "Dropout is in training mode"
    training = input_at(node, 2)
    if training is None:
        return None
    flag = constant(training)
    if flag is None:
        return "the training mode of Dropout is not constant"
    return "Dropout is in training mode" if bool(flag.reshape(-1)[0]) else None
