"""Infer the shapes of all values, and fix the shapes of inputs that the user gives.

InferShapes: only annotations are written, so the function of the model is unchanged. Data propagation follows the
integers that flow through Shape, Gather and Concat, so that a Reshape whose target is computed from known dimensions
gets a shape.

FixShapes: a free dimension is fixed to one of the sizes that it could have had, so the model computes for inputs of
that size what it computed before. The shapes of everything after the inputs were inferred for the old, freer shapes:
they are cleared and inferred again.

FixInputs: an input that always has the same value may be a constant; the other inputs are as free as they were.

FixBatch: the same as FixShapes for the batch alone, which a device that computes one sample at a time wants to be 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx.shape_inference
import onnx_ir as ir

from detent.errors import ModelError, UsageError, nearest
from detent.graph.load import UNREADABLE, light_proto, root_cause
from detent.graph.message import RUNTIME_DOMAINS, all_graphs
from detent.graph.session import Runner
from detent.graph.values import add_initializer, static_shape
from detent.prepare.base import Pass

LONG = 1 << 20  # elements of a vector that is surely no shape


class InferShapes(Pass):
    """Write inferred shapes and types on all values.

    Cases:
    - a graph output, or another value that the model describes, cannot have the shape that is declared for it
      (onnxruntime runs such models with a warning): the inferred shape is taken;
    - inference as a whole fails (the model contradicts itself): declined with the reason, the model is unchanged;
    - a node's output stays without a shape (an operator that ONNX does not know, a shape that depends on data):
      declined for that node, but not for those behind it, which follow; the others are annotated.
    """

    def run(self, model: ir.Model) -> None:
        infer_with_notes(self, model)


def infer(model: ir.Model) -> str | None:
    """Infer shapes; return the reason if inference as a whole failed and nothing was changed.

    The results of onnxruntime's own operators are not known to onnx: onnxruntime is asked once, and inference goes on.
    """
    reason = _infer(model)
    values = [value for node in model.graph if node.domain in RUNTIME_DOMAINS for value in node.outputs]
    unknown = {str(value.name): value for value in values if value.name and value.dtype is None}
    if reason is not None or not unknown:
        return reason
    try:
        answers = Runner(model, list(unknown)).types
    except ModelError as error:
        return str(error)
    for name in answers.keys() & unknown.keys():
        dtype, shape = answers[name]
        unknown[name].dtype, unknown[name].shape = dtype, ir.Shape(shape)
    return _infer(model)


def _infer(model: ir.Model) -> str | None:
    computed = (value for node in model.graph.all_nodes() for value in node.outputs)
    follow = not any(_is_long_vector(value) for value in chain(model.graph.inputs, computed))
    try:
        light = light_proto(model)
        _say_one_sided(light)
        proto = onnx.shape_inference.infer_shapes(light, check_type=True, strict_mode=False, data_prop=follow)
        if _contradicts_itself(light, follow=follow):
            _forget_shapes(light)
            proto = onnx.shape_inference.infer_shapes(light, check_type=True, strict_mode=False, data_prop=follow)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        return str(error).strip()
    try:
        found = ir.from_proto(proto)
    except UNREADABLE as error:  # it infers types, of which the graph library does not know all
        return root_cause(error)
    for graph, inferred in zip(model.graphs(), found.graphs(), strict=True):
        known = ir.convenience.create_value_mapping(inferred)
        for name, value in ir.convenience.create_value_mapping(graph).items():
            if name in known and not value.is_initializer():
                value.shape = known[name].shape if known[name].shape is not None else value.shape
                value.type = known[name].type if known[name].type is not None else value.type
    return None


def _say_one_sided(proto: onnx.ModelProto) -> None:
    """Write out the default of STFT: onnx infers both halves of the spectrum where the attribute is left out."""
    for node in chain.from_iterable(graph.node for graph in all_graphs(proto)):
        if node.op_type == "STFT" and all(attribute.name != "onesided" for attribute in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("onesided", 1))


def _is_long_vector(value: ir.Value) -> bool:
    """Return whether following the value's elements would take all memory: onnx lists each one at a Cast."""
    shape = value.shape
    return shape is not None and len(shape) == 1 and isinstance(shape[0], int) and shape[0] > LONG


def _contradicts_itself(proto: onnx.ModelProto, *, follow: bool) -> bool:
    """Return whether a declared shape is one that the value cannot have."""
    try:
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=follow)
    except onnx.shape_inference.InferenceError as error:
        return "existing shape differ" in str(error)
    except (ValueError, RuntimeError):
        return False
    return False


def _forget_shapes(proto: onnx.ModelProto) -> None:
    """Take all declared shapes away but those of inputs and initializers."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    described = [value for value in proto.graph.value_info if value.name not in constants]
    for value in (*proto.graph.output, *described):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def infer_with_notes(owner: Pass, model: ir.Model) -> None:
    """Infer shapes and write the notes of it into a pass's lists."""
    missing = _without_shape(model.graph)
    reason = infer(model)
    if reason is not None:
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


class FixShapes(Pass):
    """Set the shapes of given graph inputs.

    Cases:
    - an input without a shape, or with free dimensions, takes the given shape;
    - a dimension that is given as None stays as it is;
    - an input that has that shape already is left as it is;
    - a name that is not an input, a dimension below 1, another rank, or another size than a dimension already has is a
      `UsageError`, and nothing is changed;
    - a graph output whose shape cannot be inferred again keeps the shape that the model declared.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int | None]]) -> None:
        super().__init__()
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}

    def run(self, model: ir.Model) -> None:
        inputs = {value.name: value for value in model.graph.inputs if value.name and not value.is_initializer()}
        for name, shape in self.shapes.items():
            if name not in inputs:
                known = ", ".join(repr(item) for item in inputs)
                raise UsageError(
                    f"Cannot fix the shape of '{name}': the model has no such input.{nearest(name, inputs)} "
                    f"Its inputs are {known}."
                )
            _check(name, inputs[name].shape, shape)
        for name, wanted in self.shapes.items():
            value = inputs[name]
            old = wanted if value.shape is None else value.shape
            fixed = ir.Shape([have if want is None else want for have, want in zip(old, wanted, strict=True)])
            if value.shape is None or value.shape != fixed:
                self.changed(name, f"shape {_show(value.shape)} fixed to {_show(fixed)}")
                value.shape = fixed
        if self.changes:
            _infer_again(self, model)


class FixInputs(Pass):
    """Make inputs constants: the model computes what it computed for these values.

    Cases:
    - an input becomes an initializer of the same name: one number for all of its elements, or one for each;
    - a name that is not an input, a shape that is open, another count of numbers, or a number that the input's type
      does not have is a `UsageError`, and nothing is changed.
    """

    def __init__(self, numbers: Mapping[str, Sequence[float]]) -> None:
        super().__init__()
        self.numbers = numbers

    def run(self, model: ir.Model) -> None:
        """Check all, then move them from the inputs to the initializers."""
        arrays = constant_inputs(model.graph, self.numbers)
        for value in [each for each in model.graph.inputs if each.name in arrays]:
            model.graph.inputs.remove(value)
            name, value.name = str(value.name), None
            value.replace_all_uses_with(add_initializer(model.graph, name, arrays[name]))
            self.changed(name, f"constant, {_numbers_text(self.numbers[name])}: it is not an input any more")


def constant_inputs(graph: ir.Graph, numbers: Mapping[str, Sequence[float]]) -> dict[str, npt.NDArray[Any]]:
    """Return the array of each input that becomes constant. Raise UsageError for what it cannot hold."""
    inputs = {str(value.name): value for value in graph.inputs if not value.is_initializer()}
    found = {}
    for name, given in numbers.items():
        if name not in inputs:
            known = ", ".join(repr(each) for each in inputs)
            raise UsageError(
                f"--fix-input {name}: the model has no such input.{nearest(name, inputs)} Its inputs are {known}."
            )
        shape, dtype = static_shape(inputs[name]), inputs[name].dtype
        if shape is None or None in shape or dtype is None:
            raise UsageError(
                f"--fix-input {name}: its shape {_show(inputs[name].shape)} is open, and a constant has a fixed one."
            )
        sizes = [size for size in shape if size is not None]
        array = np.array(given, np.float64).astype(dtype.numpy())
        if not np.array_equal(array.astype(np.float64), given) and dtype.is_integer():
            raise UsageError(f"--fix-input {name}: it holds {dtype}, and {_numbers_text(given)} is none.")
        if array.size not in (1, math.prod(sizes)):
            raise UsageError(f"--fix-input {name}: {array.size} numbers for shape {sizes}. Give one, or one for each.")
        found[name] = np.full(sizes, array.item(), array.dtype) if array.size == 1 else array.reshape(sizes)
    return found


def _numbers_text(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


# Parts of the names of first dimensions that are open but no batch: those of sequences and of single images.
_NO_BATCH = ("seq", "len", "time", "frame", "token", "step", "height", "width", "point", "past", "chan")


class FixBatch(Pass):
    """Set an open batch to 1.

    Cases:
    - the first dimension of an input, where it is an open batch;
    - every other dimension of an input that has the name of such a batch, as the states of recurrent layers do;
    - all other open dimensions stay open.
    """

    def run(self, model: ir.Model) -> None:
        shapes = {
            value: list(value.shape)
            for value in model.graph.inputs
            if value.shape is not None and not value.is_initializer()
        }
        batches = [shape[0] for shape in shapes.values() if shape and is_open_batch(shape[0])]
        names = {batch.value for batch in batches if isinstance(batch, ir.SymbolicDim)} - {None}
        for value, shape in shapes.items():
            fixed = [
                1 if (axis == 0 and is_open_batch(size)) or _name_of(size) in names else size
                for axis, size in enumerate(shape)
            ]
            if fixed != shape:
                before, value.shape = value.shape, ir.Shape(fixed)
                self.changed(str(value.name), f"shape {_show(before)} fixed to {_show(value.shape)}")
        if self.changes:
            _infer_again(self, model)


def is_open_batch(size: int | ir.SymbolicDim) -> bool:
    """Return whether the first dimension of an input is open, and its name (if it has one) speaks of nothing else."""
    name = _name_of(size) or ""
    return not isinstance(size, int) and not any(part in name.lower() for part in _NO_BATCH)


def _name_of(size: int | ir.SymbolicDim) -> str | None:
    return None if isinstance(size, int) else size.value


def _infer_again(owner: Pass, model: ir.Model) -> None:
    # Shapes of the old, freer inputs would contradict those that are inferred now.
    declared = [value.shape for value in model.graph.outputs]
    for node in model.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    infer_with_notes(owner, model)
    for value, shape in zip(model.graph.outputs, declared, strict=True):
        if value.shape is None:
            value.shape = shape
    _check_sizes(model.graph)


def _check_sizes(graph: ir.Graph) -> None:
    """Raise UsageError if the shapes of the inputs make a window larger than the axis that it slides along."""
    for node in graph:
        for value in node.outputs:
            if value.shape is not None and any(isinstance(dim, int) and dim < 0 for dim in value.shape):
                inputs = [each for each in graph.inputs if not each.is_initializer()]
                given = ", ".join(f"'{each.name}' of shape {_show(each.shape)}" for each in inputs)
                raise UsageError(
                    f"With {given}, node '{node.name}' ({node.op_type}) would compute '{value.name}' of shape "
                    f"{_show(value.shape)}. Give a larger shape (--fix-shape). Where the first axis is not one of "
                    "samples but of time, say, give the shape of a whole recording."
                )


def _check(name: str, old: ir.Shape | None, new: tuple[int | None, ...]) -> None:
    """Refuse a shape that the input could not have had."""
    if any(dim is not None and dim < 1 for dim in new):
        raise UsageError(f"Cannot fix input '{name}' to {list(new)}: every dimension has to be at least 1.")
    if old is None:
        return
    if len(old) != len(new):
        raise UsageError(
            f"Cannot fix input '{name}' to {list(new)}: the model declares {_show(old)}, which has {len(old)} "
            f"dimensions, not {len(new)}."
        )
    for have, want in zip(old, new, strict=True):
        if isinstance(have, int) and want is not None and have != want:
            raise UsageError(
                f"Cannot fix input '{name}' to {list(new)}: the model declares {_show(old)}, and only its free "
                "dimensions can be set."
            )


def _show(shape: ir.Shape | None) -> str:
    """Return a shape as a message shows it: numbers, names, and ? for what has neither."""
    if shape is None:
        return "(unknown)"
    return "[" + ", ".join(str(dim) if isinstance(dim, int) else dim.value or "?" for dim in shape) + "]"
