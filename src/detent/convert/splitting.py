"""Cut a model in two: a body, which computes the values at the cut, and a tail, which computes the outputs from them.

    body = all nodes that lead to a value of the cut        tail = all other nodes that lead to an output

No node of the tail leads back into the body, so the body runs to its end before the tail begins. The values between
them are all that the body computes and the tail reads: those of the cut, and any that bypass it, such as the shortcut
of a residual block. An output of the model that the body computes stays an output of the body.

The metadata of both files list the outputs of the whole model in order. `Pipeline` runs the parts as one or joins them:

    pipeline = detent.Pipeline("body.onnx", "tail.onnx", providers=["VitisAIExecutionProvider", "CPUExecutionProvider"])
    boxes, = pipeline.run(None, {"images": image})
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent.errors import DataError, ModelError, UsageError, nearest
from detent.graph.guard import guarded
from detent.graph.load import ModelLike, files_of, load, name_of, raise_opset, read
from detent.graph.runtime import onnxruntime, runtime_errors
from detent.graph.save import check_output, complete_proto, save_together, serialize
from detent.graph.session import DEFAULT_PROVIDERS, Feeds, Runner, first_line, foreign_nodes, open_session, operator_of
from detent.graph.values import drop_if_unused, read_values, values_of
from detent.plan.postprocessing import find_postprocessing, is_trained
from detent.prepare import FixShapes, FoldConstants, InferShapes, prepare
from detent.prepare.plain_forms import InlineFunctions
from detent.qdq.families import dequantize_family, quantize_family
from detent.settings import parse_json

OUTPUTS_KEY = "detent.outputs"

PartLike = str | PathLike[str] | onnx.ModelProto


@dataclass(frozen=True)
class BetweenTensor:
    """A tensor that goes from the body to the tail; `added` if the cut did not name it."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]
    added: bool = False


@dataclass(frozen=True)
class Cut:
    """Where a model was cut. `tail` is the file of the second part, None if it was not written to one."""

    tail: str | None
    bytes: int
    between: tuple[BetweenTensor, ...]


@dataclass(frozen=True)
class Split:
    """What `split` wrote: two files, their numbers of nodes and bytes, and the tensors between them."""

    source: str
    body: str
    tail: str
    body_nodes: int
    tail_nodes: int
    body_bytes: int
    tail_bytes: int
    sign: str | None
    between: tuple[BetweenTensor, ...]
    foreign: str = ""  # an operator of the second part that onnxruntime does not know, so that it was not tried

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def split(
    model: ModelLike,
    body: str | Path,
    tail: str | Path,
    at: Sequence[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Split:
    """Cut a model at values, or else where the post-processing of its detections starts, and write both parts.

    Functions are inlined and constants folded, so that known shapes are not computed in either part. After an error
    nothing is written.

    Raises:
        UsageError: The model cannot be cut at these values.
        ModelError: The model cannot be loaded, or one of the parts cannot run.
        OutputError: A file cannot be written.
    """
    files = [Path(body), Path(tail)]
    inputs = [] if isinstance(model, onnx.ModelProto) else files_of(Path(model))
    check_output(files[0], *inputs)
    check_output(files[1], *inputs, files[0])
    whole = load(model)
    prepare(whole, [InlineFunctions(), FixShapes(shapes) if shapes else InferShapes(), FoldConstants(), InferShapes()])
    sign = None
    if not at:
        found = find_postprocessing(whole.graph)
        if found is None:
            raise UsageError(
                f"No post-processing of detections was recognised in {name_of(model)}. Say with --at where to cut it: "
                "the name of a value, as Netron shows it."
            )
        at, sign = [_past_quantization(whole.graph, name) for name in found.starts], found.sign
    first, second, between = divide(whole, nodes_before(whole.graph, at), at)
    # An operator of a device's plugins, such as an NMS: cut before it, the rest can be quantized.
    foreign = next(foreign_nodes(second), None)
    for part in (first, second) if foreign is None else (first,):
        Runner(part)  # ModelError if onnxruntime cannot load it, before anything is written
    sizes = save_together([(first, files[0]), (second, files[1])])
    return Split(
        source=name_of(model),
        body=str(body),
        tail=str(tail),
        body_nodes=len(first.graph),
        tail_nodes=len(second.graph),
        body_bytes=sizes[0],
        tail_bytes=sizes[1],
        sign=sign,
        between=tuple(between),
        foreign="" if foreign is None else operator_of(foreign),
    )


def nodes_before(graph: ir.Graph, at: Sequence[str]) -> set[ir.Node]:
    """Return the nodes that lead to these values. Raise UsageError for a place where no cut can be."""
    places = {name: _value_to_cut_at(graph, name) for name in at}
    before = {name: _leading_to(value) for name, value in places.items()}
    body = {node for nodes in before.values() for node in nodes}
    if all(value.producer() in body for value in graph.outputs):
        raise UsageError(f"--at '{at[0]}': nothing is computed after the cut, because the model ends there.")
    read = {value for node in graph if node not in body for value in read_values(node)}
    for name, value in places.items():
        if value in read:
            continue
        later = next((other for other in at if other != name and value.producer() in before[other]), None)
        if later is not None:
            raise UsageError(
                f"--at '{name}' leads to '{later}' and to nothing else: what is between the two would be both before "
                f"and after the cut. Leave '{name}' or '{later}' out."
            )
        raise UsageError(f"--at '{name}': nothing after the cut reads it.")
    if not any(is_trained(node) for node in body):
        raise UsageError(
            f"--at '{at[0]}': there is no layer before the cut, so there is nothing that can be quantized."
        )
    return body


def _value_to_cut_at(graph: ir.Graph, name: str) -> ir.Value:
    """Return the value of a name. Raise UsageError if there is none, or if no node computes it."""
    values = _by_name(graph)
    if name not in values:
        named = {str(node.name): node.outputs[0].name for node in graph if node.outputs}
        hint = f" The node of that name computes '{named[name]}'." if name in named else nearest(name, values)
        raise UsageError(f"--at '{name}': the model has no such value.{hint}")
    if values[name].producer() is None:
        kind = "an input" if values[name].is_graph_input() else "a constant"
        raise UsageError(f"--at '{name}' is {kind} of the model: nothing leads to it, so nothing is before the cut.")
    return values[name]


def _by_name(graph: ir.Graph) -> dict[str, ir.Value]:
    return {str(value.name): value for value in values_of(graph) if value.name}


def _names(named: Iterable[ir.Value | ir.Node]) -> list[str]:
    return [str(each.name) for each in named]


def divide(
    model: ir.Model, body: Collection[ir.Node], named: Sequence[str] = ()
) -> tuple[ir.Model, ir.Model, list[BetweenTensor]]:
    """Return body and tail as models, and the tensors between them; tensors that are not `named` are marked as added.

    `body` are the nodes of the first part; they read no result of any other node. The model stays as it is.
    """
    inside = set(body)
    rest = [node for node in model.graph if node not in inside]
    between = list(dict.fromkeys(value for node in rest for value in read_values(node) if value.producer() in inside))
    outputs = list(model.graph.outputs)
    of_body = [value for value in outputs if value.producer() is None or value.producer() in inside]
    of_tail = [value for value in outputs if value not in of_body]
    untyped = next((value for value in between if value.dtype is None), None)
    if untyped is not None:
        raise ModelError(
            f"The type of '{untyped.name}', where the model is cut, is not known: shape inference stopped before it. "
            "Give --fix-shape, or cut elsewhere."
        )
    first = _part(model, _names(inside), [], _names(dict.fromkeys([*between, *of_body])))
    second = _part(model, _names(rest), _names(between), _names(of_tail))
    for part in (first, second):
        part.metadata_props[OUTPUTS_KEY] = json.dumps(_names(outputs))
    return first, second, [_described(value, bool(named) and value.name not in named) for value in between]


def tail_file(output: Path) -> Path:
    """Return where the second part goes if the first is written to `output`."""
    return output.parent / f"{output.stem}_tail{output.suffix}"


def rename_rounded(model: ir.Model, rounded: Mapping[str, str]) -> None:
    """Give values between the parts the names that they have in the float model.

    `rounded` maps the name of each value to that of its rounded value; the two swap names.
    """
    values = _by_name(model.graph)
    for name, other in rounded.items():
        if name != other and name in values and other in values:
            values[name].name, values[other].name = other, name


def _leading_to(value: ir.Value) -> set[ir.Node]:
    found: set[ir.Node] = set()
    pending = [value.producer()]
    while pending:
        node = pending.pop()
        if node is not None and node not in found:
            found.add(node)
            pending += [each.producer() for each in read_values(node)]
    return found


def _past_quantization(graph: ir.Graph, name: str) -> str:
    """Return the name of the value behind a Q/DQ pair that alone reads this value; without one, the name itself."""
    readers = _by_name(graph)[name].consumers()
    if len(readers) == 1 and (quantize_family(readers[0]) or dequantize_family(readers[0])):
        return _past_quantization(graph, str(readers[0].outputs[0].name))
    return name


def _part(model: ir.Model, nodes: Iterable[str], inputs: Sequence[str], outputs: Iterable[str]) -> ir.Model:
    """Return a model of these nodes only; `inputs` are new graph inputs besides the original ones that it needs."""
    part = model.clone()
    graph, kept = part.graph, set(nodes)
    values = _by_name(graph)
    graph.outputs.clear()
    for name in inputs:
        old = values[name]
        new = ir.Value(name=name, type=old.type, shape=old.shape)
        old.replace_all_uses_with(new)
        graph.inputs.append(new)
        values[name] = new
    for node in reversed(list(graph)):
        if str(node.name) not in kept:
            graph.remove(node, safe=True)
    graph.outputs.extend(values[name] for name in outputs)
    common_passes.RemoveUnusedNodesPass()(part)
    common_passes.RemoveUnusedFunctionsPass()(part)  # type: ignore[no-untyped-call]
    for value in list(graph.initializers.values()):
        drop_if_unused(value)
    # An input that nothing reads stays with the body, so that the two parts take the inputs of the whole model.
    idle = {value.name for value in model.graph.inputs if not value.uses()} if not inputs else set()
    for value in list(graph.inputs):
        if not value.uses() and not value.is_graph_output() and value.name not in idle:
            graph.inputs.remove(value)
    return part


def _described(value: ir.Value, added: bool) -> BetweenTensor:
    shape = () if value.shape is None else tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return BetweenTensor(str(value.name), str(value.dtype), shape, added)


# -- both parts as one -------------------------------------------------------------------------------------------------


class Pipeline:
    """Two models that run as one: the second continues where the first ends.

    `inputs` and `outputs` are the names of the whole's inputs and outputs, `between` those of the tensors in between.
    """

    def __init__(self, body: PartLike, tail: PartLike, *, providers: Sequence[str] = DEFAULT_PROVIDERS) -> None:
        """Read both. Raise ModelError if the second does not continue the first."""
        self._files = [each if isinstance(each, onnx.ModelProto) else Path(each) for each in (body, tail)]
        self.name = " + ".join(name_of(each) for each in self._files)
        with guarded(*self._files):
            self._parts = [read(each) for each in self._files]
        self._providers = tuple(providers)
        first, second = (part.graph for part in self._parts)
        made = {str(value.name): value for value in first.outputs}
        taken = {str(value.name): value for value in second.inputs}
        self.between = [name for name in taken if name in made]
        for name in self.between:
            _check_same(made[name], taken[name], self.name)
        if not self.between:
            begins = next(iter(taken), "")
            raise ModelError(
                f"{self.name}: the second does not continue the first. It begins at '{begins}', which the first does "
                f"not give{nearest(begins, made) if taken else '.'}"
            )
        self.inputs = list(dict.fromkeys([*_names(first.inputs), *(name for name in taken if name not in made)]))
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
            except runtime_errors() as error:
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
    """Return whether one model reads only what the other gives or takes."""
    first, second = (read(each if isinstance(each, onnx.ModelProto) else Path(each)).graph for each in (body, tail))
    taken = {value.name for value in first.inputs}
    made = {value.name for value in first.outputs}
    return bool(second.inputs) and all(value.name in made | taken for value in second.inputs)


def _outputs(parts: Sequence[ir.Model], between: Sequence[str]) -> list[str]:
    """Return the outputs of the whole in their original order; if that is unknown, those of the tail come first."""
    first, last = (_names(part.graph.outputs) for part in parts)
    known = parts[1].metadata_props.get(OUTPUTS_KEY)
    try:
        listed = [] if known is None else [str(name) for name in parse_json(known)]
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
    """Rename values and nodes that have the same name in both parts, except inputs and the tensors in between."""
    ours, theirs = ({str(each.name) for each in (*values_of(graph), *graph) if each.name} for graph in (body, tail))
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
    """Move the tail into the body's graph."""
    graph, other = body.graph, tail.graph
    ends = {str(value.name): value for value in (*graph.outputs, *other.outputs)}
    known = {str(value.name): value for value in (*graph.inputs, *graph.outputs)}
    other.outputs.clear()  # a value that is a graph output cannot be moved
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
