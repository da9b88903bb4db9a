"""One walk through the quantized model, all samples side by side, as the emitted file will compute it.

The quantized prefix of the model is never computed again: the activations that its nodes made and that later nodes read
are held on the *frontier*, and dropped after their last reader. Activations that have codes are held as codes, in a
quarter of the memory. Before a segment runs, a visitor may refine the layer in it.

A *segment* runs as one. Each node whose results have no codes and a single reader joins its reader's segment, and those
results stay inside. So a segment is a tree that ends in one node, and its inputs are computed by segments that end
earlier: segments can run in the order of their last nodes. A Conv and the Relu fused behind it are one segment.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from detent.errors import DataError
from detent.execute.code_tables import CodeTable, KnownFunctions, are_elementwise, every_code
from detent.graph.runtime import runtime_errors
from detent.graph.save import serialize
from detent.graph.session import (
    LARGE_MODEL,
    Feeds,
    first_line,
    initializers,
    open_session,
    read_as_they_are,
    segment_options,
    usable_cores,
    with_weights,
)
from detent.graph.values import captured_values, constant, is_constant, read_values
from detent.numerics.formats import Array, QuantParams, decode_activation, encode_activation, holds_integers
from detent.observe.samples import Sample
from detent.plan.layout import Role, site_inputs
from detent.plan.plan import Plan

Constants = Callable[[ir.Node, int], Any]  # the array that a node reads at a constant input


@dataclass(frozen=True, eq=False)
class Segment:
    """Nodes in order, the values that they read from outside, and their results that are read outside or have codes."""

    nodes: Sequence[ir.Node]
    inputs: Sequence[ir.Value]
    outputs: Sequence[ir.Value]

    @cached_property
    def read(self) -> list[str]:
        """The names of the inputs."""
        return [str(value.name) for value in self.inputs]

    @cached_property
    def made(self) -> list[str]:
        """The names of the outputs."""
        return [str(value.name) for value in self.outputs]


def cut_segments(model: ir.Model, sites: Collection[str]) -> list[Segment]:
    """Cut the main graph into segments, in an order in which they can run."""
    readers: dict[ir.Value, set[ir.Node]] = {}
    for node in model.graph:
        for value in read_values(node):
            readers.setdefault(value, set()).add(node)
    inside: dict[ir.Node, list[ir.Node]] = {}
    segments = []
    for node in model.graph:
        nodes = [*inside.pop(node, []), node]
        following = {reader for value in node.outputs for reader in readers.get(value, ())}
        if len(following) == 1 and not any(value.name in sites for value in node.outputs):
            inside.setdefault(following.pop(), []).extend(nodes)
            continue
        made = {value for member in nodes for value in member.outputs}
        read = dict.fromkeys(value for member in nodes for value in read_values(member))
        inputs = [value for value in read if value not in made and not is_constant(value)]
        outputs = [value for value in node.outputs if value.name in sites or value in readers]
        segments.append(Segment(nodes, inputs, outputs))
    return segments


def needed_segments(segments: Sequence[Segment], outputs: Collection[str]) -> list[Segment]:
    """Return the segments that the outputs depend on, with only those results that are needed."""
    needed, kept = set(outputs), []
    for segment in reversed(segments):
        results = [value for value in segment.outputs if value.name in needed]
        if results:
            kept.append(Segment(segment.nodes, segment.inputs, results))
            needed.update(segment.read)
    return kept[::-1]


def count_readers(segments: Iterable[Segment]) -> Counter[str]:
    """Return how many segments read each value."""
    return Counter(name for segment in segments for name in segment.read)


def read_last(segment: Segment, readers: Counter[str]) -> list[str]:
    """Subtract a segment from the readers of its inputs; return the inputs that no later segment reads."""
    readers.subtract(segment.read)
    return [name for name in segment.read if not readers[name]]


class Program:
    """Nodes that are ready to run on one sample after another, in any number of threads."""

    def __init__(
        self,
        model: ir.Model,
        nodes: Sequence[ir.Node],
        outputs: Sequence[ir.Value],
        like: Feeds,
        constants: Constants,
        *,
        copies: bool = True,
    ) -> None:
        """Load the nodes. `like` are example inputs, of which only the types matter.

        With `copies`, onnxruntime copies the weights into the order in which its kernels read them, which takes memory
        and saves time.
        """
        self._outputs = [str(value.name) for value in outputs]
        self._where = f"node '{nodes[-1].name}' ({nodes[-1].op_type})"
        arrays: dict[str, Array] = {}
        captured: dict[str, onnx.TensorProto] = {}
        protos = [_with_constants(node, constants, arrays, captured) for node in nodes]
        tensors, large = initializers(arrays)
        inputs = [_info(name, array) for name, array in like.items()]
        results = [onnx.ValueInfoProto(name=name) for name in self._outputs]
        graph = onnx.helper.make_graph(protos, "segment", inputs, results, [*tensors, *captured.values()])
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
        proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=max(model.ir_version, 4))
        options, shared = segment_options(), set[str]()
        if not copies or sum(array.nbytes for array in large.values()) >= LARGE_MODEL:
            options.add_session_config_entry("session.disable_prepacking", "1")
            shared = read_as_they_are((node.op_type, node.input) for node in protos) & set(large)
        self._in_use = with_weights(options, large, shared)
        self._session = open_session(serialize(proto), options)

    def __call__(self, feeds: Feeds, origin: str) -> list[Any]:
        """Return the outputs. Raises DataError, naming the node and the sample."""
        try:
            # NumPy's arithmetic turns arrays without axes into scalars, which onnxruntime does not take.
            arrays = {name: np.asarray(it) if isinstance(it, np.generic) else it for name, it in feeds.items()}
            results: list[Any] = self._session.run(self._outputs, arrays)
        except runtime_errors() as error:
            raise DataError(f"onnxruntime could not run {self._where} on {origin}: {first_line(str(error))}") from error
        return results


def _with_constants(
    node: ir.Node, constants: Constants, arrays: dict[str, Array], captured: dict[str, onnx.TensorProto]
) -> onnx.NodeProto:
    """Return the node with each constant under a name of its own: two readers may see different numbers of one.

    `arrays` takes the constants, and `captured` those that a body of the node reads from outside.
    """
    proto: onnx.NodeProto = ir.serde.serialize_node(node)
    for index, value in enumerate(node.inputs):
        if constant(value) is not None:  # an initializer, or a Constant node of a model that was not prepared
            name = f"{node.name}/{index}/constant"
            arrays[name] = np.asarray(constants(node, index))
            proto.input[index] = name
    # A body refers to a captured constant by its original name, even if the node also has it as an input.
    for value in captured_values(node):
        if is_constant(value) and value.const_value is not None:
            captured[str(value.name)] = ir.to_proto(value.const_value)
            captured[str(value.name)].name = str(value.name)
    return proto


def _info(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        first = value[0] if value else np.zeros(0, np.float32)
        return onnx.helper.make_tensor_sequence_value_info(name, _element_type(first), None)
    return onnx.helper.make_tensor_value_info(name, _element_type(value), None)


def _element_type(array: Any) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype))


Result = TypeVar("Result")
Visitor = Callable[[ir.Node], None]
Watcher = Callable[[str, "Frontier"], None]

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # the operators of layers: products with a weight


class ParameterSearch(Protocol):
    """Changes the parameters of values between their computation and their encoding."""

    @property
    def samples(self) -> int:
        """How many samples it looks at, from the first on."""

    def __call__(self, found: Mapping[str, Sequence[Array]], rest: Sequence[ir.Node]) -> None:
        """Set the parameters of the values in `found`, given for each sample. `rest` are the nodes to come."""


class Frontier:
    """Values by name, each with an entry for every sample.

    A value that is quantized to integers is held as codes. A function of another value's codes is looked up in a table.
    A value of another format is held rounded to it, and any other value as it is.
    """

    def __init__(self, plan: Plan, samples: int) -> None:
        self._sites = {site.value for site in plan.layout.of_role(Role.ACTIVATION)}
        self._params: dict[str, QuantParams] = {}  # of the values that are held as codes
        self._held: dict[str, list[Any]] = {}
        self._tables: dict[str, CodeTable] = {}  # of the values that are looked up
        self.samples = samples

    def put(self, name: str, sample: int, result: Any, plan: Plan) -> None:
        """Hold the value of one sample, encoded as planned."""
        entries = self._held.setdefault(name, [None] * self.samples)
        if name not in self._sites:
            entries[sample] = result
            return
        params = plan.of(name)
        if holds_integers(params):
            held = self._params.setdefault(name, params)
            entries[sample] = encode_activation(result, held, plan.layout.ties_of(name))
        else:
            entries[sample] = params.snap(result)

    def put_table(self, name: str, root: Sequence[Any], numbers: Array, plan: Plan) -> None:
        """Hold a value as a table: `numbers`, encoded as planned, are the values for each code of its root."""
        params = plan.of(name)
        assert holds_integers(params), f"'{name}' has codes"
        self._params[name] = params
        self._tables[name] = CodeTable(root, encode_activation(numbers, params, plan.layout.ties_of(name)))

    def functions_of_one(self, names: Sequence[str]) -> tuple[Sequence[Any], dict[str, Array]] | None:
        """Return the codes of the root that all these values share, and their numbers for each code of it.

        None if they share none, or if its codes have more than a byte.
        """
        tables = [self._tables.get(name) or self._root(name) for name in names]
        known = [table for table in tables if table is not None]
        if not known or len(known) < len(names) or any(table.root is not known[0].root for table in known):
            return None
        numbers = {
            name: decode_activation(table.codes, self._params[name]) for name, table in zip(names, known, strict=True)
        }
        return known[0].root, numbers

    def _root(self, name: str) -> CodeTable | None:
        """Return a value as a table of its own codes; None if it has no codes of one byte."""
        entries, params = self._held[name], self._params.get(name)
        if params is None or any(entry.dtype.itemsize > 1 for entry in entries):
            return None
        return CodeTable(entries, every_code(entries[0].dtype))

    def shape(self, name: str, sample: int) -> tuple[int, ...]:
        """Return the shape of a value."""
        table = self._tables.get(name)
        return tuple((self._held[name] if table is None else table.root)[sample].shape)

    def get(self, name: str, sample: int) -> Any:
        """Return the numbers that a node reads."""
        table, params = self._tables.get(name), self._params.get(name)
        if table is not None and params is not None:
            return table.decode(sample, params)
        entry = self._held[name][sample]
        return entry if params is None else decode_activation(entry, params)

    def stored(self, name: str, sample: int) -> tuple[Array, float, float]:
        """Return the codes, their scale and zero point; 1 and 0 for a value that has no codes."""
        table, params = self._tables.get(name), self._params.get(name)
        entry = self._held[name][sample] if table is None else table.look_up(sample)
        return (entry, 1.0, 0.0) if params is None else (entry, float(params.scale), float(params.zero_point))

    @property
    def names(self) -> list[str]:
        """The values that are held."""
        return [*self._held, *self._tables]

    @property
    def nbytes(self) -> int:
        """The memory of all arrays that are held, including the roots of tables."""
        held = [*self._held.values(), *(table.root for table in self._tables.values())]
        arrays = {id(entry): entry for entries in held for entry in entries if isinstance(entry, np.ndarray)}
        return sum(array.nbytes for array in arrays.values())

    def drop(self, name: str) -> None:
        """Forget a value that no later node reads."""
        for known in (self._held, self._tables, self._params):
            known.pop(name, None)


class QuantizedWalk:
    """The state of a walk: the plan that is simulated, and the frontier. Visitors and searches put in new plans."""

    def __init__(
        self, model: ir.Model, plan: Plan, origins: Sequence[str], threads: int = 0, watched: Collection[str] = ()
    ) -> None:
        """Cut `model` into segments. The values `watched` end a segment even if they have no codes."""
        self.model, self.plan = model, plan
        self._threads = threads or usable_cores()
        self.pool = ThreadPoolExecutor(self._threads)  # its threads end when the walk is no longer used
        self.frontier = Frontier(plan, len(origins))
        self.origins = origins
        self._functions = KnownFunctions()
        kept = {*watched, *(site.value for site in plan.layout.of_role(Role.ACTIVATION))}
        # A layer is refined on its inputs, so these end a segment even if only weights have codes.
        layers = (node for node in model.graph if node.op_type in PRODUCTS and plan.layout.quantizes(node))
        kept |= {str(value.name) for node in layers for value in node.inputs if value is not None}
        self.segments = cut_segments(model, kept)

    def start(self, index: int, sample: Sample) -> None:
        """Put in the inputs of one sample. An input with a default takes it if the sample has no data for it."""
        for value in self.model.graph.inputs:
            name = str(value.name)
            default = None if value.const_value is None else value.const_value.numpy()
            self.frontier.put(name, index, sample.feeds.get(name, default), self.plan)

    def run(
        self,
        visit: Visitor,
        watch: Watcher | None = None,
        search: ParameterSearch | None = None,
        wanted: Collection[str] | None = None,
    ) -> None:
        """Walk. `visit` is called with each node before it is computed, `watch` with each value after it is.

        `search` is called in between, before values are encoded. Only values that the `wanted` ones depend on are
        computed. Without `wanted`, all are if there is a watcher, else those that some node reads.
        """
        readers = count_readers(self.segments)
        needed = self._needed(set(readers) if wanted is None and watch is None else wanted)
        for number, segment in enumerate(self.segments, 1):
            for node in segment.nodes:
                visit(node)
            results = [value for value in segment.outputs if value.name in needed]
            if results and search is not None:
                self._search(segment, results, search, self.segments[number:])
            elif results and not self._look_up(segment, results):
                self._advance(self._program(segment.nodes, results, segment.read), results, ())
            if watch is not None:
                for value in results:
                    watch(str(value.name), self.frontier)
            for name in read_last(segment, readers):
                self.frontier.drop(name)

    def _search(
        self, segment: Segment, results: Sequence[ir.Value], search: ParameterSearch, later: Sequence[Segment]
    ) -> None:
        """Compute results, and let `search` change their parameters before they are encoded."""
        program = self._program(segment.nodes, results, segment.read)
        early = list(self.pool.map(program, range(min(search.samples, self.frontier.samples))))
        names = [str(value.name) for value in results]
        rest = [node for each in later for node in each.nodes]
        search(dict(zip(names, zip(*early, strict=True), strict=True)), rest)
        self._advance(program, results, early)

    def _needed(self, wanted: Collection[str] | None) -> set[str]:
        """Return the wanted results and those that they depend on; None wants all."""
        segments = self.segments if wanted is None else needed_segments(self.segments, wanted)
        return {name for segment in segments for name in segment.made}

    def expected_bytes(self, feeds: Mapping[str, Any]) -> int | None:
        """Return the most bytes that the frontier will hold for one sample with these inputs.

        None if some shape is only known after running.
        """
        sizes = _bound_sizes(self.model, feeds)
        readers = count_readers(self.segments)
        held = {str(value.name): self._held_bytes(value, sizes) for value in self.model.graph.inputs}
        most = 0
        for segment in self.segments:
            held |= {str(value.name): self._held_bytes(value, sizes) for value in segment.outputs}
            known = [each for each in held.values() if each is not None]
            if len(known) != len(held):
                return None
            most = max(most, sum(known))
            for name in read_last(segment, readers):
                held.pop(name, None)
        return most

    def _held_bytes(self, value: ir.Value, sizes: Mapping[str, int]) -> int | None:
        """Return the bytes of a value of one sample on the frontier; None if its shape is not known."""
        if value.shape is None or value.dtype is None:
            return None
        shape = [each if isinstance(each, int) else sizes.get(str(each.value)) for each in value.shape]
        if any(each is None for each in shape):
            return None
        width = value.dtype.numpy().itemsize
        if str(value.name) in self.plan.layout.sites and holds_integers(params := self.plan.of(str(value.name))):
            width = np.dtype(params.format.dtype).itemsize
        return width * math.prod(each for each in shape if each is not None)

    def over_outputs(self, node: ir.Node, task: Callable[[int, Array], Result]) -> list[Result]:
        """Return `task` of each sample and the node's first result, before any activation, with its present constants.

        The results themselves are not kept.
        """
        names = [str(value.name) for value in read_values(node) if not is_constant(value)]
        program = self._program([node], node.outputs[:1], names)
        return self.map(lambda sample: task(sample, program(sample)[0]))

    def map(self, task: Callable[[int], Result]) -> list[Result]:
        """Run a task for each sample, in all threads; results are in the order of the samples."""
        # Several samples at a time: for most tasks, submitting each one alone would take as long as the task.
        parts = 2 * self._threads
        ends = [self.frontier.samples * part // parts for part in range(parts + 1)]
        shares = self.pool.map(lambda part: [task(at) for at in range(ends[part], ends[part + 1])], range(parts))
        return [result for share in shares for result in share]

    def _advance(
        self, program: Callable[[int], Sequence[Any]], wanted: Sequence[ir.Value], early: Sequence[Sequence[Any]]
    ) -> None:
        """Put the results of all samples on the frontier; `early` are the results of the first ones, if known."""

        def step(sample: int) -> None:
            results = early[sample] if sample < len(early) else program(sample)
            for value, result in zip(wanted, results, strict=True):
                self.frontier.put(str(value.name), sample, result, self.plan)

        self.map(step)

    def _look_up(self, segment: Segment, results: Sequence[ir.Value]) -> bool:
        """Hold results as tables, if they are functions of the codes of one value; return whether they are."""
        names = segment.read
        coded = all(
            str(value.name) in self.plan.layout.sites and holds_integers(self.plan.of(str(value.name)))
            for value in results
        )
        found = self.frontier.functions_of_one(names) if coded and names else None
        if found is None or not are_elementwise(segment.nodes, len(self.frontier.shape(names[0], 0))):
            return False
        root, numbers = found

        def compute(feeds: Feeds) -> list[Any]:
            return Program(self.model, segment.nodes, results, feeds, self.constant)(feeds, "all codes")

        arrays = self._functions(segment.nodes, numbers, self.constant, results, compute)
        for value, array in zip(results, arrays, strict=True):
            self.frontier.put_table(str(value.name), root, array, self.plan)
        return True

    def _program(
        self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], names: Sequence[str]
    ) -> Callable[[int], list[Any]]:
        """Return the nodes as a function of the sample's number, reading `names` from the frontier."""
        program = Program(self.model, nodes, outputs, self.feeds(names, 0), self.constant)
        return lambda sample: program(self.feeds(names, sample), self.origins[sample])

    def feeds(self, names: Sequence[str], sample: int) -> Mapping[str, Any]:
        """Return the numbers of these values for one sample."""
        return {name: self.frontier.get(name, sample) for name in names}

    def constant(self, node: ir.Node, index: int) -> Any:
        """Return what a node of the emitted model reads at a constant input: encoded and decoded if it is quantized.

        Refined numbers replace those of the model.
        """
        value = node.inputs[index]
        array, name = constant(value), "" if value is None else str(value.name)
        site = self.plan.layout.sites.get(name)
        if array is None:
            return None
        if site is None:
            return self.plan.refined.get(name, array)
        if not self.plan.layout.quantizes(node) or index not in site_inputs(node):
            return array
        return self.plan.of(name).stored(self.plan.refined.get(name, array))


def _bound_sizes(model: ir.Model, feeds: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes that the names of open dimensions stand for, for one sample."""
    found: dict[str, int] = {}
    for value in model.graph.inputs:
        array = feeds.get(str(value.name))
        if array is None or value.shape is None:
            continue
        for dimension, size in zip(value.shape, np.shape(array), strict=False):
            if not isinstance(dimension, int) and dimension.value is not None:
                found[str(dimension.value)] = size
    return found
