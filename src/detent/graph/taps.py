"""Fetch inner values of a model, where possible in the memory layout that onnxruntime computes in.

onnxruntime computes convolutions in a blocked layout and reorders every value that is fetched. With all values of a
network fetched, that takes half as long as the inference itself. A histogram does not depend on the order, nor do sums
over two tensors in the same order. So onnxruntime's own rewrite of the model is written to a file, its reorders are
removed where possible, and the result is loaded with no further optimization. Where that gains nothing, the runners are
ordinary ones; where it fails, they are too, and that is told, because sums in another order differ in their last bits.

In the written model, convolutions compute with channels in blocks of 8 or 16. ReorderInput puts a value into blocks,
ReorderOutput puts it in order again; the operators between two convolutions that onnxruntime does not know in blocks
stand between the two. In a quantized model those are all quantizers, and reordering takes half as long as convolving:

    Conv > ReorderOutput > QuantizeLinear > DequantizeLinear > ReorderInput > Conv

But what computes each element by itself can do so in any order. The functions here edit the written model accordingly;
it runs the same kernels on the same numbers.

Where the channels do not fill the last block, a blocked value has elements that the tensor does not have: they may be
computed along, as no convolution takes notice of them, but not be fetched.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from detent.errors import DataError, ModelError
from detent.graph.runtime import onnxruntime
from detent.graph.save import serialize, tensor_bytes
from detent.graph.sections import cut, read_by, run_in_turn, take_weights
from detent.graph.session import (
    DEFAULT_PROVIDERS,
    Feeds,
    Runner,
    exact_options,
    open_session,
    return_memory,
    run_session,
    session_options,
    tell_fallback,
    with_weights,
)

BLOCKED = "com.microsoft.nchwc"
MOST_LANES = 16  # of a block, on any CPU; the others have 8 or 4
# What is carried into the blocked layout: the operators that stand between the convolutions of quantized models.
ELEMENTWISE = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "Add", "Mul", "Relu", "LeakyRelu", "Clip", "HardSigmoid"}
)


class BlockedValue(NamedTuple):
    """The name of a value in blocks, and how many channels it has in order."""

    name: str
    channels: int


def carry_blocks(model: onnx.ModelProto) -> None:
    """Let elementwise nodes between blocked values compute on these as they are, in place.

    Nodes are in the order of computation, as onnxruntime writes them.
    """
    graph = model.graph
    shapes = {value.name: value.type.tensor_type.shape for value in (*graph.value_info, *graph.input)}
    scalars = {tensor.name for tensor in graph.initializer if all(size == 1 for size in tensor.dims)}
    blocked: dict[str, BlockedValue] = {}
    renamed: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        if _is_reorder(node, "ReorderOutput"):
            blocked[node.output[0]] = BlockedValue(node.input[0], _channels(node))
        elif _is_reorder(node, "ReorderInput") and node.input[0] in blocked:
            renamed[node.output[0]] = blocked[node.input[0]].name
            continue
        elif _is_elementwise(node, blocked, scalars, shapes):
            twin, value = _in_blocks(node, blocked)
            blocked[node.output[0]] = value
            # Codes cannot be put in order: what needs them in order computes them from values in order.
            nodes += [twin, node if node.op_type == "QuantizeLinear" else _reorder(value, node.output[0])]
            continue
        nodes.append(node)
    _keep_needed(graph, nodes)


def fetchable_in_blocks(model: onnx.ModelProto, outputs: Sequence[str]) -> dict[str, BlockedValue]:
    """Return the graph outputs among `outputs` that are reordered from a blocked value which holds nothing else."""
    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output}
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    found: dict[str, BlockedValue] = {}
    taken: set[str] = set()  # two outputs cannot have one name
    for name in outputs:
        node = producers.get(name)
        if node is None or not (node.domain == BLOCKED and node.op_type == "ReorderOutput"):
            continue
        value = BlockedValue(node.input[0], _channels(node))
        if value.name not in taken and _fills_blocks(value.channels, producers.get(value.name), shapes):
            taken.add(value.name)
            found[name] = value
    return found


def fetch_in_blocks(model: onnx.ModelProto, values: Mapping[str, BlockedValue]) -> None:
    """Let graph outputs be the blocked values that stand for them, in place. Reorders that nothing reads go."""
    graph = model.graph
    for output in graph.output:
        if output.name in values:
            output.name = values[output.name].name
            output.type.tensor_type.ClearField("shape")
    _keep_needed(graph, list(graph.node))


def _is_reorder(node: onnx.NodeProto, op_type: str) -> bool:
    """Return whether it is the reorder between blocks and channels that come first."""
    channels_last = any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)
    return node.domain == BLOCKED and node.op_type == op_type and not channels_last


def _channels(node: onnx.NodeProto) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "channels"), 0)


def _is_elementwise(
    node: onnx.NodeProto,
    blocked: Mapping[str, BlockedValue],
    scalars: set[str],
    shapes: Mapping[str, onnx.TensorShapeProto],
) -> bool:
    """Return whether it computes each element from those at its place in blocked values, and from scalars."""
    tensors = [name for name in node.input if name and name not in scalars]
    return (
        node.domain != BLOCKED
        and node.op_type in ELEMENTWISE
        and len(node.output) == 1
        and len(tensors) > 0
        and all(name in blocked for name in tensors)
        and (len(tensors) == 1 or all(_known_equal(shapes, tensors[0], name) for name in tensors[1:]))
    )


def _known_equal(shapes: Mapping[str, onnx.TensorShapeProto], one: str, other: str) -> bool:
    """Return whether two values certainly have one shape: what is broadcast would be so along other axes in blocks."""
    first, second = shapes.get(one), shapes.get(other)
    if first is None or second is None or not first.dim:
        return False
    return all(dim.WhichOneof("value") for dim in first.dim) and list(first.dim) == list(second.dim)


def _in_blocks(node: onnx.NodeProto, blocked: Mapping[str, BlockedValue]) -> tuple[onnx.NodeProto, BlockedValue]:
    """Return the node on blocked values, and its result."""
    twin = onnx.NodeProto()
    twin.CopyFrom(node)
    twin.input[:] = [blocked[name].name if name in blocked else name for name in node.input]
    twin.output[:] = [f"{node.output[0]}_in_blocks"]
    twin.name = f"{node.name}_in_blocks"
    channels = next(blocked[name].channels for name in node.input if name in blocked)
    return twin, BlockedValue(twin.output[0], channels)


def _reorder(value: BlockedValue, result: str) -> onnx.NodeProto:
    return onnx.helper.make_node(
        "ReorderOutput", [value.name], [result], f"{result}_in_order", domain=BLOCKED, channels=value.channels
    )


def _keep_needed(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Let the graph consist of those `nodes` that lead to its outputs, in their order."""
    wanted = {output.name for output in graph.output}
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            wanted |= read_by([node])
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept[::-1])


def _fills_blocks(channels: int, producer: onnx.NodeProto | None, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Return whether a blocked value of that many channels holds nothing else. The weight has a row for each."""
    if producer is not None and producer.domain == BLOCKED and producer.op_type == "Conv":
        return bool(channels) and shapes.get(producer.input[1], [0])[0] == channels
    return bool(channels) and channels % MOST_LANES == 0


MOST_BYTES = 1 << 28  # of weights: beyond it, writing and loading them a second time costs more than it saves


class Rewritten(NamedTuple):
    """A model as onnxruntime rewrote it, and the large weights that it only names."""

    model: onnx.ModelProto
    weights: Mapping[str, npt.NDArray[Any]]


class Taps(NamedTuple):
    """Two runners that fetch the same values. Those of `unordered` are in any order, and their shapes mean nothing."""

    ordered: Runner
    unordered: Runner

    @property
    def lanes(self) -> dict[str, int]:
        """The values of `unordered` that are in blocks, and how many channels each block has; empty if unknown."""
        return self.ordered.lanes if isinstance(self.ordered, OrderedRunner) else {}


class Alike(NamedTuple):
    """Runners of several models, whose values of one name are in one order.

    `lanes`: those in blocks, which lie in memory as [N, C / lanes, H, W, lanes]. All others are in order.
    """

    runners: list[Runner]
    lanes: Mapping[str, int]


class _InParts(Runner):
    """A runner whose values come part by part."""

    def __call__(
        self, feeds: Feeds, origin: str = "the given input", outputs: Sequence[str] | None = None
    ) -> list[npt.NDArray[Any]]:
        """Return the values for one set of inputs."""
        found = {name: array for part in self.parts(feeds, origin, outputs) for name, array in part.items()}
        return [found[name] for name in outputs or self.outputs]


class UnorderedRunner(_InParts):
    """Fetches values by the names that they have in the original, in the order in which they lie in memory."""

    def __init__(
        self,
        model: onnx.ModelProto,
        outputs: Sequence[str],
        blocked: Mapping[str, BlockedValue],
        *,
        weights: Mapping[str, npt.NDArray[Any]] | None = None,
        exact: bool = False,
        otherwise: Runner | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Load a model that is optimized already. `blocked`: what stands for a value, and its number of channels.

        `otherwise` computes what onnxruntime cannot in this form. With the `sizes` of outputs in bytes, the model runs
        in sections: see `parts`. `weights` are those that `model` only names.
        """
        self.outputs = list(outputs)
        self._blocked = dict(blocked)
        self._otherwise = otherwise
        self._source_of = {self._name(name): name for name in self.outputs}
        named = {self._name(name): size for name, size in (sizes or {}).items()}
        self._sections = cut(model, named)
        self._sessions = [self._open(section.model, weights or {}, exact=exact) for section in self._sections]
        self._sections = [replace(section, model=onnx.ModelProto()) for section in self._sections]

    def _open(
        self, model: onnx.ModelProto, weights: Mapping[str, npt.NDArray[Any]], *, exact: bool
    ) -> onnxruntime.InferenceSession:
        options = exact_options() if exact else session_options()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        names = {tensor.name for tensor in model.graph.initializer}
        with_weights(options, {name: array for name, array in weights.items() if name in names})
        return open_session(serialize(model), options)

    def _name(self, name: str) -> str:
        """Return what a value is called in the optimized model."""
        return self._blocked[name].name if name in self._blocked else name

    def parts(
        self, feeds: Feeds, origin: str = "the given input", outputs: Sequence[str] | None = None
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield the values section by section."""
        missing = dict.fromkeys(outputs or self.outputs)
        runs = [partial(run_session, session, origin=origin) for session in self._sessions]
        try:
            for found in run_in_turn(self._sections, runs, feeds, [self._name(name) for name in missing]):
                part = {self._source_of[name]: array for name, array in found.items()}
                self._check_layout(part)
                for name in part:
                    missing.pop(name)
                del found
                yield part
        except DataError:
            if self._otherwise is None:
                raise
            yield from self._otherwise.parts(feeds, origin, list(missing))

    def in_blocks(self, name: str) -> bool:
        """Return whether a value is fetched in blocks."""
        return name in self._blocked

    def _check_layout(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        for name, result in values.items():
            channels = self._blocked[name].channels if name in self._blocked else 0
            if channels and result.shape[1] != channels:
                raise ModelError(
                    f"onnxruntime laid out tensor '{name}' with {result.shape[1]} channels instead of {channels}: this "
                    "version works in a way that Detent does not know. Please report it."
                )


class OrderedRunner(_InParts):
    """Fetches the values of an unordered runner, and puts them in order. `lanes`: those in blocks."""

    def __init__(self, unordered: UnorderedRunner, lanes: int) -> None:
        """`lanes` is how many channels a block has."""
        self.outputs = unordered.outputs
        self.lanes = {name: lanes for name in unordered.outputs if unordered.in_blocks(name)}
        self._unordered = unordered

    def parts(
        self, feeds: Feeds, origin: str = "the given input", outputs: Sequence[str] | None = None
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield the values section by section."""
        for part in self._unordered.parts(feeds, origin, outputs):
            yield {name: in_order(array, self.lanes.get(name, 1)) for name, array in part.items()}


def in_order(array: npt.NDArray[Any], lanes: int) -> npt.NDArray[Any]:
    """Return an array that lies in memory as [N, C / lanes, H, W, lanes] in the order of its shape."""
    if lanes == 1:
        return array
    n, channels, *area = array.shape
    blocks = array.reshape(n, channels // lanes, *area, lanes)
    return np.ascontiguousarray(np.moveaxis(blocks, -1, 2)).reshape(array.shape)


class LaterRunner(Runner):
    """Opens the model when it is first run."""

    def __init__(self, opening: Callable[[], Runner], outputs: Sequence[str]) -> None:
        self.outputs = list(outputs)
        self._opening, self._lock = opening, Lock()
        self._opened: Runner | None = None

    def __call__(
        self, feeds: Feeds, origin: str = "the given input", outputs: Sequence[str] | None = None
    ) -> list[npt.NDArray[Any]]:
        """Return the values for one set of inputs."""
        with self._lock:
            if self._opened is None:
                self._opened = self._opening()
        return self._opened(feeds, origin, outputs)


def open_taps(model: ir.Model, outputs: Sequence[str], providers: Sequence[str] = DEFAULT_PROVIDERS) -> Taps:
    """Load `model` to fetch `outputs`, in order and in any order."""
    found = _open_unordered(model, outputs, providers)
    lanes = block_lanes() if isinstance(found, UnorderedRunner) else 0
    if lanes and isinstance(found, UnorderedRunner):
        return Taps(OrderedRunner(found, lanes), found)
    ordered = Runner(model, outputs, providers=providers) if isinstance(found, UnorderedRunner) else found
    return Taps(ordered, found)


def _open_unordered(model: ir.Model, outputs: Sequence[str], providers: Sequence[str]) -> Runner:
    """Return a runner that fetches values in any order; an ordinary one where there are no blocks."""
    runner, rewritten = _optimize(model, outputs, providers, exact=False)
    blocked = {} if rewritten is None else fetchable_in_blocks(rewritten.model, outputs)
    if rewritten is None or not blocked:
        return runner
    del runner  # which has all weights a second time
    ordinary = partial(Runner, model, outputs, providers=providers)
    sizes, later = _sizes(model, outputs), LaterRunner(ordinary, outputs)
    found = _reload(rewritten, blocked, outputs, exact=False, otherwise=later, sizes=sizes) or ordinary()
    del rewritten
    return_memory(collect=False)
    return found


def _sizes(model: ir.Model, names: Sequence[str]) -> dict[str, int]:
    """Return the bytes of values; of an open dimension, as if it were 1."""
    wanted = set(names)
    shapes = {str(value.name): value.shape for node in model.graph for value in node.outputs if value.name in wanted}
    return {
        name: 4 * math.prod(size if isinstance(size, int) else 1 for size in shape)
        for name, shape in shapes.items()
        if shape is not None
    }


def open_exact(
    model: ir.Model, outputs: Sequence[str] | None = None, providers: Sequence[str] = DEFAULT_PROVIDERS
) -> Runner:
    """Load a quantized `model` to fetch `outputs` in order, in exact arithmetic: for many samples.

    It takes longer to load than Runner(exact=True), and then up to a third less for each sample.
    """
    runner, rewritten = _optimize(model, outputs, providers, exact=True)
    if rewritten is None:
        return runner
    return _reload(rewritten, {}, runner.outputs, exact=True, otherwise=runner) or runner


def open_alike(
    models: Sequence[ir.Model],
    names: Sequence[str],
    outputs: Sequence[str],
    providers: Sequence[str] = DEFAULT_PROVIDERS,
) -> Alike:
    """Load several models to fetch `outputs` in exact arithmetic: each value in any order, but the same in all models.

    Those of one shape can be compared element by element. An error begins with the name of its model. No model may be
    given twice: they load at the same time.
    """

    def optimize(model: ir.Model, name: str) -> tuple[Runner, Rewritten | None]:
        try:
            return _optimize(model, outputs, providers, exact=True)
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from error

    with ThreadPoolExecutor(len(models)) as pool:
        loaded = list(pool.map(optimize, models, names))
        ordered = [runner for runner, _ in loaded]
        rewritten = [model for _, model in loaded if model is not None]
        if len(rewritten) < len(models):
            return Alike(ordered, {})
        found = [fetchable_in_blocks(each.model, outputs) for each in rewritten]
        lanes = block_lanes()
        common = set.intersection(*(set(values) for values in found)) if lanes else set()
        blocked = [{name: values[name] for name in common} for values in found]
        runners = list(pool.map(partial(_reload, outputs=outputs, exact=True), rewritten, blocked))
    if None in runners:
        return Alike(ordered, {})
    return Alike([runner for runner in runners if runner is not None], dict.fromkeys(common, lanes))


def _optimize(
    model: ir.Model, outputs: Sequence[str] | None, providers: Sequence[str], *, exact: bool
) -> tuple[Runner, Rewritten | None]:
    """Return an ordinary runner and, if it may help, onnxruntime's rewritten model with all in blocks that can be."""
    ordinary = partial(Runner, model, outputs, exact=exact, providers=providers)
    if not _promising(model, providers):
        return ordinary(), None
    try:
        with tempfile.TemporaryDirectory(prefix="detent-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "optimized.onnx"
            runner = ordinary(optimized=path)
            rewritten = onnx.load(path, load_external_data=False)
            weights = take_weights(rewritten, path.parent)
    except (ModelError, OSError, DecodeError) as error:
        # No room for the file, or an operator that cannot be written. If it is the model, this fails as well.
        runner = ordinary()
        tell_fallback(f"onnxruntime's own form of the model could not be had ({error}: is there room for it?)")
        return runner, None
    carry_blocks(rewritten)
    return runner, Rewritten(rewritten, weights)


def _reload(
    rewritten: Rewritten,
    blocked: Mapping[str, BlockedValue],
    outputs: Sequence[str],
    *,
    exact: bool,
    otherwise: Runner | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Runner | None:
    """Return a runner on a rewritten model that fetches the `blocked` values as they are; None if it does not load."""
    model, weights = rewritten
    fetch_in_blocks(model, blocked)
    try:
        return UnorderedRunner(model, outputs, blocked, weights=weights, exact=exact, otherwise=otherwise, sizes=sizes)
    except ModelError as error:
        tell_fallback(f"onnxruntime's own form of the model does not load ({error})")
        return None


@cache
def block_lanes() -> int:
    """Return how many channels a block has on this CPU; 0 if unknown.

    Seen in a convolution whose channels are all 1 at the first of two positions and 2 at the second.
    """
    channels = 2 * MOST_LANES
    weight = numpy_helper.from_array(np.ones((channels, 1, 1, 1), np.float32), "w")
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, size, 1, 2])
        for name, size in (("x", 1), ("y", channels))
    )
    graph = onnx.helper.make_graph([onnx.helper.make_node("Conv", ["x", "w"], ["y"])], "lanes", [x], [y], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    runner = _open_unordered(ir.from_proto(model), ["y"], DEFAULT_PROVIDERS)
    values = runner({"x": np.array([[[[1, 2]]]], np.float32)})[0].reshape(-1)
    lanes = int(np.argmax(values == 2))
    blocks = np.tile(np.repeat(np.array([1, 2], np.float32), lanes), channels // max(lanes, 1))
    return lanes if isinstance(runner, UnorderedRunner) and np.array_equal(values, blocks) else 0


def _promising(model: ir.Model, providers: Sequence[str]) -> bool:
    """Return whether the model may have blocked values, and is small enough to be loaded twice."""
    convolves = any(node.op_type == "Conv" for node in model.graph)
    return convolves and tuple(providers) == DEFAULT_PROVIDERS and tensor_bytes(model) <= MOST_BYTES
