"""Run a model section by section, so that what one section gives can be used, and given up, before the next one runs.

With every value of a network fetched, all of them are in memory at the end of a run: 180 MB for a detector at 640x640,
in each thread. Here the nodes are cut, in the order of computation, where the values fetched since the last cut are
more than some megabytes. Each section is a session of its own, and reads what earlier ones computed; the kernels and
the numbers are the same. What is fetched is also still in the cache when it is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

Arrays = dict[str, npt.NDArray[Any]]

BYTES = 8 << 20
"""Of values fetched in one section: less than a core's caches hold, and many times what starting a run costs."""


@dataclass(frozen=True)
class GraphSection:
    """A part of a model: what it reads of the feeds and of earlier sections, and what it gives.

    `passed` are those of its results that later sections read, and `spent` what none of these does.
    """

    model: onnx.ModelProto
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    passed: frozenset[str]
    spent: tuple[str, ...]


def cut(model: onnx.ModelProto, sizes: Mapping[str, int], most: int = BYTES) -> list[GraphSection]:
    """Return the sections of a model whose nodes are in the order of computation.

    `sizes` are the bytes of its outputs, as far as they are known; `most` how many a section may give. A model that
    cannot be cut, because the type of a value between two sections is unknown, is one section.
    """
    graph = model.graph
    groups = [] if graph.sparse_initializer else _grouped(graph.node, sizes, most)
    sections = _sections(model, groups) if len(groups) > 1 else None
    names = tuple(value.name for value in graph.output)
    inputs = tuple(value.name for value in graph.input)
    return sections or [GraphSection(model, inputs, names, frozenset(), ())]


def take_weights(model: onnx.ModelProto, folder: Path) -> Arrays:
    """Read the initializers that lie in files of `folder`; from then on the model only names them."""
    taken: Arrays = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry for entry in tensor.external_data}
            kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            path, offset = folder / entries["location"].value, int(entries["offset"].value)
            taken[tensor.name] = np.fromfile(path, kind, math.prod(tensor.dims), offset=offset).reshape(tensor.dims)
            # onnxruntime is given the numbers under the name of the tensor, and never looks for a file.
            entries["location"].value, entries["offset"].value = "in-memory", "0"
    return taken


def read_by(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """Return the names that nodes read, those in nested graphs included."""
    found: set[str] = set()
    for node in nodes:
        found.update(name for name in node.input if name)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                found |= read_by(graph.node) | {output.name for output in graph.output}
    return found


def _grouped(nodes: Sequence[onnx.NodeProto], sizes: Mapping[str, int], most: int) -> list[list[onnx.NodeProto]]:
    groups: list[list[onnx.NodeProto]] = [[]]
    held = 0
    for node in nodes:
        given = sum(sizes.get(name, 0) for name in node.output)
        if held and held + given > most:
            groups.append([])
            held = 0
        groups[-1].append(node)
        held += given
    return groups


def _sections(model: onnx.ModelProto, groups: Sequence[Sequence[onnx.NodeProto]]) -> list[GraphSection] | None:
    """Return a section for each group; None if a value that passes from one to another has no known type."""
    graph = model.graph
    kinds = _kinds(graph)
    reads = [read_by(group) for group in groups]
    wanted = {value.name for value in graph.output}
    before = {value.name for value in graph.input}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    sections = []
    for at, group in enumerate(groups):
        made = [name for node in group for name in node.output if name]
        later: set[str] = set().union(*reads[at + 1 :])
        # An output that is a constant is computed by no node: the first section gives it.
        given = [name for name in wanted if at == 0 and name in constants] + made
        inputs = sorted(reads[at] & before)
        outputs = [name for name in given if name in wanted or name in later]
        before.update(made)
        if any(name not in kinds for name in (*inputs, *outputs)):
            return None
        spent = tuple(sorted(before & set(kinds) - later))
        needed = [constants[name] for name in sorted(constants) if name in reads[at] or name in outputs]
        part = _part(model, group, needed, [(name, kinds[name]) for name in inputs], [(n, kinds[n]) for n in outputs])
        sections.append(GraphSection(part, tuple(inputs), tuple(outputs), frozenset(later.intersection(made)), spent))
    return sections


def _kinds(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the types of values. onnxruntime names none for those that it put in blocks, which are all floats."""
    values = (*graph.value_info, *graph.input, *graph.output)
    known = {value.name: value.type.tensor_type.elem_type for value in values}
    unnamed = (name for node in graph.node if node.op_type != "QuantizeLinear" for name in node.output if name)
    return {**dict.fromkeys(unnamed, onnx.TensorProto.FLOAT), **{name: kind for name, kind in known.items() if kind}}


def _part(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    constants: Sequence[onnx.TensorProto],
    inputs: Sequence[tuple[str, int]],
    outputs: Sequence[tuple[str, int]],
) -> onnx.ModelProto:
    part = onnx.ModelProto(ir_version=model.ir_version)
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    graph = part.graph
    graph.name = model.graph.name
    graph.node.extend(nodes)
    graph.initializer.extend(constants)
    graph.input.extend(onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in inputs)
    graph.output.extend(onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in outputs)
    return part


def run_in_turn(
    sections: Sequence[GraphSection],
    runs: Sequence[Any],
    feeds: Mapping[str, npt.NDArray[Any]],
    wanted: Collection[str],
) -> Iterator[Arrays]:
    """Yield what is wanted of each section. `runs` takes the inputs and the names of the outputs of one, and computes.

    A section that leads to nothing wanted is not run.
    """
    values, missing = dict(feeds), set(wanted)
    for section, run in zip(sections, runs, strict=True):
        if not missing:
            return
        names = [name for name in section.outputs if name in missing or name in section.passed]
        if not names:
            continue
        values.update(zip(names, run(names=names, feeds={name: values[name] for name in section.inputs}), strict=True))
        yield {name: values[name] for name in names if name in missing}
        missing.difference_update(names)
        for name in section.spent:
            values.pop(name, None)
