"""Rules on the model as a whole: fixed shapes, one sample at a time, the operator set, size and names."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from detent.device_check.network import Subject, is_fixed
from detent.graph.save import PROTOBUF_LIMIT
from detent.graph.values import static_shape
from detent.prepare.base import main_opset
from detent.results.checked import MODEL, Finding

LEAST_OPSET, ADVISED_OPSET = 10, 17
_SHOWN = 3
_SHORT = 10


def check_file(proto: onnx.ModelProto, size: int) -> Iterator[Finding]:
    """What a file shows that reading it mends: names that are not unique, nodes out of order, and its size."""
    names = Counter(node.name for node in proto.graph.node if node.name)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        yield _of_model(
            "warning",
            f"{len(twice)} names belong to several nodes ({_listed(twice)})",
            "compilers and profilers tell nodes apart by their names",
            "`detent quantize` and `detent convert` write unique names",
        )
    if not _in_order(proto.graph):
        yield _of_model(
            "note",
            "its nodes are not in the order of computation",
            "onnxruntime puts them in order itself; onnx.checker refuses the file",
            "`detent convert` writes them in order, with any step",
        )
    if size > PROTOBUF_LIMIT:
        yield _of_model(
            "warning",
            f"it is {size / 2**30:.1f} GB large",
            "a compiler that takes the model as one message cannot take more than 2 GB",
            "use a recipe with fewer bits for weights (`detent quantize --recipe XINT8`), or divide the model",
        )
    if proto.functions:
        yield _of_model(
            "note",
            f"it has {len(proto.functions)} functions of its own",
            "a compiler may not look into them; this check did",
            "`detent quantize` writes their bodies in their places",
        )


def check_model(subject: Subject) -> Iterator[Finding]:
    """Everything but what the file alone shows."""
    if not subject.device.accelerated:
        return
    yield from _check_opset(subject)
    yield from _check_shapes(subject)


def _check_opset(subject: Subject) -> Iterator[Finding]:
    opset = main_opset(subject.model)
    if opset < LEAST_OPSET:
        yield _of_model(
            "error",
            f"it has opset {opset}",
            f"the device's compiler starts with opset {LEAST_OPSET}",
            f"`detent convert MODEL OUTPUT --to opset:version={ADVISED_OPSET}`",
        )
    elif opset < ADVISED_OPSET:
        yield _of_model(
            "note",
            f"it has opset {opset}",
            f"opset {ADVISED_OPSET} is advised",
            f"`detent convert MODEL OUTPUT --to opset:version={ADVISED_OPSET}`",
        )


def _check_shapes(subject: Subject) -> Iterator[Finding]:
    open_batch: list[ir.Value] = []
    open_inputs: list[ir.Value] = []
    for value in subject.model.graph.inputs:
        shape = static_shape(value)
        if shape is None or None in shape[1:]:
            open_inputs.append(value)
        elif shape and shape[0] is None:
            open_batch.append(value)
        elif shape and len(shape) == 4 and shape[0] != 1:
            yield _of_model(
                "error",
                f"input '{value.name}' has a batch of {shape[0]}",
                "the device computes one sample at a time",
                "`detent convert MODEL OUTPUT --to fixed-shapes:batch=1`, if the batch was left open in the original; "
                "else export the model again",
            )
    if open_inputs:
        yield _of_model(
            "error",
            f"the shape of input {_listed([str(value.name) for value in open_inputs])} is not fixed",
            "the device is programmed for one shape; without it everything stays on the CPU",
            _fix_of(open_inputs, f"fixed-shapes:shapes={'+'.join(_assignment(value, '/') for value in open_inputs)}"),
        )
    if open_batch:
        yield _of_model(
            "error",
            f"the batch of input {_listed([str(value.name) for value in open_batch])} is not fixed",
            "the device computes one sample at a time; with an open batch everything stays on the CPU",
            _fix_of(open_batch, "fixed-shapes:batch=1"),
        )
    if not open_inputs and not open_batch:
        yield from _check_inner_shapes(subject)


def _fix_of(inputs: list[ir.Value], step: str) -> str:
    """The commands that fix these inputs, and what to fill in where a size other than the batch is open."""
    options = " ".join(f"--fix-shape {shlex.quote(_assignment(value, ','))}" for value in inputs)
    missing = list(dict.fromkeys(size for value in inputs for size in _sizes(value) if not size.isdigit()))
    filled = f", with your sizes in the place of {' and '.join(missing)}" if missing else ""
    return f"`detent quantize {options}`, or `detent convert MODEL OUTPUT --to {shlex.quote(step)}`{filled}"


def _assignment(value: ir.Value, between: str) -> str:
    return f"{value.name}={between.join(_sizes(value))}"


def _sizes(value: ir.Value) -> list[str]:
    """The shape of an input for one sample at a time; a size that is open by its name if short, or else as a ?."""
    if value.shape is None:
        return ["1", "..."]
    sizes = [str(size) if isinstance(size, int) else _open_size(size.value) for size in value.shape]
    return [size if at or isinstance(value.shape[0], int) else "1" for at, size in enumerate(sizes)]


def _open_size(name: str | None) -> str:
    return name if name is not None and name.isidentifier() and len(name) <= _SHORT else "?"


def _check_inner_shapes(subject: Subject) -> Iterator[Finding]:
    """Shapes that stay open although those of the inputs are fixed; only where they begin to be."""
    for node in subject.nodes:
        unknown = [value for value in node.outputs if value.name and not is_fixed(value)]
        if unknown and all(value is None or is_fixed(value) or value.is_initializer() for value in node.inputs):
            yield Finding(
                "error",
                str(node.name),
                node.op_type,
                "the shape of its result is not known",
                "it depends on the data, or shape inference does not know the operator; what follows stays on the CPU",
                "end the device's part before it: `detent quantize --to NODE --exclude NODE`",
            )


def _in_order(graph: onnx.GraphProto) -> bool:
    known = {"", *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)}
    known.update(tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        if not known.issuperset(node.input):
            return False
        known.update(node.output)
    return True


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + more


def _of_model(level: str, what: str, why: str, fix: str) -> Finding:
    return Finding(level, MODEL, "", what, why, fix)  # type: ignore[arg-type]
