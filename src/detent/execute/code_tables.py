"""Values that are functions of the codes of another value: a table of 256 entries instead of an array per sample.

A device splits an activation into several operators and rounds between them: x * sigmoid(x) is a HardSigmoid, a Mul by
a constant and a Mul by x. All of them are elementwise, and their inputs are functions of the codes of one value, the
root. So each is computed once, on the 256 numbers that x can be, and a layer that reads the last looks up its codes:

    codes of x  ->  table of HardSigmoid  ->  table of Mul  ->  table of x * ...          table[codes]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import captured_values, constant, is_standard
from detent.numerics.compiled import compiled
from detent.numerics.formats import Array, QuantParams, decode_activation

CODES = 256

ELEMENTWISE = (
    *("Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Relu", "LeakyRelu", "Clip", "Elu", "Softplus", "Erf", "Gelu"),
    *("Mul", "Add", "Sub", "Div", "Min", "Max", "Neg", "Abs", "Sqrt", "Identity"),
)


@dataclass(frozen=True, eq=False)
class CodeTable:
    """A value that is looked up: `codes` has its code for each of the 256 codes of its root.

    `root` holds the codes of the root for each sample, one byte each. They stay as long as a table refers to them.
    """

    root: Sequence[Any]
    codes: Array

    def look_up(self, sample: int) -> Array:
        """Return the codes of one sample."""
        return _taken(self.codes, self.root[sample])

    def decode(self, sample: int, params: QuantParams) -> npt.NDArray[np.float32]:
        """Return the numbers that the codes of one sample stand for."""
        return _taken(decode_activation(self.codes, params), self.root[sample])


def every_code(dtype: npt.DTypeLike) -> Array:
    """Return all codes of a type of one byte, in the order of their bits."""
    return np.arange(CODES, dtype=np.uint8).view(dtype)


def _taken(table: Array, codes: Array) -> Array:
    found = np.empty(codes.shape, table.dtype)
    _take(table, codes.reshape(-1).view(np.uint8), found.reshape(-1))
    return found


@compiled
def _take(table: npt.NDArray[Any], codes: npt.NDArray[np.uint8], found: npt.NDArray[Any]) -> None:
    for i in range(codes.size):
        found[i] = table[codes[i]]


def are_elementwise(nodes: Sequence[ir.Node], axes: int) -> bool:
    """Tell whether nodes compute each element by itself and keep the shape of a value of so many axes."""
    return all(
        is_standard(node, *ELEMENTWISE)
        and not any(captured_values(node))
        and all(array.size == 1 and array.ndim <= axes for each in node.inputs if (array := constant(each)) is not None)
        for node in nodes
    )


Compute = Callable[[Mapping[str, Array]], Sequence[Array]]


class KnownFunctions:
    """A cache of node results. Layers with the same scales have the same activation: it is computed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, Sequence[Array]] = {}

    def __call__(
        self,
        nodes: Sequence[ir.Node],
        feeds: Mapping[str, Array],
        constants: Callable[[ir.Node, int], Any],
        results: Sequence[ir.Value],
        compute: Compute,
    ) -> Sequence[Array]:
        """Return the results of nodes for one-dimensional feeds; call `compute` if they are not known yet."""
        key = _identity(nodes, feeds, constants, results)
        if key not in self._known:
            self._known[key] = [np.asarray(array).reshape(-1) for array in compute(feeds)]
        return self._known[key]


def _identity(
    nodes: Sequence[ir.Node],
    feeds: Mapping[str, Array],
    constants: Callable[[ir.Node, int], Any],
    results: Sequence[ir.Value],
) -> bytes:
    """Return a key of everything that the results depend on: operators, numbers, and how the nodes are connected."""
    numbered = {name: str(at) for at, name in enumerate(feeds)}
    parts: list[bytes] = [array.tobytes() for array in feeds.values()]
    for node in nodes:
        proto = ir.serde.serialize_node(node)
        proto.name = proto.doc_string = ""
        for index, value in enumerate(node.inputs):
            if constant(value) is not None:
                array = np.asarray(constants(node, index))
                parts += [str((array.dtype, array.shape)).encode(), array.tobytes()]
                proto.input[index] = "constant"
            elif value is not None:
                proto.input[index] = numbered[str(value.name)]
        for index, value in enumerate(node.outputs):
            proto.output[index] = numbered[str(value.name)] = str(len(numbered))
        del proto.metadata_props[:]
        parts.append(proto.SerializeToString(deterministic=True))
    parts.append(" ".join(numbered[str(value.name)] for value in results).encode())
    return b"|".join(parts)
