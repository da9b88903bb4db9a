"""The interface and the constants of a model: layout and shapes of inputs, initializers, infinite weights.

Names of inputs and outputs stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.convert.step import ConversionNotes, ConversionStep
from detent.errors import UsageError
from detent.graph.values import Names, is_standard
from detent.prepare.constants import SeparateInitializers
from detent.prepare.shapes import FixShapes
from detent.qdq.reader import largest_of

_TO_NCHW = (0, 3, 1, 2)  # the permutations of a Transpose
_TO_NHWC = (0, 2, 3, 1)


@dataclass(frozen=True)
class ChannelsLast(ConversionStep):
    """Images as channels-last: transpose every 4-D graph input; with `outputs`, every 4-D graph output as well.

    An input [N, C, H, W] becomes [N, H, W, C], and a Transpose behind it restores the layout that the graph expects.
    """

    outputs: bool = False
    nothing: ClassVar[str] = "no graph input has four dimensions."

    def _convert(self, model: ir.Model, notes: ConversionNotes) -> None:
        names, graph = Names(model), model.graph
        for index, value in enumerate(tuple(graph.inputs)):
            if _is_image(value, notes):
                _transpose_input(graph, index, value, names)
                notes.changed(graph.inputs[index], "input is NHWC now, with a Transpose behind it")
        for index, value in enumerate(tuple(graph.outputs) if self.outputs else ()):
            if _is_image(value, notes):
                _transpose_output(graph, index, value, names)
                notes.changed(graph.outputs[index], "output is NHWC now, with a Transpose before it")


def _is_image(value: ir.Value, notes: ConversionNotes) -> bool:
    """Return whether a value has four dimensions; note it if not."""
    image = value.shape is not None and len(value.shape) == 4
    if not image:
        notes.decline(value, "it does not have four dimensions")
    return image


def _permuted(shape: ir.Shape | None, order: tuple[int, ...]) -> ir.Shape:
    assert shape is not None
    return ir.Shape([shape[axis] for axis in order])


def _transpose(value: ir.Value, order: tuple[int, ...], name: str) -> ir.Node:
    node = ir.node("Transpose", [value], {"perm": list(order)}, name=name)
    node.outputs[0].type, node.outputs[0].shape = value.type, _permuted(value.shape, order)
    return node


def _transpose_input(graph: ir.Graph, index: int, value: ir.Value, names: Names) -> None:
    name, was_output = str(value.name), value.is_graph_output()
    graph.inputs[index] = ir.Value(name=name, type=value.type, shape=_permuted(value.shape, _TO_NHWC))
    node = _transpose(graph.inputs[index], _TO_NCHW, names.fresh(f"{name}_to_NCHW"))
    value.replace_all_uses_with(node.outputs[0], replace_graph_outputs=was_output)
    node.outputs[0].name = names.fresh(f"{name}_NCHW")
    if len(graph):
        graph.insert_before(graph[0], [node])
    else:
        graph.append(node)


def _transpose_output(graph: ir.Graph, index: int, value: ir.Value, names: Names) -> None:
    name = str(value.name)
    node = _transpose(value, _TO_NHWC, names.fresh(f"{name}_to_NHWC"))
    graph.append(node)
    graph.outputs[index] = node.outputs[0]
    if not value.is_graph_input():  # whose name is fixed
        value.name = names.fresh(f"{name}_NCHW")
    node.outputs[0].name = name


@dataclass(frozen=True)
class FixedShapes(ConversionStep):
    """Fix free dimensions: `shapes` as `input=1/3/224/224+mask=1/77`, or `batch` for the first one of every input."""

    shapes: str = ""
    batch: int = 0
    nothing: ClassVar[str] = "the inputs have these shapes already."

    def _convert(self, model: ir.Model, notes: ConversionNotes) -> None:
        wanted = dict(_parse_shapes(self.shapes))
        if self.batch < 0:
            raise UsageError(f"fixed-shapes: batch is {self.batch}; it has to be at least 1.")
        if self.batch:
            wanted = {**_batched(model.graph, self.batch, skip=wanted), **wanted}
        if not wanted and self.batch:
            raise UsageError("fixed-shapes: no input has a free batch. Export the model again with the batch you need.")
        if not wanted:
            raise UsageError(
                "fixed-shapes needs to know which: fixed-shapes:shapes=input=1/3/224/224, or fixed-shapes:batch=1."
            )
        notes.run(FixShapes(wanted), model)


def _parse_shapes(text: str) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for part in filter(None, text.split("+")):
        name, separator, dims = part.rpartition("=")
        try:
            found[name] = [int(dim) for dim in dims.split("/")]
        except ValueError:
            separator = ""
        if not separator or not name:
            raise UsageError(f"fixed-shapes: '{part}' is not a shape; give INPUT=D/D/..., such as input=1/3/224/224.")
    return found


def _batched(graph: ir.Graph, batch: int, skip: Mapping[str, object]) -> dict[str, list[int]]:
    """Return the shapes of all inputs with a free first dimension, with that dimension fixed."""
    found: dict[str, list[int]] = {}
    for value in graph.inputs:
        if str(value.name) in skip or value.shape is None or not len(value.shape) or isinstance(value.shape[0], int):
            continue
        rest = value.shape[1:]
        numbers = [dim for dim in rest if isinstance(dim, int)]
        if len(numbers) != len(rest):
            listed = ", ".join(str(dim) for dim in value.shape)
            example = "/".join(str(dim) if isinstance(dim, int) else "1" for dim in value.shape)
            raise UsageError(
                f"Input '{value.name}' is [{listed}]: more than its batch is free. Give the whole shape, such as "
                f"fixed-shapes:shapes={value.name}={example}."
            )
        found[str(value.name)] = [batch, *numbers]
    return found


@dataclass(frozen=True)
class UniqueInitializers(ConversionStep):
    """Give every use of a float initializer a copy of its own."""

    nothing: ClassVar[str] = "no float initializer has more than one use."

    def _convert(self, model: ir.Model, notes: ConversionNotes) -> None:
        notes.run(SeparateInitializers(), model)


@dataclass(frozen=True)
class InputsWithoutInitializers(ConversionStep):
    """Take initializers out of the graph inputs, where they are defaults that a caller could override."""

    nothing: ClassVar[str] = "no initializer is a graph input."

    def _convert(self, model: ir.Model, notes: ConversionNotes) -> None:
        free_initializers(model, notes)


def free_initializers(model: ir.Model, notes: ConversionNotes) -> None:
    """Take the initializers out of the graph inputs."""
    kept = [value for value in model.graph.inputs if not value.is_initializer()]
    for value in model.graph.inputs:
        if value.is_initializer():
            notes.changed(value, "no longer a graph input, so its value is constant")
    model.graph.inputs.clear()
    model.graph.inputs.extend(kept)


_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class FiniteWeights(ConversionStep):
    """Replace inf by `value` and -inf by -`value` in initializers and Constant nodes. NaN is declined.

    Attention masks are often built with infinities, which no quantized format holds and which become NaN when they are
    multiplied by zero. Any number far below all others has the same effect in a Softmax.
    """

    value: float = 10000.0
    nothing: ClassVar[str] = "no weight is infinite."

    def __post_init__(self) -> None:
        if not np.isfinite(self.value) or self.value <= 0:
            raise UsageError(f"finite-weights: value is {self.value}; give a positive number, such as 10000.")

    def _convert(self, model: ir.Model, notes: ConversionNotes) -> None:
        for graph in model.graphs():
            for value in graph.initializers.values():
                if value.const_value is not None and value.const_value.dtype in _FLOATS:
                    new = self._finite(str(value.name), value.const_value, notes)
                    value.const_value = value.const_value if new is None else new
            for node in graph:
                attribute = node.attributes.get("value") if is_standard(node, "Constant", "ConstantOfShape") else None
                if attribute is None or attribute.is_ref() or attribute.as_tensor().dtype not in _FLOATS:
                    continue
                new = self._finite(str(node.outputs[0].name), attribute.as_tensor(), notes)
                if new is not None:
                    node.attributes["value"] = ir.AttrTensor("value", new)

    def _finite(self, name: str, tensor: ir.TensorProtocol, notes: ConversionNotes) -> ir.TensorProtocol | None:
        """Return the tensor without infinities, or None if it has none."""
        array: npt.NDArray[Any] = tensor.numpy()
        infinite = np.isinf(array)
        if np.isnan(array).any():
            notes.decline(name, f"{int(np.isnan(array).sum())} of its elements are NaN, which stays")
        if not infinite.any():
            return None
        largest = largest_of(array.dtype)
        if self.value > largest:
            raise UsageError(
                f"finite-weights: {self.value} does not fit into '{name}', whose type ends at {largest:g}."
            )
        bounded = np.where(infinite, np.sign(array.astype(np.float64)) * self.value, array.astype(np.float64))
        notes.changed(name, f"{int(infinite.sum())} infinite elements became {self.value:g} or {-self.value:g}")
        return ir.Tensor(bounded.astype(array.dtype), name=tensor.name)
