"""Shapes and types of all values, as far as ONNX's shape inference finds them.

Only annotations are written, so the function of the model is unchanged. Data propagation follows the integers that
flow through Shape, Gather and Concat, so that a Reshape whose target is computed from known dimensions gets a shape.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from detent.prepare.base import Pass


class InferShapes(Pass):
    """Write inferred shapes and types on all values.

    Cases:
    - inference as a whole fails (the model contradicts itself): declined with the reason, the model is unchanged;
    - a node's output stays without a shape (an operator that ONNX does not know, a shape that depends on data):
      declined for that node, but not for those behind it, which follow; the others are annotated.
    """

    def run(self, model: ir.Model) -> None:
        """Infer, then note what has no shape."""
        infer_with_notes(self, model)


def infer(model: ir.Model) -> list[str]:
    """Infer shapes; returns the reasons where inference as a whole failed and nothing was changed."""
    with _failures() as reasons:
        ShapeInferencePass(check_type=True, strict_mode=False, data_prop=True)(model)
    return reasons


def infer_with_notes(owner: Pass, model: ir.Model) -> None:
    """Infer shapes and write the notes of it into a pass's lists."""
    missing = _without_shape(model.graph)
    for reason in infer(model):
        owner.decline("model", f"shape inference failed: {reason}")
    left = _without_shape(model.graph)
    unknown = set(left)
    for value in left:
        node = value.producer()
        if node is not None and unknown.isdisjoint(node.inputs):
            owner.decline(node, f"no shape could be inferred for '{value.name}'")
    if len(left) < len(missing):
        owner.changed("model", f"shapes of {len(missing) - len(left)} values inferred")


def _without_shape(graph: ir.Graph) -> list[ir.Value]:
    return [value for node in graph for value in node.outputs if value.name and value.shape is None]


class _Catch(logging.Filter):
    """Keeps the exceptions that this thread logs, and lets the records of others through."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record goes on to the handlers."""
        if threading.get_ident() != self._thread or record.exc_info is None or record.exc_info[1] is None:
            return True
        self.reasons.append(str(record.exc_info[1]).strip())
        return False


@contextmanager
def _failures() -> Iterator[list[str]]:
    """Collect why `onnx_ir`'s pass gave up: it swallows the exception and only logs it, as a warning.

    The logger's own level is lowered meanwhile, so that the reason arrives however logging is set up around it.
    """
    logger, catch = logging.getLogger(ShapeInferencePass.__module__), _Catch()
    level = logger.level
    logger.addFilter(catch)
    if not logger.isEnabledFor(logging.WARNING):
        logger.setLevel(logging.WARNING)
    try:
        yield catch.reasons
    finally:
        logger.removeFilter(catch)
        logger.setLevel(level)
