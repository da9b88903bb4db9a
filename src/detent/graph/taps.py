"""A model twice: with its values in order, and for whoever only counts them in the order in which they lie in memory.

onnxruntime computes convolutions in a layout of its own, channels in blocks of 8 or 16, and puts every value that is
fetched back in order with a ReorderOutput node. With all values of a network fetched, that takes as long as half of the
inference. A histogram does not mind the order. So onnxruntime's own rewrite of the model is written to a file; there,
each ReorderOutput that nothing but a fetch reads is taken out, and the fetch gets the blocked value; and the result is
loaded with no further optimization. It runs the same kernels on the same numbers.

Where the channels do not fill the last block, the blocked value has elements that the tensor has not: there the node
stays.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
from google.protobuf.message import DecodeError

from detent.errors import ModelError
from detent.graph.save import serialize, tensor_bytes
from detent.graph.session import DEFAULT_PROVIDERS, Feeds, Runner, open_session, session_options

BLOCKED = "com.microsoft.nchwc"
MOST_LANES = 16  # of a block, on any CPU; the others have 8 or 4
MOST_BYTES = 1 << 29  # of weights: beyond it, a second copy of them in memory costs more than the time is worth


class Taps(NamedTuple):
    """Two runners that fetch the same values. Those of `unordered` are in any order, and their shapes mean nothing."""

    ordered: Runner
    unordered: Runner


class UnorderedRunner(Runner):
    """Fetches values by the names that they have in the original, in the order in which they lie in memory."""

    def __init__(self, model: onnx.ModelProto, outputs: Sequence[str], blocked: Mapping[str, tuple[str, int]]) -> None:
        """Load a model that is optimized already. `blocked`: what stands for a value, and its number of channels."""
        options = session_options()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.outputs = list(outputs)
        self._blocked = dict(blocked)
        self._session = open_session(serialize(model), options)

    def __call__(
        self, feeds: Feeds, origin: str = "the given input", outputs: Sequence[str] | None = None
    ) -> list[npt.NDArray[Any]]:
        """The values for one set of inputs."""
        names = outputs or self.outputs
        plain = (None, 0)
        results = super().__call__(feeds, origin, [self._blocked.get(name, plain)[0] or name for name in names])
        for name, result in zip(names, results, strict=True):
            channels = self._blocked.get(name, plain)[1]
            if channels and result.shape[1] != channels:
                raise ModelError(
                    f"onnxruntime laid out tensor '{name}' with {result.shape[1]} channels instead of {channels}: this "
                    "version works in a way that Detent does not know. Please report it."
                )
        return results


def open_taps(model: ir.Model, outputs: Sequence[str], providers: Sequence[str] = DEFAULT_PROVIDERS) -> Taps:
    """Load `model` to fetch `outputs`. Where nothing can be gained, both runners are the same one."""
    if not _promising(model, providers):
        return _in_order(model, outputs, providers)
    try:
        with tempfile.TemporaryDirectory(prefix="detent-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "optimized.onnx"
            ordered = Runner(model, outputs, providers=providers, optimized=path)
            optimized = onnx.load(path)
    except (ModelError, OSError, DecodeError):
        # No room for the file, or an operator that cannot be written. If it is the model, this fails as well.
        return _in_order(model, outputs, providers)
    blocked = take_out_reorders(optimized, outputs)
    if not blocked:
        return Taps(ordered, ordered)
    try:
        return Taps(ordered, UnorderedRunner(optimized, outputs, blocked))
    except ModelError:
        return Taps(ordered, ordered)


def _in_order(model: ir.Model, outputs: Sequence[str], providers: Sequence[str]) -> Taps:
    runner = Runner(model, outputs, providers=providers)
    return Taps(runner, runner)


def _promising(model: ir.Model, providers: Sequence[str]) -> bool:
    """Whether the model may have blocked values, and is small enough to be loaded twice."""
    convolves = any(node.op_type == "Conv" for node in model.graph)
    return convolves and tuple(providers) == DEFAULT_PROVIDERS and tensor_bytes(model) <= MOST_BYTES


def take_out_reorders(model: onnx.ModelProto, outputs: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Let graph outputs be blocked values where they can, in place.

    Returns, for each name that is no graph output any more, the one that stands for it and its number of channels.
    """
    graph = model.graph
    readers = Counter(name for node in graph.node for name in node.input)
    producers = {name: node for node in graph.node for name in node.output}
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    fetched = {value.name: value for value in graph.output if value.name in set(outputs)}
    blocked: dict[str, tuple[str, int]] = {}
    taken: set[str] = set()  # two outputs cannot have one name
    kept = []
    for node in graph.node:
        name = node.output[0]
        if node.domain == BLOCKED and node.op_type == "ReorderOutput" and name in fetched and not readers[name]:
            channels = next((attribute.i for attribute in node.attribute if attribute.name == "channels"), 0)
            if node.input[0] not in taken and _fills_blocks(channels, producers.get(node.input[0]), shapes):
                taken.add(node.input[0])
                blocked[name] = (node.input[0], channels)
                fetched[name].name = node.input[0]
                fetched[name].type.tensor_type.ClearField("shape")
                continue
        kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    return blocked


def _fills_blocks(channels: int, producer: onnx.NodeProto | None, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether a blocked value of that many channels holds nothing else. A convolution's weight has a row for each."""
    if producer is not None and producer.domain == BLOCKED and producer.op_type == "Conv":
        return bool(channels) and shapes.get(producer.input[1], [0])[0] == channels
    return bool(channels) and channels % MOST_LANES == 0
