"""Run a model that was cut in two, or join the parts again.

    pipeline = detent.Pipeline("body.onnx", "tail.onnx", providers=["VitisAIExecutionProvider", "CPUExecutionProvider"])
    boxes, = pipeline.run(None, {"images": image})

The body runs on the given providers, the tail on the CPU. `joined` is both as one graph, for whatever looks inside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime

from detent.convert.splitting import OUTPUTS_KEY
from detent.errors import DataError, ModelError, UsageError, nearest
from detent.graph.load import name_of, read
from detent.graph.opset import raise_opset
from detent.graph.save import complete_proto, serialize
from detent.graph.session import DEFAULT_PROVIDERS, RUNTIME_ERRORS, first_line, open_session
from detent.graph.values import values_of

Feeds = Mapping[str, npt.NDArray[Any]]
PartLike = str | PathLike[str] | onnx.ModelProto


class Pipeline:
    """Two models, of which the second continues where the first ends, as one.

    `inputs` and `outputs` are the names of those of the whole, `between` of the tensors that go over.
    """

    def __init__(self, body: PartLike, tail: PartLike, *, providers: Sequence[str] = DEFAULT_PROVIDERS) -> None:
        """Read both. Raise ModelError if the second does not continue the first."""
        self._files = [each if isinstance(each, onnx.ModelProto) else Path(each) for each in (body, tail)]
        self.name = " + ".join(name_of(each) for each in self._files)
        self._parts = [read(each) for each in self._files]
        self._providers = tuple(providers)
        first, second = (part.graph for part in self._parts)
        made = {str(value.name): value for value in first.outputs}
        self.between = [str(value.name) for value in second.inputs if value.name in made]
        for value in second.inputs:
            if value.name in made:
                _check_same(made[str(value.name)], value, self.name)
        if not self.between:
            raise ModelError(
                f"{self.name}: the second does not continue the first. It begins at "
                f"'{second.inputs[0].name if second.inputs else ''}', which the first does not give"
                f"{nearest(str(second.inputs[0].name), made) if second.inputs else '.'}"
            )
        own = [str(value.name) for value in second.inputs if value.name not in made]
        self.inputs = list(dict.fromkeys([*(str(value.name) for value in first.inputs), *own]))
        self.outputs = _outputs(self._parts, self.between)

    @cached_property
    def sessions(self) -> list[onnxruntime.InferenceSession]:
        """The sessions of body and tail, opened when they are first needed."""
        sources = [str(each) if isinstance(each, Path) else serialize(each) for each in self._files]
        where = [self._providers, DEFAULT_PROVIDERS]
        options = [onnxruntime.SessionOptions() for _ in sources]
        for each in options:
            each.log_severity_level = 4
        return [open_session(*each) for each in zip(sources, options, where, strict=True)]

    def run(self, outputs: Sequence[str] | None, feeds: Feeds) -> list[npt.NDArray[Any]]:
        """Return the named outputs, or with None all of them, as InferenceSession.run does."""
        wanted = list(self.outputs if outputs is None else outputs)
        for name in wanted:
            if name not in self.outputs:
                raise UsageError(f"{self.name} has no output '{name}'.{nearest(name, self.outputs)}")
        unknown = next((name for name in feeds if name not in self.inputs), None)
        if unknown is not None:
            raise UsageError(f"{self.name} has no input '{unknown}'.{nearest(unknown, self.inputs)}")
        known: dict[str, npt.NDArray[Any]] = dict(feeds)
        for session in self.sessions:
            names = [each.name for each in session.get_inputs()]
            results = [each.name for each in session.get_outputs()]
            missing = next((name for name in names if name not in known), None)
            if missing is not None:
                raise DataError(f"{self.name} needs the input '{missing}', which was not given.")
            try:
                found = session.run(results, {name: known[name] for name in names})
            except RUNTIME_ERRORS as error:
                raise DataError(f"onnxruntime could not run {self.name}: {first_line(str(error))}") from error
            known.update(zip(results, found, strict=True))
        return [known[name] for name in wanted]

    def __call__(self, feeds: Feeds) -> list[npt.NDArray[Any]]:
        """Return all outputs."""
        return self.run(None, feeds)

    @property
    def joined(self) -> ir.Model:
        """Both parts as one model."""
        body, tail = (read(each) for each in self._files)
        opset = max(part.opset_imports.get("", 1) for part in (body, tail))
        body, tail = (raise_opset(part, opset, name) for part, name in ((body, self.name), (tail, self.name)))
        _rename_apart(body.graph, tail.graph)
        return _join(body, tail, self.outputs, self.name)


def continues(body: PartLike, tail: PartLike) -> bool:
    """Whether the outputs of one model are among the inputs of the other."""
    first, second = (read(each if isinstance(each, onnx.ModelProto) else Path(each)).graph for each in (body, tail))
    taken = {value.name for value in first.inputs}
    made = {value.name for value in first.outputs}
    return bool(second.inputs) and all(value.name in made | taken for value in second.inputs)


def _outputs(parts: Sequence[ir.Model], between: Sequence[str]) -> list[str]:
    """Return the outputs of the whole: as it had them, or else those of the tail, then those of the body."""
    last = [str(value.name) for value in parts[1].graph.outputs]
    first = [str(value.name) for value in parts[0].graph.outputs]
    known = parts[1].metadata_props.get(OUTPUTS_KEY)
    try:
        listed = [] if known is None else [str(name) for name in json.loads(known)]
    except (ValueError, TypeError):
        listed = []
    if listed and set(listed) <= {*first, *last}:
        return listed
    return [*last, *(name for name in first if name not in between)]


def _check_same(made: ir.Value, taken: ir.Value, where: str) -> None:
    types = made.dtype, taken.dtype
    shapes = [[] if each.shape is None else list(each.shape) for each in (made, taken)]
    conflict = any(
        isinstance(one, int) and isinstance(other, int) and one != other for one, other in zip(*shapes, strict=False)
    )
    ranks = None not in (made.shape, taken.shape) and len(shapes[0]) != len(shapes[1])
    if (None not in types and types[0] != types[1]) or conflict or ranks:
        raise ModelError(
            f"{where}: '{made.name}' is {made.dtype} {made.shape} in the first and {taken.dtype} {taken.shape} in the "
            "second: these are not parts of one model."
        )


def _rename_apart(body: ir.Graph, tail: ir.Graph) -> None:
    """Rename what has the same name in both parts, but for the tensors between them and the inputs."""
    theirs = {str(value.name) for value in values_of(tail) if value.name} | {str(node.name) for node in tail}
    ours = {str(value.name) for value in values_of(body) if value.name} | {str(node.name) for node in body}
    used, fixed = theirs | ours, {value.name for value in (*tail.inputs, *tail.outputs)}

    def fresh(name: str) -> str:
        number = next(number for number in range(1, len(used) + 2) if f"{name}_tail{number}" not in used)
        used.add(f"{name}_tail{number}")
        return f"{name}_tail{number}"

    for value in values_of(tail):
        if value.name and value.name in ours and value.name not in fixed:
            value.name = fresh(value.name)
    for node in tail:
        if str(node.name) in ours:
            node.name = fresh(str(node.name))
    results = {value.name for value in tail.outputs}
    for value in values_of(body):
        if value.name in results and not value.is_graph_output():
            value.name = fresh(str(value.name))


def _join(body: ir.Model, tail: ir.Model, outputs: Sequence[str], name: str) -> ir.Model:
    """Move all of the tail into the body's graph."""
    graph, other = body.graph, tail.graph
    ends = {str(value.name): value for value in (*graph.outputs, *other.outputs)}
    known = {str(value.name): value for value in (*graph.inputs, *graph.outputs)}
    other.outputs.clear()
    for value in list(other.inputs):
        if value.name in known:
            value.replace_all_uses_with(known[str(value.name)])
            ends.setdefault(str(value.name), known[str(value.name)])
        else:
            other.inputs.remove(value)
            graph.inputs.append(value)
    initializers = list(other.initializers.values())
    other.initializers.clear()
    for value in initializers:
        graph.register_initializer(value)
    nodes = list(other)
    other.remove(nodes)
    graph.extend(nodes)
    graph.outputs.clear()
    graph.outputs.extend(ends[each] for each in outputs)
    body.functions.update(tail.functions)
    for domain, version in tail.opset_imports.items():
        body.opset_imports[domain] = max(version, body.opset_imports.get(domain, version))
    body.ir_version = max(body.ir_version, tail.ir_version)
    body.meta["name"], body.meta["bytes"] = name, len(serialize(complete_proto(body)))
    return body
