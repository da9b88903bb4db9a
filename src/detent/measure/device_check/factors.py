"""Multiplications that are no part of the network: they say by how much the device's own result is off.

An average or a HardSigmoid that the device computes with k / 2^m in the place of a fraction is followed, in the file,
by a Mul with a constant close to 1, which has no codes of its own. The device has no such node.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from detent.graph.values import constant_scalar, is_standard, remove_node, take_over

_SIMULATED = ("AveragePool", "GlobalAveragePool", "HardSigmoid", "ReduceMean")
_CLOSE = 0.05


def drop_device_factors(model: ir.Model, coded: Collection[str]) -> None:
    """Take these multiplications out of a model, in place; `coded` are the values with codes."""
    for node in tuple(model.graph):
        source = node.inputs[0] if _is_factor(node, coded) else None
        if source is not None:
            take_over(node.outputs[0], source)  # under the product's name, which is the one that has codes
            remove_node(model.graph, node)


def _is_factor(node: ir.Node, coded: Collection[str]) -> bool:
    if not is_standard(node, "Mul"):
        return False
    source, factor = node.inputs[0], node.inputs[1]
    if source is None or factor is None or str(factor.name) in coded or str(source.name) in coded:
        return False
    producer, number = source.producer(), constant_scalar(node, 1)
    close = number is not None and abs(number - 1.0) < _CLOSE
    return close and producer is not None and is_standard(producer, *_SIMULATED) and len(source.uses()) == 1
