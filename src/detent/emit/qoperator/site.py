"""A node between DequantizeLinear and QuantizeLinear, seen as one integer operator.

QuantizeLinear never decreases, so rounding and cutting off may change places:

    Q(clip(x, a, b)) = clip(Q(x), Q(a), Q(b))

A Relu or Clip behind the node therefore cuts the codes of the result instead, and goes without a trace where the codes
from Q(a) to Q(b) are all that there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from detent.emit.qoperator.codes import RANGES, Coded, DeclinedError, Grid, Operand, coded, grid_of, is_quantize
from detent.graph.values import constant_scalar, input_at, is_standard, sole_use

MICROSOFT = "com.microsoft"
CLIPS_CODES = 12
"""The opset from which Clip and MaxPool take 8-bit integers."""


@dataclass(frozen=True)
class Operation:
    """What to write in the place of a site. `flattened`: the result loses the axes from the third on, which are 1."""

    op_type: str
    inputs: Sequence[Operand]
    attributes: Sequence[ir.Attr] = ()
    domain: str = MICROSOFT
    flattened: bool = False


@dataclass(frozen=True, eq=False)
class Result:
    """A quantized output: its grid, the nodes that quantize it, and the Relu and Clip nodes before them."""

    grid: Grid
    quantizers: tuple[ir.Node, ...]
    clips: tuple[ir.Node, ...]
    bounds: tuple[float, float]

    @property
    def shape(self) -> ir.Shape | None:
        """The shape, where it is known."""
        source = self.quantizers[0].inputs[0]
        return None if source is None else source.shape

    @property
    def code_bounds(self) -> tuple[int, int] | None:
        """The codes that the result is cut off at; None where the type's own ends do the same."""
        bounds = self.grid.encode(self.bounds[0]), self.grid.encode(self.bounds[1])
        return None if bounds == RANGES[self.grid.dtype] else bounds


class Site:
    """A node with the codes of its inputs and the grids of its results; asking for one that is not there declines."""

    def __init__(self, node: ir.Node, graph: ir.Graph, opset: int) -> None:
        self.node = node
        self.opset = opset
        self._graph = graph

    def input(self, index: int) -> Coded:
        """The codes of an input."""
        value = input_at(self.node, index)
        if value is None:
            raise DeclinedError(f"it has no input {index}")
        return coded(value)

    @property
    def result(self) -> Result:
        """The only result."""
        if len(self.results) != 1:
            raise DeclinedError("more than one of its outputs is used")
        return self.results[0]

    @cached_property
    def results(self) -> list[Result]:
        """All outputs, which must be quantized."""
        named = [value for value in self.node.outputs if value.name]
        if self.node.op_type == "Split" and len(named) < len(self.node.outputs):
            raise DeclinedError("one of its outputs is not used")
        return [self._follow(value, clip_bounds(self.node) or (-math.inf, math.inf)) for value in named]

    def like_result(self, index: int) -> Coded:
        """The codes of an input with one scale, of the type that the result has."""
        return self.input(index).whole().as_type(self.result.grid.dtype)

    def attributes(self, names: Iterable[str]) -> list[ir.Attr]:
        """Those of the node's attributes that the integer operator has too."""
        return [attribute for name in names if (attribute := self.node.attributes.get(name)) is not None]

    def _follow(self, value: ir.Value, bounds: tuple[float, float]) -> Result:
        """Walk from an output over Relu and Clip to the nodes that quantize it."""
        clips: list[ir.Node] = []
        while (use := sole_use(value, self._graph)) is not None and use[1] == 0:
            more = clip_bounds(use[0])
            if more is None:
                break
            clips.append(use[0])
            # The later one has the last word, also where the two do not overlap.
            bounds = min(max(bounds[0], more[0]), more[1]), min(max(bounds[1], more[0]), more[1])
            value = use[0].outputs[0]
        result = Result(*self._quantizers(value), tuple(clips), bounds)
        if result.code_bounds is not None and self.opset < CLIPS_CODES:
            raise DeclinedError(f"its result is cut off, and Clip on integers needs opset {CLIPS_CODES}")
        return result

    def _quantizers(self, value: ir.Value) -> tuple[Grid, tuple[ir.Node, ...]]:
        if value.is_graph_output():
            raise DeclinedError(f"its result '{value.name}' is a graph output and not quantized")
        nodes = tuple(use.node for use in value.uses())
        if not nodes:
            raise DeclinedError(f"its result '{value.name}' is not used")
        for node in nodes:
            if not is_quantize(node) or node.graph is not self._graph:
                raise DeclinedError(f"its result '{value.name}' is read as float by {node.op_type} '{node.name}'")
        grids = [grid_of(node) for node in nodes]
        if grids[0].axis is not None or any(not grid.equals(grids[0]) for grid in grids):
            raise DeclinedError(f"its result '{value.name}' has more than one scale")
        if len(nodes) > 1 and any(node.outputs[0].is_graph_output() for node in nodes):
            raise DeclinedError(f"its result '{value.name}' is quantized twice, once for a graph output")
        return grids[0], nodes


def clip_bounds(node: ir.Node) -> tuple[float, float] | None:
    """What a Relu or Clip cuts its input off at; None for other nodes, and where the bounds are not constant."""
    if is_standard(node, "Relu"):
        return 0.0, math.inf
    if not is_standard(node, "Clip"):
        return None
    bounds = []
    for index, name, default in ((1, "min", -math.inf), (2, "max", math.inf)):
        number: float | None = node.attributes.get_float(name, default)
        if input_at(node, index) is not None:
            number = constant_scalar(node, index)
        if number is None:
            return None
        bounds.append(number)
    return bounds[0], bounds[1]
